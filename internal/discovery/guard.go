package discovery

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/network"
)

// How a frozen worker is told from one that computes a long prompt. Both are silent on their connections; but what asks nothing of
// the engine is answered at once by a server that runs. So a worker that was silent for quiet is asked for a sign of life, and is a
// suspect when none comes within patience: noticed within a second, with room for a tick.
const (
	guardTick = 100 * time.Millisecond
	quiet     = 300 * time.Millisecond // several steps of a busy engine: who streams is heard of more often, and never asked
	patience  = 500 * time.Millisecond // an API server that is busy with other requests answers within some ten
	// again is the pause between two questions to the same worker. Two a second cost an engine nothing that can be measured.
	again = 500 * time.Millisecond
)

// guard looks for workers that freeze: none of their connections brings a byte, and they do not answer a question. One goroutine
// uses it; the questions it asks tell it through answers.
type guard struct {
	*Reporter
	workers map[fleet.WorkerID]*guarded
}

// guarded is what the guard knows of one worker.
type guarded struct {
	asking  bool
	next    time.Time // no question before
	since   int64     // when it became a suspect, Unix nanoseconds; 0: it is none
	outcome chan bool // holds one: whether a sign of life came
}

// guard runs until ctx ends.
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

// look takes a question's outcome, asks when the worker is silent, and tells the fleet.
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
		x.since = 0 // it was checked to be healthy meanwhile
	}
	select {
	case alive := <-x.outcome:
		x.asking = false
		g.judge(w, x, alive || silent != 0 && time.Duration(now.UnixNano()-silent) < patience, now)
	default:
	}
	if x.since != 0 && silent > x.since { // it was heard of
		g.judge(w, x, true, now)
	}
	if x.asking || now.Before(x.next) || x.since == 0 && (silent == 0 || time.Duration(now.UnixNano()-silent) < quiet) {
		return
	}
	x.asking, x.next = true, now.Add(again)
	asking.Go(func() { x.outcome <- g.signOfLife(ctx, w) }) // ends with ctx, or after patience; guard waits
}

// judge makes w a suspect, or ends that.
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
		g.log.Info("worker gives signs of life again: it starts slowly", "worker", w.URL)
	} else {
		g.log.Warn("worker seems to be frozen: it gets no requests while others can take them", "worker", w.URL)
	}
}

// silence returns since when nothing came from w while requests were there, in Unix nanoseconds; 0 where there are none.
func silence(snap *fleet.Snapshot, w *fleet.Worker) (since int64) {
	for _, h := range w.Holders {
		since = max(since, snap.Silence(h))
	}
	return since
}

// signOfLife asks w what is answered without its engine, and reports whether anything came back, whatever it is. A failure of this
// machine tells nothing, and counts as one.
func (g *guard) signOfLife(ctx context.Context, w *fleet.Worker) bool {
	a := asker{client: g.client, target: Target{URL: w.URL}, timeout: patience}
	if g.targets != nil {
		a.target.APIKey = g.targets(w.URL).APIKey
	}
	err := a.ask(ctx, http.MethodGet, "/v1/models", nil, maxJSON, discard)
	return err == nil || statusOf(err) != 0 || network.Local(err) || ctx.Err() != nil
}
