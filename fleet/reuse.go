package fleet

import (
	"slices"
	"time"
)

// keepIDs is how long a holder that left keeps its id, and so its history, for its return. An hour is longer than a
// restart that loads a large model. The ids do not run out: there are 2^20, and no fleet replaces that many ranks in an
// hour.
const keepIDs = time.Hour

// Retire makes ids available again: the ids of holders that left the fleet an hour ago, as seen by earlier calls, and
// to which no request refers: each reservation was released as long ago. A lost request keeps its holder's id for good.
// now is in Unix nanoseconds.
//
// The caller removes the ids from everything that it stores by holder, and then passes them to [Fleet.Reuse]. The ranks
// of a worker that comes back later get new ids.
func (f *Fleet) Retire(now int64) (retired []Holder) {
	f.mu.Lock()
	defer f.mu.Unlock()
	snap, before := f.current.Load(), now-int64(keepIDs)
	for p, h := range f.byPlace {
		if snap.holders[h].worker != nil {
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
	if len(retired) > 0 {
		slices.Sort(retired)
		f.publish()
	}
	return retired
}

// keepWorkers is how many workers keep their ids after all their ranks lost theirs: as many as a large fleet has, in
// some 2 MiB. Facts about the process behind a URL, such as the salts of its requests, are kept by the worker's id:
// they count again if the process comes back.
const keepWorkers = 4096

// forgetPlace notes that one rank of a worker lost its id. A worker without any such rank is forgotten when keepWorkers
// others came after it. f.mu is held.
func (f *Fleet) forgetPlace(id WorkerID) {
	k := f.known[id]
	if k.holders--; k.holders > 0 {
		return
	}
	k.former++
	f.former = append(f.former, id)
	if len(f.former) <= keepWorkers {
		return
	}
	oldest := f.former[0]
	f.former = slices.Delete(f.former, 0, 1)
	k = f.known[oldest]
	if k.former--; k.former > 0 || k.holders > 0 { // it came back
		return
	}
	delete(f.byURL, k.url)
	delete(f.known, oldest)
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

// unusedSince reports whether every reservation was released by its owner, at that time or before.
func (l *ledger) unusedSince(at int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.owned == 0 && l.released <= at
}
