package report

import (
	"fmt"
	"time"
)

// Schema is the name and version of the JSON form. A reader refuses a report with another value. Adding a field does
// not change the value.
const Schema = "warmpath-report/1"

// Kind says whether a report's figures were simulated or measured.
type Kind string

// The kinds.
const (
	Simulated Kind = "simulated" // virtual time, with a model of the engines
	Measured  Kind = "measured"  // real time, at a live address
)

// Report is one command's result: one run or several. docs/simulator.md describes the JSON form.
type Report struct {
	Schema      string   `json:"schema"`      // see [Schema]; filled by the writers
	Kind        Kind     `json:"kind"`        // whether the figures were simulated or measured
	Command     string   `json:"command"`     // the command that repeats the runs
	Version     string   `json:"version"`     // version of warmpath that made the report
	Interrupted bool     `json:"interrupted"` // the command was interrupted: Runs has only the runs that had ended
	Workload    Workload `json:"workload"`
	Assumptions []string `json:"assumptions"` // the assumptions behind the numbers, in sentences
	Runs        []*Run   `json:"runs"`
}

// Workload describes the requests that were played.
type Workload struct {
	Name         string  `json:"name"`
	Source       string  `json:"source"` // the spec of the workload, as on the command line
	Requests     int     `json:"requests"`
	PromptTokens int64   `json:"prompt_tokens"`
	OutputTokens int64   `json:"output_tokens"`
	SpanSeconds  float64 `json:"span_s"` // time from the first to the last arrival, as recorded
}

// Setup has the settings in which runs may differ.
type Setup struct {
	Policy    string  `json:"policy"`
	Workers   int     `json:"workers"`
	Routers   int     `json:"routers"`
	Sync      string  `json:"sync,omitempty"` // the delay after which routers hear of each other's requests; "" is never
	Rate      float64 `json:"rate"`           // factor by which the workload's arrivals are faster; 1 is as recorded
	PerSecond float64 `json:"rate_per_s"`     // requests a second at this rate
	KVTokens  int     `json:"kv_tokens"`      // tokens that one worker's cache holds
	BlockSize int     `json:"block_size"`     // tokens in an engine block
	Profile   string  `json:"profile"`        // profile of the engines; "" for live engines
	Seed      uint64  `json:"seed"`           // seed of the random numbers
	Note      string  `json:"note,omitempty"` // another remark on the run
}

// Run is one workload under one setup.
type Run struct {
	Setup
	Stopped bool `json:"stopped"` // the run was interrupted: the figures cover the requests that had ended

	Seconds  float64 `json:"seconds"` // time from the first arrival to the last event of the run
	Requests Counts  `json:"requests"`

	PromptTokens int64 `json:"prompt_tokens"` // prompt tokens of the answered requests
	CachedTokens int64 `json:"cached_tokens"` // prompt tokens that were not computed, over all tiers
	// Number of the tokens in CachedTokens that were read back from host memory.
	LoadedTokens    int64   `json:"loaded_tokens"`
	PredictedTokens int64   `json:"predicted_tokens"` // tokens that the router expected to be cached; 0: not reported
	PredictedAbove  int64   `json:"predicted_above"`  // answered requests with more predicted than cached tokens
	OutputTokens    int64   `json:"output_tokens"`
	HitRate         float64 `json:"hit_rate"`            // CachedTokens / PromptTokens
	OutputPerSecond float64 `json:"output_tokens_per_s"` // output tokens a second during Seconds

	// TTFT is the time from arrival to first token. ITL is the time between two tokens; each gap counts. TPOT is the
	// mean ITL of one request. E2E is the time from arrival to last token. Queue is the time from arrival to the
	// engine's first work on the request (simulated only).
	TTFT  Latency `json:"ttft_ms"`
	ITL   Latency `json:"itl_ms"`
	TPOT  Latency `json:"tpot_ms"`
	E2E   Latency `json:"e2e_ms"`
	Queue Latency `json:"queue_ms"`

	SLO       []SLOShare `json:"slo"`
	Workers   []Worker   `json:"per_worker"`
	Balance   Balance    `json:"balance"`
	Transfers Transfers  `json:"transfers"`
	Stages    []Stage    `json:"stages,omitempty"`
	Series    Series     `json:"series"`
	Samples   []Sample   `json:"samples,omitempty"` // single requests for the timeline, evenly drawn

	Wall time.Duration `json:"-"` // real time of the computation; not in the JSON form, which is equal on all machines
}

// Counts has the number of requests by outcome.
type Counts struct {
	Sent     int `json:"sent"`     // requests taken from the workload
	Answered int `json:"answered"` // requests that were answered to the last token
	Failed   int `json:"failed"`   // requests whose answer ended too early, or that no worker could take
	// Requests that were refused because of saturation, or were longer than the model allows.
	Rejected int `json:"rejected"`
	Retried  int `json:"retried"` // requests that were sent to another worker after one failed
}

// Latency summarizes a distribution, in milliseconds. The percentiles come from a [Histogram], so they are exact within
// 0.8 %.
type Latency struct {
	Count int64        `json:"count"`
	Mean  float64      `json:"mean"`
	P50   float64      `json:"p50"`
	P90   float64      `json:"p90"`
	P95   float64      `json:"p95"`
	P99   float64      `json:"p99"`
	Max   float64      `json:"max"`
	CDF   [][2]float64 `json:"cdf,omitempty"` // points (ms, share of the values up to this time), for plots
}

// SLO is a service level. A request that keeps both times is good.
type SLO struct {
	TTFT time.Duration // longest time to first token
	TPOT time.Duration // longest mean time between tokens of a request; 0: no limit
}

// DefaultSLOs are two service levels: for relaxed chat and for quick chat.
var DefaultSLOs = []SLO{{5 * time.Second, 100 * time.Millisecond}, {2 * time.Second, 50 * time.Millisecond}}

// SLOShare says how many requests kept an SLO.
type SLOShare struct {
	TTFT  float64 `json:"ttft_ms"`
	TPOT  float64 `json:"tpot_ms"`
	Share float64 `json:"share"` // share of all requests; a request that failed or was rejected counts as not kept
	// AnsweredShare is the share of the answered requests. It is greater than Share if requests failed or were
	// rejected. 0 if no request was answered, and in reports of versions without this field.
	AnsweredShare float64 `json:"answered_share"`
}

// Worker has the figures of one worker in a run.
type Worker struct {
	Name           string  `json:"name"`
	Requests       int     `json:"requests"`
	PromptTokens   int64   `json:"prompt_tokens"`
	ComputedTokens int64   `json:"computed_tokens"` // prompt tokens that were not cached
	OutputTokens   int64   `json:"output_tokens"`
	HitRate        float64 `json:"hit_rate"`
	Busy           float64 `json:"busy"`         // share of the run in which the worker was at work
	Running        float64 `json:"running_mean"` // mean number of requests that ran at the same time
	Waiting        float64 `json:"waiting_mean"` // mean number of requests in the engine's queue
	KV             float64 `json:"kv_mean"`      // mean share of the cache that running requests held
	KVMax          float64 `json:"kv_max"`       // greatest such share
	Preemptions    int     `json:"preemptions"`  // requests that lost their blocks and were computed again
	Restarts       int     `json:"restarts"`     // restarts of the worker, each with an empty cache
}

// Balance says how evenly the work was spread over workers. A CV is a coefficient of variation; 0 is perfect. A spread
// is the greatest value divided by the mean; 1 is perfect.
type Balance struct {
	RequestsCV     float64 `json:"requests_cv"`       // CV of the numbers of requests
	ComputedCV     float64 `json:"computed_cv"`       // CV of the numbers of computed prompt tokens
	RequestsSpread float64 `json:"requests_max_mean"` // spread of the numbers of requests
	ComputedSpread float64 `json:"computed_max_mean"` // spread of the numbers of computed prompt tokens
}

// Transfers counts KV that was moved.
type Transfers struct {
	// Tokens that were loaded from host memory back to the accelerator.
	LoadedTokens int64 `json:"loaded_tokens"`
	// Tokens that were sent from one worker to another.
	HandoverTokens int64   `json:"handover_tokens"`
	Handovers      int     `json:"handovers"`
	HandoverMS     Latency `json:"handover_ms"`
	// Requests that were divided into a prefill leg and a decode leg, and the others by the reason why not. Both are
	// left out if no worker exchanges KV blocks.
	Divided       int            `json:"divided,omitempty"`
	Bypassed      map[string]int `json:"bypassed,omitempty"`
	EvictedBlocks int64          `json:"evicted_blocks"`
	EventsApplied int64          `json:"events_applied"` // KV events that routers applied
	EventsLost    int64          `json:"events_lost"`
}

// dividedPercent returns the share of the requests that were divided, in percent; "" if none could be.
func (t *Transfers) dividedPercent() string {
	all := t.Divided
	for _, n := range t.Bypassed {
		all += n
	}
	if all == 0 {
		return ""
	}
	return fmt.Sprintf("%.1f", 100*float64(t.Divided)/float64(all))
}

// Stage has the figures of one part of the workload.
type Stage struct {
	Name            string     `json:"name"`
	Rate            float64    `json:"rate_per_s"`
	Seconds         float64    `json:"seconds"` // time from the stage's first arrival to its last answer
	Requests        int        `json:"requests"`
	HitRate         float64    `json:"hit_rate"`
	OutputPerSecond float64    `json:"output_tokens_per_s"`
	TTFT            Latency    `json:"ttft_ms"`
	TPOT            Latency    `json:"tpot_ms"`
	SLO             []SLOShare `json:"slo"`
}

// Series has the figures of the run over time, in equal steps.
type Series struct {
	Step     float64   `json:"step_s"`
	Arrivals []float64 `json:"arrivals_per_s"`
	// Hit rate of the requests that got their first token in the step; -1: no such request.
	HitRate []float64   `json:"hit_rate"`
	TTFT    []float64   `json:"ttft_ms"` // mean time to first token of the same requests; -1: no such request
	Output  []float64   `json:"output_tokens_per_s"`
	Ready   []float64   `json:"workers_ready"`
	Running [][]float64 `json:"running"` // [worker][step]: number of running requests
	Waiting [][]float64 `json:"waiting"` // [worker][step]: number of requests in the engine's queue
	KV      [][]float64 `json:"kv"`      // [worker][step]: share of the cache held by running requests
}

// Sample is one request: its arrival, first token, end and worker.
type Sample struct {
	Worker  int     `json:"w"`
	Arrival float64 `json:"a"` // seconds
	First   float64 `json:"f"`
	End     float64 `json:"e"`
	Prompt  int     `json:"p"` // tokens
	Cached  int     `json:"c"`
}
