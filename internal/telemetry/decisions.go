package telemetry

import (
	"sync"
	"time"
)

// Record is one finished request as /admin/decisions shows it: what was known when the worker was chosen, and what came
// of it. Its JSON names are stable. Token counts that nobody reported are absent, never 0.
type Record struct {
	// ID counts the requests of this process from 1.
	ID uint64 `json:"id"`
	// Time is when the request's head had been read.
	Time time.Time `json:"time"`
	// RequestID is the client's X-Request-Id, if it sent one.
	RequestID string `json:"request_id,omitempty"`
	// Dialect is openai_chat or openai_completions; Model is the name that the client asked for.
	Dialect string `json:"dialect"`
	Model   string `json:"model"`
	Stream  bool   `json:"stream"`
	// SessionSource is the header or body field that named the request's session; the key itself is not kept. Tenant
	// is who asked, as far as is known.
	SessionSource string `json:"session_source,omitempty"`
	Tenant        string `json:"tenant,omitempty"`
	// Policy and Branch say who decided and by which rule, Reason says it in words.
	Policy string `json:"policy,omitempty"`
	Branch string `json:"branch,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Worker is the URL of the worker that served the request (the last one tried), Rank its data-parallel rank.
	Worker string `json:"worker,omitempty"`
	Rank   int    `json:"rank"`
	// Trust is how far that holder's entries could be believed when the decision was made.
	Trust string `json:"trust,omitempty"`
	// TokenSource is where the prompt's token ids came from, or why there were none (see
	// warmpath_token_requests_total).
	TokenSource string `json:"token_source"`
	// TokensMissing is why there were no ids when TokenSource is text; absent when there are ids.
	TokensMissing string `json:"tokens_missing,omitempty"`
	// PromptTokens is the number of ids that were routed on, 0 when the request was routed by load.
	PromptTokens int `json:"prompt_tokens"`
	// MatchTokens are covered by confirmed blocks. PredictedTokens are taken to be cached when the request is scheduled:
	// they count speculative blocks too, and leave out AtRiskTokens, which are taken to be evicted before.
	MatchTokens     int `json:"match_tokens"`
	PredictedTokens int `json:"predicted_tokens"`
	AtRiskTokens    int `json:"at_risk_tokens,omitempty"`
	// ReportedTokens is the engine's own count of cached prompt tokens; Difference is what was matched, less what was at
	// risk, minus reported.
	ReportedTokens *int `json:"reported_tokens,omitempty"`
	Difference     *int `json:"difference,omitempty"`
	// UsageUnasked: the answer is a stream and the client did not ask for the usage (stream_options.include_usage);
	// most engines then report none.
	UsageUnasked bool `json:"-"`
	// OutputTokens is what the engine says it generated.
	OutputTokens *int `json:"output_tokens,omitempty"`
	// Shadow is what the shadow policy would have decided; absent where it was not asked.
	Shadow *Shadow `json:"shadow,omitempty"`
	// Attempts counts the workers tried; Failed names those that gave up before the first byte, with their errors.
	Attempts int      `json:"attempts"`
	Failed   []string `json:"failed,omitempty"`
	// Status is what the client got. 499 stands for a client that went away first.
	Status int `json:"status"`
	// Finish says how it ended: success (a finish_reason was seen), rejected, client_gone, refused, reset,
	// header_timeout, stream_timeout, protocol, engine_error, truncated (the stream ended without one, whatever its
	// status), bad_attempt.
	Finish string `json:"finish,omitempty"`
	Error  string `json:"error,omitempty"`
	// Milliseconds since Time: until the tokens were there, until the decision, until the first token, until the end.
	TokensMS     float64 `json:"tokens_ms"`
	RouteMS      float64 `json:"route_ms"`
	QueueMS      float64 `json:"queue_ms,omitempty"` // what it waited until a worker could take it
	FirstTokenMS float64 `json:"first_token_ms,omitempty"`
	TotalMS      float64 `json:"total_ms"`
}

// Claimed returns the tokens that the engine was expected to have cached, by what it had confirmed.
func (r *Record) Claimed() int { return max(min(r.MatchTokens, r.PredictedTokens), 0) }

// Shadow is another policy's opinion on one request, before it was routed.
type Shadow struct {
	Policy          string `json:"policy"`
	Agrees          bool   `json:"agrees"` // the same holder
	Branch          string `json:"branch,omitempty"`
	Worker          string `json:"worker,omitempty"` // absent when it would have had none; error says why
	Rank            int    `json:"rank"`
	MatchTokens     int    `json:"match_tokens"`
	PredictedTokens int    `json:"predicted_tokens"`
	// Difference is its predicted tokens minus those of the decision: above 0 it would have found more in the cache.
	Difference int     `json:"difference"`
	Error      string  `json:"error,omitempty"`
	MS         float64 `json:"ms"` // that asking took
}

// ring keeps the last records. It is safe for concurrent use.
type ring struct {
	mu   sync.Mutex
	recs []Record // guarded by mu; a circle of fixed length
	next int      // guarded by mu; where the next one goes
	full bool     // guarded by mu
}

func newRing(n int) *ring { return &ring{recs: make([]Record, n)} }

func (r *ring) add(rec *Record) {
	if len(r.recs) == 0 {
		return
	}
	r.mu.Lock()
	r.recs[r.next] = *rec
	r.next++
	if r.next == len(r.recs) {
		r.next, r.full = 0, true
	}
	r.mu.Unlock()
}

// last returns up to n records, the newest first.
func (r *ring) last(n int) []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	have := r.next
	if r.full {
		have = len(r.recs)
	}
	if n <= 0 || n > have {
		n = have
	}
	out := make([]Record, 0, n)
	for i := 1; i <= n; i++ {
		out = append(out, r.recs[(r.next-i+len(r.recs))%len(r.recs)])
	}
	return out
}
