package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/bench/internal/feed"
	"github.com/warmpath/warmpath/bench/internal/latency"
	"github.com/warmpath/warmpath/bench/internal/trace"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// settings are the parameters of a replay.
type settings struct {
	Lanes int // number of goroutines that make lookups; all requests of a holder go to the same goroutine
	// EventWorkers is the number of goroutines that apply events. All events of a holder go to the same goroutine.
	EventWorkers int
	Spin         time.Duration // time before each deadline in which an issuer does not sleep, but spins
	Quiescence   time.Duration // pause before the clock starts
}

// moments has the times of one operation, in nanoseconds after the start of the replay. Each time is written once, by
// one goroutine.
type moments struct{ due, accepted, started, finished int64 }

// trial is one replay of a corpus.
type trial struct {
	*corpus
	settings
	window  time.Duration
	x       *feed.Index
	asked   []feed.Question // by operation: the prepared lookup; empty for an event
	seen    []moments       // by operation: its times
	clock   latency.Clock
	start   int64
	queries atomic.Uint32 // number of queries issued so far

	lanes   []chan uint32
	writers []chan uint32
	depths  [2]depth // [0]: queries of all lanes; [1]: events of all writers

	problems []string
	lock     sync.Mutex // guards problems
}

// depth has numbers of waiting operations: now is the current number, most is the largest so far, and atStop is the
// number when the last operation was issued.
type depth struct {
	now, most atomic.Int64
	atStop    int64
}

func (d *depth) enter() {
	n := d.now.Add(1)
	for {
		most := d.most.Load()
		if n <= most || d.most.CompareAndSwap(most, n) {
			return
		}
	}
}

func (t *trial) fail(format string, args ...any) {
	t.lock.Lock()
	defer t.lock.Unlock()
	if len(t.problems) < 16 {
		t.problems = append(t.problems, fmt.Sprintf(format, args...))
	}
}

// prepare prepares the lookups of a corpus before the clock starts. All trials of the corpus use them.
func prepare(c *corpus) ([]feed.Question, error) {
	x, err := feed.New(c.BlockSize)
	if err != nil {
		return nil, err
	}
	asked := make([]feed.Question, len(c.operations))
	for i := range c.operations {
		if o := &c.operations[i]; o.kind == query {
			r := trace.Record{Kind: trace.Query, Units: 1, Locals: c.locals[o.from:o.to], Keys: c.keys[o.from:o.to]}
			asked[i] = x.Question(&r, 0)
			asked[i].DropTokens()
		}
	}
	return asked, nil
}

// run replays the corpus once on a new index, and returns when all operations are done. With a window of 0 it issues
// the operations as fast as it can.
func (t *trial) run() error {
	x, err := feed.New(t.BlockSize)
	if err != nil {
		return err
	}
	t.x = x
	t.seen = make([]moments, len(t.operations))
	for i := range t.seen { // this also touches the memory, so that the measurement contains no page faults
		t.seen[i].due = int64(t.operations[i].at * float64(t.window))
	}
	t.open()
	debug.FreeOSMemory()
	time.Sleep(t.Quiescence)
	t.clock = latency.NewClock()

	var backend, issuers sync.WaitGroup
	for lane := range t.lanes {
		backend.Go(func() { t.look(lane) })
	}
	for w := range t.writers {
		backend.Go(func() { t.write(w) })
	}
	t.start = t.clock.Now()
	issuers.Go(t.issueQueries)
	issuers.Go(t.issueEvents)
	issuers.Wait()
	for i := range t.depths {
		t.depths[i].atStop = t.depths[i].now.Load()
	}
	for _, lane := range t.lanes {
		close(lane)
	}
	for _, w := range t.writers {
		close(w)
	}
	backend.Wait()
	return nil
}

// open makes queues that are large enough for all operations, so that an issuer never blocks.
func (t *trial) open() {
	lanes, writers := make([]int, t.Lanes), make([]int, t.EventWorkers)
	for i := range t.operations {
		o := &t.operations[i]
		if o.kind == query {
			lanes[int(o.holder)%t.Lanes]++
		} else {
			writers[int(o.holder)%t.EventWorkers]++
		}
	}
	t.lanes, t.writers = nil, nil
	for _, n := range lanes {
		t.lanes = append(t.lanes, make(chan uint32, n))
	}
	for _, n := range writers {
		t.writers = append(t.writers, make(chan uint32, n))
	}
}

func (t *trial) now() int64 { return t.clock.Now() - t.start }

// wait sleeps until shortly before the deadline, and then spins. While it spins, it yields the processor, because lanes
// and writers must run on the same few cores.
func (t *trial) wait(deadline int64) {
	for {
		left := time.Duration(deadline - t.now())
		switch {
		case left <= 0:
			return
		case left > t.Spin:
			time.Sleep(left - t.Spin)
		default:
			runtime.Gosched()
		}
	}
}

func (t *trial) issueQueries() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i := range t.operations {
		o := &t.operations[i]
		if o.kind != query {
			continue
		}
		t.wait(t.seen[i].due)
		t.seen[i].accepted = t.now()
		t.depths[0].enter()
		t.lanes[int(o.holder)%t.Lanes] <- uint32(i)
		t.queries.Add(1)
	}
}

// issueEvents issues each event at its time, but not before all earlier queries are issued.
func (t *trial) issueEvents() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i := range t.operations {
		o := &t.operations[i]
		if o.kind == query {
			continue
		}
		t.wait(t.seen[i].due)
		for t.queries.Load() < o.before {
			runtime.Gosched()
		}
		t.seen[i].accepted = t.now()
		t.depths[1].enter()
		t.writers[int(o.holder)%t.EventWorkers] <- uint32(i)
	}
}

// look makes the lookups of one lane.
func (t *trial) look(lane int) {
	matches := make([]kvindex.Match, 0, t.Holders)
	for i := range t.lanes[lane] {
		m := &t.seen[i]
		m.started = t.now()
		matches = t.x.Match(t.asked[i].Keys(), matches[:0])
		m.finished = t.now()
		t.depths[0].now.Add(-1)
		if len(matches) > t.Holders {
			t.fail("query %d: %d matches for %d holders", i, len(matches), t.Holders)
		}
	}
}

// write applies the events of writer w. It checks that the events of each holder come in order.
func (t *trial) write(w int) {
	writer := t.x.Writer()
	last := make(map[uint32]uint32, t.Holders)
	var e feed.Event
	for i := range t.writers[w] {
		o := &t.operations[i]
		m := &t.seen[i]
		m.started = t.now()
		if before, ok := last[o.holder]; ok && before >= i {
			t.fail("event %d of holder %d came after %d", i, o.holder, before)
		}
		last[o.holder] = i
		r := t.record(o)
		if o.kind == cleared {
			writer.Clear(fleet.Holder(o.holder), block.TierGPU)
		} else {
			e = writer.Event(&r, &e)
			writer.Apply(&e)
		}
		m.finished = t.now()
		t.depths[1].now.Add(-1)
	}
}

// record returns an event as a record of a trace.
func (c *corpus) record(o *operation) trace.Record {
	r := trace.Record{Kind: trace.Stored, Worker: o.holder, Units: 1, HasParent: !o.rooted, Parent: o.parent, EngineHashes: c.keys[o.from:o.to]}
	if o.kind == removed {
		r.Kind, r.HasParent, r.Parent = trace.Removed, false, 0
		return r
	}
	r.Locals, r.Keys = c.locals[o.from:o.to], r.EngineHashes
	return r
}
