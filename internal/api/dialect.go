package api

// Dialect is the form of requests and responses at one API path.
type Dialect uint8

const (
	// OpenAIChat is POST /v1/chat/completions.
	OpenAIChat Dialect = iota
	// OpenAICompletions is POST /v1/completions.
	OpenAICompletions

	numDialects
)

// A dialect holds everything in which one Dialect differs from another. A new Dialect needs a file with such a value
// and a line in dialects.
type dialect struct {
	name string
	path string
	// reads are the top-level keys of a request that this dialect reads. All other keys are skipped.
	reads fieldSet
	// appendError appends the JSON body of an error answer.
	appendError func(dst []byte, e *Error) []byte
	// appendErrorEvent appends the server-sent event that ends a failed stream, including its blank line.
	appendErrorEvent func(dst []byte, e *Error) []byte
	// watch returns the meaning of a key in a place of a response; see document.
	watch func(in place, key []byte) meaning
}

var dialects = [numDialects]*dialect{
	OpenAIChat:        &openAIChat,
	OpenAICompletions: &openAICompletions,
}

// String returns the dialect's name in metrics and logs.
func (d Dialect) String() string { return dialects[d].name }

// Path returns the path of the dialect, which is the same at the router and at engines.
func (d Dialect) Path() string { return dialects[d].path }

// AppendError appends the JSON body of the error answer e.
func (d Dialect) AppendError(dst []byte, e *Error) []byte { return dialects[d].appendError(dst, e) }

// AppendErrorEvent appends the server-sent event of e, for a stream that has already begun.
func (d Dialect) AppendErrorEvent(dst []byte, e *Error) []byte {
	return dialects[d].appendErrorEvent(dst, e)
}
