package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// legMetrics count requests that are divided between two workers, and why the others are not. The values of the label
// leg are those of fleet.Leg, the reasons those of policy.Bypass.
type legMetrics struct {
	divided        prometheus.Counter
	bypassed       *prometheus.CounterVec
	requests       *prometheus.CounterVec
	seconds        *prometheus.HistogramVec
	failures       *prometheus.CounterVec
	transfer       prometheus.Histogram
	transferTokens prometheus.Counter
	transferBytes  prometheus.Counter
	aborted        *prometheus.CounterVec
	fetched        prometheus.Counter
}

// The phases of a divided request in which a leg can fail.
const (
	PhasePrefill  = "prefill"  // the prompt is computed
	PhaseTransfer = "transfer" // the KV blocks move
	PhaseDecode   = "decode"   // the answer is generated
)

// transferBuckets range from one block within a machine to a long prompt over a slow network.
var transferBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

func (t *Telemetry) makeLegMetrics(f promauto.Factory) {
	t.legs = legMetrics{
		divided: f.NewCounter(prometheus.CounterOpts{Name: "warmpath_divided_total",
			Help: "Decisions by which one worker computes the prompt and another worker generates the answer. A retry of a request is one more decision."}),
		bypassed: f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_bypassed_total",
			Help: "Decisions for one worker although some workers exchange KV blocks, by reason: short (too few tokens to compute), cost (one worker is predicted to cost less), never (the mode), answers (several answers or prompts), request (it cannot be divided), pinned (the client named the worker or rank), no_prefill, no_decode (no such worker can be used), continued (a stream that lost its worker), one_worker (two workers failed before), endpoint (it generates no answer)."}, []string{"reason"}),
		requests: f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_leg_requests_total",
			Help: "Legs of divided requests that ended well, by leg: prefill, decode."}, []string{"leg"}),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{Name: "warmpath_leg_seconds",
			Help: "The wait for a leg of a divided request that ended well: from sending it to the whole answer (prefill), or to the first token (decode, with the transfer).", Buckets: latencyBuckets}, []string{"leg"}),
		failures: f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_leg_failures_total",
			Help: "Legs that failed, by leg and by phase: prefill (the prompt was computed), transfer (the KV blocks moved), decode (the answer was generated)."}, []string{"leg", "phase"}),
		transfer: f.NewHistogram(prometheus.HistogramOpts{Name: "warmpath_transfer_seconds",
			Help: "Time of a transfer of KV blocks: from the end of the prefill leg to the first token, without one step of the decode engine. Only streams are measured.", Buckets: transferBuckets}),
		transferTokens: f.NewCounter(prometheus.CounterOpts{Name: "warmpath_transfer_tokens_total",
			Help: "Prompt tokens whose KV blocks reached the decode worker by a transfer."}),
		transferBytes: f.NewCounter(prometheus.CounterOpts{Name: "warmpath_transfer_bytes_total",
			Help: "Bytes of the KV blocks of these tokens (warmpath_transfer_tokens_total), by the kv_bytes_per_token of the worker. Transfers from workers without this figure are not counted."}),
		aborted: f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_leases_aborted_total",
			Help: "KV blocks that a prefill worker keeps for a decode leg that will not come, by outcome: sent (the worker was told to free them), not_sent (it could not be told: the lease ends by itself)."}, []string{"outcome"}),
		fetched: f.NewCounter(prometheus.CounterOpts{Name: "warmpath_fetched_tokens_total",
			Help: "Prompt tokens that workers were told to fetch from another worker's cache."}),
	}
	for _, leg := range []string{"prefill", "decode"} { // increase() does not see a series that begins at 1
		t.legs.requests.WithLabelValues(leg)
		t.legs.failures.WithLabelValues(leg, PhaseTransfer)
		t.legs.failures.WithLabelValues(leg, leg)
		t.legs.seconds.WithLabelValues(leg)
	}
	t.legs.aborted.WithLabelValues("sent")
	t.legs.aborted.WithLabelValues("not_sent")
}

// Divided counts a decision in a fleet whose workers exchange KV blocks. bypass is the reason why the request is not
// divided; "" means that it is.
func (t *Telemetry) Divided(bypass string) {
	if bypass == "" {
		t.legs.divided.Inc()
		return
	}
	t.legs.bypassed.WithLabelValues(bypass).Inc()
}

// Leg counts a leg of a divided request that ended well. took is the time from sending the leg to its whole answer (a
// prefill leg), or to the first token (a decode leg).
func (t *Telemetry) Leg(leg string, took time.Duration) {
	t.legs.requests.WithLabelValues(leg).Inc()
	t.legs.seconds.WithLabelValues(leg).Observe(took.Seconds())
}

// LegFailed counts a leg that failed, by the phase in which it failed.
func (t *Telemetry) LegFailed(leg, phase string) { t.legs.failures.WithLabelValues(leg, phase).Inc() }

// Transfer counts a transfer. tokens is the number of tokens whose KV blocks reached the decode worker, and bytes is
// the size of these blocks: 0 if it is not known. took is negative if the time was not measured.
func (t *Telemetry) Transfer(tokens, bytes int, took time.Duration) {
	if took >= 0 {
		t.legs.transfer.Observe(took.Seconds())
	}
	t.legs.transferTokens.Add(float64(max(tokens, 0)))
	t.legs.transferBytes.Add(float64(max(bytes, 0)))
}

// LeaseAborted counts KV blocks that are kept for a decode leg that will not come. sent says that the worker was told
// to free them.
func (t *Telemetry) LeaseAborted(sent bool) {
	outcome := "not_sent"
	if sent {
		outcome = "sent"
	}
	t.legs.aborted.WithLabelValues(outcome).Inc()
}

// Fetched counts tokens of a prompt that a worker was told to fetch from another worker.
func (t *Telemetry) Fetched(tokens int) { t.legs.fetched.Add(float64(max(tokens, 0))) }
