package kvindex

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex/internal/memory"
)

// blocks knows which holders have which blocks. A spot is a place on a strand (a run of blocks). A claim is what one
// holder has of a block, a set has the claims of all holders, and a segment is a part of a strand with one set. A point
// records what a claim cannot express. An engine hash names a block if it leads to the block in the table names.
//
// Writers hold Index.mu. Match reads heads, strands, segments and sets without a lock.
type blocks struct {
	heads    memory.Table // the key of a strand's first block → the strand
	names    memory.Table // the engine hash of a block → the block's spot
	strands  memory.Arena[strand]
	log      memory.Log   // the keys and engine hashes of the strands' blocks
	segments memory.Lists // counts the memory of the lists in strand.more
	sets     sets

	veil        uint64    // engine hashes on strands are XORed with veil, so that 0 means no hash
	holders     []*holder // holders by id; nil: not known
	steps       uint64    // see Stats.Steps
	extraBytes  int64     // the memory of points and their parts, of all holders
	held        int64     // the number of blocks that some holder has
	memberships int64     // the number of pairs of a holder and a block that the holder has

	teller *teller // nil: nobody is told of changes

	old, new []segment // memory for the segments of a strand before and after a change
	words    []uint64  // memory for words that are copied to a list or to the log
}

// there reports whether there is a block at a spot. After a change of the index, this may be another block than before.
func (b *blocks) there(at spot) bool {
	s := b.strands.At(at.strand())
	return s != nil && at.offset() < s.length()
}

// key returns the key of the block at a spot.
func (b *blocks) key(at spot) block.Key {
	return block.Key(b.strands.At(at.strand()).run.Firsts()[at.offset()])
}

// hash returns the hash that names the block at a spot, and whether the block has a name.
func (b *blocks) hash(at spot) (uint64, bool) {
	w := b.strands.At(at.strand()).run.Seconds()[at.offset()]
	return w ^ b.veil, w != 0
}

// named returns the spot of the block that an engine hash names for some holder, or 0 if the hash names no block.
func (b *blocks) named(hash uint64) spot { return b.namedAt(b.names.Hash(hash), hash) }

// namedAt is named for a caller that knows mixed, the table's hash of the engine hash.
func (b *blocks) namedAt(mixed, hash uint64) spot {
	for v, p := b.names.Find(mixed); v != 0; v, p = p.Next() {
		at := spot(v - 1)
		if b.strands.At(at.strand()).run.Seconds()[at.offset()] == hash^b.veil {
			return at
		}
	}
	return 0
}

// prefetched has the table's hashes of 16 engine hashes. The cache lines for all of them are fetched at the same time.
type prefetched [16]uint64

// prefetch fetches the buckets of the table names in which the searches for the first hashes begin. If hashes come from
// a strand, they are XORed with blocks.veil, and the parameter veil has this value; else veil is 0.
func (p *prefetched) prefetch(b *blocks, hashes []uint64, veil uint64) {
	for k, hash := range hashes[:min(len(hashes), len(p))] {
		p[k] = b.names.Hash(hash ^ veil)
		b.names.Touch(p[k])
	}
}

// unname removes the names of the blocks from lo to hi (exclusive) of a strand: no engine hash leads to these blocks
// then.
func (b *blocks) unname(i, lo, hi uint32) {
	seconds := b.strands.At(i).run.Seconds()[:hi]
	var mixed prefetched
	for from := lo; from < hi; from += uint32(len(mixed)) {
		mixed.prefetch(b, seconds[from:], b.veil)
		for k := from; k < min(from+uint32(len(mixed)), hi); k++ {
			if seconds[k] != 0 {
				b.names.Delete(mixed[k-from], spotOf(i, k).entry())
				seconds[k] = 0
			}
		}
	}
}

// child returns the spot of the block that has the given key, follows the block at a spot, and is the first block of a
// child strand. It returns 0 if there is none. If the spot is 0, child looks for a strand that begins a chain.
func (b *blocks) child(at spot, key block.Key) spot {
	depth := b.end(at)
	for v, p := b.heads.Find(b.heads.Hash(uint64(key))); v != 0; v, p = p.Next() {
		s := b.strands.At(uint32(v))
		if s.parent == at.strand() && s.depth == depth && s.run.Firsts()[0] == uint64(key) {
			return spotOf(uint32(v), 0)
		}
	}
	return 0
}

// follow returns the spot of the block with the first key after the block at a spot, or 0, and how many of the keys
// belong to consecutive blocks from there on, on the same strand.
func (b *blocks) follow(at spot, keys []block.Key) (spot, int) {
	first := spot(0)
	if at != 0 {
		if s := b.strands.At(at.strand()); at.offset()+1 < s.length() && s.run.Firsts()[at.offset()+1] == uint64(keys[0]) {
			first = at + 1
		}
	}
	if first == 0 {
		if first = b.child(at, keys[0]); first == 0 {
			return 0, 0
		}
	}
	s := b.strands.At(first.strand())
	return first, agree(s.run.Firsts()[first.offset():s.length()], keys)
}

// before returns the spot of the block before the block at a spot. It returns 0 if there is none.
func (b *blocks) before(at spot) spot {
	if at.offset() > 0 {
		return at - 1
	}
	s := b.strands.At(at.strand())
	if s.parent == 0 {
		return 0
	}
	return spotOf(s.parent, s.depth-b.strands.At(s.parent).depth-1)
}

// end returns the number of blocks from the chain's first block to the block at a spot. For spot 0 it returns 0.
func (b *blocks) end(at spot) uint32 {
	if at == 0 {
		return 0
	}
	return b.strands.At(at.strand()).depth + at.offset() + 1
}

// segmentAt returns the segment of the block at a spot, and the offset at which the segment begins.
func (b *blocks) segmentAt(at spot) (start uint32, g segment) {
	for _, w := range b.segmentWords(b.strands.At(at.strand())) {
		if g = segmentOf(w); at.offset() < g.end {
			return start, g
		}
		start = g.end
	}
	return start, segment{}
}

// segmentWords returns a strand's segments as they are stored. Words after the last segment are 0.
func (b *blocks) segmentWords(s *strand) []uint64 {
	if more := s.more.Words(); more != nil {
		return more
	}
	return s.segs[:]
}

// setAt returns the set of the holders that have the block at a spot.
func (b *blocks) setAt(at spot) setID {
	_, g := b.segmentAt(at)
	return g.set
}

// stateAt returns what a holder has of the block at a spot.
func (b *blocks) stateAt(at spot, id fleet.Holder) state {
	return b.sets.state(b.sets.get(b.setAt(at), id))
}

// appendSegments appends a strand's segments to dst.
func (b *blocks) appendSegments(s *strand, dst []segment) []segment {
	for _, w := range b.segmentWords(s) {
		if w == 0 {
			break
		}
		dst = append(dst, segmentOf(w))
	}
	return dst
}

// write replaces the segments of a strand. old has its present segments, and segs has the new ones. write adds
// references to the sets in segs, and drops the references to the sets in old.
func (b *blocks) write(s *strand, old, segs []segment) {
	for _, g := range segs {
		b.sets.hold(g.set)
	}
	s.flip()
	length := uint32(0)
	if len(segs) > 0 {
		length = segs[len(segs)-1].end
	}
	if len(segs) <= inlineSegments {
		for i := range s.segs {
			w := uint64(0)
			if i < len(segs) {
				w = segs[i].word()
			}
			atomic.StoreUint64(&s.segs[i], w)
		}
		b.segments.Set(&s.more, nil)
	} else {
		b.words = b.words[:0]
		for _, g := range segs {
			b.words = append(b.words, g.word())
		}
		b.segments.Set(&s.more, b.words)
	}
	atomic.StoreUint32(&s.extent, s.extent&^strandLength|length)
	s.flip()
	for _, g := range old {
		b.sets.drop(g.set)
	}
}

// change is a change of a holder's claims on some blocks. If h is nil, all holders lose the blocks.
type change struct {
	h         *holder
	add, drop state // the bits that are added and the bits that are removed
}

// apply returns a claim after a change.
func (b *blocks) apply(c *change, old claim) claim {
	st := b.sets.state(old)
	st.named = st.named&^c.drop.named | c.add.named
	st.covered = st.covered&^c.drop.covered | c.add.covered
	return b.sets.claim(st)
}

// paint applies a change to the blocks from lo to hi (exclusive) of a strand.
func (b *blocks) paint(i, lo, hi uint32, c *change) {
	s := b.strands.At(i)
	b.old = b.appendSegments(s, b.old[:0])
	b.new = b.new[:0]
	b.steps += uint64(len(b.old))
	from, changed := uint32(0), false
	for _, g := range b.old {
		a, z := max(from, lo), min(g.end, hi)
		if a >= z {
			b.push(g)
			from = g.end
			continue
		}
		set := b.changed(g.set, c, i, a, z)
		changed = changed || set != g.set
		if a > from {
			b.push(segment{a, g.set})
		}
		b.push(segment{z, set})
		if z < g.end {
			b.push(segment{g.end, g.set})
		}
		from = g.end
	}
	if changed {
		b.write(s, b.old, b.new)
	}
}

// paintOne is paint for the block at a spot.
func (b *blocks) paintOne(at spot, c change) { b.paint(at.strand(), at.offset(), at.offset()+1, &c) }

func (b *blocks) push(g segment) {
	if n := len(b.new); n > 0 && b.new[n-1].set == g.set {
		b.new[n-1].end = g.end
		return
	}
	b.new = append(b.new, g)
}

// changed returns the set of holders that blocks have after a change, and counts the change. The blocks are those from
// lo to hi (exclusive) of the strand i, and set is their present set.
func (b *blocks) changed(set setID, c *change, i, lo, hi uint32) setID {
	if c.h == nil {
		b.abandon(set, i, lo, hi)
		return 0
	}
	old := b.sets.get(set, c.h.id)
	now := b.apply(c, old)
	if now == old {
		return set
	}
	before, after := b.sets.state(old), b.sets.state(now)
	next := b.sets.with(set, c.h.id, now)
	b.steps += uint64(len(b.sets.scratch))
	b.count(c.h, old, now, int64(hi-lo))
	if b.teller != nil {
		b.tell(c.h, i, lo, hi, before.held(), after.held())
	}
	if more := one(after.held() != 0) - one(before.held() != 0); more != 0 && !b.shared(set, c.h.id) {
		b.held += more * int64(hi-lo)
	}
	if before.named&known != 0 && after.named&known == 0 && !b.sets.known(next) {
		b.unname(i, lo, hi)
	}
	return next
}

// abandon counts that all members of a set lose the blocks from lo to hi (exclusive) of a strand, by an eviction.
func (b *blocks) abandon(set setID, i, lo, hi uint32) {
	n, lived := int64(hi-lo), false
	var one [1]uint64
	members := b.sets.members(set, &one)
	b.steps += uint64(len(members))
	for _, w := range members {
		m := member(w)
		h, st := b.holders[m.holder()], b.sets.state(m.claim())
		lived = lived || st.held() != 0
		if b.teller != nil {
			b.tell(h, i, lo, hi, st.held(), 0)
		}
		h.broken |= tiersOf(st.held())
		had := h.blocks
		b.count(h, m.claim(), 0, n)
		h.noteEvicted(&had)
	}
	if lived {
		b.held -= n
	}
	b.unname(i, lo, hi)
}

// account adds n bytes to the memory of a holder's points and their parts.
func (b *blocks) account(h *holder, n int64) {
	h.extra += n
	b.extraBytes += n
}

// shared reports whether a member of a set other than h has the blocks of the set.
func (b *blocks) shared(set setID, h fleet.Holder) bool {
	var one [1]uint64
	for _, w := range b.sets.members(set, &one) {
		if m := member(w); m.holder() != h && b.sets.state(m.claim()).held() != 0 {
			return true
		}
	}
	return false
}

// count updates the holder's figures and the index's figures: the holder's claim on n blocks changed.
func (b *blocks) count(h *holder, from, to claim, n int64) {
	h.changes++
	h.claims += n * (one(to != 0) - one(from != 0))
	before, after := b.sets.state(from), b.sets.state(to)
	h.named += n * (one(after.named&(known|unnamed) != 0) - one(before.named&(known|unnamed) != 0))
	old, now := before.held(), after.held()
	for tier := range h.blocks {
		all := uint64(anyGroup) << tier
		h.blocks[tier] += n * (one(now&all != 0) - one(old&all != 0))
	}
	b.memberships += n * (one(now != 0) - one(old != 0))
}

// use notes the time at which a strand was used. Readers call use, too.
func (s *strand) use(tick uint32) {
	if atomic.LoadUint32(&s.used) != tick {
		atomic.StoreUint32(&s.used, tick)
	}
}

// grow adds blocks after the block at a spot, or at the beginning of a chain if the spot is 0. The blocks must not be
// there yet. No holder has the new blocks. h owns the new strands. grow returns the spot of the last block.
func (b *blocks) grow(h *holder, at spot, keys []block.Key, tick uint32) spot {
	for len(keys) > 0 {
		i := b.tip(h, at)
		s := b.strands.At(i)
		from := s.length()
		n := min(len(keys), strandLength-int(from))
		b.words = b.words[:0]
		for _, k := range keys[:n] {
			b.words = append(b.words, uint64(k))
		}
		b.log.Append(&s.run, i, int(from), b.words)
		b.lengthen(s, uint32(n))
		s.use(tick)
		if from == 0 {
			b.heads.Put(b.heads.Hash(uint64(keys[0])), uint64(i))
		}
		at = spotOf(i, from+uint32(n)-1)
		keys = keys[n:]
	}
	return at
}

// tip returns the strand to which new blocks after a block are added. This is the block's own strand, if the block is
// the strand's last and the strand has fewer than fullStrand blocks; else a new strand.
func (b *blocks) tip(h *holder, at spot) uint32 {
	if at != 0 {
		if s := b.strands.At(at.strand()); at.offset()+1 == s.length() && s.length() < fullStrand {
			return at.strand()
		}
	}
	i := b.strands.Alloc()
	s := b.strands.At(i)
	s.flip()
	for _, field := range []*uint32{&s.parent, &s.depth, &s.child, &s.next, &s.prev} {
		atomic.StoreUint32(field, 0)
	}
	atomic.StoreUint32(&s.extent, b.own(h))
	if at != 0 {
		p := b.strands.At(at.strand())
		atomic.StoreUint32(&s.parent, at.strand())
		atomic.StoreUint32(&s.depth, p.depth+at.offset()+1)
		atomic.StoreUint32(&s.next, p.child)
		if p.child != 0 {
			atomic.StoreUint32(&b.strands.At(p.child).prev, i)
		}
		atomic.StoreUint32(&p.child, i)
	}
	s.flip()
	return i
}

// own makes a holder the owner of a new strand: the holder is charged for the strand's memory. own returns the owner's
// bits of strand.extent: the id plus 1. A holder whose id does not fit there owns no strands, and own returns 0.
func (b *blocks) own(h *holder) uint32 {
	if h.id >= mostOwners {
		return 0
	}
	h.owned++
	return (uint32(h.id) + 1) << ownerShift
}

// lengthen adds n blocks that no holder has to a strand's end.
func (b *blocks) lengthen(s *strand, n uint32) {
	b.old = b.appendSegments(s, b.old[:0])
	b.new = append(b.new[:0], b.old...)
	b.push(segment{s.length() + n, 0})
	b.write(s, b.old, b.new)
}

// trim cuts blocks at a strand's end if no holder has them and no child strand follows them. If no block is left, trim
// frees the strand, and goes on with the strand's parent.
func (b *blocks) trim(i uint32) {
	for i != 0 {
		s := b.strands.At(i)
		if s == nil || s.length() == 0 {
			return
		}
		b.old = b.appendSegments(s, b.old[:0])
		if b.old[len(b.old)-1].set != 0 {
			return
		}
		n := uint32(0)
		if k := len(b.old) - 2; k >= 0 {
			n = b.old[k].end
		}
		for c := s.child; c != 0 && n < s.length(); c = b.strands.At(c).next {
			b.steps++
			n = max(n, b.strands.At(c).depth-s.depth)
		}
		if n == s.length() {
			return
		}
		if n == 0 {
			b.heads.Delete(b.heads.Hash(s.run.Firsts()[0]), uint64(i))
		}
		b.new = b.new[:0]
		for _, g := range b.old {
			if g.end = min(g.end, n); n > 0 && (len(b.new) == 0 || b.new[len(b.new)-1].end < n) {
				b.push(g)
			}
		}
		b.write(s, b.old, b.new)
		if b.log.Cut(&s.run, i, int(n)); n > 0 {
			return
		}
		i = b.free(i, s)
	}
}

// compact frees garbage in the log of keys and hashes if there is much garbage. If hard is true, it frees also when
// there is less.
func (b *blocks) compact(hard bool) {
	b.log.Compact(hard, func(i uint32) (*memory.Run, int) {
		b.steps++
		s := b.strands.At(i)
		if s == nil {
			return nil, 0
		}
		return &s.run, int(s.length())
	})
}

// free frees a strand without blocks, and returns the strand's parent.
func (b *blocks) free(i uint32, s *strand) (parent uint32) {
	parent = s.parent
	if s.next != 0 {
		atomic.StoreUint32(&b.strands.At(s.next).prev, s.prev)
	}
	switch {
	case s.prev != 0:
		atomic.StoreUint32(&b.strands.At(s.prev).next, s.next)
	case parent != 0:
		atomic.StoreUint32(&b.strands.At(parent).child, s.next)
	}
	if h := s.extent >> ownerShift; h != 0 {
		b.holders[h-1].owned--
	}
	if p, used := b.strands.At(parent), atomic.LoadUint32(&s.used); parent != 0 && int32(used-atomic.LoadUint32(&p.used)) > 0 {
		p.use(used) // the last use of a block is the last use of any of its descendants
	}
	b.strands.Release(i)
	return parent
}

func (b *blocks) bytes() int64 {
	return b.heads.Bytes() + b.names.Bytes() + b.strands.Bytes() + b.log.Bytes() + b.segments.Bytes() + b.sets.bytes() + b.teller.bytes() +
		int64(cap(b.old)+cap(b.new)+cap(b.words)+cap(b.holders))*8
}

// growth returns an upper bound of the memory that a change of n blocks allocates, without the log of keys and hashes.
// A change usually makes the list of segments of one strand longer; growth counts two lists, to be safe.
func (b *blocks) growth(n int) int64 {
	return b.heads.Growth(n) + b.names.Growth(n) + b.strands.Growth(n) + 2*memory.ListBytes(max(cap(b.old), 16)+4) + b.sets.growth(n)
}

// clear forgets all blocks and gives their memory back.
func (b *blocks) clear() {
	b.heads.Clear()
	b.names.Clear()
	b.strands.Clear()
	b.segments.Clear()
	b.sets.clear()
	b.log.Clear()
	b.held, b.memberships = 0, 0
	b.old, b.new, b.words = nil, nil, nil
}
