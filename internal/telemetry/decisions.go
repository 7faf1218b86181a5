package telemetry

import (
	"sync"
	"time"
)

// Record is one finished request as /admin/decisions shows it: the facts at the time of the decision, and the result.
// Its JSON names are stable. Token counts that were not reported are absent, never 0.
type Record struct {
	// ID counts the requests of this process from 1.
	ID uint64 `json:"id"`
	// Time is the time at which the request's head had been read.
	Time time.Time `json:"time"`
	// RequestID is the client's X-Request-Id, if it sent one.
	RequestID string `json:"request_id,omitempty"`
	// Dialect is openai_chat or openai_completions; Model is the name in the request.
	Dialect string `json:"dialect"`
	Model   string `json:"model"`
	Stream  bool   `json:"stream"`
	// SessionSource is the header or body field that named the request's session; the session's key is not kept. Tenant
	// is the request's tenant, if it is known.
	SessionSource string `json:"session_source,omitempty"`
	Tenant        string `json:"tenant,omitempty"`
	// Policy is the policy that decided, and Branch the rule by which it decided. Reason explains the decision in
	// words.
	Policy string `json:"policy,omitempty"`
	Branch string `json:"branch,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Worker is the URL of the worker that served the request (the last one tried), Rank its data-parallel rank.
	Worker string `json:"worker,omitempty"`
	Rank   int    `json:"rank"`
	// Trust is the holder's trust at the time of the decision.
	Trust string `json:"trust,omitempty"`
	// TokenSource is the source of the prompt's token ids, or why there were none (see warmpath_token_requests_total).
	TokenSource string `json:"token_source"`
	// TokensMissing is the reason why there were no ids, if TokenSource is text; absent if there are ids.
	TokensMissing string `json:"tokens_missing,omitempty"`
	// PromptTokens is the number of ids used for routing; 0 if the request was routed by load.
	PromptTokens int `json:"prompt_tokens"`
	// MatchTokens is the number of prompt tokens in confirmed blocks. PredictedTokens is the number of tokens that are
	// expected to be cached when the request is scheduled: it counts speculative blocks too, and leaves out
	// AtRiskTokens, which are expected to be evicted before that.
	MatchTokens     int `json:"match_tokens"`
	PredictedTokens int `json:"predicted_tokens"`
	AtRiskTokens    int `json:"at_risk_tokens,omitempty"`
	// ReportedTokens is the engine's own count of cached prompt tokens. Difference is the matched tokens that were not
	// at risk, minus ReportedTokens.
	ReportedTokens *int `json:"reported_tokens,omitempty"`
	Difference     *int `json:"difference,omitempty"`
	// UsageUnasked means that the answer is a stream and the client did not ask for the usage
	// (stream_options.include_usage). For such an answer, most engines report no usage.
	UsageUnasked bool `json:"-"`
	// OutputTokens is the number of generated tokens that the engine reported.
	OutputTokens *int `json:"output_tokens,omitempty"`
	// Shadow is the decision of the shadow policy; absent if the shadow policy was not asked.
	Shadow *Shadow `json:"shadow,omitempty"`
	// Attempts is the number of workers tried. Failed are the workers that failed before the first byte, with their
	// errors.
	Attempts int      `json:"attempts"`
	Failed   []string `json:"failed,omitempty"`
	// Status is the status that the client got. 499 means that the client closed its connection before it got a status.
	Status int `json:"status"`
	// Finish says how the request ended: success (the answer had a finish_reason), rejected, client_gone, refused,
	// reset, header_timeout, stream_timeout, protocol, engine_error, truncated (the stream ended without a
	// finish_reason), bad_attempt.
	Finish string `json:"finish,omitempty"`
	Error  string `json:"error,omitempty"`
	// The fields below are milliseconds from Time to the token ids, the decision, the first token, and the end.
	TokensMS     float64 `json:"tokens_ms"`
	RouteMS      float64 `json:"route_ms"`
	QueueMS      float64 `json:"queue_ms,omitempty"` // wait until a worker could take the request
	FirstTokenMS float64 `json:"first_token_ms,omitempty"`
	TotalMS      float64 `json:"total_ms"`
}

// Claimed returns the confirmed tokens that were expected to be cached.
func (r *Record) Claimed() int { return max(min(r.MatchTokens, r.PredictedTokens), 0) }

// Shadow is the decision of another policy for a request. It had no effect.
type Shadow struct {
	Policy          string `json:"policy"`
	Agrees          bool   `json:"agrees"` // the shadow chose the same holder as the decision
	Branch          string `json:"branch,omitempty"`
	Worker          string `json:"worker,omitempty"` // absent if the shadow chose no worker; error says why
	Rank            int    `json:"rank"`
	MatchTokens     int    `json:"match_tokens"`
	PredictedTokens int    `json:"predicted_tokens"`
	// Difference is the shadow's predicted tokens minus the decision's predicted tokens. A positive number means that
	// the shadow's choice has more tokens in the cache.
	Difference int     `json:"difference"`
	Error      string  `json:"error,omitempty"`
	MS         float64 `json:"ms"` // milliseconds that the shadow's decision took
}

// ring keeps the last records. It is safe for concurrent use.
type ring struct {
	mu   sync.Mutex
	recs []Record // guarded by mu; a ring of fixed length
	next int      // guarded by mu; the place of the next record
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

// last returns up to n records, the newest first. With n of 0 or less, it returns all.
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
