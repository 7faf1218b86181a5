package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// The outcomes of a lookup in a remote index.
const (
	LookupAnswered = "answered"
	LookupTimeout  = "timeout"
	LookupCanceled = "canceled"
	LookupFailed   = "failed"
)

// makeLookupMetrics makes the metric of the lookups in a remote index.
func (t *Telemetry) makeLookupMetrics(f promauto.Factory) {
	t.lookups = f.NewHistogramVec(prometheus.HistogramOpts{Name: "warmpath_remote_index_seconds",
		Help:    "Time for which a request waited for the index outside of the router's process, by outcome: answered, timeout (index.max_wait), canceled (the client left), failed. Requests without an answer are decided by load.",
		Buckets: []float64{1e-4, 2e-4, 3e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, .1, 1}}, []string{"outcome"})
}

// LookedUp counts a request for which the remote index was asked.
func (t *Telemetry) LookedUp(outcome string, wait time.Duration) {
	t.lookups.WithLabelValues(outcome).Observe(wait.Seconds())
}
