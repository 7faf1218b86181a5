package sim

import (
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/engine"
)

// rank is one data-parallel rank of a worker: an engine with its current work.
type rank struct {
	index  int // index of the rank in world.ranks
	pool   *pool
	holder fleet.Holder
	worker fleet.WorkerID
	group  *Group
	engine *engine.Engine
	step   engine.Step
	doing  doing
	gen    uint32        // number of the last planned wake; wakes with a smaller number are void
	since  time.Duration // start of the first steady pass, if doing is steady
	passes int           // number of steady passes, if doing is steady
	live   []*flight
	life   int // grows by one when the rank restarts or leaves; KV events of an earlier life are dropped
	dead   bool
	asked  bool   // a load report of the rank is planned
	lines  []line // by router: event stream from the rank to the router

	disturbed []Disturbance // disturbances of this rank
	apiServer *apiServer    // API server of the rank's worker
	link      *link         // link of the rank's worker
	stolen    time.Duration // time that the API server took from the current pass
}

// line is the event stream from a rank to a router.
type line struct {
	last time.Duration // arrival time of the last batch, so that batches stay in order
	lost []*batch      // lost batches whose loss the router has not noticed yet
}

type doing uint8

const (
	idle     doing = iota
	stepping       // one pass is under way
	steady         // several decode passes of an unchanged batch are under way; playSteady plays them together
	awaiting       // a wake for the next pass is planned
)

func (r *rank) add(f *flight) {
	f.rank, f.place = r, len(r.live)
	r.live = append(r.live, f)
}

func (r *rank) remove(f *flight) {
	last := r.live[len(r.live)-1]
	r.live[f.place], last.place = last, f.place
	r.live[len(r.live)-1] = nil
	r.live = r.live[:len(r.live)-1]
}

func (w *world) wakeAt(r *rank, at time.Duration) {
	r.gen++
	w.agenda.plan(moment{at: at, kind: atWake, a: int32(r.index), gen: r.gen})
}

// notify wakes a rank that has got a request. An idle rank begins a pass immediately. A busy rank takes the request
// into its next pass.
func (w *world) notify(r *rank) {
	switch r.doing {
	case idle:
		r.doing = awaiting
		w.wakeAt(r, w.now)
	case steady:
		// Passes that have begun before now do not include the new request, so play them to their end first.
		end := r.since + w.playSteady(r, w.now-r.since)
		r.doing = awaiting
		w.wakeAt(r, max(end, w.now))
	}
}

// wake ends the rank's current work and begins its next pass.
func (w *world) wake(r *rank) {
	if w.delayed(r) {
		return
	}
	switch r.doing {
	case stepping:
		w.finishStep(r)
	case steady:
		w.playSteady(r, 1<<62)
	}
	if r.dead {
		return
	}
	w.begin(r)
}

// playSteady plays the steady passes of r that begin within limit after the first steady pass, and returns how long
// these passes take.
func (w *world) playSteady(r *rank, limit time.Duration) time.Duration {
	made, took := r.engine.Advance(r.passes, limit)
	if made == 0 {
		return 0
	}
	running := r.engine.Running()
	w.rec.Gap(took/time.Duration(made), made*len(running))
	end := r.since + took
	for _, q := range running {
		f := q.Owner.(*flight)
		f.last = end
		f.tell(made, end)
	}
	return took
}

func (w *world) begin(r *rank) {
	if n := r.engine.Steady(); n > 1 && !r.noisy() {
		r.doing, r.since, r.passes = steady, w.now, n
		w.wakeAt(r, w.now+r.engine.Forecast(n))
		return
	}
	if !r.engine.Step(&r.step) {
		r.doing, r.stolen = idle, 0
		running, waiting, kv := r.engine.Load() // requests may wait for transfers
		w.rec.Gauge(r.index, w.now, running, waiting, kv)
		return
	}
	if r.step.Tokens == 0 && len(r.step.Awaiting) > 0 {
		r.step.Duration = 0 // the pass computes nothing: it only begins transfers
	}
	if r.noisy() {
		r.step.Duration = w.disturb(r, r.step.Duration)
	}
	w.await(r)
	for _, q := range r.step.Admitted {
		if f := q.Owner.(*flight); f.started < 0 {
			f.started = w.now
		}
	}
	if r.step.Preempted > 0 {
		w.rec.Preempted(r.index, r.step.Preempted)
	}
	r.doing = stepping
	w.wakeAt(r, w.now+r.step.Duration)
	running, waiting, kv := r.engine.Load()
	w.rec.Gauge(r.index, w.now, running, waiting, kv)
}

// finishStep publishes the results of a pass: first the KV events, then the tokens. Engines use the same order.
func (w *world) finishStep(r *rank) {
	if len(r.step.Events) > 0 {
		w.publish(r)
	}
	gap, count := time.Duration(-1), 0
	at := w.now
	if len(r.step.Outputs) > 0 {
		at = w.serve(r, r.group.Frontend.Pass)
	}
	for i := range r.step.Outputs {
		o := &r.step.Outputs[i]
		f := o.Request.Owner.(*flight)
		at = max(at, w.serve(r, r.group.Frontend.Output))
		if f.leg == fleet.LegPrefill { // its only token is not part of the answer
			w.serve(r, r.group.Frontend.End)
			w.prefilled(f)
			continue
		}
		if !o.First {
			// Almost all gaps between tokens are equal in a pass, so record equal gaps with one call.
			if d := at - f.last; d == gap {
				count++
			} else {
				w.rec.Gap(gap, count)
				gap, count = d, 1
			}
		}
		w.output(f, o.First, at)
		if o.Last {
			w.serve(r, r.group.Frontend.End)
			w.finish(f)
		}
	}
	w.rec.Gap(gap, count)
}
