package kvindex

import (
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
		calls, items := x.covers(&a)
		n := a.need(x.size)
		n.bytes += x.coverNeed(calls) + items*a.copiesOfItems(x.size)
		if !x.makeRoom(h, n) {
			x.refuse(h, 1<<s.Tier)
			break
		}
		x.blocks.steps += uint64(a.to - a.from)
		a.from = x.apply(&a)
		if !x.wake(h) {
			return
		}
		x.boundWaiting()
		if a.from < len(s.Hashes) && !x.yield(h) {
			return
		}
	}
}

// aligned reports whether the tokens determine the place of each hash.
func (s *Stored) aligned() bool {
	return s.BlockSize > 0 && len(s.Tokens) == len(s.Hashes)*s.BlockSize
}

// impossible reports whether no engine can have the announced blocks: a block is too large, the tokens are more than a
// chain may have, or a block is its own parent. For longer circles see circular.
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

// announcement is a Stored that is being applied. A strand is a run of blocks in the index, and a spot is a place on
// it. An announced block becomes a holder's claim on a spot, or a point if a claim cannot express it.
type announcement struct {
	*Stored
	holder   *holder
	group    uint8
	aligned  bool      // the tokens show the place of each hash
	root     block.Key // the key before the chain's first block, if the run begins a chain
	copies   bool      // if a block is there already, the announcement adds a copy
	from, to int       // the range of hashes that is applied next; to is exclusive

	features []block.Feature // ordered by offset
}

// need returns an upper bound of what the hashes in from and to store, without the parts of blocks that points cover.
// size is the number of tokens of a block of the index.
func (a *announcement) need(size uint32) need {
	n := need{hashes: a.to - a.from, size: max(a.BlockSize, 0)}
	if a.aligned {
		n.tokens = n.hashes * a.BlockSize
		n.bytes = featuresBytes(a.within(a.from, a.to)) * a.copiesOfItems(size)
	}
	return n
}

// size returns the number of tokens of each engine block, as a record has it. 0: not known.
func (a *announcement) size() uint32 { return uint32(min(max(a.BlockSize, 0), MaxChain)) }

// parent returns the engine hash of the block before the hash at a.from, and whether there is such a block.
func (a *announcement) parent() (hash uint64, has bool) {
	if a.from > 0 {
		return a.Hashes[a.from-1], true
	}
	return a.Parent, a.HasParent
}

// judge decides whether the announcement adds copies of blocks that are there already. It returns false if the index
// must ignore the announcement.
//
// An engine announces each new copy of a block, and may also report blocks again that it has (vLLM's
// kv_cache_report_mode=full). The events do not tell copies and reports apart. A report lists the blocks that a request
// found: it begins at the chain's first token and ends with a block that is there. An announcement of new copies mostly
// ends with a new block. If the last block is there, the announcement may be either, and judge counts no copy. If the
// engine has two copies, the index then forgets the block at the first removal; it never claims a block that is gone.
//
// From then on the tier is vague: the engine may have a block that the index has forgotten, so a later report may end
// with a block that the index does not know. If the index lost something of the tier (holder.broken), the same may
// happen. In both cases no announcement that begins a chain counts as copies, until the tier is cleared. A report of a
// group other than full attention may list blocks that have left the window, so judge ignores it.
func (x *Index) judge(a *announcement) bool {
	a.copies = true
	switch {
	case a.Origin == OriginNew:
	case a.Origin == OriginReused:
		a.copies = false
	case a.BlockSize <= 0:
		a.copies = false // an offload tier announces hashes without tokens, and has each chunk once
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

// apply applies the hashes of an announcement in a.from and a.to. It returns the index of the first hash that is left,
// or len(Hashes) if the rest is impossible.
func (x *Index) apply(a *announcement) int {
	h := a.holder
	pos, placed := position{root: a.root}, !a.HasParent && !a.RootUnknown
	parent, hasParent := a.parent()
	if hasParent {
		pos, placed = x.after(x.refer(h, parent))
	}
	for i := a.from; i < a.to; i++ {
		if placed && a.aligned && pos.point == nil && a.BlockSize == int(x.size) {
			if i += x.applyRun(a, i, &pos); i == a.to {
				break
			}
			if i > a.from {
				parent, hasParent = a.Hashes[i-1], true
			}
		}
		ok := false
		if pos, placed, ok = x.applyOne(a, i, pos, placed, parent, hasParent); !ok {
			x.refuse(h, 1<<a.Tier)
			return len(a.Hashes)
		}
		parent, hasParent = a.Hashes[i], true
	}
	return a.to
}

// applyRun applies blocks of the index's size from the i-th on, until it finds a block that its hash cannot name. It
// moves the position to the end of these blocks, and returns their number.
func (x *Index) applyRun(a *announcement, i int, pos *position) (done int) {
	h, size := a.holder, int(x.size)
	n := min(a.to-i, MaxChain/size-int(pos.end)/size)
	if n <= 0 {
		return 0
	}
	keys := x.next(pos, a.Tokens[i*size:(i+n)*size], absolute(a.within(i, i+n), int(pos.end)-i*size)).keys
	return x.placeKeys(h, pos, a.Hashes[i:i+n], keys, placeBit(a.Tier, a.group), a.copies)
}

// placeKeys records that a holder has consecutive blocks on one tier and in one group. keys are the keys of the blocks.
// bit stands for the tier and the group, see placeBit. The first block follows the position. An engine hash cannot name
// a block if the block already has another hash, or if the hash already names another block or a point. placeKeys ends
// before the first block that its hash cannot name. It moves the position to the end of the recorded blocks, and
// returns their number.
func (x *Index) placeKeys(h *holder, pos *position, hashes []uint64, keys []block.Key, bit uint64, copies bool) (done int) {
	b, tick := &x.blocks, x.tick()
	for done < len(keys) {
		rest, end := keys[done:], uint32(0)
		at, n := b.follow(pos.at, rest)
		if n == 0 {
			end = b.grow(h, pos.at, rest, tick).strand()
			at, n = b.follow(pos.at, rest)
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
			pos.at, pos.end = at+spot(ok)-1, pos.end+uint32(ok)*x.size
			done += ok
		}
		if ok < n {
			b.trim(end) // no holder has the blocks that grow added for the rest
			break
		}
	}
	return done
}

// nameable gives engine hashes as names to consecutive blocks of a strand, from the spot at on, for a holder. It ends
// at the first block that its hash cannot name, and returns the number of blocks before.
func (x *Index) nameable(h *holder, at spot, hashes []uint64) int {
	b := &x.blocks
	seconds := b.strands.At(at.strand()).run.Seconds()[at.offset():]
	var mixed prefetched
	for k, hash := range hashes {
		if k%len(mixed) == 0 {
			mixed.prefetch(b, hashes[k:], 0)
		}
		if h.byHash.len() > 0 && h.byHash.get(hash) != nil || h.disowned && b.stateAt(at+spot(k), h.id).named&unnamed != 0 {
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

// having looks at n blocks from a spot on. It appends to dst the blocks that the holder has, by their hashes, on the
// tier and in the group of bit.
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

// move moves the possession of a block on one tier in one group from the holder's claim to a point beside the claim,
// and returns the point. A point can count copies. p is the present point beside the claim, or nil.
func (x *Index) move(h *holder, hash uint64, p *point, at spot, bit uint64) *point {
	if p == nil {
		p = x.pair(h, hash, at)
	}
	r := record{count: 1, size: x.size}
	r.tier, r.group = placeOf(bit)
	x.record(h, p, r)
	x.contribute(h, p, r, true)
	x.blocks.paintOne(at, change{h: h, drop: state{named: bit}})
	return p
}

// applyOne applies the announcement of one block of any kind: of any size, and with or without tokens. It returns the
// position after the block, and whether this position is known. ok is false if the block is impossible.
func (x *Index) applyOne(a *announcement, i int, pos position, placed bool, parent uint64, hasParent bool) (after position, known, ok bool) {
	h, hash := a.holder, a.Hashes[i]
	r := record{tier: a.Tier, group: a.group, size: a.size()}
	p, at := x.refer(h, hash)
	resolved := at != 0 || p != nil && p.end != 0
	switch {
	case resolved && (!placed || !a.aligned || a.RootUnknown):
	case !placed || !a.aligned:
		var w waiting
		if a.aligned {
			if hasParent && (p == nil || !p.wait.hasParent) && x.circular(h, hash, parent) {
				return pos, false, false
			}
			w = waiting{parent: parent, hasParent: hasParent, tokens: a.Tokens[i*a.BlockSize : (i+1)*a.BlockSize], features: x.relative(a, i)}
		}
		if p == nil {
			p = x.add(h, hash)
		}
		x.wait(h, p, &w)
	case int(pos.end)+a.BlockSize > MaxChain:
		return pos, false, false
	default:
		s := x.next(&pos, a.Tokens[i*a.BlockSize:(i+1)*a.BlockSize], absolute(x.relative(a, i), int(pos.end)))
		if resolved && x.agrees(p, at, &pos, &s) {
			break
		}
		if resolved {
			if p != nil && p == pos.point || at != 0 && at == pos.at && pos.point == nil {
				return pos, false, false // a block cannot be its own parent
			}
			x.disown(h, p, at, &pos)
			p, at = nil, 0
		}
		if p == nil {
			p = x.add(h, hash)
		} else if k := p.find(r.tier, r.group); k >= 0 {
			p.records[k].shrink(r.size) // arrive computes from the size which tokens the record covers
		}
		p, at = x.arrive(h, p, &pos, &s)
	}
	x.announce(h, hash, p, at, r, a.copies)
	after, known = x.after(p, at)
	return after, known, true
}

// announce adds an announcement to the point p or to the claim at the spot at: the meanings of the hash, as refer
// returns them.
func (x *Index) announce(h *holder, hash uint64, p *point, at spot, r record, copies bool) {
	if at != 0 && (p == nil || p.find(r.tier, r.group) < 0) {
		x.blocks.strands.At(at.strand()).use(x.tick())
		bit := placeBit(r.tier, r.group)
		has := x.blocks.stateAt(at, h.id).named&bit != 0
		switch {
		case has && !copies && (r.size == 0 || r.size >= x.size):
			return // the block is there with this size or a smaller one
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
