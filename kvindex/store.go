package kvindex

import (
	"cmp"
	"slices"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Store records that a holder announced blocks. The index keeps nothing of s.
func (x *Index) Store(id fleet.Holder, s *Stored) {
	x.lock()
	defer x.unlock()
	h := x.meet(id)
	if h == nil {
		return
	}
	if s.Tier >= block.NumTiers {
		x.refuse(h, allTiers)
		return
	}
	x.pass()
	a := announcement{Stored: s, holder: h, aligned: s.aligned(), features: inOrder(s.Features)}
	if a.impossible() {
		x.refuse(h, 1<<s.Tier)
		return
	}
	g := x.join(h, s)
	if len(s.Hashes) == 0 {
		return
	}
	if g < 0 {
		x.refuse(h, 1<<s.Tier)
		return
	}
	if a.group = uint8(g); !x.judge(&a) {
		return
	}
	if !s.HasParent && !s.RootUnknown {
		a.root = x.hasher.Ahead(x.hasher.Root(s.Scope), s.First)
	}
	for a.from < len(s.Hashes) {
		a.to = min(a.from+x.stretch(s.BlockSize), len(s.Hashes))
		if !x.makeRoom(h, a.need()) {
			x.refuse(h, 1<<s.Tier)
			break
		}
		x.blocks.steps += uint64(a.to - a.from)
		a.from = x.apply(&a)
		x.wake(h)
		x.boundWaiting()
		if a.from < len(s.Hashes) && !x.yield(h) {
			return
		}
	}
}

// aligned reports whether the tokens determine each hash's place.
func (s *Stored) aligned() bool {
	return s.BlockSize > 0 && len(s.Tokens) == len(s.Hashes)*s.BlockSize
}

// impossible reports whether no engine can have the announced blocks: they are too large, or one is its own parent.
// Longer circles are found where they close: see circular.
func (s *announcement) impossible() bool {
	if s.BlockSize > block.MaxSize || len(s.Tokens) > MaxChain {
		return true
	}
	if !s.aligned {
		return false
	}
	for i, hash := range s.Hashes {
		if i > 0 && hash == s.Hashes[i-1] || i == 0 && s.HasParent && hash == s.Parent {
			return true
		}
	}
	return false
}

// inOrder returns features ordered by position.
func inOrder(features []block.Feature) []block.Feature {
	byOffset := func(f, g block.Feature) int { return cmp.Compare(f.Offset, g.Offset) }
	if !slices.IsSortedFunc(features, byOffset) {
		features = slices.Clone(features)
		slices.SortStableFunc(features, byOffset)
	}
	return features
}

// announcement is a Stored on its way in.
type announcement struct {
	*Stored
	holder   *holder
	group    uint8
	aligned  bool // the tokens show the position of each hash
	root     block.Key
	copies   bool // a block that is there already has one copy more
	from, to int  // the stretch of hashes to apply

	features []block.Feature // by offset
}

// need returns an upper bound of the elements that the stretch stores.
func (a *announcement) need() need {
	n := need{hashes: a.to - a.from, size: max(a.BlockSize, 0)}
	if a.aligned {
		n.tokens = n.hashes * a.BlockSize
		for _, f := range a.within(a.from, a.to) {
			n.bytes += 2 * (featureBytes + int64(len(f.ID)))
		}
	}
	return n
}

// within returns the features that start in the blocks from lo to hi (exclusive).
func (a *announcement) within(lo, hi int) []block.Feature {
	at := func(i int) int {
		n, _ := slices.BinarySearchFunc(a.features, i*a.BlockSize, func(f block.Feature, offset int) int { return cmp.Compare(f.Offset, offset) })
		return n
	}
	if len(a.features) == 0 {
		return nil
	}
	return a.features[at(lo):at(hi)]
}

// judge decides whether the announcement adds copies of blocks that are there already, and whether it says anything.
//
// An engine announces each new copy, and announces blocks again that it has (vLLM's kv_cache_report_mode=full); the
// wire does not tell the two apart. A report begins at the chain's first token and ends with a block that is there,
// because it lists what a request found. A new copy mostly ends with a new block. When the last block is there, it
// may be either, and no copy is counted: the index then forgets a block at the first removal of two, and never claims
// one that is gone. From then on the tier's history is vague: a block may be there that the index has forgotten, so
// that a report may end with one it does not know. The same holds when the history is not whole. Then nothing that
// begins a chain counts as a copy, until the tier is cleared. A report of a group other than full attention may list
// blocks that have left the window: it says nothing.
func (x *Index) judge(a *announcement) bool {
	a.copies = true
	switch {
	case a.Origin == OriginNew:
	case a.Origin == OriginReused:
		a.copies = false
	case a.BlockSize <= 0:
		a.copies = false // a placeholder: an offload tier has each chunk once
	case !a.HasParent:
		if x.announced(a.holder, a.Hashes[len(a.Hashes)-1], a.Tier, a.group) {
			a.copies = false
			a.holder.vague |= 1 << a.Tier
			return a.holder.groups[a.group].kind == block.AttentionFull
		}
		a.copies = (a.holder.broken|a.holder.vague)&(1<<a.Tier) == 0
	}
	return true
}

// announced reports whether a holder announced a hash on a tier in a group.
func (x *Index) announced(h *holder, hash uint64, tier block.Tier, group uint8) bool {
	p, at := x.refer(h, hash)
	return p != nil && p.find(tier, group) >= 0 || at != 0 && x.blocks.stateAt(at, h.id).named&placeBit(tier, group) != 0
}

// apply applies a stretch of an announcement, and returns the index of the first hash that is left; len(Hashes) when
// the rest is impossible.
func (x *Index) apply(a *announcement) int {
	h := a.holder
	l, placed := line{root: a.root}, !a.HasParent && !a.RootUnknown
	parent, hasParent := a.Parent, a.HasParent
	if a.from > 0 {
		parent, hasParent = a.Hashes[a.from-1], true
	}
	if hasParent {
		l, placed = x.after(x.refer(h, parent))
	}
	for i := a.from; i < a.to; i++ {
		if placed && a.aligned && l.point == nil && a.BlockSize == int(x.size) {
			if i += x.applyRun(a, i, &l); i == a.to {
				break
			}
			if i > a.from {
				parent, hasParent = a.Hashes[i-1], true
			}
		}
		ok := false
		if l, placed, ok = x.applyOne(a, i, l, placed, parent, hasParent); !ok {
			x.refuse(h, 1<<a.Tier)
			return len(a.Hashes)
		}
		parent, hasParent = a.Hashes[i], true
	}
	return a.to
}

// applyRun applies as many blocks of an announcement, from the i-th on, as their hashes can name: blocks of our size on
// a line. It moves the line along.
func (x *Index) applyRun(a *announcement, i int, l *line) (done int) {
	h, size := a.holder, int(x.size)
	n := min(a.to-i, MaxChain/size-int(l.end)/size)
	if n <= 0 {
		return 0
	}
	keys := x.next(l, a.Tokens[i*size:(i+n)*size], absolute(a.within(i, i+n), int(l.end)-i*size)).keys
	return x.placeKeys(h, l, a.Hashes[i:i+n], keys, placeBit(a.Tier, a.group), a.copies)
}

// placeKeys notes that a holder has the blocks of keys, which follow a line, on the tier and in the group of a bit: as
// many, from the first on, as their hashes can name. It moves the line along.
func (x *Index) placeKeys(h *holder, l *line, hashes []uint64, keys []block.Key, bit uint64, copies bool) (done int) {
	b, tick := &x.blocks, x.tick()
	for done < len(keys) {
		rest, end := keys[done:], uint32(0)
		at, n := b.follow(l.at, rest)
		if n == 0 {
			end = b.grow(h, l.at, rest, tick).strand()
			at, n = b.follow(l.at, rest)
		}
		ok := x.nameable(h, at, hashes[done:done+n])
		if ok > 0 {
			again := x.scratch.spots[:0]
			if copies {
				again = b.having(again, h, at, uint32(ok), bit)
			}
			b.paint(at.strand(), at.offset(), at.offset()+uint32(ok), &change{h: h, add: state{named: bit | known}})
			b.strands.At(at.strand()).use(tick)
			for _, one := range again {
				x.move(h, hashes[done+int(one-at)], nil, one, bit).records[0].count++
			}
			x.scratch.spots = again
			x.rouse(h, hashes[done:done+ok])
			l.at, l.end = at+spot(ok)-1, l.end+uint32(ok)*x.size
			done += ok
		}
		if ok < n {
			b.trim(end) // the blocks that were added for the rest
			break
		}
	}
	return done
}

// nameable makes hashes name blocks for a holder that follow each other on a strand, and returns of how many, from the
// first on, that is so.
func (x *Index) nameable(h *holder, at spot, hashes []uint64) int {
	b := &x.blocks
	seconds := b.strands.At(at.strand()).run.Seconds()[at.offset():]
	var mixed prefetched
	for k, hash := range hashes {
		if k%len(mixed) == 0 {
			mixed.prefetch(b, hashes[k:], 0)
		}
		if len(h.byHash) > 0 && h.byHash[hash] != nil || h.disowned && b.stateAt(at+spot(k), h.id).named&unnamed != 0 {
			return k
		}
		switch w := hash ^ b.veil; {
		case seconds[k] == w && w != 0:
		case seconds[k] != 0 || w == 0 || b.namedAt(mixed[k%len(mixed)], hash) != 0:
			return k
		default:
			seconds[k] = w
			b.names.Put(mixed[k%len(mixed)], (at + spot(k)).entry())
		}
	}
	return len(hashes)
}

// having appends the blocks to dst that a holder has already, named and with a bit, of n blocks from a spot on.
func (b *blocks) having(dst []spot, h *holder, at spot, n uint32, bit uint64) []spot {
	for lo, hi := at.offset(), at.offset()+n; lo < hi; {
		_, g := b.segmentAt(spotOf(at.strand(), lo))
		end := min(g.end, hi)
		if has := b.sets.state(b.sets.get(g.set, h.id)).named&bit != 0; has {
			for k := lo; k < end; k++ {
				dst = append(dst, spotOf(at.strand(), k))
			}
		}
		lo = end
	}
	return dst
}

// move moves the record of a tier and a group from a claim to the point beside it, and returns the point. p is that
// point; nil: there is none.
func (x *Index) move(h *holder, hash uint64, p *point, at spot, bit uint64) *point {
	if p == nil {
		p = x.pair(h, hash, at)
	}
	r := record{count: 1, size: x.size}
	r.tier, r.group = placeOf(bit)
	p.records = append(p.records, r)
	x.blocks.account(h, 16)
	x.contribute(h, p, r, true)
	x.blocks.paintOne(at, change{h: h, drop: state{named: bit}})
	return p
}

// applyOne applies the announcement of one block of any kind. It returns the line after the block and whether its
// place is known. ok is false when it is impossible.
func (x *Index) applyOne(a *announcement, i int, l line, placed bool, parent uint64, hasParent bool) (after line, known, ok bool) {
	h, hash := a.holder, a.Hashes[i]
	r := record{tier: a.Tier, group: a.group, size: uint32(min(max(a.BlockSize, 0), MaxChain))}
	p, at := x.refer(h, hash)
	resolved := at != 0 || p != nil && p.end != 0
	switch {
	case resolved && (!placed || !a.aligned || a.RootUnknown):
	case !placed || !a.aligned:
		var w waiting
		if a.aligned {
			if hasParent && (p == nil || !p.wait.hasParent) && x.circular(h, hash, parent) {
				return l, false, false
			}
			w = waiting{parent: parent, hasParent: hasParent, tokens: a.Tokens[i*a.BlockSize : (i+1)*a.BlockSize], features: x.relative(a, i)}
		}
		if p == nil {
			p = x.add(h, hash)
		}
		x.wait(h, p, &w)
	case int(l.end)+a.BlockSize > MaxChain:
		return l, false, false
	default:
		s := x.next(&l, a.Tokens[i*a.BlockSize:(i+1)*a.BlockSize], absolute(x.relative(a, i), int(l.end)))
		if resolved && x.agrees(p, at, &l, &s) {
			break
		}
		if resolved {
			if p != nil && p == l.point || at != 0 && at == l.at && l.point == nil {
				return l, false, false // a block cannot be its own parent
			}
			x.disown(h, p, at, &l)
			p, at = nil, 0
		}
		if p == nil {
			p = x.add(h, hash)
		} else if k := p.find(r.tier, r.group); k >= 0 {
			p.records[k].shrink(r.size) // resolve computes the cover from it
		}
		p, at = x.arrive(h, p, &l, &s)
	}
	x.announce(h, hash, p, at, r, a.copies)
	after, known = x.after(p, at)
	return after, known, true
}

// announce adds a record to the point or to the claim that a hash means.
func (x *Index) announce(h *holder, hash uint64, p *point, at spot, r record, copies bool) {
	if at != 0 && (p == nil || p.find(r.tier, r.group) < 0) {
		x.blocks.strands.At(at.strand()).use(x.tick())
		bit := placeBit(r.tier, r.group)
		has := x.blocks.stateAt(at, h.id).named&bit != 0
		switch {
		case has && !copies && (r.size == 0 || r.size >= x.size):
			return // a larger one is there, but only the smaller one is sure
		case has:
			p = x.move(h, hash, p, at, bit)
		case r.size == 0 || r.size == x.size:
			x.blocks.paintOne(at, change{h: h, add: state{named: bit}})
			return
		case p == nil:
			p = x.pair(h, hash, at)
		}
	}
	x.note(h, p, r, copies)
}

// relative returns the features that start in the i-th block, with offsets relative to its first token.
func (x *Index) relative(a *announcement, i int) []block.Feature {
	return absolute(a.within(i, i+1), -i*a.BlockSize)
}
