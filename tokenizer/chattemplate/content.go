package chattemplate

// ContentFormat is what a template expects as a message's content.
type ContentFormat uint8

const (
	// FormatString templates want one text.
	FormatString ContentFormat = iota
	// FormatOpenAI templates want the list of parts as OpenAI's API has it.
	FormatOpenAI
)

func (f ContentFormat) String() string {
	if f == FormatOpenAI {
		return "openai"
	}
	return "string"
}

func detectContentFormat([]stmt) ContentFormat { return FormatString }
