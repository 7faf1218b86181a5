package admin

import (
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/kvfeed"
)

// Workers is the answer of /admin/workers.
type Workers struct {
	Workers []Worker          `json:"workers"`
	Index   []telemetry.Index `json:"index"` // one for each base model
	Kinds   []Kind            `json:"kinds"` // workers that share one timing
	Tokens  *Tokens           `json:"tokens,omitempty"`
	// Links are the pairs of workers between which KV blocks were sent, with what the router learned of them.
	Links []LearnedLink `json:"links,omitempty"`
	// Removed are the URLs that a source of workers lists, and that an operator removed all the same.
	Removed []string `json:"removed,omitempty"`
	// StaleSeconds is the age of the figures of the index and of the event streams; absent if they are current.
	StaleSeconds float64 `json:"stale_seconds,omitempty"`
	// Stalled names the work that makes no progress; absent if there is none.
	Stalled string `json:"stalled,omitempty"`
}

// Tokens says where token ids come from. It also says how often the ids that were made in process differed from the
// engines' ids, since the start of the router's process.
type Tokens struct {
	Checked  uint64 `json:"checked"`  // number of prompts that were compared
	Differed uint64 `json:"differed"` // number of compared prompts whose ids differed
	// Distrusted are the base models whose ids come from the engines at present, because ids differed. This ends when
	// twenty compared prompts in a row are equal.
	Distrusted []string `json:"distrusted"`
	// Models say for each base model where its ids come from.
	Models []TokenModel `json:"models"`
}

// TokenModel says where the token ids of a base model come from, for engines of one kind.
type TokenModel struct {
	Model  string `json:"model"`
	Engine string `json:"engine"` // vllm or sglang: the kind of the engines
	// Source says where ids come from. given: files that the configuration names. files: files that the router found.
	// engine: the engines are asked. search: the engines are asked while the router looks for files.
	Source string `json:"source"`
	Folder string `json:"folder,omitempty"` // folder of the files from which ids are made
	// Prompts is the number of prompts that were compared with an engine before the found files were used.
	Prompts int    `json:"prompts,omitempty"`
	Why     string `json:"why,omitempty"`    // reason why the engine is asked for ids
	Advice  string `json:"advice,omitempty"` // how to make ids without the engine
}

// Worker is one engine server.
type Worker struct {
	URL       string   `json:"url"`
	Engine    string   `json:"engine"` // vllm, sglang, trtllm, other, unknown
	Version   string   `json:"version,omitempty"`
	Models    []string `json:"models"`
	BlockSize int      `json:"block_size"` // tokens in an engine block; 0 is not known
	Blocks    int      `json:"blocks"`     // capacity of one rank in engine blocks; 0 is not known
	Ranks     int      `json:"ranks"`
	// Labels are the facts that the operator gave about the worker, such as hardware, node and zone.
	Labels map[string]string `json:"labels,omitempty"`
	// Role is both, prefill or decode: which legs of requests the worker serves. Transfer says how the worker exchanges KV
	// blocks with others; absent if it does not.
	Role     string    `json:"role"`
	Transfer *Transfer `json:"transfer,omitempty"`
	Healthy  bool      `json:"healthy"`
	Ready    bool      `json:"ready"` // requests may go there
	Draining bool      `json:"draining"`
	// Source is what lists the worker: list (the configuration or the command line), file, admin or dns.
	Source string `json:"source,omitempty"`
	// LeavesBy is when a worker that leaves is gone at the latest; absent if the worker does not leave.
	LeavesBy *time.Time `json:"leaves_by,omitempty"`
	Asleep   bool       `json:"asleep"`
	Why      string     `json:"why,omitempty"`   // reason why the worker is not ready
	Notes    []string   `json:"notes,omitempty"` // what discovery could not learn of the worker, or assumed
	Holders  []Holder   `json:"holders"`
}

// Transfer says how a worker sends KV blocks to other workers and receives them, as the operator says or the engine
// reports. Absent fields are not known, or not needed.
type Transfer struct {
	Connector        string   `json:"connector"` // workers with the same connector exchange blocks
	Host             string   `json:"host,omitempty"`
	Port             int      `json:"port,omitempty"`
	EngineIDs        []string `json:"engine_ids,omitempty"` // one for each rank
	TensorParallel   int      `json:"tensor_parallel,omitempty"`
	PipelineParallel int      `json:"pipeline_parallel,omitempty"`
	KVBytesPerToken  int      `json:"kv_bytes_per_token,omitempty"`
	// Fetches: the worker can read a part of a prompt's blocks from another worker's cache.
	Fetches bool `json:"fetches,omitempty"`
}

// LearnedLink is a pair of workers between which KV blocks were sent.
type LearnedLink struct {
	Link
	// Failures is the number of transfers that failed since the last one that did not.
	Failures int `json:"failures,omitempty"`
}

// Kind describes workers that are alike and share one timing.
type Kind struct {
	Name    string `json:"name"`
	Holders int    `json:"holders"`
	// Timing is how long the passes of the median holder take, as learned from all holders.
	Timing fleet.Timing `json:"timing"`
	// Spread is how much the paces of the holders differ beyond chance: the standard deviation of the paces'
	// logarithms. A pace is the time of a holder's passes, divided by the time of the median holder's passes.
	Spread float64 `json:"spread"`
}

// Holder is one data-parallel rank of a worker.
type Holder struct {
	Rank        int    `json:"rank"`  // global rank
	Trust       string `json:"trust"` // exact, degraded, approximate, none
	TrustReason string `json:"trust_reason"`
	// BlockedUntil is when the open breaker lets a request pass again; absent while the breaker is closed.
	BlockedUntil *time.Time `json:"blocked_until,omitempty"`
	// LimitedUntil is the end of the pause after a 429, which may hold for only one tenant; absent when there is none.
	LimitedUntil *time.Time `json:"limited_until,omitempty"`
	// Useless are the models and endpoints for which the holder gets only trial requests, because its answers there
	// were useless or lost and another worker's answers were better.
	Useless []Useless `json:"useless,omitempty"`
	// Suspect: the worker seems to be frozen. Share is below 1 during slow start: the holder may have N requests at the
	// same time, and gets this share of the requests beyond N. N is one more than the number of requests that the
	// holder has answered since its return; after a failure N is 0.
	Suspect bool    `json:"suspect,omitempty"`
	Share   float64 `json:"share"`
	Load    Load    `json:"load"`
	// Timing is the time that the holder's passes take: the times of its kind, at the holder's own pace. Leaked counts
	// requests that were lost without a release of their load.
	Timing fleet.Timing `json:"timing"`
	Pace   fleet.Pace   `json:"pace"`
	Kind   string       `json:"kind"` // the name of an entry of Workers.Kinds
	Leaked uint64       `json:"leaked_requests"`
	IndexHolder
	// Statistics of the holder's event stream. In JSON they are fields of the holder; absent if the holder has no event
	// source.
	*kvfeed.Stats
}

// Useless is a model name and an endpoint for which a holder gets no requests. Until is the time from which on the next
// request may be sent there as a trial.
type Useless struct {
	Model    string    `json:"model"`
	Endpoint string    `json:"endpoint"`
	Until    time.Time `json:"until"`
}

// IndexHolder is the statistics of a holder in the index of its model.
type IndexHolder struct {
	IndexBlocks int64 `json:"index_blocks"` // blocks of the holder in the index
	// IndexEvicted is the number of blocks that were evicted from the index. IndexRefused is the number of
	// announcements and blocks that the index refused. Both count from the time when the index last forgot the holder.
	IndexEvicted int64 `json:"index_evicted,omitempty"`
	IndexRefused int64 `json:"index_refused,omitempty"`
}

// Load is the unfinished work of a holder: the requests of this router, and the load of other routers as far as the
// engine reports it.
type Load struct {
	Requests      int64 `json:"requests"`
	Waiting       int64 `json:"waiting"`        // number of the requests in Requests that have no first token yet
	PrefillTokens int64 `json:"prefill_tokens"` // uncached prompt tokens of requests without a first token
	// PendingTokens is how many of the PrefillTokens are not computed yet, as the timing predicts.
	PendingTokens int64   `json:"pending_tokens"`
	BacklogMS     float64 `json:"backlog_ms"`     // time until PendingTokens are computed, as the timing predicts
	ContextBlocks int64   `json:"context_blocks"` // distinct engine blocks of the prompts being served
	ContextTokens int64   `json:"context_tokens"` // prompt tokens of all Requests; shared tokens count for each
	OutputTokens  int64   `json:"output_tokens"`  // tokens generated so far of unfinished answers
	Processed     uint64  `json:"processed"`      // number of requests that this router has sent in all
	Others        *Others `json:"others,omitempty"`
	Report        *Report `json:"report,omitempty"`
}

// Others is the part of a Load that other routers added; absent if there is none.
type Others struct {
	Requests      int64 `json:"requests"`
	Waiting       int64 `json:"waiting"`
	PrefillTokens int64 `json:"prefill_tokens"`
	ContextBlocks int64 `json:"context_blocks"`
}

// Report is the last load report of the engine; absent if there is none.
type Report struct {
	Time         time.Time `json:"time"`
	Running      int64     `json:"running"`
	Waiting      int64     `json:"waiting"`
	QueuedTokens int64     `json:"queued_tokens"` // uncached prompt tokens of the engine's queue; 0: not reported
	KVUsed       float64   `json:"kv_used"`       // share of the KV cache that running requests hold
}

// Decisions is the answer of /admin/decisions.
type Decisions struct {
	Decisions []telemetry.Record `json:"decisions"` // newest first
}

// Queue is the answer of /admin/queue.
type Queue struct {
	Order string      `json:"order"` // off: requests do not wait
	Lines []QueueLine `json:"lines"` // one for each base model for which requests have waited
}

// QueueLine describes the requests that wait for the workers of one base model.
type QueueLine struct {
	Model    string        `json:"model"`
	Requests int           `json:"requests"`
	Bytes    int64         `json:"bytes"`
	OldestMS float64       `json:"oldest_ms"` // how long the oldest request has waited
	Tenants  []QueueTenant `json:"tenants"`   // at most 100; orders without tenants have only the tenant ""
}

// QueueTenant is one tenant's part of a line.
type QueueTenant struct {
	Tenant   string `json:"tenant"`
	Requests int    `json:"requests"`
	// With order fair: the number of tokens that the tenant may still use before the next tenant's turn.
	Deficit int64 `json:"deficit_tokens"`
}

// Reloaded is the answer of /admin/reload.
type Reloaded struct {
	Status string `json:"status"` // ok
	// Changes are one line for each difference, also for settings that need a restart. Empty if there is none.
	Changes []string `json:"changes"`
}

func loadOf(l fleet.Load) Load {
	out := Load{
		Requests: l.Requests, Waiting: l.Waiting, PrefillTokens: l.PrefillTokens, PendingTokens: l.PendingTokens,
		BacklogMS: float64(l.Backlog.Microseconds()) / 1000, ContextBlocks: l.ContextBlocks, ContextTokens: l.ContextTokens,
		OutputTokens: l.OutputTokens, Processed: l.Processed,
	}
	if l.Others != (fleet.Others{}) {
		others := Others(l.Others)
		out.Others = &others
	}
	if r := l.Reported; r.At != 0 {
		out.Report = &Report{time.Unix(0, r.At).UTC(), r.Running, r.Waiting, r.QueuedTokens, r.KVUsed}
	}
	return out
}
