package fleet

import (
	"math"
	"sync/atomic"
	"time"
)

// others has what an engine's reports say about a holder: the last report, the work of other routers as computed from
// it, and the time of a prompt token.
type others struct {
	at                                 atomic.Int64  // when the report was read, Unix nanoseconds; 0: there is none
	requests, waiting, prefill, blocks atomic.Int64  // see Others
	perToken                           atomic.Uint64 // the float64 bits of the milliseconds of a prompt token; 0: unknown
	base                               atomic.Pointer[counted]
	reported                           atomic.Pointer[Reported]
}

// counted holds an engine's counters at one moment: see Reported.Computed and Reported.Busy.
type counted struct {
	computed int64
	busy     time.Duration
}

// leastTimed is the least number of tokens from which the time of one token is computed. Fewer tokens are only a part
// of a pass, and each pass has a constant cost.
const leastTimed = 1024

// time learns the time of a prompt token from the engine's counters.
func (o *others) time(r *Reported) {
	if r.Computed <= 0 {
		return
	}
	base := o.base.Load()
	if base != nil && r.Computed >= base.computed && r.Busy >= base.busy {
		tokens := r.Computed - base.computed
		if tokens < leastTimed {
			return
		}
		o.perToken.Store(math.Float64bits(float64(r.Busy-base.busy) / 1e6 / float64(tokens)))
	} else {
		o.perToken.Store(0) // the first report, or the report of another process
	}
	o.base.Store(&counted{r.Computed, r.Busy})
}

const (
	mostReported   = 1 << 32        // upper bound for a reported number of requests or tokens
	longestBacklog = 24 * time.Hour // upper bound for the predicted time of other routers' prompts
)

// Report stores an engine's report about h. The reported work less the work of this router and of its peers on h, if
// positive, is the work of other routers. This difference may be too small, because the work of this router includes
// requests that have not reached the engine yet. It may be too large by what peers have not told yet. Report allocates,
// which is acceptable because engines are asked once a second.
func (f *Fleet) Report(h Holder, r Reported) {
	snap := f.Snapshot()
	s := snap.state(h)
	if s == nil {
		return
	}
	// An engine may report anything. A number far beyond any queue must not overflow a sum.
	for _, n := range []*int64{&r.Running, &r.Waiting, &r.QueuedTokens} {
		*n = min(max(*n, 0), mostReported)
	}
	ours := s.work.load()
	whole, tokens := s.work.report(r.Waiting)
	ours.Waiting += whole
	ours.PrefillTokens += tokens
	o := &s.others
	over := func(reported, ours int64) int64 { return max(reported-ours, 0) }
	requests := over(r.Running+r.Waiting, ours.Requests)
	waiting := min(over(r.Waiting, ours.Waiting), requests)
	prefill := over(r.QueuedTokens, ours.PrefillTokens)
	if r.QueuedTokens <= 0 && !r.QueueReported {
		prefill = waiting * s.work.meanUncached()
	}
	blocks := int64(0)
	if w := snap.Worker(h); w != nil && w.Facts.BlocksPerRank > 0 {
		size := int64(max(w.Facts.BlockSize, 1))
		blocks = over(int64(r.KVUsed*float64(w.Facts.BlocksPerRank)), ours.ContextBlocks+ours.OutputTokens/size)
	}
	o.requests.Store(requests)
	o.waiting.Store(waiting)
	o.prefill.Store(prefill)
	o.blocks.Store(blocks)
	o.time(&r)
	o.reported.Store(&r)
	o.at.Store(r.At)
}

// add adds the work of others to l, weighted by the age of the report at now.
func (o *others) add(l *Load, now int64) {
	at := o.at.Load()
	if at == 0 {
		return
	}
	if r := o.reported.Load(); r != nil {
		l.Reported = *r
	}
	age := max(now-at, 0)
	if age >= int64(ReportedFor) {
		return
	}
	worth := 1 - float64(age)/float64(ReportedFor)
	faded := func(v *atomic.Int64) int64 { return int64(float64(v.Load())*worth + 0.5) }
	l.Others = Others{Requests: faded(&o.requests), Waiting: faded(&o.waiting), PrefillTokens: faded(&o.prefill), ContextBlocks: faded(&o.blocks)}
	l.Requests += l.Others.Requests
	l.Waiting += l.Others.Waiting
	l.PrefillTokens += l.Others.PrefillTokens
	l.PendingTokens += l.Others.PrefillTokens
	l.ContextBlocks += l.Others.ContextBlocks
	token := l.Timing.Token
	if reported := math.Float64frombits(o.perToken.Load()); reported > 0 {
		token = reported
	}
	l.Backlog += time.Duration(min(float64(l.Others.PrefillTokens)*token*1e6, float64(longestBacklog)))
}

// reset forgets the last report. It is called when the worker left.
func (o *others) reset() {
	o.at.Store(0)
	o.perToken.Store(0)
	o.base.Store(nil)
}
