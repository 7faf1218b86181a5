package telemetry

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

func (t *Telemetry) makeAdapterMetrics(f promauto.Factory) {
	t.adapterOrders = f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_adapter_orders_total",
		Help: "Orders to workers to load or unload a LoRA adapter (adapters), by order (load, unload) and by outcome: done, failed."}, []string{"order", "outcome"})
	t.adapterWait = f.NewHistogramVec(prometheus.HistogramOpts{Name: "warmpath_adapter_wait_seconds",
		Help: "Time for which requests waited until their LoRA adapter was loaded, by how it ended: loaded, failed, timeout, client_gone.", Buckets: latencyBuckets}, []string{"outcome"})
}

// OrderedAdapter counts an order to load or unload an adapter.
func (t *Telemetry) OrderedAdapter(order string, done bool) {
	outcome := "failed"
	if done {
		outcome = "done"
	}
	t.adapterOrders.WithLabelValues(order, outcome).Inc()
}

// WaitedForAdapter records that a request waited for its adapter.
func (t *Telemetry) WaitedForAdapter(outcome string, wait time.Duration) {
	t.adapterWait.WithLabelValues(outcome).Observe(wait.Seconds())
}
