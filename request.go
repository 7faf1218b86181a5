package warmpath

import (
	"errors"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/placement"
	"github.com/warmpath/warmpath/policy"
)

// Request is what routing needs to know of a request. The router reads it while it decides, and keeps no reference to
// it. The zero value of each field is safe: it means unknown, none or any. A program that serves requests sets Now.
type Request struct {
	Model    string          // the model name in the client's request: a base model, one of its names, or a LoRA adapter
	Tokens   []block.Token   // the whole prompt; nil if it is not known: then the router matches Text, or decides by load
	Features []block.Feature // multimodal items, with absolute positions in Tokens
	// Stable is a beginning of Tokens that later prompts may share. Known is a beginning of Tokens that was the Stable
	// of an earlier request. The router caches the keys of these beginnings, so it hashes only the new tokens of a
	// growing conversation. The zero value is none.
	Known, Stable block.Prefix
	Salt          string // cache_salt
	Extra         string // SGLang's extra_key

	PromptBytes int // length of the prompt's text in bytes; the number of tokens is estimated from it if Tokens and Text are nil
	MaxTokens   int // limit of tokens in one answer; a greater count from the worker is not believed; 0 is no limit

	// Text is the prompt's text in one piece; it may be nil. Policies that compare texts read Text. If Tokens is nil,
	// other policies also match the prompt by Text.
	Text    []byte
	Session policy.Session // the conversation, if the client named one
	Tenant  string         // the client; "" is not known

	// Undivided is the reason why the request must not be divided; "" if it may be. The router itself divides no
	// request with several Choices, with a Target or with a Rank.
	Undivided policy.Bypass
	// Readable lists KV blocks of the prompt's beginning that a worker keeps for other workers, such as those of the
	// conversation's last answer. The worker of a prefill leg may fetch them in place of computing them.
	Readable []Readable

	// Cached says what the workers have cached, sorted by worker. It is the answer of the deciding policy's external
	// source ([policy.Policy.Source]), and may be nil.
	Cached []fleet.Cached

	// Scope is a hash of the model name and the endpoint. The fleet keeps the quality of a worker's answers for each
	// scope, see fleet.Scope. 0 is none.
	Scope fleet.Scope

	Target  string           // the only worker that may be chosen (URL or host:port), whatever the policy says; "" is any
	Rank    Rank             // the global data-parallel rank that the client asked for, see OnRank; zero is any
	Exclude []fleet.WorkerID // workers that must not be chosen, such as workers that already failed this request
	Policy  string           // name of the policy; "" is the policy of the model, or else the router's default

	// Levels are the service levels that the answer should keep, at most fleet.MaxServiceLevels. The slice must not
	// change before the request is done. nil means the levels of [Options]; an empty slice that is not nil means none.
	Levels []fleet.ServiceLevel
	// Arrived is when the request arrived, in Unix nanoseconds, if it waited before the decision: the time limits of
	// its service levels count from then on. 0 is Now.
	Arrived int64

	// Whole says that the answer comes in one piece, so that its first token is not seen. When the answer has come,
	// call [Decision.FirstToken], and then [Decision.Tokens] with its length. The router learns from this how long
	// prompt and answer took together.
	Whole bool
	// Choices is how many answers the engine generates: n for each prompt of the client's request. 0 counts as 1. With
	// several answers, the router cannot conclude from the number of tokens how many passes the engine computed.
	Choices int

	// Now is the time in Unix nanoseconds. 0 means that the caller knows no time. For [fleet.Fleet.Expire] such a
	// request begins at the next call of Expire. Other requests count the prompt as expected in a cache only if they
	// have no time, either.
	Now    int64
	Random uint64 // a uniformly random number; for the same request, state and number, the decision is the same
}

// Readable says that a worker keeps the KV blocks of a prompt's first tokens for other workers.
type Readable struct {
	Worker fleet.WorkerID
	Tokens int
}

// Errors that callers distinguish with errors.Is.
var (
	ErrUnknownModel  = errors.New("no worker serves the model")
	ErrUnknownPolicy = errors.New("no policy has this name")
	ErrNoTarget      = errors.New("the worker asked for does not serve the model, or none was named")
	ErrNoRank        = errors.New("no worker has the data-parallel rank asked for")
	ErrNoWorker      = errors.New("no worker that serves the model can be used now")
	ErrUndividable   = errors.New("the request needs one worker that serves all of it, and the model has none")
	ErrLimited       = errors.New("all usable workers of the model answered 429 and get no requests for now")
	ErrSaturated     = errors.New("all workers that serve the model have as many requests as they may")
)

// bytesPerToken is the assumed number of bytes of text for each token, if the tokens are not known.
const bytesPerToken = placement.BytesPerToken

// promptTokens returns the length of the prompt in tokens, and whether it is known; if not, the length is an estimate.
func (r *Request) promptTokens() (n int, known bool) {
	if len(r.Tokens) > 0 {
		return len(r.Tokens), true
	}
	if len(r.Text) > 0 {
		return len(r.Text) / bytesPerToken, false
	}
	return max(r.PromptBytes, 0) / bytesPerToken, false
}
