package gateway

import (
	"slices"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// unknownSlots is the number of slots of an engine that reports none: vLLM reports its number with its first
// request. By default vLLM computes 1 adapter and SGLang 8 at the same time. With more loaded, both swap them
// between the memory of the machine and that of the accelerator.
const unknownSlots = 4

// available reports whether a worker may take requests now.
func available(snap *fleet.Snapshot, w *fleet.Worker, now int64) bool {
	return slices.ContainsFunc(w.Holders, func(h fleet.Holder) bool { return snap.Available(h, now) })
}

// loadedAt reports whether an available worker has the adapter, or serves the model. Workers of exclude do not count.
func loadedAt(snap *fleet.Snapshot, model string, exclude []fleet.WorkerID, now int64) bool {
	pool, ok := snap.Pool(model)
	return ok && slices.ContainsFunc(pool.Workers, func(w *fleet.Worker) bool {
		return !slices.Contains(exclude, w.ID) && available(snap, w, now)
	})
}

// loadable reports whether a model is an adapter that could be loaded now at an available worker outside of exclude.
func (a *adapters) loadable(snap *fleet.Snapshot, model string, exclude []fleet.WorkerID, now int64) bool {
	one := a.cfg.Load().byName[model]
	if one == nil || !loadedAt(snap, one.Base, exclude, now) {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	f, failed := a.failed[model]
	return !failed || now >= f.until.UnixNano()
}

// takes reports whether a worker may take requests for the model now, after it has loaded it if it is an adapter.
func (g *Gateway) takes(snap *fleet.Snapshot, model string, now int64) bool {
	return loadedAt(snap, model, nil, now) || g.adapters.loadable(snap, model, nil, now)
}

// place is where an adapter can be loaded now.
type place struct {
	worker  *fleet.Worker // nil: nowhere
	unload  string        // the adapter that the worker has to unload first; "": none
	present bool          // a worker is available
}

// place chooses where an adapter is loaded. Among the available workers with a free slot it takes the worker with the
// fewest adapters, then with the fewest requests. If no worker has a free slot, it takes the worker with the adapter
// that was not used for the longest time. It takes no worker of tried, and no worker that carries out an order. It
// takes a worker whose engine cannot load adapters only if there is no other. a.mu is held.
func (a *adapters) place(snap *fleet.Snapshot, one *Adapter, tried []fleet.WorkerID, now int64) place {
	unfit := slices.Clone(tried)
	for id := range a.unable {
		if a.cannotLoad(id, now) {
			unfit = append(unfit, id)
		}
	}
	if out := a.placeOutside(snap, one, unfit, now); out.present {
		return out
	}
	return a.placeOutside(snap, one, tried, now)
}

// cannotLoad reports whether the engine of a worker did not know the order within the last minute. a.mu is held.
func (a *adapters) cannotLoad(id fleet.WorkerID, now int64) bool { return now < a.unable[id] }

// placeOutside is place among the workers that are not in tried. a.mu is held.
func (a *adapters) placeOutside(snap *fleet.Snapshot, one *Adapter, tried []fleet.WorkerID, now int64) (out place) {
	pool, ok := snap.Pool(one.Base)
	if !ok || pool.LoRA != "" {
		return out
	}
	var crowded *fleet.Worker
	var unload string
	var oldest uint64
	full := true
	for _, w := range pool.Workers {
		if slices.Contains(tried, w.ID) || !available(snap, w, now) {
			continue
		}
		out.present = true
		free := a.slots(w) > loadedAdapters(w)
		full = full && !free
		if a.busy[w.ID] {
			continue
		}
		if free {
			if out.worker == nil || lighter(snap, w, out.worker) {
				out.worker = w
			}
		} else if name, last := a.leastUsed(w); name != "" && (crowded == nil || last < oldest) {
			crowded, oldest, unload = w, last, name
		}
	}
	if full {
		out.worker, out.unload = crowded, unload
	}
	return out
}

// plan says what a request for the model would do first, if the model is an adapter that no available worker has.
func (a *adapters) plan(model string) (one *Adapter, what string) {
	one = a.cfg.Load().byName[model]
	snap, now := a.g.Fleet.Snapshot(), time.Now().UnixNano()
	if one == nil || loadedAt(snap, model, nil, now) {
		return nil, ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	f, failed := a.failed[model]
	place := a.place(snap, one, nil, now)
	switch {
	case failed && now < f.until.UnixNano():
		return one, f.err.Message
	case place.worker == nil && place.present:
		return one, "the adapter is not loaded: a request would wait until a worker of " + one.Base + " has a free slot for it"
	case place.worker == nil:
		return one, "the adapter is not loaded: a request would wait for a worker of " + one.Base
	case place.unload != "":
		return one, "the adapter is not loaded: a request would first unload " + place.unload + " at " + place.worker.URL + ", and load it there"
	}
	return one, "the adapter is not loaded: a request would first load it at " + place.worker.URL
}

// slots returns the greatest number of adapters that a worker may have loaded; see AdapterConfig.Slots.
func (a *adapters) slots(w *fleet.Worker) int {
	switch configured := a.cfg.Load().Slots; {
	case configured > 0:
		return configured
	case w.Facts.AdapterSlots > 0:
		return w.Facts.AdapterSlots
	}
	return unknownSlots
}

func loadedAdapters(w *fleet.Worker) (n int) {
	for i := range w.Facts.Models {
		if w.Facts.Models[i].Parent != "" {
			n++
		}
	}
	return n
}

// lighter reports whether x is the better place for an adapter than y.
func lighter(snap *fleet.Snapshot, x, y *fleet.Worker) bool {
	if n, m := loadedAdapters(x), loadedAdapters(y); n != m {
		return n < m
	}
	return requestsAt(snap, x) < requestsAt(snap, y)
}

func requestsAt(snap *fleet.Snapshot, w *fleet.Worker) (n int64) {
	for _, h := range w.Holders {
		n += snap.Load(h).Requests
	}
	return n
}

// leastUsed returns the adapter of w that may be unloaded and was not used for the longest time; "" if there is none.
// Adapters that are not configured stay: the router could not load them again. a.mu is held.
func (a *adapters) leastUsed(w *fleet.Worker) (name string, last uint64) {
	set := a.cfg.Load()
	for i := range w.Facts.Models {
		m := &w.Facts.Models[i]
		if m.Parent == "" || set.byName[m.ID] == nil {
			continue
		}
		var used uint64
		if u := a.uses[m.ID]; u != nil {
			if u.requests > 0 {
				continue
			}
			used = u.last
		}
		if name == "" || used < last {
			name, last = m.ID, used
		}
	}
	return name, last
}
