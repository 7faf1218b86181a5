package queue

import "container/heap"

// makeRoom sheds requests until there is room for the item, and returns the shed requests. ok is false when the item
// must be refused instead; in that case nothing has changed. Only the order fair sheds: a header or a key identifies a
// tenant, while a client chooses its own priority and deadline.
//
// The heavy tenant has the largest share of the limit that is reached: of the requests at MaxRequests, of the bytes at
// MaxBytes. This tenant loses its newest requests, because these have waited least. But this tenant must keep at least
// as much as the new item's tenant has with the new item. Otherwise two equal tenants would shed each other's requests
// in turns (longest queue drop: McKenney, "Stochastic fairness queueing", 1990).
func (q *Queue) makeRoom(it *Item) (shed []*Item, ok bool) {
	if q.fits(it, q.cfg.MaxRequests, q.cfg.MaxBytes) {
		return nil, true
	}
	if q.cfg.Order != Fair || it.Bytes > q.cfg.MaxBytes {
		return nil, false
	}
	// After Use lowered a limit, the queue may hold more than the limit. In that case makeRoom sheds only as much as
	// the new item adds.
	requests, bytes := max(q.cfg.MaxRequests, q.len), max(q.cfg.MaxBytes, q.bytes)
	for !q.fits(it, requests, bytes) {
		victim := q.newestOfHeaviest(it, q.len < requests)
		if victim == nil {
			q.putBack(shed)
			return nil, false
		}
		heap.Remove((*byTime)(victim.line), victim.at)
		q.count(victim, -1)
		shed = append(shed, victim)
	}
	return shed, true
}

// putBack puts the requests that makeRoom shed into the queue again.
func (q *Queue) putBack(shed []*Item) {
	for _, it := range shed {
		q.put(it)
	}
}

// fits reports whether there is room for the item within these limits.
func (q *Queue) fits(it *Item, requests int, bytes int64) bool {
	return q.len < requests && q.bytes+it.Bytes <= bytes
}

// newestOfHeaviest returns the newest request of the heavy tenant. It returns nil if the heavy tenant has no request to
// lose or is the new item's tenant, or if it would keep less than the new item's tenant has with the new item. With
// byBytes, tenants are compared by bytes, otherwise by numbers of requests.
func (q *Queue) newestOfHeaviest(it *Item, byBytes bool) *Item {
	usage := func(l *line) int64 { return int64(l.requests()) }
	cost := func(*Item) int64 { return 1 }
	if byBytes {
		usage = func(l *line) int64 { return l.bytes }
		cost = func(it *Item) int64 { return it.Bytes }
	}
	var heavy *line
	for _, l := range q.lines {
		if heavy == nil || usage(l) > usage(heavy) || usage(l) == usage(heavy) && l.tenant < heavy.tenant {
			heavy = l
		}
	}
	if heavy == nil || len(heavy.items) == 0 || heavy.tenant == it.Tenant {
		return nil
	}
	newest := heavy.items[0]
	for _, other := range heavy.items[1:] {
		if other.Arrived > newest.Arrived || other.Arrived == newest.Arrived && other.seq > newest.seq {
			newest = other
		}
	}
	own := cost(it)
	if l := q.lines[it.Tenant]; l != nil {
		own += usage(l)
	}
	if usage(heavy)-cost(newest) < own {
		return nil
	}
	return newest
}
