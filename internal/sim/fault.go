package sim

import (
	"time"

	"github.com/warmpath/warmpath/internal/engine"
)

// healthEvery is the time between two requests of the production discovery to a worker's /health.
const healthEvery = 5 * time.Second

func nextCheck(at time.Duration) time.Duration { return (at/healthEvery + 1) * healthEvery }

// die kills a rank. Its requests that have no token yet are sent to another worker; its other requests fail. Routers
// notice the death by refused connections and by their next health check.
func (w *world) die(f *Fault) {
	r := w.ranks[f.Worker]
	if r.dead {
		return
	}
	r.dead = true
	r.doing, r.stolen, r.apiServer.free = idle, 0, 0
	r.gen++
	w.rec.Gauge(r.index, w.now, 0, 0, 0)
	flights := append([]*flight(nil), r.live...)
	for _, q := range flights {
		r.engine.Cancel(&q.engine)
		r.remove(q)
	}
	w.agenda.plan(moment{at: nextCheck(w.now), kind: atHealth, a: int32(r.index)})
	if f.Down > 0 {
		w.agenda.plan(moment{at: w.now + f.Down, kind: atRestart, a: int32(r.index)})
		w.agenda.plan(moment{at: nextCheck(w.now + f.Down), kind: atHealth, a: int32(r.index)})
	}
	for _, q := range flights {
		if q.first == 0 {
			w.retry(q)
			continue
		}
		w.finishDecision(q, failed)
		w.freed = true
		w.rec.Fail(w.now)
		w.release(q)
	}
}

// restart starts a dead rank again with an empty cache. Routers immediately forget the blocks of the earlier process.
func (w *world) restart(r *rank) {
	e, err := engine.New(w.engineConfig(r.group))
	if err != nil {
		panic("bug: an engine that started does not start again: " + err.Error())
	}
	r.engine, r.dead = e, false
	r.life++
	w.rec.Restarted(r.index)
	for i, v := range r.pool.views {
		v.router.Forget(r.holder)
		v.fleet.Emptied(r.holder)
		r.lines[i].last = max(r.lines[i].last, w.now)
		for _, b := range r.lines[i].lost {
			w.done(b)
		}
		r.lines[i].lost = r.lines[i].lost[:0]
	}
}

// check makes the health check of rank r for every router.
func (w *world) check(r *rank) {
	why := ""
	if r.dead {
		why = "connection refused"
	}
	ready := 0
	w.freed = true
	for _, v := range r.pool.views {
		v.fleet.SetHealth(r.worker, !r.dead, why)
	}
	for _, other := range w.ranks {
		if !other.dead {
			ready++
		}
	}
	w.rec.Ready(w.now, ready)
}
