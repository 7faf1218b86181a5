package telemetry

import (
	"time"

	"github.com/warmpath/warmpath/block"
)

// Record describes one finished request in /admin/decisions: the facts at the time of the decision, and the result. The
// JSON names of its fields do not change. If an engine did not report a token count, the count is absent, not 0.
type Record struct {
	// ID is the number of the request. The first request of the process has number 1.
	ID uint64 `json:"id"`
	// Time is when the header of the request had been read.
	Time time.Time `json:"time"`
	// RequestID is the client's X-Request-Id, or else an id that the router made.
	RequestID string `json:"request_id,omitempty"`
	// TraceID is the id of the request's trace, if the trace is recorded.
	TraceID string `json:"trace_id,omitempty"`
	// Dialect is the name of the request's api.Dialect, such as openai_chat. Model is the model that took the request.
	Dialect string `json:"dialect"`
	Model   string `json:"model"`
	// AskedModel is the model that the request names, if Model took the request in its place: as an alias or a
	// fall-back.
	AskedModel string `json:"asked_model,omitempty"`
	Stream     bool   `json:"stream"`
	// SessionSource is the header or the body field that named the session of the request. The name of the session
	// itself is not kept. Tenant is the tenant of the request, if it is known.
	SessionSource string `json:"session_source,omitempty"`
	Tenant        string `json:"tenant,omitempty"`
	// Policy is the policy that decided. Branch is the rule of the policy that decided. Reason explains the decision in
	// words.
	Policy string `json:"policy,omitempty"`
	Branch string `json:"branch,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Worker is the URL of the worker that served the request. If the request failed, it is the last worker that was
	// tried. Rank is the data-parallel rank at that worker.
	Worker string `json:"worker,omitempty"`
	Rank   int    `json:"rank"`
	// Trust is the trust of the match: the holder's trust at the time of the decision, but at most approximate if the
	// match is an estimate.
	Trust string `json:"trust,omitempty"`
	// TokenSource is the source of the prompt's token ids. If there were no ids, TokenSource is text (the prompt's text
	// was matched instead), or else the reason why there were no ids.
	TokenSource string `json:"token_source"`
	// TokensMissing is the reason why there were no ids. It is absent if there were ids.
	TokensMissing string `json:"tokens_missing,omitempty"`
	// PromptTokens is the number of the prompt's token ids. 0 means that there were no ids.
	PromptTokens int `json:"prompt_tokens"`
	// Prefix has the router's own hash of the prompt after each PrefixTokens tokens, as in [Choice.Keys] but with longer
	// blocks. Predictions use it; it is in no answer. nil: the prompt is shorter, or has no token ids.
	Prefix       []block.Key `json:"-"`
	PrefixTokens int         `json:"-"`
	// ChangingLine says that the prompt has the line that Claude Code changes with every request: dropped (the worker's
	// engine leaves the line out) or rendered (no cached prompt begins alike behind the line).
	ChangingLine string `json:"changing_line,omitempty"`
	// MatchTokens is the number of prompt tokens in confirmed blocks. AtRiskTokens is the number of these tokens that
	// are expected to be evicted before the request is scheduled. PredictedTokens is the number of tokens that are
	// expected to be cached when the request is scheduled: it includes tokens in speculative blocks, and does not
	// include AtRiskTokens.
	MatchTokens     int `json:"match_tokens"`
	PredictedTokens int `json:"predicted_tokens"`
	AtRiskTokens    int `json:"at_risk_tokens,omitempty"`
	// ReportedTokens is the number of cached prompt tokens that the engine reported. Difference is the smaller of
	// MatchTokens and PredictedTokens, minus ReportedTokens.
	ReportedTokens *int `json:"reported_tokens,omitempty"`
	Difference     *int `json:"difference,omitempty"`
	// UsageUnasked says that the answer is a stream, and that the client did not ask for the usage
	// (stream_options.include_usage). Most engines report no usage in such an answer.
	UsageUnasked bool `json:"-"`
	// OutputTokens is the number of generated tokens that the engine reported.
	OutputTokens *int `json:"output_tokens,omitempty"`
	// KeptLevels and BrokenLevels are the service levels of the request that the answer kept and broke, such as
	// 5s/100ms. Both are absent if the answer does not count: see warmpath_service_level_answers_total.
	KeptLevels   []string `json:"kept_levels,omitempty"`
	BrokenLevels []string `json:"broken_levels,omitempty"`
	// PrefillWorker is the URL of the worker that computed the prompt, and PrefillRank its rank, if the request was
	// divided: Worker then generated the answer. Division has the predicted milliseconds of both ways. Bypass is the
	// reason why the request was not divided (policy.Bypass). All four are absent if no workers exchange KV blocks.
	PrefillWorker string    `json:"prefill_worker,omitempty"`
	PrefillRank   int       `json:"prefill_rank,omitempty"`
	Bypass        string    `json:"bypass,omitempty"`
	Division      *Division `json:"division,omitempty"`
	// PrefillMS is the time from sending the prefill leg to its answer. TransferTokens is the number of prompt tokens
	// whose KV blocks the decode worker received. TransferMS is the measured time of this transfer, from the end of the
	// prefill leg to the first token, without one step of the decode engine; it is absent if it was not measured.
	PrefillMS      float64 `json:"prefill_ms,omitempty"`
	TransferTokens int     `json:"transfer_tokens,omitempty"`
	TransferMS     float64 `json:"transfer_ms,omitempty"`
	// FetchedTokens is the number of prompt tokens whose KV blocks the worker was told to read from the worker
	// FetchedFrom before it computed the rest.
	FetchedTokens int    `json:"fetched_tokens,omitempty"`
	FetchedFrom   string `json:"fetched_from,omitempty"`
	// Shadow is the decision of the shadow policy. It is absent if the shadow policy did not decide about the request.
	Shadow *Shadow `json:"shadow,omitempty"`
	// Attempts is the number of workers that were tried. Failed has the workers that failed before the first byte of an
	// answer, each with its error.
	Attempts int      `json:"attempts"`
	Failed   []string `json:"failed,omitempty"`
	// Recovered has the workers that the stream lost before it continued at another worker, each with how it was lost
	// and the number of tokens that the client had.
	Recovered []string `json:"recovered,omitempty"`
	// Unrecovered says why a stream that lost its worker did not continue, in the words of the metric
	// warmpath_stream_recoveries_total.
	Unrecovered string `json:"unrecovered,omitempty"`
	// Status is the HTTP status that the client got. 499 means that the client left before the end of the answer.
	Status int `json:"status"`
	// Finish says how the request ended: success, rejected, limited, client_gone, refused, reset, header_timeout,
	// stream_timeout, protocol, engine_error, truncated, useless, cut, abandoned, local, bad_attempt. The comments of
	// proxy.Class explain these words.
	Finish string `json:"finish,omitempty"`
	Error  string `json:"error,omitempty"`
	// The fields below are times in milliseconds. TokensMS is the wait for token ids. RouteMS is the time of all
	// decisions about the request. QueueMS is the wait in the queue while all workers were saturated. HeldMS is the
	// time for which the request was held because no worker could take it. FirstTokenMS and TotalMS are the times from
	// Time to the first token and to the end.
	TokensMS     float64 `json:"tokens_ms"`
	RouteMS      float64 `json:"route_ms"`
	QueueMS      float64 `json:"queue_ms,omitempty"`
	HeldMS       float64 `json:"held_ms,omitempty"`
	FirstTokenMS float64 `json:"first_token_ms,omitempty"`
	TotalMS      float64 `json:"total_ms"`
}

// prefixTokens is about the number of tokens for each key of Record.Prefix. With 256 tokens, a prompt of 100,000 tokens
// needs 3 KiB.
const prefixTokens = 256

// SetPrefix keeps some of the keys of the prompt's blocks, which have size tokens each. It allocates once for each
// request.
func (r *Record) SetPrefix(keys []block.Key, size int) {
	step := max(prefixTokens/max(size, 1), 1)
	if r.Prefix != nil || len(keys) < step {
		return
	}
	r.PrefixTokens, r.Prefix = step*size, make([]block.Key, 0, len(keys)/step)
	for i := step - 1; i < len(keys); i += step {
		r.Prefix = append(r.Prefix, keys[i])
	}
}

// Claimed returns the number of tokens in confirmed blocks that were expected to be cached: the smaller of MatchTokens
// and PredictedTokens.
func (r *Record) Claimed() int { return max(min(r.MatchTokens, r.PredictedTokens), 0) }

// Division has the predicted milliseconds of serving a request at one worker and at two workers. They are costs: what
// the request takes, and by how much it delays other requests. A request is divided if PrefillMS + DecodeMS is less
// than WholeMS, unless the mode says otherwise.
type Division struct {
	WholeMS   float64 `json:"whole_ms"`
	PrefillMS float64 `json:"prefill_ms"`
	DecodeMS  float64 `json:"decode_ms"` // TransferMS is a part of it
	// TransferMS is the predicted time of the transfer.
	TransferMS float64 `json:"transfer_ms"`
}

// Shadow is the decision of the shadow policy about a request. The decision had no effect.
type Shadow struct {
	Policy          string `json:"policy"`
	Agrees          bool   `json:"agrees"` // true: the shadow policy chose the same holder as the real decision
	Branch          string `json:"branch,omitempty"`
	Worker          string `json:"worker,omitempty"` // absent if the shadow policy chose no worker: see Error
	Rank            int    `json:"rank"`
	MatchTokens     int    `json:"match_tokens"`
	PredictedTokens int    `json:"predicted_tokens"`
	// Difference is the PredictedTokens of the shadow policy, minus the PredictedTokens of the real decision. A
	// positive number means that the worker chosen by the shadow policy is expected to have more tokens in its cache.
	Difference int     `json:"difference"`
	Error      string  `json:"error,omitempty"`
	MS         float64 `json:"ms"` // time of the shadow policy's decision, in milliseconds
}
