package telemetry

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// SharedReader has the figures of a reader of a shared index.
type SharedReader struct {
	Connected                        bool  // the server answers
	Holders                          int64 // holders that the reader knows
	LearnedHolders                   int64 // holders of which it knows learned placements
	Answered, Failed                 int64 // lookups
	RoundTrips, CacheHits, CacheMiss int64 // of lookups
	Invalid                          int64 // values that no writer of this version has written
}

// SharedPlacements has the figures of the learned placements of a router: prompts that were written, and prompts that
// were not.
type SharedPlacements struct{ Written, Dropped int64 }

// SharedWriter has the figures of a writer of a shared index.
type SharedWriter struct {
	Connected bool  // the server answers
	Holders   int64 // holders that it writes
	Waiting   int64 // changes that wait to be written
	Written   int64 // blocks
	Dropped   int64 // changes that were not written
	Refused   int64 // changes that the server refused
	Resyncs   int64 // holders that were written as a whole
	Sessions  int64 // times that the writer began anew
}

// sharedCollector makes metrics from the figures of a shared index at each scrape. Without a shared index there are
// none.
type sharedCollector struct {
	reader  atomic.Pointer[func() SharedReader]
	learned atomic.Pointer[func() SharedPlacements]
	writer  atomic.Pointer[func() SharedWriter]

	connected, holders, lookups, trips, cache, invalid    *prometheus.Desc
	written, waiting, dropped, refused, resyncs, sessions *prometheus.Desc
	placements                                            *prometheus.Desc
}

func (t *Telemetry) makeSharedIndexMetrics() {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("warmpath_shared_index_"+name, help, labels, nil)
	}
	t.shared = &sharedCollector{
		connected: desc("connected", "Whether the server of the shared index answers (1 or 0), by part: reader or writer.", "part"),
		holders:   desc("holders", "Number of holders in the shared index, by part: those that the reader knows, those of which it knows learned placements, and those that the writer writes.", "part"),
		lookups:   desc("lookups_total", "Lookups in the shared index by result: answered or failed.", "result"),
		trips:     desc("round_trips_total", "Questions to the server of the shared index for lookups. A lookup takes at most two."),
		cache:     desc("cache_total", "Records that lookups in the shared index needed first, by whether the router's cache had them: hit or miss.", "result"),
		invalid:   desc("invalid_total", "Values at the server of the shared index that no writer of this version has written. They are not used."),
		written:   desc("written_blocks_total", "Blocks that this process added to the shared index or dropped from it, once for each holder."),
		waiting:   desc("waiting", "Changes that wait to be written to the shared index."),
		dropped:   desc("dropped_total", "Changes that were not written to the shared index because the queue was full or the connection was lost. Their holders are written again."),
		refused:   desc("refused_total", "Changes that the server of the shared index refused because its memory is full."),
		resyncs:   desc("resyncs_total", "Number of times that a holder was written to the shared index as a whole."),
		sessions:  desc("sessions_total", "Number of times that the writer of the shared index began anew, because it connected or the server lost something."),
	}
	t.shared.placements = desc("placements_total", "Prompts at workers without events that this router learned from its requests, by what became of them in the shared index: written or dropped.", "result")
	t.registry.MustRegister(t.shared)
}

// ReadSharedIndex makes metrics of a reader's figures.
func (t *Telemetry) ReadSharedIndex(stats func() SharedReader) { t.shared.reader.Store(&stats) }

// LearnShared makes metrics of the figures of learned placements.
func (t *Telemetry) LearnShared(stats func() SharedPlacements) { t.shared.learned.Store(&stats) }

// WriteSharedIndex makes metrics of a writer's figures.
func (t *Telemetry) WriteSharedIndex(stats func() SharedWriter) { t.shared.writer.Store(&stats) }

// Describe is a method of prometheus.Collector.
func (c *sharedCollector) Describe(all chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.connected, c.holders, c.lookups, c.trips, c.cache, c.invalid, c.written, c.waiting, c.dropped, c.refused, c.resyncs, c.sessions, c.placements} {
		all <- d
	}
}

// Collect is a method of prometheus.Collector.
func (c *sharedCollector) Collect(all chan<- prometheus.Metric) {
	send := func(kind prometheus.ValueType, d *prometheus.Desc, v float64, labels ...string) {
		all <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	count := func(d *prometheus.Desc, v int64, labels ...string) {
		send(prometheus.CounterValue, d, float64(v), labels...)
	}
	if stats := c.reader.Load(); stats != nil {
		s := (*stats)()
		send(prometheus.GaugeValue, c.connected, oneIf(s.Connected), "reader")
		send(prometheus.GaugeValue, c.holders, float64(s.Holders), "reader")
		count(c.lookups, s.Answered, "answered")
		count(c.lookups, s.Failed, "failed")
		count(c.trips, s.RoundTrips)
		count(c.cache, s.CacheHits, "hit")
		count(c.cache, s.CacheMiss, "miss")
		count(c.invalid, s.Invalid)
		send(prometheus.GaugeValue, c.holders, float64(s.LearnedHolders), "learned")
	}
	if stats := c.learned.Load(); stats != nil {
		s := (*stats)()
		count(c.placements, s.Written, "written")
		count(c.placements, s.Dropped, "dropped")
	}
	if stats := c.writer.Load(); stats != nil {
		s := (*stats)()
		send(prometheus.GaugeValue, c.connected, oneIf(s.Connected), "writer")
		send(prometheus.GaugeValue, c.holders, float64(s.Holders), "writer")
		send(prometheus.GaugeValue, c.waiting, float64(s.Waiting))
		count(c.written, s.Written)
		count(c.dropped, s.Dropped)
		count(c.refused, s.Refused)
		count(c.resyncs, s.Resyncs)
		count(c.sessions, s.Sessions)
	}
}
