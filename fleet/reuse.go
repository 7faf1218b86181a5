package fleet

import (
	"maps"
	"slices"
	"time"
)

// keepIDs is how long a holder that left the fleet keeps its id. Requests that were sent to it still refer to it. A
// rank that its worker stopped to report and reports again in this time has its history again. Ids do not run out in an
// hour: there are 2^20, and no fleet replaces that many ranks in an hour.
const keepIDs = time.Hour

// Retire takes ids away from holders that left the fleet, and returns these ids. It retires an id under two conditions:
// an earlier call saw at least an hour ago that the holder had left, and all reservations on the holder were released
// at least an hour ago. If a reservation is never released, the holder keeps its id for good. now is in Unix
// nanoseconds.
//
// The caller removes the returned ids from everything that it stores by holder, and then passes them to [Fleet.Reuse].
func (f *Fleet) Retire(now int64) (retired []Holder) {
	retired = f.retire(now)
	f.building.Lock()
	defer f.building.Unlock()
	if len(retired) > 0 {
		f.publish()
	}
	pools := f.current.Load().pools
	maps.DeleteFunc(f.turns, func(model string, _ *turns) bool { return pools[model] == nil })
	return retired
}

func (f *Fleet) retire(now int64) (retired []Holder) {
	f.mu.Lock()
	defer f.mu.Unlock()
	present := make([]bool, len(f.holders))
	for _, w := range f.present {
		for _, h := range w.Holders {
			present[h] = true
		}
	}
	before := now - int64(keepIDs)
	for p, h := range f.byPlace {
		if present[h] {
			continue
		}
		since, seen := f.gone[h]
		switch {
		case !seen:
			f.gone[h] = now
		case since <= before && f.holders[h].state.work.unusedSince(before):
			delete(f.gone, h)
			delete(f.byPlace, p)
			f.holders[h] = holder{}
			f.forgetPlace(p.worker)
			retired = append(retired, h)
		}
	}
	slices.Sort(retired)
	return retired
}

// keepWorkers is how many former workers the fleet remembers. A former worker is a worker that left and whose ranks
// have all lost their holder ids. Other packages store facts by URL that must still count if the process comes back:
// see [Fleet.Known]. 4,096 is the number of workers of a large fleet; the memory for them is about 2 MiB.
const keepWorkers = 4096

// forgetPlace notes that one rank of a worker lost its holder id. If the worker has no other rank with an id, the
// worker becomes a former worker. If there are then more than keepWorkers former workers, the oldest one is forgotten.
// f.mu is held.
func (f *Fleet) forgetPlace(id WorkerID) {
	k := f.known[id]
	if k.holders--; k.holders > 0 {
		return
	}
	f.former = append(f.former, id)
	if len(f.former) <= keepWorkers {
		return
	}
	oldest := f.former[0]
	f.former = slices.Delete(f.former, 0, 1)
	if url := f.known[oldest].url; f.byURL[url] == oldest { // no other worker came to the URL since
		delete(f.byURL, url)
	}
	delete(f.known, oldest)
}

// Known reports whether the fleet remembers a worker at url: it is present, or it left, and [Fleet.Retire] has not yet
// retired all ranks of 4,096 other workers that left after it. Until then the process that is put at url may be one
// that left. So facts about a cache that make the router believe less are kept as long as the URL is known.
func (f *Fleet) Known(url string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, known := f.byURL[url]
	return known
}

// Reuse makes ids that Retire returned available for new holders.
func (f *Fleet) Reuse(retired []Holder) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.free = append(f.free, retired...)
}

// newHolder returns an id for a new holder. f.mu is held.
func (f *Fleet) newHolder() Holder {
	if n := len(f.free); n > 0 {
		h := f.free[n-1]
		f.free = f.free[:n-1]
		return h
	}
	f.holders = append(f.holders, holder{})
	return Holder(len(f.holders) - 1)
}

// unusedSince reports whether all reservations were released, the last one not after the time at.
func (l *ledger) unusedSince(at int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.owned == 0 && l.released <= at
}
