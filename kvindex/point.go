package kvindex

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// point is the end of an engine block on a chain, known by the engine's hash of it: the place where chains are
// continued and records are kept. It lives while it has a record or a child, so that the key of a removed parent is
// known as long as children need it. 48 bytes.
type point struct {
	handle  uint64
	key     block.Key // of the last block of ours that ends at or before end; the chain's root when there is none
	holder  fleet.Holder
	parent  uint32 // 0: the chain's root, or not known yet
	kids    uint32
	records uint32 // head of list
	end     uint32 // tokens from the chain's first to here; 0: not resolved, the point waits
	extra   uint32 // 0: nothing extra
	prev    uint32 // neighbours in the holder's list
	next    uint32
}

// record is what a holder announced of a point on one tier in one group. 16 bytes.
type record struct {
	next  uint32
	count uint32 // copies
	size  uint32 // tokens that it covers, up to the point; 0: as many as the point added to its parent
	tier  block.Tier
	group uint8
}

// extra is what points need that do not end one block of ours after their parents.
type extra struct {
	item    uint32 // place in the queue of waiting points, of points that wait
	sibling uint32 // next point that waits for the same parent
	before  uint32 // the one before it

	keys     []block.Key     // all blocks of ours that end within the point's tokens, when there is more than one
	tail     []block.Token   // tokens after the last of them
	features []block.Feature // that start in the tail, at absolute positions
	through  []block.Key     // blocks of ours in which the point ends, once for each descendant that completes one

	// Of points that wait.
	tokens    []block.Token // empty: only the handle is known
	parent    uint64        // engine hash
	hasParent bool
}

const (
	extraHeader  = 5*24 + 32
	featureBytes = 32
)

func (e *extra) bytes() int64 {
	n := 8*cap(e.keys) + 4*cap(e.tail) + 8*cap(e.through) + 4*cap(e.tokens)
	for i := range e.features {
		n += featureBytes + len(e.features[i].ID)
	}
	return int64(n)
}

// key is what a holder's handle is looked up by in tables for all holders.
func (h *holder) key(handle uint64) uint64 { return handle ^ h.secret }

// lookup returns the point of a holder's handle, 0 when it is not known.
func (x *Index) lookup(h *holder, handle uint64) uint32 {
	p := x.handles.get(h.key(handle))
	if p != 0 {
		if pt := x.points.at(p); pt.handle != handle || pt.holder != h.id {
			return 0
		}
	}
	return p
}

// add returns a new point, which waits for nothing yet and is not resolved.
func (x *Index) add(h *holder, handle uint64) uint32 {
	p := x.points.alloc()
	pt := x.points.at(p)
	*pt = point{handle: handle, holder: h.id}
	x.handles.put(h.key(handle), p)
	x.link(h, p)
	h.handles++
	// Those that wait for it keep it.
	for w := x.waiters.get(h.key(handle)); w != 0; w = x.extras.at(x.points.at(w).extra).sibling {
		x.blocks.steps++
		if wp := x.points.at(w); wp.holder == h.id && wp.parent == 0 && x.extras.at(wp.extra).parent == handle {
			wp.parent = p
			pt.kids++
		}
	}
	return p
}

func (x *Index) link(h *holder, p uint32) {
	pt := x.points.at(p)
	pt.prev, pt.next = 0, h.points
	if h.points != 0 {
		x.points.at(h.points).prev = p
	}
	h.points = p
}

func (x *Index) unlink(h *holder, p uint32) {
	pt := x.points.at(p)
	if pt.prev != 0 {
		x.points.at(pt.prev).next = pt.next
	} else {
		h.points = pt.next
	}
	if pt.next != 0 {
		x.points.at(pt.next).prev = pt.prev
	}
}

// extraOf returns a point's extra and makes it if there is none. Callers change its size between two calls of
// weigh.
func (x *Index) extraOf(h *holder, p uint32) *extra {
	pt := x.points.at(p)
	if pt.extra == 0 {
		pt.extra = x.extras.alloc()
		h.extra += extraHeader
	}
	return x.extras.at(pt.extra)
}

func (x *Index) weigh(h *holder, e *extra, sign int64) {
	n := sign * e.bytes()
	x.extraBytes += n
	h.extra += n
}

func (x *Index) dropExtra(h *holder, p uint32) {
	pt := x.points.at(p)
	if pt.extra == 0 {
		return
	}
	x.weigh(h, x.extras.at(pt.extra), -1)
	h.extra -= extraHeader
	x.extras.release(pt.extra)
	pt.extra = 0
}

// find returns the record of a point on a tier in a group, 0 when there is none.
func (x *Index) find(p uint32, tier block.Tier, group uint8) uint32 {
	r := x.points.at(p).records
	for ; r != 0; r = x.records.at(r).next {
		if rec := x.records.at(r); rec.tier == tier && rec.group == group {
			break
		}
	}
	return r
}

// note adds a record, or a copy to the record there is. size is what the engine said the block covers.
func (x *Index) note(h *holder, p uint32, r record, copies bool) {
	pt := x.points.at(p)
	at := x.find(p, r.tier, r.group)
	if at == 0 {
		at = x.records.alloc()
		r.next, r.count = pt.records, 1
		*x.records.at(at) = r
		pt.records = at
		if pt.end != 0 {
			x.contribute(h, p, x.records.at(at), true)
		}
		return
	}
	rec := x.records.at(at)
	if copies {
		rec.count++
	}
	if rec.size == r.size {
		return
	}
	// Copies of different sizes: which one goes first cannot be known, so that the smaller is what is sure.
	if pt.end == 0 {
		rec.shrink(r.size)
	} else if x.from(p, &r) > x.from(p, rec) {
		x.contribute(h, p, rec, false)
		rec.size = r.size
		x.contribute(h, p, rec, true)
	}
}

// shrink makes a record of a point that waits cover no more than size, if that is known.
func (r *record) shrink(size uint32) {
	if r.size == 0 || size != 0 && size < r.size {
		r.size = size
	}
}

// dropCopy takes one copy from a record and reports whether there was one.
func (x *Index) dropCopy(h *holder, p uint32, tier block.Tier, group uint8) bool {
	r := x.find(p, tier, group)
	if r == 0 {
		return false
	}
	if rec := x.records.at(r); rec.count > 1 {
		rec.count--
		return true
	}
	x.dropRecords(h, p, func(rec *record) bool { return rec.tier == tier && rec.group == group })
	return true
}

// dropRecords removes the records of a point that which chooses, whatever their count.
func (x *Index) dropRecords(h *holder, p uint32, which func(*record) bool) {
	pt := x.points.at(p)
	for link := &pt.records; *link != 0; {
		r := *link
		rec := x.records.at(r)
		if !which(rec) {
			link = &rec.next
			continue
		}
		*link = rec.next
		if pt.end != 0 {
			x.contribute(h, p, rec, false)
		}
		x.records.release(r)
	}
}

// releaseRecords frees the records of a point that cover nothing any more.
func (x *Index) releaseRecords(p uint32) {
	pt := x.points.at(p)
	for pt.records != 0 {
		r := pt.records
		pt.records = x.records.at(r).next
		x.records.release(r)
	}
}

// collect frees a point that has no record and no child, and then its parent if that was the reason it lived.
func (x *Index) collect(h *holder, p uint32) {
	for p != 0 {
		pt := x.points.at(p)
		if pt.records != 0 || pt.kids != 0 {
			return
		}
		p = x.free(h, p)
	}
}

// free frees a point without records and children and returns its parent, which has one child less.
func (x *Index) free(h *holder, p uint32) (parent uint32) {
	pt := x.points.at(p)
	if pt.end == 0 {
		x.stopWaiting(h, p)
	} else {
		x.through(h, p, false)
	}
	parent = pt.parent
	if parent != 0 {
		x.points.at(parent).kids--
	}
	if k := h.key(pt.handle); x.handles.get(k) == p {
		x.handles.del(k)
	}
	x.dropExtra(h, p)
	x.unlink(h, p)
	x.points.release(p)
	h.handles--
	return parent
}

// collectAll frees all points of a holder that have no records and lead to none.
func (x *Index) collectAll(h *holder) {
	for p := h.points; p != 0; {
		x.tableMu.Lock()
		for n := 0; p != 0 && n < stretch; n++ {
			next := x.points.at(p).next
			for q := p; q != 0 && x.points.at(q).records == 0 && x.points.at(q).kids == 0; n++ {
				if q == next {
					next = x.points.at(q).next
				}
				q = x.free(h, q)
			}
			p = next
			x.blocks.steps++
		}
		x.tableMu.Unlock()
	}
}

// releaseAll frees all points of a holder that has no records any more, also those that keep each other.
func (x *Index) releaseAll(h *holder) {
	x.inStretches(h.points, func(p uint32) {
		x.stopWaiting(h, p)
		pt := x.points.at(p)
		if k := h.key(pt.handle); x.handles.get(k) == p {
			x.handles.del(k)
		}
		x.dropExtra(h, p)
		x.points.release(p)
	})
	h.points, h.handles = 0, 0
}

// disown lets go of a point whose handle turned out to name something else. Its children keep it.
func (x *Index) disown(h *holder, p uint32) {
	x.dropRecords(h, p, func(*record) bool { return true })
	x.handles.del(h.key(x.points.at(p).handle))
	x.collect(h, p)
	x.counts.conflicts++
}
