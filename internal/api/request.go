package api

import (
	"math/bits"

	"github.com/warmpath/warmpath/internal/jsonscan"
)

// PromptForm is the form of a request's prompt.
type PromptForm uint8

const (
	// PromptNone: the request has no prompt of a known form. It may have prompt_embeds.
	PromptNone PromptForm = iota
	// PromptMessages: a list of chat messages, in Raw(FieldMessages).
	PromptMessages
	// PromptText: one text, in Raw(FieldPrompt).
	PromptText
	// PromptTexts: a list of texts, in Raw(FieldPrompt).
	PromptTexts
	// PromptIDs: one list of token ids, in IDs. In a chat request these are SGLang's input_ids, which vLLM silently
	// ignores. Such a request may also have messages, in Raw(FieldMessages).
	PromptIDs
	// PromptIDLists: a list of lists of token ids. IDs has the ids, and Lists returns the number of lists.
	PromptIDLists
)

// String returns the form's name in logs.
func (f PromptForm) String() string {
	return [...]string{"none", "messages", "text", "texts", "ids", "id lists"}[f]
}

// Request is the part of a request body that routing needs. The zero value is ready for Read. Keep Requests in a pool,
// because Read reuses their buffers. A Request is not safe for concurrent use. Its strings stay valid without limit.
// Raw and IDs are valid until the next Read, and only as long as the body is not changed.
type Request struct {
	Dialect Dialect
	Model   string // empty when the request names none
	Stream  bool
	// IncludeUsage is stream_options.include_usage: the client wants a last chunk with the usage.
	IncludeUsage bool

	Form PromptForm
	// IDs holds the prompt's token ids, one list after the other, when Form is PromptIDs or PromptIDLists.
	IDs []uint32
	// ends[i] is the end of list i in IDs.
	ends []int
	// Prompts is the number of prompts in the request. It is above one only for a list of texts or a list of id lists.
	Prompts int

	// Multimodal: a part of the prompt is not plain text, so two prompts can differ although their token ids are equal.
	Multimodal bool
	// Tools: the request offers tools.
	Tools bool

	CacheSalt string // vLLM's and SGLang's cache_salt
	ExtraKey  string // SGLang's extra_key
	// MixedScopes: cache_salt or extra_key is a list with one entry for each prompt (SGLang), or is too long to be
	// kept. Then CacheSalt or ExtraKey is empty, and the prompts must not be matched with cached blocks: the prompts
	// would match blocks of other requests.
	MixedScopes bool
	RequestID   string // rid (SGLang) or request_id (vLLM) of the body
	User        string
	// SessionID is the body's session_id (vLLM), PromptCacheKey is OpenAI's prompt_cache_key. Both name a client's
	// session.
	SessionID      string
	PromptCacheKey string
	// PreviousResponseID is the response that a request to /v1/responses continues.
	PreviousResponseID string
	// Bytes: the answer will not be JSON, because encoding_format asks for the bytes of the vectors.
	Bytes bool
	// userID is the body's user_id, or metadata.user_id in Anthropic's form. sessionParams is session_params.session_id
	// or session_params.id. A value of another type is ignored, and the request is not refused.
	userID, sessionParams string

	// MaxTokens is max_completion_tokens, or else max_tokens; 0 when neither is given.
	MaxTokens int
	// LongestAnswer is the greater of max_completion_tokens and max_tokens; 0 when neither is given. Engines differ in
	// which of the two they use.
	LongestAnswer int
	// NoAnswer: the request may ask for no token of an answer, with a limit of 0. SGLang computes only the prompt then.
	NoAnswer bool
	// N is the number of choices, 1 when not given.
	N int
	// Priority is 0 when not given.
	Priority int
	// Rank is routed_dp_rank or data_parallel_rank; -1 when neither is given. SGLang uses these fields; vLLM ignores
	// them.
	Rank int

	body  []byte
	spans [numFields]span
	text  []byte // scratch memory for unescaped strings

	members     [maxMembers]member
	membersSeen int // number of members that were seen; may be more than maxMembers
}

// maxMembers is the number of top-level members of a body that a Request remembers. Few requests have more. A body with
// millions of members must not cost memory for each member.
const maxMembers = 64

type member struct{ name, value span }

// TooManyMembers reports whether the body has more top-level members than a Request remembers (64).
func (r *Request) TooManyMembers() bool { return r.membersSeen > len(r.members) }

// Members calls yield with the name and the value of each top-level member, as spelled in the body and in the body's
// order. The name has no quotes. Members is an iterator: range over r.Members. If TooManyMembers is true, Members reads
// the body again.
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

// Raw returns the bytes of field f's value in the body, nil when the field is absent.
func (r *Request) Raw(f Field) []byte {
	s := r.spans[f]
	if s.end == 0 {
		return nil
	}
	return r.body[s.start:s.end:s.end]
}

// Offsets returns the position of field f's value in the body: body[start:end]. Both are 0 when the field is absent.
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

// Session returns the session that the body gives in field f: session_id, prompt_cache_key, user, user_id, or
// session_params. In session_params, the key session_id counts, or else id, which is SGLang's name. Session returns ""
// if the field is absent, or if f is another field.
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

// SessionField returns the field with that name. ok is false if Session does not read the field.
func SessionField(name string) (f Field, ok bool) {
	switch f := fieldOf([]byte(name)); f {
	case FieldSessionID, FieldPromptCacheKey, FieldUser, FieldUserID, FieldSessionParams:
		return f, true
	}
	return noField, false
}

// PromptBytes returns the length of the JSON of the prompt and the tools. If a prompt's tokens are not known, this
// length stands for the prompt's size.
func (r *Request) PromptBytes() int {
	n := 0
	for rest := dialects[r.Dialect].sized; rest != 0; rest &= rest - 1 {
		s := r.spans[bits.TrailingZeros64(uint64(rest))]
		n += s.end - s.start
	}
	return n
}

// Body returns the body that was given to Read.
func (r *Request) Body() []byte { return r.body }
