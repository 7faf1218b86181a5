package api

// Dialect is the form of requests and responses at one API path, or at a few paths that engines answer alike.
type Dialect uint8

const (
	// OpenAIChat is POST /v1/chat/completions.
	OpenAIChat Dialect = iota
	// OpenAICompletions is POST /v1/completions.
	OpenAICompletions
	// OpenAIResponses is POST /v1/responses.
	OpenAIResponses
	// OpenAIResponse is everything below /v1/responses/: a response that an engine made and keeps.
	OpenAIResponse
	// OpenAIEmbeddings is POST /v1/embeddings.
	OpenAIEmbeddings
	// OpenAIAudio is POST /v1/audio/…. Its answers are forwarded as they come, whatever they contain.
	OpenAIAudio
	// OpenAIImages is POST /v1/images/…. Its answers are forwarded as they come, whatever they contain.
	OpenAIImages
	// AnthropicMessages is POST /v1/messages.
	AnthropicMessages
	// AnthropicCountTokens is POST /v1/messages/count_tokens.
	AnthropicCountTokens
	// SGLangGenerate is POST /generate, SGLang's own form of a completion.
	SGLangGenerate
	// Rerank is POST /v1/rerank, /rerank and /v2/rerank.
	Rerank
	// Score is POST /v1/score and /score.
	Score
	// Classify is POST /v1/classify and /classify.
	Classify
	// Tokenize is POST /tokenize and /v1/tokenize.
	Tokenize
	// Detokenize is POST /detokenize and /v1/detokenize.
	Detokenize

	numDialects
)

// A dialect holds everything in which one Dialect differs from another. A new Dialect needs a file with such a value
// and a line in dialects.
type dialect struct {
	name string
	path string
	// reads are the top-level keys of a request that this dialect reads. All other keys are skipped.
	reads fieldSet
	// sized are the fields whose values are the prompt. Their length stands for the prompt's size while its tokens are
	// not known.
	sized fieldSet
	// matched says that the router finds the token ids of the prompt and compares them with the caches of workers. The
	// requests of other dialects are routed by load.
	matched bool
	// appendError appends the JSON body of an error answer.
	appendError func(dst []byte, e *Error) []byte
	// appendErrorEvent appends the server-sent event that ends a failed stream, including its blank line. If it is nil,
	// the dialect has no streams.
	appendErrorEvent func(dst []byte, e *Error) []byte

	// ends says by what a complete answer is recognized.
	ends ending
	// watch returns the meaning of a key in a place of a response; see document.
	watch func(in place, key []byte) meaning
	// kinds returns what the value of a key with the meaning isKind says about the answer; nil if no key has this
	// meaning.
	kinds func(value []byte) kind
	// root is the place of a document's outermost object; atRoot unless the object itself is a choice.
	root place
	// lists says that the outermost value of an answer may also be an array.
	lists bool
	// split says that the usage counts the cached part of a prompt apart from the rest.
	split bool
}

// ending says by what a complete answer is recognized.
type ending uint8

const (
	byChoices ending = iota // each choice has its finish_reason
	byKind                  // a document came whose kind is endsAnswer; an answer in one piece is a whole document
	byShape                 // the answer is one whole document with the key that the dialect's answers have
	byFraming               // nothing is checked: the answer is complete when its framing says so
)

var dialects = [numDialects]*dialect{
	OpenAIChat:           &openAIChat,
	OpenAICompletions:    &openAICompletions,
	OpenAIResponses:      &openAIResponses,
	OpenAIResponse:       &openAIResponse,
	OpenAIEmbeddings:     &openAIEmbeddings,
	OpenAIAudio:          &openAIAudio,
	OpenAIImages:         &openAIImages,
	AnthropicMessages:    &anthropicMessages,
	AnthropicCountTokens: &anthropicCountTokens,
	SGLangGenerate:       &sglangGenerate,
	Rerank:               &rerank,
	Score:                &score,
	Classify:             &classify,
	Tokenize:             &tokenize,
	Detokenize:           &detokenize,
}

// String returns the dialect's name in metrics and logs.
func (d Dialect) String() string { return dialects[d].name }

// Path returns the path of the dialect, which is the same at the router and at engines. If the dialect has several
// paths, it is the first one.
func (d Dialect) Path() string { return dialects[d].path }

// Matched reports whether the prompts of the dialect are compared with the caches of workers. The requests of other
// dialects are routed by load alone.
func (d Dialect) Matched() bool { return dialects[d].matched }

// Unchecked reports whether answers of the dialect are forwarded as they come, whatever they contain. Such an answer is
// complete when its framing says so.
func (d Dialect) Unchecked() bool { return dialects[d].ends == byFraming }

// Generates reports whether an engine generates tokens for a request of the dialect.
func (d Dialect) Generates() bool { return dialects[d].ends == byChoices || dialects[d].ends == byKind }

// Text returns the field in which a request of the dialect has a prompt that no chat template changes: prompt, or text
// at /generate. It returns the same field for dialects without such prompts.
func (d Dialect) Text() Field {
	if d == SGLangGenerate {
		return FieldText
	}
	return FieldPrompt
}

// AppendError appends the JSON body of the error answer e.
func (d Dialect) AppendError(dst []byte, e *Error) []byte { return dialects[d].appendError(dst, e) }

// AppendErrorEvent appends the server-sent event of e, for a stream that has already begun.
func (d Dialect) AppendErrorEvent(dst []byte, e *Error) []byte {
	if dialects[d].appendErrorEvent == nil {
		return appendOpenAIErrorEvent(dst, e)
	}
	return dialects[d].appendErrorEvent(dst, e)
}
