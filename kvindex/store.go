package kvindex

import (
	"cmp"
	"slices"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Store tells that a holder announced blocks. The index keeps nothing of s.
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
	if h.keyed {
		x.refuse(h, 1<<s.Tier) // its events carry keys
		return
	}
	if len(s.Handles) > 0 && !h.odd {
		x.blocks.names.touch(s.Handles[0]) // an event of one block is little else than that
	}
	x.advance()
	x.endLost(h)
	if s.impossible() {
		x.refuse(h, 1<<s.Tier)
		return
	}
	g := x.join(h, s)
	if len(s.Handles) == 0 {
		return
	}
	if g < 0 {
		x.refuse(h, 1<<s.Tier)
		return
	}
	a := announcement{Stored: s, holder: h, group: uint8(g), aligned: s.aligned(), features: inOrder(s.Features)}
	if !x.judge(&a) {
		return
	}
	if !s.HasParent && !s.RootUnknown {
		a.root = x.hasher.Ahead(x.hasher.Root(s.Scope), s.First)
	}
	for a.from < len(s.Handles) {
		a.to = min(a.from+x.stretch(h.stretch(), s.BlockSize), len(s.Handles))
		if !x.makeRoom(h, a.need()) {
			x.refuse(h, 1<<s.Tier)
			break
		}
		x.blocks.steps += uint64(a.to - a.from)
		x.tableMu.Lock()
		v := applied
		if h.odd {
			a.from = x.apply(&a)
		} else {
			a.from, v = x.applyPlain(&a)
		}
		x.tableMu.Unlock()
		switch v {
		case stale:
			if !x.sweepFor(h) {
				return
			}
			a.swept = true // what is strange after it is not so for a name that nobody uses
		case strange:
			if !x.unfold(h) {
				return
			}
		}
		if v != applied {
			continue // what waits is woken after the rest, which may know its place better
		}
		if !x.wake(h) {
			return
		}
		x.boundWaiting()
		if a.from < len(s.Handles) && !x.yield(h) {
			return
		}
	}
	if x.wake(h) {
		x.boundWaiting()
	}
}

// aligned reports whether the tokens determine each handle's place.
func (s *Stored) aligned() bool {
	return s.BlockSize > 0 && len(s.Tokens) == len(s.Handles)*s.BlockSize
}

// impossible reports whether no engine can have the announced blocks: they are too large, or one is its own parent.
// Longer circles are found where they close: see circular.
func (s *Stored) impossible() bool {
	if s.BlockSize > block.MaxSize || len(s.Tokens) > MaxChain {
		return true
	}
	if !s.aligned() {
		return false
	}
	for i, handle := range s.Handles {
		if i > 0 && handle == s.Handles[i-1] || i == 0 && s.HasParent && handle == s.Parent {
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
	aligned  bool // tokens tell which handle is where
	root     block.Key
	copies   bool // a block that is there already has one copy more
	from, to int  // the stretch of handles to apply
	swept    bool // names that nobody uses are gone since it began

	features []block.Feature // by offset
}

// need returns an upper bound of the elements that the stretch stores.
func (a *announcement) need() need {
	n := need{handles: a.to - a.from, size: max(a.BlockSize, 0)}
	if a.aligned {
		n.tokens = n.handles * a.BlockSize
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
		if x.announced(a.holder, a.Handles[len(a.Handles)-1], a.Tier, a.group) {
			a.copies = false
			a.holder.vague |= 1 << a.Tier
			return a.holder.groups[a.group].kind == block.AttentionFull
		}
		a.copies = (a.holder.broken|a.holder.vague)&(1<<a.Tier) == 0
	}
	return true
}

// announced reports whether a holder announced a handle on a tier in a group.
func (x *Index) announced(h *holder, handle uint64, tier block.Tier, group uint8) bool {
	if !h.odd {
		if _, at, ok := x.knownBy(h, handle); ok {
			return x.blocks.maskAt(at, h.id)&maskBit(tier, group) != 0
		}
	}
	p := x.lookup(h, handle)
	return p != 0 && x.find(p, tier, group) != 0
}

// apply applies a stretch of an odd holder's announcement, and returns the index of the first handle that is left;
// len(handles) when the rest is impossible. It needs tableMu.
func (x *Index) apply(a *announcement) int {
	h := a.holder
	// cur is the resolved point before the next block; placed tells that it, or the root, is known.
	cur, placed := uint32(0), false
	parent, hasParent := a.Parent, a.HasParent
	if a.from > 0 {
		parent, hasParent = a.Handles[a.from-1], true
	}
	if !hasParent {
		placed = !a.RootUnknown
	} else if cur = x.lookup(h, parent); cur != 0 && x.points.at(cur).end != 0 {
		placed = true
	} else {
		cur = 0
	}
	r := record{tier: a.Tier, group: a.group, size: uint32(min(max(a.BlockSize, 0), MaxChain))}
	for i := a.from; i < a.to; i++ {
		handle := a.Handles[i]
		p := x.lookup(h, handle)
		if a.aligned {
			if p != 0 && x.points.at(p).end == 0 {
				// What it covers must be right before it is resolved.
				if at := x.find(p, r.tier, r.group); at != 0 {
					x.records.at(at).shrink(r.size)
				}
			}
			p = x.place(a, i, p, cur, placed, parent, hasParent)
			if p == 0 {
				x.refuse(h, 1<<a.Tier) // beyond MaxChain, or its own ancestor
				return len(a.Handles)
			}
		} else if p == 0 {
			p = x.add(h, handle)
			x.wait(h, p, 0, false, nil, nil)
		}
		if e := x.points.at(p).extra; e != 0 && !x.fits(len(x.extras.at(e).through)) {
			x.refuse(h, 1<<a.Tier)
			return len(a.Handles)
		}
		x.note(h, p, r, a.copies)
		parent, hasParent = handle, true
		cur, placed = p, x.points.at(p).end != 0
		if !placed {
			cur = 0
		}
	}
	return a.to
}

// place returns the point of the i-th block of an aligned announcement: p if that is right, or else a new one; at its
// place if that is known, else waiting.
func (x *Index) place(a *announcement, i int, p, cur uint32, placed bool, parent uint64, hasParent bool) uint32 {
	h := a.holder
	tokens := a.Tokens[i*a.BlockSize : (i+1)*a.BlockSize]
	if !placed {
		if hasParent && x.circular(h, a.Handles[i], parent) {
			return 0
		}
		if p == 0 {
			p = x.add(h, a.Handles[i])
		}
		if x.points.at(p).end == 0 {
			x.wait(h, p, parent, hasParent, tokens, x.relative(a, i))
		}
		return p
	}
	if p != 0 && x.points.at(p).end != 0 && a.RootUnknown {
		return p // its tokens came without their salt or images: the handle knows better
	}
	start := uint32(0)
	if cur != 0 {
		start = x.points.at(cur).end
	}
	if int(start)+len(tokens) > MaxChain {
		return 0
	}
	s := x.walk(cur, a.root, tokens, absolute(x.relative(a, i), int(start)))
	if p != 0 && x.points.at(p).end != 0 {
		if x.agrees(p, &s) {
			return p
		}
		if cur == p { // a block cannot be its own parent
			return 0
		}
		if cur != 0 {
			x.points.at(cur).kids++ // p may be all that keeps it
		}
		x.disown(h, p)
		if cur != 0 {
			x.points.at(cur).kids--
		}
		p = 0
	}
	if p == 0 {
		p = x.add(h, a.Handles[i])
	}
	x.resolve(h, p, cur, &s)
	return p
}

// relative returns the features that start in the i-th block, with offsets relative to its first token.
func (x *Index) relative(a *announcement, i int) []block.Feature {
	return absolute(a.within(i, i+1), -i*a.BlockSize)
}
