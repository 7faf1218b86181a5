package kvindex

import (
	"slices"

	"github.com/warmpath/warmpath/block"
)

// queue is the doubly linked list of a holder's waiting points, oldest first.
type queue struct {
	head, tail uint32
}

type queued struct {
	prev, next uint32
	what       uint32
}

func (x *Index) enqueue(q *queue, what uint32) uint32 {
	i := x.queued.alloc()
	*x.queued.at(i) = queued{prev: q.tail, what: what}
	if q.tail != 0 {
		x.queued.at(q.tail).next = i
	} else {
		q.head = i
	}
	q.tail = i
	return i
}

func (x *Index) dequeue(q *queue, i uint32) {
	it := x.queued.at(i)
	if it.prev != 0 {
		x.queued.at(it.prev).next = it.next
	} else {
		q.head = it.next
	}
	if it.next != 0 {
		x.queued.at(it.next).prev = it.prev
	} else {
		q.tail = it.prev
	}
	x.queued.release(i)
}

// wait lets an unresolved point wait: for its parent when tokens are known, else for someone who knows the handle's
// place. A point that waits already learns what it did not know.
func (x *Index) wait(h *holder, p uint32, parent uint64, hasParent bool, tokens []block.Token, features []block.Feature) {
	pt := x.points.at(p)
	e := x.extraOf(h, p)
	if e.item == 0 {
		e.item = x.enqueue(&h.queue, p)
		h.waiting++
		x.waiting++
		x.countWaiting(h, waitingBase)
	}
	if len(tokens) == 0 || !hasParent || parent == pt.handle || len(e.tokens) > 0 {
		return
	}
	x.weigh(h, e, -1)
	e.tokens = slices.Clone(tokens)
	e.features = slices.Clone(features)
	x.weigh(h, e, 1)
	x.countWaiting(h, e.bytes())
	e.parent, e.hasParent = parent, true
	k := h.key(parent)
	if e.sibling = x.waiters.get(k); e.sibling != 0 {
		x.extras.at(x.points.at(e.sibling).extra).before = p
	}
	x.waiters.put(k, p)
	if q := x.lookup(h, parent); q != 0 {
		pt.parent = q
		x.points.at(q).kids++
	}
}

// maxLineage bounds how many waiting ancestors of a block circular looks at. No engine announces a chain of that
// length backwards.
const maxLineage = 4096

// circular reports whether a block would become its own ancestor by waiting for a parent: the parent itself waits for
// the block, directly or through other waiting blocks.
func (x *Index) circular(h *holder, handle, parent uint64) bool {
	if x.waiters.get(h.key(handle)) == 0 {
		return false
	}
	if p := x.lookup(h, handle); p != 0 && (x.points.at(p).end != 0 || len(x.extras.at(x.points.at(p).extra).tokens) > 0) {
		return false // it has its place, or waits for a parent already, and for no other
	}
	for range maxLineage {
		if parent == handle {
			return true
		}
		p := x.lookup(h, parent)
		if x.blocks.steps++; p == 0 || x.points.at(p).end != 0 {
			return false
		}
		e := x.extras.at(x.points.at(p).extra)
		if !e.hasParent {
			return false
		}
		parent = e.parent
	}
	return true
}

// waitingBase is what a waiting point costs beside its tokens: point, record, extra, queue and table slots.
const waitingBase = 48 + 16 + extraHeader + 12 + 2*32

// countWaiting counts the bytes of waiting blocks.
func (x *Index) countWaiting(h *holder, n int64) {
	h.waitingBytes += n
	x.waitingBytes += n
}

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
	x.dequeue(&h.queue, e.item)
	h.waiting--
	x.waiting--
	x.countWaiting(h, -waitingBase)
	if e.hasParent {
		x.countWaiting(h, -e.bytes())
		k := h.key(e.parent)
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
	x.dropExtra(h, p)
}

// wake resolves the points that wait for those that were resolved since, and so on. It reports whether the holder is
// still known, as pause does.
func (x *Index) wake(h *holder) bool {
	for len(x.woken) > 0 {
		if !h.odd {
			if !x.wakePlain(h) {
				return false
			}
			continue
		}
		top := len(x.woken) - 1
		handle := x.woken[top]
		x.blocks.steps++
		p := x.lookup(h, handle)
		w := x.waiters.get(h.key(handle))
		if p == 0 || x.points.at(p).end == 0 || w == 0 || x.points.at(w).holder != h.id {
			x.woken = x.woken[:top]
			continue
		}
		e := x.extras.at(x.points.at(w).extra)
		n := need{handles: 1, tokens: len(e.tokens), size: len(e.tokens)}
		if !x.roomy(n) {
			// Eviction may take any of them: look again after it.
			if !x.makeRoom(h, n) {
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
	return true
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

// boundWaiting drops waiting points while there are too many, in number or in bytes: the oldest points of the holder
// with most of what is too much.
func (x *Index) boundWaiting() {
	x.boundWaitingBy(func() bool { return x.waiting > x.config.MaxWaiting }, func(h *holder) int64 { return h.waiting })
	x.boundWaitingBy(func() bool { return x.waitingBytes > x.config.WaitingBytes }, func(h *holder) int64 { return h.waitingBytes })
}

func (x *Index) boundWaitingBy(over func() bool, size func(h *holder) int64) {
	for over() {
		most := x.holders[0]
		for _, h := range x.holders {
			if h != nil && (most == nil || size(h) > size(most)) {
				most = h
			}
		}
		x.blocks.steps += uint64(len(x.holders))
		if most == nil || most.queue.head == 0 {
			return
		}
		x.tableMu.Lock()
		// Drop a whole stretch before comparing holders again: the order differs little from dropping points one by
		// one.
		for n := 0; n < stretch && most.queue.head != 0 && over(); n++ {
			x.dropPoint(most, x.queued.at(most.queue.head).what)
			x.counts.waitingDropped++
		}
		x.tableMu.Unlock()
	}
}

// giveUp refuses a waiting point whose place is known, but for which there is no room.
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
