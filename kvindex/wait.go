package kvindex

import (
	"slices"
	"strings"

	"github.com/warmpath/warmpath/block"
)

// waiting is what the index knows of a waiting point: the record of an engine block whose place in its chain is not
// known yet.
type waiting struct {
	parent    uint64          // the parent's engine hash
	hasParent bool            // false: only the point's own hash is known
	tokens    []block.Token   // the tokens of the engine block
	features  []block.Feature // multimodal items, with offsets relative to the first token
	siblings  link            // the place in the list of points that wait for the same parent
}

func (w *waiting) bytes() int64 {
	return 80 + 4*int64(len(w.tokens)) + featuresBytes(w.features)
}

// wait lets a point without a place wait. If the hash of its parent is known, the point waits for the parent; else it
// waits for an announcement that gives the place of its own hash. If the point waits already and its parent was not
// known, it gets the facts of w.
func (x *Index) wait(h *holder, p *point, w *waiting) {
	if p.wait == nil {
		p.wait = &waiting{}
		h.queue.push(ofQueue, p)
		h.waiting++
		x.waiting++
		x.countWaiting(h, waitingBytes+p.wait.bytes())
		x.blocks.account(h, p.wait.bytes())
	}
	if !w.hasParent || w.parent == p.hash || p.wait.hasParent {
		return
	}
	old := p.wait.bytes()
	w.tokens, w.features = slices.Clone(w.tokens), slices.Clone(w.features)
	for i := range w.features {
		w.features[i].ID = strings.Clone(w.features[i].ID)
	}
	p.wait = w
	x.blocks.account(h, w.bytes()-old)
	x.countWaiting(h, w.bytes()-old)
	l := h.waiters.get(w.parent)
	if l == nil {
		l = &list{}
		h.waiters.put(w.parent, l)
	}
	l.push(ofParent, p)
}

// maxLineage bounds how many waiting ancestors of a block circular looks at. No engine announces so long a chain
// backwards.
const maxLineage = 4096

// circular reports whether a block would become its own ancestor if it waited for a parent: the parent waits for the
// block already, directly or through other waiting blocks.
func (x *Index) circular(h *holder, hash, parent uint64) bool {
	if h.waiters.get(hash) == nil {
		return false
	}
	for range maxLineage {
		if parent == hash {
			return true
		}
		p := h.byHash.get(parent)
		if x.blocks.steps++; p == nil || p.end != 0 || !p.wait.hasParent {
			return false
		}
		parent = p.wait.parent
	}
	return true
}

// countWaiting adds n bytes to the memory of waiting blocks.
func (x *Index) countWaiting(h *holder, n int64) {
	h.waitingBytes += n
	x.waitingBytes += n
}

// stopWaiting removes a point from the queue and from the list of points that wait for its parent. If the parent was
// kept only for the points of this list, and the list is empty now, stopWaiting frees the parent.
func (x *Index) stopWaiting(h *holder, p *point) {
	w := p.wait
	if w == nil {
		return
	}
	h.queue.remove(ofQueue, p)
	h.waiting--
	x.waiting--
	x.countWaiting(h, -waitingBytes-w.bytes())
	x.blocks.account(h, -w.bytes())
	if !w.hasParent {
		p.wait = nil
		return
	}
	l := h.waiters.get(w.parent)
	l.remove(ofParent, p)
	if p.wait = nil; l.first != nil {
		return
	}
	h.waiters.drop(w.parent)
	if q := h.byHash.get(w.parent); q != nil && q.end == 0 {
		x.collect(h, q)
	}
}

// rouse notes the hashes for which points of a holder wait. The holder knows these hashes now, and wake gives the
// points their places.
func (x *Index) rouse(h *holder, hashes []uint64) {
	if h.waiters.len() == 0 {
		return
	}
	for _, hash := range hashes {
		if h.waiters.get(hash) != nil {
			h.woken = append(h.woken, hash)
		}
	}
}

// mostWoken returns how many parts of blocks the records of a waiting point may cover: those of a block of the largest
// size on each tier. wake drops a point with more: no engine has such a block.
func (x *Index) mostWoken() int { return block.NumTiers * x.spans(block.MaxSize) }

// wake gives places to the points that waited for the hashes in h.woken, then to the points that waited for these
// points, and so on. At the end it removes the blocks of h.bare that nothing needs. After some milliseconds it lets
// other writers in between. It reports false if the holder was forgotten meanwhile.
func (x *Index) wake(h *holder) bool {
	for from := x.blocks.steps; len(h.woken) > 0; {
		if x.blocks.steps-from > pauseSteps {
			if !x.yield(h) {
				return false
			}
			from = x.blocks.steps
		}
		top := len(h.woken) - 1
		hash := h.woken[top]
		x.blocks.steps++
		pos, known := x.after(x.refer(h, hash))
		waiters := h.waiters.get(hash)
		if !known || waiters == nil {
			h.woken = h.woken[:top]
			continue
		}
		p := waiters.first
		n := need{hashes: 1, tokens: len(p.wait.tokens), size: max(len(p.wait.tokens), 1)}
		calls := x.coversOfAll(p, uint32(n.tokens), pos.end+uint32(n.tokens))
		if calls > x.mostWoken() {
			x.dropWaiting(h, p)
			x.refuse(h, 0)
			continue
		}
		n.bytes = x.coverNeed(x.pending(&pos)+calls) + featuresBytes(p.wait.features) + pos.point.featuresBytes()
		if !x.roomy(n, false) {
			// An eviction may drop any of these points: look them up again after it.
			if !x.makeRoom(h, n) {
				x.dropWaiting(h, p)
				x.refuse(h, 0)
			}
			continue
		}
		w := p.wait
		if int(pos.end)+len(w.tokens) > MaxChain {
			x.dropWaiting(h, p)
			continue
		}
		s := x.next(&pos, w.tokens, absolute(w.features, int(pos.end)))
		x.arrive(h, p, &pos, &s)
	}
	for _, at := range h.bare {
		if x.blocks.there(at) {
			x.blocks.dropBare(h, at)
		}
	}
	h.bare = h.bare[:0]
	return true
}

// arrive gives a point its place: the point begins at the position, and the step leads over its tokens. If the point is
// a block of the index's size and its hash can name this block, a claim on the block replaces the point. arrive returns
// the point and the block that the hash means now.
func (x *Index) arrive(h *holder, p *point, pos *position, s *step) (*point, spot) {
	other := func(r record) bool { return r.size != 0 && r.size != x.size }
	if pos.point != nil || s.end-pos.end != x.size || slices.ContainsFunc(p.records, other) {
		x.resolve(h, p, pos, s)
		return p, 0
	}
	delete(h.byHash.entries, p.hash) // a hash of a point cannot name a block
	if x.placeKeys(h, pos, []uint64{p.hash}, s.keys, 0, false) == 0 {
		h.byHash.put(p.hash, p)
		x.resolve(h, p, pos, s)
		return p, 0
	}
	h.byHash.put(p.hash, p)
	x.leave(h, p)
	x.stopWaiting(h, p)
	if len(p.records) == 0 {
		h.bare = append(h.bare, pos.at)
	}
	twin := (*point)(nil)
	for _, r := range p.records {
		bit := placeBit(r.tier, r.group)
		if x.blocks.paintOne(pos.at, change{h: h, add: state{named: bit}}); r.count > 1 {
			twin = x.move(h, p.hash, twin, pos.at, bit)
			twin.records[len(twin.records)-1].count = r.count
		}
	}
	return twin, pos.at
}

// boundWaiting drops waiting points while their number or their bytes exceed the limit: the oldest points of the holder
// that has the most points, or the most bytes of points.
func (x *Index) boundWaiting() {
	x.boundWaitingBy(func() bool { return x.waiting > x.config.MaxWaiting }, func(h *holder) int64 { return h.waiting })
	x.boundWaitingBy(func() bool { return x.waitingBytes > x.config.WaitingBytes }, func(h *holder) int64 { return h.waitingBytes })
}

func (x *Index) boundWaitingBy(over func() bool, size func(h *holder) int64) {
	for over() {
		most := x.blocks.holders[0]
		for _, h := range x.blocks.holders {
			if h != nil && (most == nil || size(h) > size(most)) {
				most = h
			}
		}
		x.blocks.steps += uint64(len(x.blocks.holders))
		if most == nil || most.queue.first == nil {
			return
		}
		// Drop up to mostStretch points before comparing the holders again. If the holders were compared after each point,
		// the result would differ little.
		for n := 0; n < mostStretch && most.queue.first != nil && over(); n++ {
			x.dropWaiting(most, most.queue.first)
			x.counts.WaitingDropped++
		}
	}
}

// dropWaiting forgets a waiting point. Points that wait for this point continue to wait.
func (x *Index) dropWaiting(h *holder, p *point) {
	for _, r := range p.records {
		h.broken |= 1 << r.tier
	}
	x.blocks.account(h, -recordBytes*int64(cap(p.records)))
	p.records = nil
	x.leave(h, p)
	x.stopWaiting(h, p)
}
