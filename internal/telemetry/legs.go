package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// legMetrics are the metrics of divided requests.
type legMetrics struct {
	requests  *prometheus.CounterVec
	bypassed  *prometheus.CounterVec
	time      *prometheus.HistogramVec
	transfers prometheus.Histogram
	tokens    prometheus.Counter
	bytes     prometheus.Counter
	failures  *prometheus.CounterVec
	aborted   *prometheus.CounterVec
	fetched   prometheus.Counter
}

func makeLegMetrics(f promauto.Factory) legMetrics {
	return legMetrics{
		requests: f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_leg_requests_total",
			Help: "Requests that were served, by leg: prefill, decode. A whole request counts in neither."}, []string{"leg"}),
		bypassed: f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_bypassed_total",
			Help: "Requests that were not divided though the fleet has workers for two legs, by reason (docs/prefill-decode.md)."}, []string{"reason"}),
		time: f.NewHistogramVec(prometheus.HistogramOpts{Name: "warmpath_leg_seconds",
			Help: "Time of a leg from its sending to its end, by leg.", Buckets: latencyBuckets}, []string{"leg"}),
		transfers: f.NewHistogram(prometheus.HistogramOpts{Name: "warmpath_transfer_seconds",
			Help: "Time of the transfer of a prompt's KV blocks: from the end of the prefill leg to the first token, less one step of the decode engine.", Buckets: latencyBuckets}),
		tokens: f.NewCounter(prometheus.CounterOpts{Name: "warmpath_transfer_tokens_total",
			Help: "Prompt tokens whose KV blocks went from a prefill worker to a decode worker, as predicted."}),
		bytes: f.NewCounter(prometheus.CounterOpts{Name: "warmpath_transfer_bytes_total",
			Help: "Size of these KV blocks. Workers whose kv_bytes_per_token is not known add nothing."}),
		failures: f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_leg_failures_total",
			Help: "Legs that failed, by leg and by phase: prefill (the prompt is computed), transfer (the decode worker waits for the KV blocks), decode (the answer is generated)."}, []string{"leg", "phase"}),
		aborted: f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_leases_aborted_total",
			Help: "Requests to workers to abort a leg, by outcome: done, failed."}, []string{"outcome"}),
		fetched: f.NewCounter(prometheus.CounterOpts{Name: "warmpath_fetched_tokens_total",
			Help: "Prompt tokens whose KV blocks workers were told to read from another worker."}),
	}
}

// Bypassed counts a request that was not divided.
func (t *Telemetry) Bypassed(reason string) { t.legs.bypassed.WithLabelValues(reason).Inc() }

// Leg records a leg that was served.
func (t *Telemetry) Leg(leg string, took time.Duration) {
	t.legs.requests.WithLabelValues(leg).Inc()
	t.legs.time.WithLabelValues(leg).Observe(took.Seconds())
}

// LegFailed counts a leg that failed.
func (t *Telemetry) LegFailed(leg, phase string) { t.legs.failures.WithLabelValues(leg, phase).Inc() }

// Transfer records a transfer of KV blocks. bytes is 0 if the size is not known.
func (t *Telemetry) Transfer(tokens, bytes int, took time.Duration) {
	t.legs.transfers.Observe(took.Seconds())
	t.legs.tokens.Add(float64(tokens))
	t.legs.bytes.Add(float64(bytes))
}

// LeaseAborted counts a request to a worker to abort a leg.
func (t *Telemetry) LeaseAborted(done bool) {
	outcome := "failed"
	if done {
		outcome = "done"
	}
	t.legs.aborted.WithLabelValues(outcome).Inc()
}

// Fetched counts tokens whose KV blocks a worker was told to read from another worker.
func (t *Telemetry) Fetched(tokens int) { t.legs.fetched.Add(float64(tokens)) }
