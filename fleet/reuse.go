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
// The caller removes the ids from everything that it stores by holder, and then passes them to [Fleet.Reuse]. A worker
// that comes back later gets new ids.
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
			retired = append(retired, h)
		}
	}
	if len(retired) > 0 {
		slices.Sort(retired)
		f.publish()
	}
	return retired
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
