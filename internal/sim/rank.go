package sim

import (
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/engine"
)

// rank is one engine together with its current work.
type rank struct {
	index  int // index of the rank in world.ranks
	pool   *pool
	holder fleet.Holder
	worker fleet.WorkerID
	group  *Group
	engine *engine.Engine
	step   engine.Step
	doing  doing
	gen    uint32        // generation of the planned wake that is valid; older planned wakes are void
	since  time.Duration // start of the first steady pass, see steady
	passes int           // number of steady passes
	live   []*flight
	life   int // number of times that the rank was started
	dead   bool
	asked  bool   // routers will get a report of the rank's load
	lines  []line // by router: the batches that have not arrived at the router

	disturbed []Disturbance // disturbances of this rank
	apiServer *apiServer    // API server of the rank's worker
	stolen    time.Duration // time by which the API server delays the pass under way
}

// line is the event stream from a rank to a router.
type line struct {
	last time.Duration // time at which the last planned batch arrives
	lost []*batch      // lost batches that the router has not noticed yet
}

type doing uint8

const (
	idle     doing = iota
	stepping       // one pass is under way
	steady         // several passes of an unchanged batch are under way; they are played together when they end
	awaiting       // a wake at this moment is planned
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

// notify tells a rank about a submitted request. An idle rank takes the request immediately. Any other rank takes it
// with its next pass.
func (w *world) notify(r *rank) {
	switch r.doing {
	case idle:
		r.doing = awaiting
		w.wakeAt(r, w.now)
	case steady:
		// The passes that have begun before now are played to their end, because the new request is not part of them.
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

// playSteady plays the steady passes of r that begin before the time limit, and returns how long they take. limit
// counts from the start of the first steady pass.
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
		w.rec.Gauge(r.index, w.now, 0, 0, 0)
		return
	}
	if r.noisy() {
		r.step.Duration = w.disturb(r, r.step.Duration)
	}
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

// finishStep publishes the results of the pass: events first, as engines do, then tokens.
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
		if !o.First {
			// Almost all gaps of a pass are equal, so equal gaps are counted together.
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
