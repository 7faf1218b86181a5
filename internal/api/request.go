package api

import "github.com/warmpath/warmpath/internal/jsonscan"

// PromptForm says in which shape a request gives its prompt.
type PromptForm uint8

const (
	// PromptNone: the request names no prompt that we know; it is for the engine to refuse it.
	PromptNone PromptForm = iota
	// PromptMessages: a list of chat messages, in Raw(FieldMessages).
	PromptMessages
	// PromptText: one text, in Raw(FieldPrompt).
	PromptText
	// PromptTexts: a list of texts, in Raw(FieldPrompt).
	PromptTexts
	// PromptIDs: one list of token ids, in IDs. In a chat request these are SGLang's input_ids, which vLLM ignores
	// without a word; the messages, when given too, are still in Raw(FieldMessages).
	PromptIDs
	// PromptIDLists: a list of lists of token ids: Lists in IDs.
	PromptIDLists
)

// String returns the form's name as it stands in logs.
func (f PromptForm) String() string {
	return [...]string{"none", "messages", "text", "texts", "ids", "id lists"}[f]
}

// Request is what routing needs to know of a request body. The zero value is ready for Read, and a Request is meant to
// be pooled: reading again reuses its buffers. It is not safe for concurrent use. Strings stay valid for ever, Raw and
// IDs until the next Read and as long as the body is not changed.
type Request struct {
	Dialect Dialect
	Model   string // empty when the request names none
	Stream  bool
	// IncludeUsage is stream_options.include_usage: the client asked for a last chunk with the usage.
	IncludeUsage bool

	Form PromptForm
	// IDs holds the prompt's token ids, one list after the other, when Form is PromptIDs or PromptIDLists.
	IDs []uint32
	// ends[i] is where list i ends in IDs.
	ends []int
	// Prompts is the number of prompts in the request: above one only for a list of texts or of id lists.
	Prompts int

	// Multimodal: a part of the prompt is not plain text, so that token ids alone do not tell prefixes apart.
	Multimodal bool
	// Tools: the request offers tools.
	Tools bool

	CacheSalt string // vLLM's and SGLang's cache_salt
	ExtraKey  string // SGLang's extra_key
	// MixedScopes: cache_salt or extra_key is a list with one entry for each prompt (SGLang), or is too long to be
	// kept. Then both fields are empty, and no match may be claimed.
	MixedScopes bool
	RequestID   string // rid (SGLang) or request_id (vLLM) of the body
	User        string
	// SessionID is the body's session_id (vLLM), PromptCacheKey OpenAI's prompt_cache_key: what a client calls a session.
	SessionID      string
	PromptCacheKey string
	// userID and sessionParams are no engine's fields: they are read where they are texts, and pass where they are not.
	userID, sessionParams string

	// MaxTokens is max_completion_tokens, else max_tokens; 0 when neither is given.
	MaxTokens int
	// LongestAnswer is the greater of the two, 0 when neither is given: engines differ in which of them they heed.
	LongestAnswer int
	// N is the number of choices asked for, 1 when not given.
	N int
	// Priority is 0 when not given.
	Priority int
	// Rank is routed_dp_rank or data_parallel_rank, -1 when not given. SGLang honours it, vLLM ignores it in the body.
	Rank int

	body  []byte
	spans [numFields]span
	text  []byte // scratch for unescaped strings

	members     [maxMembers]member
	membersSeen int // may be more than are kept
}

// maxMembers is how many top-level members of a body a Request remembers: no engine takes more parameters, and a body of
// millions must not cost memory for each.
const maxMembers = 64

type member struct{ name, value span }

// TooManyMembers reports whether the body has more top-level members than any engine takes (64).
func (r *Request) TooManyMembers() bool { return r.membersSeen > len(r.members) }

// Members calls yield with the top-level members of the body, as they are spelled and in their order: the name without its
// quotes and the value. It is an iterator: range over r.Members. Of TooManyMembers it reads the body again.
func (r *Request) Members(yield func(name, value []byte) bool) {
	if r.TooManyMembers() {
		jsonscan.Members(r.body)(yield)
		return
	}
	for _, m := range r.members[:r.membersSeen] {
		if !yield(r.body[m.name.start:m.name.end:m.name.end], r.body[m.value.start:m.value.end:m.value.end]) {
			return
		}
	}
}

// Raw returns the value of field f as it stands in the body, nil when it is absent.
func (r *Request) Raw(f Field) []byte {
	s := r.spans[f]
	if s.end == 0 {
		return nil
	}
	return r.body[s.start:s.end:s.end]
}

// Offsets returns where the value of field f lies in the body: body[start:end]. Both are 0 when it is absent.
func (r *Request) Offsets(f Field) (start, end int) {
	return r.spans[f].start, r.spans[f].end
}

// Lists returns the number of token id lists in IDs.
func (r *Request) Lists() int { return len(r.ends) }

// List returns the token ids of list i.
func (r *Request) List(i int) []uint32 {
	start := 0
	if i > 0 {
		start = r.ends[i-1]
	}
	return r.IDs[start:r.ends[i]]
}

// Session returns what the body names as its session in field f: session_id, prompt_cache_key, user, user_id or
// session_params (its session_id, else its id, as SGLang calls it); empty when it is absent, or f is another field.
func (r *Request) Session(f Field) string {
	switch f {
	case FieldSessionID:
		return r.SessionID
	case FieldPromptCacheKey:
		return r.PromptCacheKey
	case FieldUser:
		return r.User
	case FieldUserID:
		return r.userID
	case FieldSessionParams:
		return r.sessionParams
	}
	return ""
}

// SessionField returns the field of that name if Session knows it.
func SessionField(name string) (f Field, ok bool) {
	switch f := fieldOf([]byte(name)); f {
	case FieldSessionID, FieldPromptCacheKey, FieldUser, FieldUserID, FieldSessionParams:
		return f, true
	}
	return noField, false
}

// PromptBytes returns the length of the prompt's JSON, the measure of a request whose tokens are not known.
func (r *Request) PromptBytes() int {
	n := 0
	for _, f := range [...]Field{FieldMessages, FieldPrompt, FieldInputIDs, FieldTools} {
		n += r.spans[f].end - r.spans[f].start
	}
	return n
}

// Body returns the bytes that Read was given.
func (r *Request) Body() []byte { return r.body }
