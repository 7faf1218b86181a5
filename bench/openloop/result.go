package main

import (
	"slices"
	"time"

	"github.com/warmpath/warmpath/bench/internal/latency"
)

// result is the result of one trial. For figures that Dynamo's mooncake_bench also has, the JSON names are those of its
// result schema 4.
type result struct {
	SchemaVersion int    `json:"schema_version"`
	Backend       string `json:"backend"`
	Timer         string `json:"timer"`
	WindowMS      int64  `json:"benchmark_duration_ms"`
	BlockSize     int    `json:"block_size"`
	QuiescenceMS  int64  `json:"pre_run_quiescence_ms"`
	Lanes         int    `json:"query_lanes"`
	Issuers       int    `json:"issuer_threads"`
	EventWorkers  int    `json:"event_workers"`

	Requests      int `json:"total_requests"`
	Events        int `json:"total_events"`
	StoredEvents  int `json:"total_stored_events"`
	RemovedEvents int `json:"total_removed_events"`
	ClearedEvents int `json:"total_cleared_events"`
	RequestBlocks int `json:"total_request_blocks"`
	StoredBlocks  int `json:"total_stored_blocks"`
	RemovedBlocks int `json:"total_removed_blocks"`
	LogicalOps    int `json:"total_logical_ops"`
	BlockOps      int `json:"total_block_ops"`

	OfferedOps     float64 `json:"offered_logical_ops_per_sec"`
	IssuedOps      float64 `json:"actual_issue_logical_ops_per_sec"`
	AchievedOps    float64 `json:"achieved_logical_ops_per_sec"`
	OfferedBlocks  float64 `json:"offered_block_ops_per_sec"`
	IssuedBlocks   float64 `json:"actual_issue_block_ops_per_sec"`
	AchievedBlocks float64 `json:"achieved_block_ops_per_sec"`

	ReadLag       latency.Distribution `json:"read_issue_lag"`
	UpdateLag     latency.Distribution `json:"update_issue_lag"`
	QueueWait     latency.Distribution `json:"query_queue_wait"`
	Service       latency.Distribution `json:"query_service"`
	QueryTotal    latency.Distribution `json:"query_scheduled_to_finished"`
	UpdateApplied latency.Distribution `json:"update_accepted_to_finished"`
	// UpdateService is the time of applying an event, without waiting. Dynamo's schema does not have this figure.
	UpdateService   latency.Distribution `json:"update_service"`
	UpdateTotal     latency.Distribution `json:"update_scheduled_to_finished"`
	QueuedAtStop    int64                `json:"queued_queries_at_stop"`
	MostQueued      int64                `json:"maximum_query_queue_depth"`
	UpdatesAtStop   int64                `json:"outstanding_updates_at_stop"`
	MostUpdates     int64                `json:"maximum_outstanding_updates"`
	IssueSpan       int64                `json:"issue_span_ns"`
	Drain           int64                `json:"drain_ns"`
	GeneratorValid  bool                 `json:"generator_valid"`
	KeptUp          bool                 `json:"kept_up"`
	FailureReasons  []string             `json:"failure_reasons"`
	IndexBytes      int64                `json:"index_bytes"`
	Memberships     int64                `json:"memberships"`
	EndStateChecked int                  `json:"end_state_checked"`
	EndStateWrong   int                  `json:"end_state_wrong"`
}

// harvest returns the result of a trial. The generator is valid if all operations were issued within 1.01 times the
// window, each operation was done once, and the events of each holder were applied in order. The index kept up if all
// operations were done within 1.10 times the window.
func (t *trial) harvest() result {
	r := result{
		SchemaVersion: 4, Backend: "warmpath-kvindex", Timer: "sleep+spin(yielding)", WindowMS: t.window.Milliseconds(),
		BlockSize: t.BlockSize, QuiescenceMS: t.Quiescence.Milliseconds(), Lanes: t.Lanes, Issuers: 2, EventWorkers: t.EventWorkers,
		Requests: t.requests, StoredEvents: t.events[stored], RemovedEvents: t.events[removed], ClearedEvents: t.events[cleared],
		RequestBlocks: t.requestBlocks, StoredBlocks: t.eventBlocks[stored], RemovedBlocks: t.eventBlocks[removed],
		LogicalOps: len(t.operations), BlockOps: t.blocks(),
		QueuedAtStop: t.depths[0].atStop, MostQueued: t.depths[0].most.Load(),
		UpdatesAtStop: t.depths[1].atStop, MostUpdates: t.depths[1].most.Load(),
		FailureReasons: []string{},
	}
	r.Events = r.LogicalOps - r.Requests
	var lag, service, total [2][]int64 // [0]: queries; [1]: events
	var wait, applied []int64
	end := int64(0)
	for i := range t.seen {
		m := &t.seen[i]
		k := 0
		if t.operations[i].kind != query {
			k = 1
			applied = append(applied, m.finished-m.accepted)
		} else {
			wait = append(wait, m.started-m.accepted)
		}
		if m.finished == 0 {
			t.fail("operation %d was not done", i)
		}
		lag[k] = append(lag[k], m.accepted-m.due)
		service[k] = append(service[k], m.finished-m.started)
		total[k] = append(total[k], m.finished-m.due)
		r.IssueSpan, end = max(r.IssueSpan, m.accepted), max(end, m.finished)
	}
	r.Drain = end - r.IssueSpan
	r.ReadLag, r.UpdateLag = latency.Describe(lag[0]), latency.Describe(lag[1])
	r.Service, r.UpdateService = latency.Describe(service[0]), latency.Describe(service[1])
	r.QueryTotal, r.UpdateTotal = latency.Describe(total[0]), latency.Describe(total[1])
	r.QueueWait, r.UpdateApplied = latency.Describe(wait), latency.Describe(applied)
	rate := func(n int, over int64) float64 { return float64(n) / (float64(max(over, 1)) / 1e9) }
	r.IssuedOps, r.IssuedBlocks = rate(r.LogicalOps, r.IssueSpan), rate(r.BlockOps, r.IssueSpan)
	r.AchievedOps, r.AchievedBlocks = rate(r.LogicalOps, end), rate(r.BlockOps, end)
	window := float64(t.window)
	if t.window > 0 {
		r.OfferedOps, r.OfferedBlocks = rate(r.LogicalOps, int64(t.window)), rate(r.BlockOps, int64(t.window))
		if float64(r.IssueSpan) > 1.01*window {
			t.fail("issued in %v, later than 1.01 windows", time.Duration(r.IssueSpan).Round(time.Millisecond))
		}
	}
	r.FailureReasons = append(r.FailureReasons, slices.Clone(t.problems)...)
	r.GeneratorValid = len(t.problems) == 0
	r.KeptUp = t.window > 0 && float64(end) <= 1.10*window
	stats := t.x.Stats()
	r.IndexBytes, r.Memberships = stats.Bytes, stats.Memberships
	return r
}
