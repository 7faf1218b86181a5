package telemetry

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/kvfeed"
)

// Sources has functions that return the present state of other components. Each scrape calls them, and scrapes may run
// concurrently. If a function is nil, its metrics are absent.
type Sources struct {
	Workers func() []Worker
	Index   func() []Index
	Tokens  func() TokenStats
	Queue   func() []Line
	// Stalls returns the oldest work of each kind that can stall. Stale returns how old the figures about the index and
	// about events are. This age is more than 0 only while no current figures are available.
	Stalls func() []Stall
	Stale  func() time.Duration
	Log    func() LogLines
	// Snapshots returns the counters of snapshots of the index.
	Snapshots func() Snapshots
	// Sync returns the state of the sharing of requests with other routers; nil: it is off.
	Sync func() Sync
}

// Snapshots counts snapshots of the index, and the checkpoints of holders in them.
type Snapshots struct {
	Given, GivenBroken, GivenRefused uint64 // given to peers; broken off; refused because others were being given
	Peers, PeersFailed               uint64 // taken from peers
	Files, FilesFailed               uint64 // read from the file
	Saved, SavesFailed               uint64 // written to the file
	Confirmed, Refused, Unfit        uint64 // checkpoints
}

// Line describes the requests that wait in the queue for the workers of one base model.
type Line struct {
	Model    string
	Requests int
	Bytes    int64 // memory of the requests' bodies
}

// Worker has the facts about a worker that metrics show.
type Worker struct {
	URL string
	Up  bool // true: the worker is healthy and ready, so it may get requests
	// Reports counts the load reports that the worker's engine sent. ReportsFailed counts the questions for a load
	// report that got no valid answer.
	Reports, ReportsFailed uint64
	Holders                []Holder
}

// Holder is one data-parallel rank of a worker. Several fields have types of package fleet, which learns these facts.
type Holder struct {
	Rank     int
	Trust    fleet.Trust
	Load     fleet.Load     // load of this router's requests on the holder
	Reported fleet.Reported // the engine's last load report; if At is 0, the engine has not reported
	Timing   fleet.Timing   // how long the steps of the engine take
	Pace     fleet.Pace     // how slow the holder's steps are, compared with the median holder of its kind
	Blocks   int64          // number of blocks that the index has for the holder
	// Evicted is the number of the holder's blocks that the index evicted since it last forgot all blocks of the
	// holder.
	Evicted int64
	// Refused is the number of the holder's announcements and blocks that the index refused in the same time.
	Refused int64
	Suspect bool // true: the worker of the holder seems to be frozen
	// Share is the fraction of its normal number of requests that the holder may get: below 1 during slow start, and
	// otherwise 1.
	Share float64
	// Useless says that the holder gets no requests for some model and endpoint, because its answers there were
	// useless.
	Useless bool
	// Limited says that the holder answered 429, so it gets no requests of at least one tenant for some time.
	Limited bool
	Leaked  uint64        // number of requests whose load was never released, and was dropped after a time limit
	Stream  *kvfeed.Stats // nil if the holder has no event source
}

// Index is the state of the block index of one base model. The answer of GET /admin/workers has it as JSON.
type Index struct {
	Model       string `json:"model"`
	BlockSize   int    `json:"block_size"`  // tokens in a block
	Blocks      int64  `json:"blocks"`      // number of distinct blocks
	Memberships int64  `json:"memberships"` // number of pairs of a holder and a block
	Bytes       int64  `json:"bytes"`
	Waiting     int64  `json:"waiting"` // number of announced blocks that wait, mostly for an unknown parent block
	Evictions   uint64 `json:"evictions"`
	// Speculative is the number of expected pairs of a holder and a block: the router sent a prompt with the block to
	// the holder, and no event has announced the block yet. SpeculativeBytes is the memory of these pairs, which is not
	// a part of Bytes. SpeculativeDropped counts the pairs that were dropped before their time limit.
	Speculative        int64  `json:"speculative"`
	SpeculativeBytes   int64  `json:"speculative_bytes"`
	SpeculativeDropped uint64 `json:"speculative_dropped"`
}

// TokenStats is what the source of token ids has done so far.
type TokenStats struct {
	tokens.Stats
	Models map[string]int // number of models for each source of token ids; nil: the sources are not known
}

// trusts has all values of the label trust. For each holder, a scrape has one series for each value: 1 for the present
// trust, and 0 for the others.
var trusts = []string{"exact", "degraded", "approximate", "none"}

// collector makes metrics from Sources at each scrape.
type collector struct {
	src  Sources
	sync syncMetrics

	suspect, share, leftOut                                            *prometheus.Desc
	up, trust, requests, prefill, context, blocks, connected, sequence *prometheus.Desc
	holderEvicted, holderRefused                                       *prometheus.Desc
	timing, pace, paceMeasured, paceLow, paceHigh                      *prometheus.Desc
	reports, leaked, reportAge, running, waiting, kvUsed               *prometheus.Desc
	streamCounters                                                     []streamCounter
	indexBlocks, indexMemberships, indexBytes, indexWaiting, evictions *prometheus.Desc
	expected, expectedBytes, expectedDropped                           *prometheus.Desc
	cacheBytes, cacheEntries, asked, hedged, opened, waited, late      *prometheus.Desc
	begun, begunWrong, begunOff                                        *prometheus.Desc
	checked, differed, distrusted, tokenModels                         *prometheus.Desc
	queueRequests, queueBytes                                          *prometheus.Desc
	stalled, workTime, stale, logLines                                 *prometheus.Desc
	snapshots, checkpoints                                             *prometheus.Desc
}

// streamCounter describes one counter of an event stream, and reads its value.
type streamCounter struct {
	desc  *prometheus.Desc
	value func(*kvfeed.Stats) uint64
}

func newCollector(src Sources) *collector {
	holder := []string{"worker", "rank"}
	desc := func(name, help string, labels []string) *prometheus.Desc {
		return prometheus.NewDesc("warmpath_"+name, help, labels, nil)
	}
	stream := func(name, help string, value func(*kvfeed.Stats) uint64) streamCounter {
		return streamCounter{desc("events_"+name+"_total", help, holder), value}
	}
	return &collector{
		src:           src,
		sync:          newSyncMetrics(desc),
		up:            desc("worker_up", "1 while requests may go to this worker.", []string{"worker"}),
		trust:         desc("holder_trust", "1 for the present trust of this rank, 0 for the other values.", []string{"worker", "rank", "trust"}),
		requests:      desc("holder_requests", "Requests of this router that this rank is serving.", holder),
		suspect:       desc("holder_suspect", "1 while the worker seems to be frozen. It then gets only requests that no other worker can take.", holder),
		share:         desc("holder_share_ratio", "Slow start after a return: the rank may have N + 1 requests under way; N is the number of its answers since the return. Of further requests the rank gets only this share. 1 after slow start.", holder),
		leftOut:       desc("holder_left_out", "1 while this rank gets no requests of some kind: its answers for a model and endpoint were useless (useless), or it answered 429 (limited).", []string{"worker", "rank", "reason"}),
		prefill:       desc("holder_prefill_tokens", "Uncached prompt tokens that were sent to this rank, of requests without a first token.", holder),
		context:       desc("holder_context_blocks", "Blocks of the prompts and answers that this rank is serving now.", holder),
		blocks:        desc("holder_blocks", "Blocks of this rank's cache that the index has.", holder),
		holderEvicted: desc("holder_evicted_blocks_total", "Blocks of this rank that the index dropped because the index was full. Counted since the router last forgot this rank's blocks.", holder),
		holderRefused: desc("holder_refused_total", "Announcements and blocks of this rank that the index refused. Counted since the router last forgot this rank's blocks.", holder),
		reports:       desc("reports_total", "Questions to workers about their load, by result (ok or error).", []string{"worker", "result"}),
		leaked:        desc("holder_leaked_requests_total", "Requests whose reservation of load was never released, and was then dropped after a time limit: each is a bug.", holder),
		timing:        desc("holder_timing_seconds", "The learned time of this rank's engine steps, by part: a step (base), each sequence, each token of context, each prompt token, and each pair of a prompt token and one before it (attention).", []string{"worker", "rank", "part"}),
		pace:          desc("holder_pace_ratio", "The pace that predictions use: the measured pace if it is significantly different from 1, otherwise 1.", holder),
		paceMeasured:  desc("holder_pace_measured_ratio", "The measured pace: the time of this rank's engine steps, divided by the median of the ranks of its kind. Absent while there are too few measurements.", holder),
		paceLow:       desc("holder_pace_low_ratio", "The lower end of the 95 % confidence interval of the measured pace (warmpath_holder_pace_measured_ratio).", holder),
		paceHigh:      desc("holder_pace_high_ratio", "The upper end of the 95 % confidence interval of the measured pace (warmpath_holder_pace_measured_ratio).", holder),
		reportAge:     desc("holder_report_age_seconds", "Age of the engine's last report of its load.", holder),
		running:       desc("holder_running_requests", "Requests that the engine is computing, as it reports.", holder),
		waiting:       desc("holder_waiting_requests", "Requests that wait in the engine's own queue, as it reports.", holder),
		kvUsed:        desc("holder_kv_used_ratio", "Share of the engine's KV cache that running requests use, as the engine reports it.", holder),
		connected:     desc("events_connected", "1 while the connection to the event publisher is open.", holder),
		sequence:      desc("events_last_sequence", "Sequence number of the last event message.", holder),
		streamCounters: []streamCounter{
			stream("messages", "Event messages whose events were applied.", func(s *kvfeed.Stats) uint64 { return s.Messages }),
			stream("applied", "KV events of this rank, without those that were not applied (warmpath_events_unapplied_total). Skipped events are included.", func(s *kvfeed.Stats) uint64 { return s.Applied }),
			stream("unapplied", "Events that were not applied because they leave out a value that keeps requests apart, such as a salt or an owner.", func(s *kvfeed.Stats) uint64 { return s.Unapplied }),
			stream("skipped", "Events that were skipped: their kind is unknown, or they do not concern the index.", func(s *kvfeed.Stats) uint64 { return s.Skipped }),
			stream("undecodable", "Event messages that could not be decoded, and were dropped.", func(s *kvfeed.Stats) uint64 { return s.Undecodable }),
			stream("foreign", "Messages on the event connection that are not KV events.", func(s *kvfeed.Stats) uint64 { return s.Foreign }),
			stream("misdirected", "Messages of another data-parallel rank, which are not applied.", func(s *kvfeed.Stats) uint64 { return s.Misdirected }),
			stream("gaps", "Gaps in the sequence numbers of event messages.", func(s *kvfeed.Stats) uint64 { return s.Gaps }),
			stream("checks", "Replays that were requested only to find out whether messages are missing.", func(s *kvfeed.Stats) uint64 { return s.Checks }),
			stream("replays", "Replays that were requested because messages were missing.", func(s *kvfeed.Stats) uint64 { return s.Replays }),
			stream("replayed", "Event messages that were received by a replay.", func(s *kvfeed.Stats) uint64 { return s.Replayed }),
			stream("duplicates", "Event messages that were received before, and dropped.", func(s *kvfeed.Stats) uint64 { return s.Duplicates }),
			stream("lost", "Event messages that are missing and that no replay brought.", func(s *kvfeed.Stats) uint64 { return s.Lost }),
			stream("restarts", "Restarts of the engine that its event stream showed.", func(s *kvfeed.Stats) uint64 { return s.Restarts }),
			stream("forgotten", "Number of times that the router dropped all that it knew about this rank's cache.", func(s *kvfeed.Stats) uint64 { return s.Forgotten }),
		},
		indexBlocks:      desc("index_blocks", "Distinct blocks in the index.", []string{"model"}),
		indexMemberships: desc("index_memberships", "Pairs of holder (data-parallel rank) and block in the index.", []string{"model"}),
		indexBytes:       desc("index_bytes", "Memory of the index, as the index counts it.", []string{"model"}),
		indexWaiting:     desc("index_waiting", "Announced blocks that are kept until their parent block is announced.", []string{"model"}),
		expected:         desc("index_speculative", "Pairs of holder and block that the router expects because it sent a prompt there.", []string{"model"}),
		expectedBytes:    desc("index_speculative_bytes", "Memory of the expected pairs (warmpath_index_speculative). It is not a part of warmpath_index_bytes.", []string{"model"}),
		expectedDropped:  desc("index_speculative_dropped_total", "Expected pairs (warmpath_index_speculative) that were dropped before their time limit, to stay below index.max_speculative.", []string{"model"}),
		evictions:        desc("index_evictions_total", "Blocks that the index evicted to stay below index.bytes.", []string{"model"}),
		cacheBytes:       desc("token_cache_bytes", "Memory of the cache of token ids.", nil),
		cacheEntries:     desc("token_cache_entries", "Prompts in the cache of token ids.", nil),
		asked:            desc("token_calls_total", "Calls made to engines for token ids.", nil),
		hedged:           desc("token_hedges_total", "Questions for token ids that went to a second engine because the first engine was slow.", nil),
		waited:           desc("token_calls_waited_total", "Questions for token ids that waited in line. The router asks each engine at most two questions at a time, and at most one of them about a long prompt.", nil),
		late:             desc("token_answers_late_total", "Answers with token ids that came when no request waited for them any more. The router keeps the ids for the chat's next turn.", nil),
		begun:            desc("token_beginnings_checked_total", "Engines' answers that were compared with the token ids that were already known for the chat's beginning.", nil),
		begunWrong:       desc("token_beginnings_differed_total", "Engines' answers that differed from the ids that were known for the chat's beginning: the model's template changes earlier turns.", nil),
		begunOff:         desc("token_beginnings_off", "1 for each model for which known beginnings are not used, because one differed from an engine's answer.", []string{"model"}),
		opened:           desc("token_breakers_opened_total", "Number of times that the router stopped asking a worker for token ids after repeated failures: a refused connection, 5xx, no ids, or no answer within 10 s.", nil),
		checked:          desc("tokens_checked_total", "Prompts whose token ids the router made and compared with the ids of an engine.", nil),
		differed:         desc("tokens_differed_total", "Prompts for which the ids that the router made differed from the ids of the engine.", nil),
		queueRequests:    desc("queue_requests", "Requests that wait in the queue, by base model.", []string{"model"}),
		queueBytes:       desc("queue_bytes", "Memory of the bodies of requests that wait in the queue.", []string{"model"}),
		stalled:          desc("stalled", "1 while work of this kind (decisions, events) has made no progress for 2 s. /readiness is 503 meanwhile.", []string{"what"}),
		workTime:         desc("oldest_work_seconds", "Age of the oldest unfinished decision, or application of events.", []string{"what"}),
		stale:            desc("stale_seconds", "Age of the figures about the index and the event streams in this answer. 0 unless a stall keeps the router from reading new figures.", nil),
		logLines:         desc("log_lines_total", logLinesHelp, []string{"log", "result"}),
		snapshots:        desc("snapshots_total", "Snapshots of the index, by use (given to a peer, taken from a peer, read from a file, saved to a file) and by outcome: done, failed, busy (refused because others were being given).", []string{"use", "outcome"}),
		checkpoints:      desc("checkpoints_total", "Checkpoints of holders from snapshots, by outcome: confirmed (the engine confirmed it, and the router continued from it), refused (the engine did not confirm it, or it could not be loaded), unfit (of another engine, model or block size).", []string{"outcome"}),
		tokenModels:      desc("token_models", "Models by the source of their token ids: given (files that you named), files (files that the router found), engine (an engine is asked), search (an engine is asked while files are looked for and compared).", []string{"source"}),
		distrusted:       desc("tokens_distrusted", "1 for each model for which the router does not use the ids that it makes, because they differed from the ids of an engine.", []string{"model"}),
	}
}

// Describe sends no description, which tells the registry not to check the collector's series. These series appear and
// disappear with workers.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect calls every source once.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	if c.src.Workers != nil {
		for _, w := range c.src.Workers() {
			gauge(c.up, oneIf(w.Up), w.URL)
			if w.Reports+w.ReportsFailed > 0 {
				counter(c.reports, w.Reports, w.URL, "ok")
				counter(c.reports, w.ReportsFailed, w.URL, "error")
			}
			for i := range w.Holders {
				c.collectHolder(gauge, counter, w.URL, &w.Holders[i])
			}
		}
	}
	if c.src.Index != nil {
		for _, x := range c.src.Index() {
			gauge(c.indexBlocks, float64(x.Blocks), x.Model)
			gauge(c.indexMemberships, float64(x.Memberships), x.Model)
			gauge(c.indexBytes, float64(x.Bytes), x.Model)
			gauge(c.indexWaiting, float64(x.Waiting), x.Model)
			counter(c.evictions, x.Evictions, x.Model)
			gauge(c.expected, float64(x.Speculative), x.Model)
			gauge(c.expectedBytes, float64(x.SpeculativeBytes), x.Model)
			counter(c.expectedDropped, x.SpeculativeDropped, x.Model)
		}
	}
	if c.src.Stalls != nil {
		for _, s := range c.src.Stalls() {
			gauge(c.stalled, oneIf(s.Stalled()), s.What)
			gauge(c.workTime, s.For.Seconds(), s.What)
		}
	}
	if c.src.Stale != nil {
		gauge(c.stale, c.src.Stale().Seconds())
	}
	if c.src.Log != nil {
		lines := c.src.Log()
		counter(c.logLines, lines.Written, "router", "written")
		counter(c.logLines, lines.Dropped, "router", "dropped")
		counter(c.logLines, lines.Failed, "router", "failed")
	}
	if c.src.Snapshots != nil {
		c.collectSnapshots(counter, c.src.Snapshots())
	}
	if c.src.Sync != nil {
		s := c.src.Sync()
		c.sync.collect(gauge, counter, &s)
	}
	if c.src.Queue != nil {
		for _, l := range c.src.Queue() {
			gauge(c.queueRequests, float64(l.Requests), l.Model)
			gauge(c.queueBytes, float64(l.Bytes), l.Model)
		}
	}
	if c.src.Tokens != nil {
		s := c.src.Tokens()
		gauge(c.cacheBytes, float64(s.Bytes))
		gauge(c.cacheEntries, float64(s.Entries))
		counter(c.asked, s.Asked)
		counter(c.hedged, s.Hedged)
		counter(c.opened, s.Opened)
		counter(c.waited, s.Waited)
		counter(c.late, s.Late)
		counter(c.begun, s.BeginningsChecked)
		counter(c.begunWrong, s.BeginningsDiffered)
		for _, model := range s.BeginningsOff {
			gauge(c.begunOff, 1, model)
		}
		counter(c.checked, s.Checked)
		counter(c.differed, s.Differed)
		for _, model := range s.Distrusted {
			gauge(c.distrusted, 1, model)
		}
		for source, n := range s.Models {
			gauge(c.tokenModels, float64(n), source)
		}
	}
}

func (c *collector) collectSnapshots(counter setCounter, s Snapshots) {
	for _, n := range []struct {
		use, outcome string
		value        uint64
	}{
		{"given", "done", s.Given}, {"given", "failed", s.GivenBroken}, {"given", "busy", s.GivenRefused},
		{"taken", "done", s.Peers}, {"taken", "failed", s.PeersFailed},
		{"read", "done", s.Files}, {"read", "failed", s.FilesFailed},
		{"saved", "done", s.Saved}, {"saved", "failed", s.SavesFailed},
	} {
		counter(c.snapshots, n.value, n.use, n.outcome)
	}
	counter(c.checkpoints, s.Confirmed, "confirmed")
	counter(c.checkpoints, s.Refused, "refused")
	counter(c.checkpoints, s.Unfit, "unfit")
}

// setGauge and setCounter send one sample of a gauge or a counter.
type (
	setGauge   = func(d *prometheus.Desc, v float64, labels ...string)
	setCounter = func(d *prometheus.Desc, v uint64, labels ...string)
)

func (c *collector) collectHolder(gauge setGauge, counter setCounter, url string, h *Holder) {
	rank := strconv.Itoa(h.Rank)
	for _, t := range trusts {
		gauge(c.trust, oneIf(t == h.Trust.String()), url, rank, t)
	}
	gauge(c.requests, float64(h.Load.Requests), url, rank)
	gauge(c.suspect, oneIf(h.Suspect), url, rank)
	gauge(c.share, h.Share, url, rank)
	gauge(c.leftOut, oneIf(h.Useless), url, rank, "useless")
	gauge(c.leftOut, oneIf(h.Limited), url, rank, "limited")
	gauge(c.prefill, float64(h.Load.PrefillTokens), url, rank)
	gauge(c.context, float64(h.Load.ContextBlocks), url, rank)
	gauge(c.blocks, float64(h.Blocks), url, rank)
	counter(c.holderEvicted, uint64(h.Evicted), url, rank)
	counter(c.holderRefused, uint64(h.Refused), url, rank)
	counter(c.leaked, h.Leaked, url, rank)
	for name, ms := range map[string]float64{"base": h.Timing.Base, "sequence": h.Timing.Sequence, "context": h.Timing.Context,
		"token": h.Timing.Token, "attention": h.Timing.Attention} {
		gauge(c.timing, ms/1e3, url, rank, name)
	}
	gauge(c.pace, h.Pace.Factor, url, rank)
	if h.Pace.Measured > 0 {
		gauge(c.paceMeasured, h.Pace.Measured, url, rank)
		gauge(c.paceLow, h.Pace.Low, url, rank)
		gauge(c.paceHigh, h.Pace.High, url, rank)
	}
	if r := &h.Reported; r.At != 0 {
		gauge(c.reportAge, time.Since(time.Unix(0, r.At)).Seconds(), url, rank)
		gauge(c.running, float64(r.Running), url, rank)
		gauge(c.waiting, float64(r.Waiting), url, rank)
		gauge(c.kvUsed, r.KVUsed, url, rank)
	}
	if h.Stream == nil {
		return
	}
	gauge(c.connected, oneIf(h.Stream.Connected), url, rank)
	gauge(c.sequence, float64(h.Stream.Sequence), url, rank)
	for _, sc := range c.streamCounters {
		counter(sc.desc, sc.value(h.Stream), url, rank)
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
