package discovery

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/network"
)

// These constants are for the detection of frozen workers. A frozen worker and a worker that computes a long prompt
// both send nothing on their connections. But a running server answers a request that needs no engine without delay. So
// the guard sends such a request, a question, to a worker that was silent for longer than the constant quiet. If no
// answer comes within the worker's patience (see answerTimes), the worker becomes a suspect: it gets a request only if
// no other worker can take it. If the worker answered quickly before, a frozen worker becomes a suspect within a
// second.
const (
	guardTick = 100 * time.Millisecond
	// quiet is the silence after which the guard asks a worker. It is as long as several steps of a busy engine. A worker
	// that streams sends its next byte sooner, and is never asked.
	quiet = 300 * time.Millisecond
	// again is the pause between two questions to the same worker. The cost of two questions a second is too small to
	// measure.
	again = 500 * time.Millisecond
)

// guard detects frozen workers: no connection of such a worker delivers a byte, and a question gets no answer. One
// goroutine uses the guard. The goroutines that ask workers send it the outcomes through channels.
type guard struct {
	*Reporter
	workers map[fleet.WorkerID]*guarded
}

// guarded is the guard's state for one worker.
type guarded struct {
	asking   bool
	asked    time.Time     // time of the last question
	patience time.Duration // how long the guard waits for the answer to the last question
	since    int64         // time at which the worker became a suspect, in Unix nanoseconds; 0: the worker is not a suspect
	outcome  chan bool     // outcome of the last question: whether a sign of life came; capacity 1
}

// guard looks at each worker every guardTick, until ctx ends. It makes frozen workers suspects, and ends the suspicion
// when a sign of life comes.
func (r *Reporter) guard(ctx context.Context) {
	g := guard{Reporter: r, workers: map[fleet.WorkerID]*guarded{}}
	var asking sync.WaitGroup
	defer asking.Wait()
	tick := time.NewTicker(guardTick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			snap := r.fleet.Snapshot()
			for _, w := range snap.Workers() {
				if w.Healthy && len(w.Holders) > 0 {
					g.look(ctx, snap, w, now, &asking)
				} else {
					delete(g.workers, w.ID) // after the worker's return, the last question does not count
				}
			}
			for id := range g.workers {
				if snap.ByID(id) == nil {
					delete(g.workers, id)
				}
			}
		}
	}
}

// look judges the outcome of the last question to w, and sends another question if w is silent. asking counts the
// goroutines that wait for answers.
func (g *guard) look(ctx context.Context, snap *fleet.Snapshot, w *fleet.Worker, now time.Time, asking *sync.WaitGroup) {
	x := g.workers[w.ID]
	silent := silence(snap, w)
	if x == nil {
		if silent == 0 {
			return
		}
		x = &guarded{outcome: make(chan bool, 1)}
		g.workers[w.ID] = x
	}
	if x.since != 0 && !snap.Suspected(w.Holders[0]) {
		x.since = 0 // a health check has already cleared the worker
	}
	select {
	case alive := <-x.outcome:
		x.asking = false
		g.judge(w, x, alive || heardWithin(silent, x.patience, now), now)
	default:
		if x.asking && now.Sub(x.asked) >= x.patience && !heardWithin(silent, x.patience, now) {
			g.judge(w, x, false, now) // a late answer ends the suspicion
		}
	}
	if x.since != 0 && silent > x.since { // a byte came from the worker
		g.judge(w, x, true, now)
	}
	if x.asking || now.Sub(x.asked) < again || x.since == 0 && (silent == 0 || heardWithin(silent, quiet, now)) {
		return
	}
	counts := g.Counts(w.URL)
	if counts == nil { // the worker is new, or about to leave: new counts made here would never be deleted
		return
	}
	x.asking, x.asked, x.patience = true, now, counts.took.patience()
	suspect := x.since != 0
	asking.Go(func() { // ends with ctx, or after maxPatience; the method guard waits for it
		asked := time.Now()
		alive, answered := g.signOfLife(ctx, w)
		// A suspect's answer time is the time for which the worker was frozen. This time says nothing about the speed of the
		// worker's API server.
		if answered && !suspect {
			counts.took.add(time.Since(asked))
		}
		x.outcome <- alive
	})
}

// judge makes w a suspect or ends the suspicion, and reports the change to the fleet.
func (g *guard) judge(w *fleet.Worker, x *guarded, alive bool, now time.Time) {
	if alive == (x.since == 0) {
		return
	}
	x.since = 0
	if !alive {
		x.since = now.UnixNano()
	}
	if !g.fleet.Suspect(w.ID, !alive, now.UnixNano()) {
		return
	}
	if alive {
		g.log.Info("worker gives signs of life again", "worker", w.URL)
	} else {
		g.log.Warn("worker seems to be frozen: it gets no requests while others can take them", "worker", w.URL)
	}
}

// heardWithin reports whether the last byte of a worker came less than d ago. silent is the time of that byte. It is 0
// if the worker has no requests, and so sends no bytes.
func heardWithin(silent int64, d time.Duration, now time.Time) bool {
	return silent != 0 && time.Duration(now.UnixNano()-silent) < d
}

// silence returns the time of the last byte from w, in Unix nanoseconds. It returns 0 if w has no requests.
func silence(snap *fleet.Snapshot, w *fleet.Worker) (since int64) {
	for _, h := range w.Holders {
		since = max(since, snap.Silence(h))
	}
	return since
}

// signOfLife sends w a request that needs no engine. answered is true if an answer came, with any status. alive is also
// true if this machine failed or ctx ended, because such an error proves nothing about w.
func (g *guard) signOfLife(ctx context.Context, w *fleet.Worker) (alive, answered bool) {
	a := asker{client: g.client, target: Target{URL: w.URL}, timeout: maxPatience}
	if g.targets != nil {
		a.target.APIKey = g.targets(w.URL).APIKey
	}
	err := a.ask(ctx, http.MethodGet, "/v1/models", nil, maxJSON, discard)
	answered = err == nil || statusOf(err) != 0
	return answered || network.Local(err) || ctx.Err() != nil, answered
}
