package sim

import (
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/engine"
)

// failed is the outcome of a request that was under way at a worker when the worker died.
const failed = fleet.OutcomeFailed

// scale removes drained workers without requests, and compares the load with the autoscaler's bounds. Then it starts
// one more worker, drains one worker, or does nothing.
func (w *world) scale() {
	a := w.cfg.Autoscale
	if !w.busy() {
		return
	}
	w.agenda.plan(moment{at: w.now + a.Interval, kind: atScale})
	requests, ready := 0, 0
	for i := range w.main.workers {
		wk := &w.main.workers[i]
		n := len(w.ranks[wk.first].live)
		switch wk.state {
		case present:
			ready++
			requests += n
		case draining:
			if n == 0 {
				w.leave(i)
			}
		}
	}
	per := float64(requests) / float64(max(ready, 1))
	switch {
	case per > a.High && ready+w.joining < a.Max:
		w.joining++
		w.agenda.plan(moment{at: w.now + a.Start, kind: atJoin})
	case per < a.Low && ready > a.Min && w.joining == 0:
		w.drain()
	}
}

// drain stops new requests to the worker with the fewest requests. If several workers have the fewest requests, drain
// chooses the worker with the highest index.
func (w *world) drain() {
	least := -1
	for i := range w.main.workers {
		wk := &w.main.workers[i]
		if wk.state == present && (least < 0 || len(w.ranks[wk.first].live) <= len(w.ranks[w.main.workers[least].first].live)) {
			least = i
		}
	}
	w.main.workers[least].state = draining
	for _, v := range w.main.views {
		v.fleet.SetDraining(fleet.WorkerID(least), true)
	}
	w.countReady()
}

// leave removes drained worker i from the fleet of every router.
func (w *world) leave(i int) {
	wk := &w.main.workers[i]
	wk.state = gone
	r := w.ranks[wk.first]
	r.life++
	for _, v := range w.main.views {
		v.fleet.Remove(fleet.WorkerID(i))
		v.router.Forget(r.holder)
	}
}

// join adds a worker with an empty cache. If a worker has left before, the new worker takes its place in the lists.
func (w *world) join() {
	w.joining--
	w.freed = true
	g := &w.cfg.Groups[0]
	defer w.countReady()
	for i := range w.main.workers {
		wk := &w.main.workers[i]
		if wk.state != gone {
			continue
		}
		r := w.ranks[wk.first]
		e, err := engine.New(w.engineConfig(g))
		if err != nil {
			panic("bug: an engine that started does not start again: " + err.Error())
		}
		r.engine, wk.state = e, present
		for _, v := range w.main.views {
			v.put(w, wk.url, g)
			v.fleet.SetDraining(fleet.WorkerID(i), false)
			v.fleet.SetTrust(r.holder, fleet.TrustExact, "simulated events")
		}
		return
	}
	if err := w.addWorker(&w.main, g); err != nil {
		panic("bug: an engine like others does not start: " + err.Error())
	}
}

func (w *world) countReady() {
	ready := 0
	for i := range w.main.workers {
		if w.main.workers[i].state == present {
			ready++
		}
	}
	w.rec.Ready(w.now, ready)
}
