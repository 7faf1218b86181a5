package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// indexMetrics count what other programs ask the index service.
type indexMetrics struct {
	requests   *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
	streams    prometheus.Gauge
	lost       prometheus.Counter
	registered prometheus.Gauge
}

// makeIndexMetrics makes the metrics of the index service.
func (t *Telemetry) makeIndexMetrics(f promauto.Factory) {
	t.index = indexMetrics{
		requests: f.NewCounterVec(prometheus.CounterOpts{Name: "warmpath_index_service_requests_total",
			Help: "Requests to the index service, by endpoint (query, query_by_hash, register, …, and grpc_Score, grpc_Register, …) and by HTTP status, or the status that HTTP would have."}, []string{"endpoint", "status"}),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{Name: "warmpath_index_service_seconds",
			Help:    "Time that the index service took for a request, by endpoint. For a stream this is its whole time.",
			Buckets: []float64{1e-5, 2.5e-5, 5e-5, 1e-4, 2e-4, 3e-4, 5e-4, 1e-3, 2.5e-3, 1e-2, .1, 1}}, []string{"endpoint"}),
		streams: f.NewGauge(prometheus.GaugeOpts{Name: "warmpath_index_service_streams",
			Help: "Streams of changes of the index that are read now."}),
		lost: f.NewCounter(prometheus.CounterOpts{Name: "warmpath_index_service_streams_lost_total",
			Help: "Streams of changes that ended because their reader was too slow."}),
		registered: f.NewGauge(prometheus.GaugeOpts{Name: "warmpath_index_service_registered_workers",
			Help: "Workers that other programs registered at the index service."}),
	}
}

// IndexEndpoint returns the function that counts the requests to one endpoint of the index service.
func (t *Telemetry) IndexEndpoint(endpoint string) func(status int, took time.Duration) {
	seconds, ok := t.index.seconds.WithLabelValues(endpoint), t.index.requests.WithLabelValues(endpoint, "200")
	return func(status int, took time.Duration) {
		seconds.Observe(took.Seconds())
		if status == 200 {
			ok.Inc()
			return
		}
		t.index.requests.WithLabelValues(endpoint, strconv.Itoa(status)).Inc()
	}
}

// IndexAsked counts a request to an endpoint of the index service.
func (t *Telemetry) IndexAsked(endpoint string, status int, took time.Duration) {
	t.IndexEndpoint(endpoint)(status, took)
}

// IndexStream counts a stream of changes until ended is called.
func (t *Telemetry) IndexStream() (ended func()) {
	t.index.streams.Inc()
	return t.index.streams.Dec
}

// IndexStreamLost counts a stream of changes whose reader was too slow.
func (t *Telemetry) IndexStreamLost() { t.index.lost.Inc() }

// IndexRegistered records the number of registered workers.
func (t *Telemetry) IndexRegistered(workers int) { t.index.registered.Set(float64(workers)) }
