package api

// Dialect says which request and response shapes a path speaks.
type Dialect uint8

const (
	// OpenAIChat is POST /v1/chat/completions.
	OpenAIChat Dialect = iota
	// OpenAICompletions is POST /v1/completions.
	OpenAICompletions

	numDialects
)

// A dialect is all that differs between two Dialects. Adding one is a file with such a value and a line in dialects.
type dialect struct {
	name string
	path string
	// reads says which top-level keys of a request mean something in this dialect; all others are skipped unread.
	reads fieldSet
	// appendError appends the JSON body of an error answer.
	appendError func(dst []byte, e *Error) []byte
	// appendErrorEvent appends the server-sent event that ends a stream that went wrong, its blank line included.
	appendErrorEvent func(dst []byte, e *Error) []byte
	// watch says what a key of a response means; see document.
	watch func(in place, key []byte) meaning
}

var dialects = [numDialects]*dialect{
	OpenAIChat:        &openAIChat,
	OpenAICompletions: &openAICompletions,
}

// String returns the dialect's name as it stands in metrics and logs.
func (d Dialect) String() string { return dialects[d].name }

// Path returns the path that speaks the dialect, on our side and on the engine's.
func (d Dialect) Path() string { return dialects[d].path }

// AppendError appends the JSON body of the answer that tells e.
func (d Dialect) AppendError(dst []byte, e *Error) []byte { return dialects[d].appendError(dst, e) }

// AppendErrorEvent appends the server-sent event that tells e to a client whose stream has already begun.
func (d Dialect) AppendErrorEvent(dst []byte, e *Error) []byte {
	return dialects[d].appendErrorEvent(dst, e)
}
