package kvindextest

import (
	"slices"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// Reference makes the naive index, whose answers are correct by definition. The naive index has maps and lists without
// limits, and computes the blocks of a holder from the tokens of whole chains. The time of an operation grows with the
// square of the number of stored blocks.
func Reference(h *block.Hasher, _ kvindex.Config) *Door {
	x := &reference{hasher: h, holders: map[fleet.Holder]*refHolder{}}
	return &Door{
		Store: x.store, Remove: x.remove, Clear: x.clear, Forget: x.forget,
		Match: x.match, Stats: x.stats,
	}
}

type reference struct {
	hasher  *block.Hasher
	holders map[fleet.Holder]*refHolder
}

type refHolder struct {
	groups  []refGroup
	tooMany bool
	anyTier bool
	byHash  map[uint64]*refPoint
	points  []*refPoint                  // all points, including points whose hash names another point now
	vague   [block.NumTiers]bool         // by tier: an announcement may have meant a new copy or a reused block
	broken  [block.NumTiers]bool         // by tier: an announcement was refused
	held    map[place]map[block.Key]bool // the blocks that the holder has; nil: not computed yet
	asked   map[asked]kvindex.Match      // the answers that were computed from the present held
}

type asked struct {
	first  *block.Key
	blocks int
}

type refGroup struct {
	id, window, unit int
	kind             block.Attention
}

// place is a tier and the index of a group.
type place struct {
	tier  block.Tier
	group int
}

// refPoint is an engine block. The point is at the end of the block.
type refPoint struct {
	hash     uint64
	resolved bool      // the place of the point in its chain is known
	parent   *refPoint // the engine block before, of a resolved point; nil: the point's block begins the chain
	root     block.Key
	tokens   []block.Token   // the tokens after the parent's end
	features []block.Feature // multimodal items, with offsets from the parent's end

	waits  bool // the point has tokens, and waits until its parent is resolved; awaits is the parent's hash
	awaits uint64

	records map[place]*refRecord
}

type refRecord struct{ count, size int }

func (p *refPoint) end() int {
	n := len(p.tokens)
	if p.parent != nil {
		n += p.parent.end()
	}
	return n
}

// path returns the points from the chain's first point to p.
func (p *refPoint) path() []*refPoint {
	if p.parent == nil {
		return []*refPoint{p}
	}
	return append(p.parent.path(), p)
}

// chain returns the keys of all complete blocks of the index up to p, and the tokens after these blocks.
func (x *reference) chain(p *refPoint) (keys []block.Key, tail []block.Token) {
	var tokens []block.Token
	var features []block.Feature
	path := p.path()
	for _, q := range path {
		for _, f := range q.features {
			features = append(features, block.Feature{ID: f.ID, Offset: f.Offset + len(tokens)})
		}
		tokens = append(tokens, q.tokens...)
	}
	keys = x.hasher.Append(nil, path[0].root, 0, tokens, features)
	return keys, tokens[len(keys)*x.hasher.Size():]
}

func (x *reference) holder(id fleet.Holder) *refHolder {
	h := x.holders[id]
	if h == nil {
		h = &refHolder{byHash: map[uint64]*refPoint{}}
		x.holders[id] = h
	}
	return h
}

func (h *refHolder) group(s *kvindex.Stored) int {
	id := max(s.Group, 0)
	g := slices.IndexFunc(h.groups, func(g refGroup) bool { return g.id == id })
	if g < 0 {
		if len(h.groups) == kvindex.MaxGroups {
			h.tooMany = true
			return -1
		}
		g = len(h.groups)
		h.groups = append(h.groups, refGroup{id: id})
	}
	if h.groups[g].kind == block.AttentionFull {
		h.groups[g].kind = s.Attention
	}
	h.groups[g].window = max(h.groups[g].window, s.Window)
	h.groups[g].unit = max(h.groups[g].unit, s.BlockSize)
	return g
}

func (x *reference) store(id fleet.Holder, s *kvindex.Stored) {
	h := x.holder(id)
	aligned := s.BlockSize > 0 && len(s.Tokens) == len(s.Hashes)*s.BlockSize
	if s.BlockSize > block.MaxSize || aligned && ownParent(s) {
		h.broken[s.Tier] = true // later announcements may contain the refused block again
		return
	}
	h.held = nil
	g := h.group(s)
	h.anyTier = h.anyTier || s.AnyTierOrder && s.Tier != block.TierGPU && g >= 0
	if g < 0 || len(s.Hashes) == 0 {
		h.broken[s.Tier] = h.broken[s.Tier] || len(s.Hashes) > 0
		return
	}
	at := place{s.Tier, g}

	copies := true
	if last := h.byHash[s.Hashes[len(s.Hashes)-1]]; s.Origin == kvindex.OriginReused || s.Origin == kvindex.OriginUnknown && s.BlockSize == 0 {
		copies = false
	} else if s.Origin == kvindex.OriginUnknown && !s.HasParent && last != nil && last.records[at] != nil {
		copies = false
		h.vague[s.Tier] = true
		if h.groups[g].kind != block.AttentionFull {
			return
		}
	} else if s.Origin == kvindex.OriginUnknown && !s.HasParent && (h.vague[s.Tier] || h.broken[s.Tier]) {
		copies = false
	}

	parent, hasParent := s.Parent, s.HasParent
	for i, hash := range s.Hashes {
		p := h.byHash[hash]
		if !aligned {
			if p == nil {
				p = h.add(hash)
			}
		} else if p = x.place(h, s, i, p, parent, hasParent); p == nil {
			break
		}
		p.announce(at, s.BlockSize, copies)
		parent, hasParent = hash, true
	}
	h.held = nil
	for x.resolveSome(h) {
	}
	h.collect(nil)
	x.compute(h)
}

// ownParent reports whether a block of an announcement is its own parent.
func ownParent(s *kvindex.Stored) bool {
	for i, hash := range s.Hashes {
		if i > 0 && hash == s.Hashes[i-1] || i == 0 && s.HasParent && hash == s.Parent {
			return true
		}
	}
	return false
}

// circular reports whether a hash is the parent of a block, or an ancestor of this parent among waiting blocks.
func (h *refHolder) circular(hash, parent uint64) bool {
	for parent != hash {
		p := h.byHash[parent]
		if p == nil || p.resolved || !p.waits {
			return false
		}
		parent = p.awaits
	}
	return true
}

func (h *refHolder) add(hash uint64) *refPoint {
	p := &refPoint{hash: hash, records: map[place]*refRecord{}}
	h.byHash[hash] = p
	h.points = append(h.points, p)
	return p
}

// place finds or makes the point of the i-th block of an aligned announcement. It returns nil if the block is
// impossible.
func (x *reference) place(h *refHolder, s *kvindex.Stored, i int, p *refPoint, parent uint64, hasParent bool) *refPoint {
	tokens := slices.Clone(s.Tokens[i*s.BlockSize : (i+1)*s.BlockSize])
	var features []block.Feature
	for _, f := range s.Features {
		if o := f.Offset - i*s.BlockSize; o >= 0 && o < s.BlockSize {
			features = append(features, block.Feature{ID: f.ID, Offset: o})
		}
	}
	before := h.byHash[parent]
	if hasParent && (before == nil || !before.resolved) || !hasParent && s.RootUnknown {
		if hasParent && (p == nil || !p.resolved && !p.waits) && h.circular(s.Hashes[i], parent) {
			h.broken[s.Tier] = true
			return nil
		}
		if p == nil {
			p = h.add(s.Hashes[i])
		}
		if !p.resolved && !p.waits && hasParent {
			p.waits, p.awaits, p.tokens, p.features = true, parent, tokens, features
		}
		return p
	}
	if p != nil && p.resolved && s.RootUnknown {
		return p
	}
	next := &refPoint{hash: s.Hashes[i], tokens: tokens, features: features}
	if hasParent {
		next.parent = before
	} else {
		next.root = x.hasher.Ahead(x.hasher.Root(s.Scope), s.First)
	}
	if p != nil && p.resolved {
		if x.same(p, next) {
			return p
		}
		if p == next.parent {
			return nil
		}
		clear(p.records)
		delete(h.byHash, p.hash)
		h.collect(next.parent)
		p = nil
	}
	if p == nil {
		p = h.add(s.Hashes[i])
	}
	p.resolved, p.waits = true, false
	p.parent, p.root, p.tokens, p.features = next.parent, next.root, next.tokens, next.features
	return p
}

// same reports whether two points end at the same place of the same chain.
func (x *reference) same(p, q *refPoint) bool {
	if p.end() != q.end() {
		return false
	}
	pk, pt := x.chain(p)
	qk, qt := x.chain(q)
	return slices.Equal(pt, qt) && (len(pk) == 0 && p.path()[0].root == q.path()[0].root || len(pk) > 0 && pk[len(pk)-1] == qk[len(qk)-1])
}

func (p *refPoint) announce(at place, size int, copies bool) {
	r := p.records[at]
	if r == nil {
		p.records[at] = &refRecord{1, size}
		return
	}
	if copies {
		r.count++
	}
	if !p.resolved {
		if r.size == 0 || size != 0 && size < r.size {
			r.size = size
		}
	} else if p.from(size) > p.from(r.size) {
		r.size = size
	}
}

// from returns the position in the chain at which a record of the given size begins. The record ends at p.
func (p *refPoint) from(size int) int {
	if size == 0 {
		return p.end() - len(p.tokens)
	}
	return max(0, p.end()-size)
}

// resolveSome resolves the points that wait for a parent which is resolved now. It reports whether there was such a
// point.
func (x *reference) resolveSome(h *refHolder) (any bool) {
	for _, p := range h.points {
		if q := h.byHash[p.awaits]; p.waits && q != nil && q.resolved {
			p.waits, p.resolved, p.parent = false, true, q
			any = true
		}
	}
	return any
}

// collect drops the points that have neither a record nor a child, except the point parent, which gets a child next.
// parent may be nil.
func (h *refHolder) collect(parent *refPoint) {
	for again := true; again; {
		again = false
		h.points = slices.DeleteFunc(h.points, func(p *refPoint) bool {
			if len(p.records) > 0 || p == parent {
				return false
			}
			for _, q := range h.points {
				if q != nil && (q.parent == p || q.waits && h.byHash[q.awaits] == p) {
					return false
				}
			}
			if h.byHash[p.hash] == p {
				delete(h.byHash, p.hash)
			}
			again = true
			return true
		})
	}
}

func (x *reference) remove(id fleet.Holder, tier block.Tier, group int, hashes []uint64) {
	h := x.holders[id]
	if h == nil {
		return
	}
	h.held = nil
	g := slices.IndexFunc(h.groups, func(g refGroup) bool { return g.id == max(group, 0) })
	for _, hash := range hashes {
		if p := h.byHash[hash]; p != nil && p.records[place{tier, g}] != nil {
			if r := p.records[place{tier, g}]; r.count > 1 {
				r.count--
			} else {
				delete(p.records, place{tier, g})
			}
			h.collect(nil)
		}
	}
}

func (x *reference) clear(id fleet.Holder, tier block.Tier) {
	h := x.holders[id]
	if h == nil {
		return
	}
	h.held = nil
	lost := h.broken[tier]
	h.vague[tier], h.broken[tier] = false, false
	for _, p := range h.points {
		for at := range p.records {
			switch {
			case at.tier == tier:
				delete(p.records, at)
			case lost && !p.resolved: // the point may wait for a block that was refused
				h.broken[at.tier] = true
			}
		}
	}
	h.collect(nil)
}

func (x *reference) forget(id fleet.Holder) { delete(x.holders, id) }

// compute finds the blocks that a holder has on each tier in each group. The holder has a block of the index if its
// records together cover all tokens of the block. In a state-space group, a record that ends at the block's end is
// enough.
func (x *reference) compute(h *refHolder) {
	if h.held != nil {
		return
	}
	size := x.hasher.Size()
	covered := map[place]map[block.Key][]bool{}
	mark := func(at place, key block.Key, lo, hi int) {
		if covered[at] == nil {
			covered[at] = map[block.Key][]bool{}
		}
		if covered[at][key] == nil {
			covered[at][key] = make([]bool, size)
		}
		for i := lo; i < hi; i++ {
			covered[at][key][i] = true
		}
	}
	for _, p := range h.points {
		if !p.resolved {
			continue
		}
		keys, _ := x.chain(p)
		for _, q := range p.path() {
			for at, r := range q.records {
				end := q.end()
				if h.groups[at.group].kind == block.AttentionStateSpace {
					if end%size == 0 {
						mark(at, keys[end/size-1], 0, size)
					}
					continue
				}
				for j, key := range keys {
					if lo, hi := max(q.from(r.size), j*size), min(end, (j+1)*size); lo < hi {
						mark(at, key, lo-j*size, hi-j*size)
					}
				}
			}
		}
	}
	h.held, h.asked = map[place]map[block.Key]bool{}, map[asked]kvindex.Match{}
	for at, keys := range covered {
		h.held[at] = map[block.Key]bool{}
		for key, tokens := range keys {
			h.held[at][key] = !slices.Contains(tokens, false)
		}
	}
}

func (x *reference) stats() kvindex.Stats {
	var s kvindex.Stats
	for _, h := range x.holders {
		s.Hashes += int64(len(h.points))
		for _, p := range h.points {
			if !p.resolved {
				s.Waiting++
			}
		}
	}
	return s
}
