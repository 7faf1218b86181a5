package warmpath

import (
	"errors"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/placement"
	"github.com/warmpath/warmpath/policy"
)

// Request is what routing needs to know of a request. The router reads it while it decides, and keeps nothing of it.
// Every field's zero value is safe: it means unknown, none or any.
type Request struct {
	Model    string          // as the client wrote it: a base model, one of its names, or a LoRA adapter
	Tokens   []block.Token   // the whole prompt; nil when not known: the request is then routed by load
	Features []block.Feature // multimodal items, with absolute positions in Tokens
	// Known and Stable are beginnings of Tokens. Stable is one that later prompts may share; Known is one that an
	// earlier request had as Stable. Their keys are kept, so that a growing conversation hashes only its new tokens.
	// Zero is none.
	Known, Stable block.Prefix
	Salt          string // cache_salt
	Extra         string // SGLang's extra_key

	PromptBytes int // length of the prompt's text; estimates the tokens when they are not known
	MaxTokens   int // most tokens of one answer, 0 is none given; a greater count is not believed

	Text    []byte         // the prompt's text in one piece, for policies on text and matches without Tokens; may be nil
	Session policy.Session // the conversation, if the client named one
	Tenant  string         // the client; "" is not known

	// Cached is the answer of the external source of the policy that decides ([policy.Policy.Source]), by ascending
	// worker; may be nil.
	Cached []policy.Cached

	// Scope is the request's scope for the worker's health, see fleet.Scope; 0 is none.
	Scope fleet.Scope

	Target  string           // send it to this worker (URL or host:port) whatever the policy says; "" is any
	Rank    Rank             // global data-parallel rank the client asked for, see OnRank; zero is any
	Exclude []fleet.WorkerID // workers that must not be chosen, such as those that failed already
	Policy  string           // name of the policy; "" is the router's default

	// Whole: the answer comes in one piece, so that its first token is not seen. When it is there, call
	// [Decision.FirstToken], and [Decision.Tokens] with its length: the time of prompt and answer together shows how
	// long passes take.
	Whole bool
	// Choices is how many answers are generated: n for each prompt. 0 is one. With several, the passes cannot be
	// counted from the tokens.
	Choices int

	Now    int64  // Unix nanoseconds
	Random uint64 // uniformly random: the same request with the same number, at the same state, is decided alike
}

// Errors that callers distinguish with errors.Is.
var (
	ErrUnknownModel  = errors.New("no worker serves the model")
	ErrUnknownPolicy = errors.New("no policy has this name")
	ErrNoTarget      = errors.New("the worker asked for does not serve the model, or none was named")
	ErrNoRank        = errors.New("no worker has the data-parallel rank asked for")
	ErrNoWorker      = errors.New("no worker that serves the model can be used now")
	ErrLimited       = errors.New("all usable workers of the model answered 429 and get no requests for now")
	ErrSaturated     = errors.New("all workers that serve the model have as many requests as they may")
)

// bytesPerToken estimates tokens from text: English and code have 3.5 to 4.5 bytes a token in current vocabularies.
const bytesPerToken = placement.BytesPerToken

// promptTokens returns the length of the prompt, and whether it is known.
func (r *Request) promptTokens() (n int, known bool) {
	if len(r.Tokens) > 0 {
		return len(r.Tokens), true
	}
	if len(r.Text) > 0 {
		return len(r.Text) / bytesPerToken, false
	}
	return max(r.PromptBytes, 0) / bytesPerToken, false
}
