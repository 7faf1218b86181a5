package kvindex

import (
	"slices"

	"github.com/warmpath/warmpath/block"
)

// queue is a list of waiting points, oldest first: a doubly linked list in an arena of its own.
type queue struct {
	items arena[queued]
	head  uint32
	tail  uint32
	n     int
}

type queued struct {
	prev, next uint32
	what       uint32
}

func (q *queue) push(what uint32) uint32 {
	i := q.items.alloc()
	*q.items.at(i) = queued{prev: q.tail, what: what}
	if q.tail != 0 {
		q.items.at(q.tail).next = i
	} else {
		q.head = i
	}
	q.tail = i
	q.n++
	return i
}

func (q *queue) remove(i uint32) {
	it := q.items.at(i)
	if it.prev != 0 {
		q.items.at(it.prev).next = it.next
	} else {
		q.head = it.next
	}
	if it.next != 0 {
		q.items.at(it.next).prev = it.prev
	} else {
		q.tail = it.prev
	}
	q.items.release(i)
	q.n--
}

// oldest returns what has been in the queue for longest, 0 when it is empty.
func (q *queue) oldest() uint32 {
	if q.head == 0 {
		return 0
	}
	return q.items.at(q.head).what
}

// wait lets an unresolved point wait: for its parent when tokens are known, else for someone who knows the handle's
// place. A point that waits already learns what it did not know.
func (x *Index) wait(h *holder, p uint32, parent uint64, hasParent bool, tokens []block.Token, features []block.Feature) {
	pt := x.points.at(p)
	e := x.extraOf(p)
	if e.item == 0 {
		e.item = x.waiting.push(p)
		h.waiting++
		x.waitingBytes += waitingBase
	}
	if len(tokens) == 0 || !hasParent || parent == pt.handle || len(e.tokens) > 0 {
		return
	}
	x.weigh(e, -1)
	e.tokens = slices.Clone(tokens)
	e.features = slices.Clone(features)
	x.weigh(e, 1)
	x.waitingBytes += e.bytes()
	e.parent, e.hasParent = parent, true
	k := handleKey(h.id, parent)
	if e.sibling = x.waiters.get(k); e.sibling != 0 {
		x.extras.at(x.points.at(e.sibling).extra).before = p
	}
	x.waiters.put(k, p)
	if q := x.lookup(h.id, parent); q != 0 {
		pt.parent = q
		x.points.at(q).kids++
	}
}

// waitingBase is what a waiting point costs beside its tokens: point, record, extra, queue and table slots.
const waitingBase = 48 + 16 + extraHeader + 12 + 2*slotBytes

// stopWaiting takes a point out of the queue and of the list of those that wait for its parent.
func (x *Index) stopWaiting(h *holder, p uint32) {
	pt := x.points.at(p)
	if pt.extra == 0 {
		return
	}
	e := x.extras.at(pt.extra)
	if e.item == 0 {
		return
	}
	x.waiting.remove(e.item)
	h.waiting--
	x.waitingBytes -= waitingBase
	if e.hasParent {
		x.waitingBytes -= e.bytes()
		k := handleKey(h.id, e.parent)
		switch {
		case e.before != 0:
			x.extras.at(x.points.at(e.before).extra).sibling = e.sibling
		case e.sibling != 0:
			x.waiters.put(k, e.sibling)
		default:
			x.waiters.del(k)
		}
		if e.sibling != 0 {
			x.extras.at(x.points.at(e.sibling).extra).before = e.before
		}
	}
	x.dropExtra(p)
}

// wake resolves the points that wait for those that were resolved since, and so on.
func (x *Index) wake(h *holder) {
	for len(x.woken) > 0 {
		if !h.odd {
			x.wakePlain(h)
			continue
		}
		top := len(x.woken) - 1
		handle := x.woken[top]
		p := x.lookup(h.id, handle)
		w := x.waiters.get(handleKey(h.id, handle))
		if p == 0 || x.points.at(p).end == 0 || w == 0 {
			x.woken = x.woken[:top]
			continue
		}
		e := x.extras.at(x.points.at(w).extra)
		n := need{handles: 1, tokens: len(e.tokens), size: len(e.tokens)}
		if !x.roomy(n) {
			// Eviction may take any of them: look again after it.
			if !x.makeRoom(n) {
				x.giveUp(h, w)
			}
			continue
		}
		x.tableMu.Lock()
		if int(x.points.at(p).end)+len(e.tokens) > MaxChain {
			x.dropPoint(h, w)
		} else {
			s := x.walk(p, 0, e.tokens, absolute(e.features, int(x.points.at(p).end)))
			x.resolve(h, w, p, &s)
		}
		x.tableMu.Unlock()
	}
	x.dropBare(h)
}

// absolute returns features with offsets from the chain's first token.
func absolute(features []block.Feature, start int) []block.Feature {
	if len(features) == 0 {
		return nil
	}
	out := make([]block.Feature, len(features))
	for i, f := range features {
		out[i] = block.Feature{ID: f.ID, Offset: f.Offset + start}
	}
	return out
}

// boundWaiting drops the oldest waiting points while there are too many.
func (x *Index) boundWaiting() {
	for x.waiting.n > x.config.MaxWaiting || x.waitingBytes > x.config.WaitingBytes {
		p := x.waiting.oldest()
		if p == 0 {
			return
		}
		x.tableMu.Lock()
		x.dropPoint(x.holders[x.points.at(p).holder], p)
		x.tableMu.Unlock()
		x.counts.waitingDropped++
	}
}

// giveUp refuses a point that waits and whose place is known, but for which there is no room.
func (x *Index) giveUp(h *holder, p uint32) {
	x.tableMu.Lock()
	x.dropPoint(h, p)
	x.tableMu.Unlock()
	x.refuse(h, 0)
}

// dropPoint forgets an unresolved point; those that wait for it wait on.
func (x *Index) dropPoint(h *holder, p uint32) {
	x.dropRecords(h, p, func(r *record) bool {
		h.broken |= 1 << r.tier
		return true
	})
	x.orphan(p)
	x.collect(h, p)
}
