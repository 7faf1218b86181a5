package kvindex

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// holder is the state of one holder, for writers.
type holder struct {
	id      fleet.Holder
	groups  []group
	tooMany bool  // it announced more than MaxGroups groups
	anyTier bool  // its engine loads blocks from any tier in any order, and it has announced some below the accelerator
	vague   uint8 // bit by tier: something may have been a copy or a report, see judge
	broken  uint8 // bit by tier: something of it was evicted, dropped or refused, so that its history is not whole
	refused int64 // announcements and blocks
	unknown int64 // removals of blocks that were not known

	blocks  [block.NumTiers]int64 // of the index, by tier, in any group
	evicted [block.NumTiers]int64 // the same, of blocks that were evicted to stay within the budget
	named   int64                 // blocks that it knows by their hashes, or keeps as parents
	claims  int64                 // blocks that it has, knows or pins
	begun   int64                 // strands that it began, see blocks.begin
	leaving bool                  // it is being forgotten
	changes uint64                // of its claims, so far

	// The exceptions: facts that claims cannot express.
	points       list  // all of them, oldest first
	pointed      int64 // how many
	twins        int64 // of them
	byHash       map[uint64]*point
	pins         map[spot]*pin
	parts        map[cover][]part // of blocks that points do not cover simply: as a whole and once
	queue        list             // points that wait, oldest first
	waiters      map[uint64]*list // points that wait for a parent, by its hash
	waiting      int64
	waitingBytes int64
	disowned     bool  // a block is kept as a parent although its hash means another block now
	extra        int64 // bytes of these exceptions

	worker *worker // guarded as x.workers is
	weight float64 // bytes that it was charged when shares were compared last
	over   bool    // it exceeded its share then
	quota  int64   // how many of its claims may be evicted until it no longer exceeds its share
}

// put sets an entry of one of the maps of exceptions, which are nil while they are empty.
func put[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = value
}

// drop deletes an entry, and with the last entry the map: a map of Go never gives memory back.
func drop[K comparable, V any](m *map[K]V, key K) {
	if delete(*m, key); len(*m) == 0 {
		*m = nil
	}
}

// group is one cache group of a holder.
type group struct {
	id     int
	kind   block.Attention
	window int // tokens
	unit   int // the greatest block size announced, tokens
}

// view is a holder for readers: an immutable digest of its groups.
type view struct {
	full    uint64  // the lowest of the four bits of each full-attention group
	anyTier bool    // blocks count on their best tiers, in any order
	groups  []limit // all groups in the order of their nibbles; empty when there is only one, of full attention
	unknown bool    // a group proves nothing: no confirmed match
}

// fullView is the view of all holders with one group, which has full attention.
var fullView = &view{full: 1}

// limit is the condition of one group for a usable length.
type limit struct {
	window uint32 // blocks of the index before the length that must be there
	unit   uint64 // tokens that divide a usable length
}

// holder returns a holder that is known and not being forgotten, or nil.
func (x *Index) holder(id fleet.Holder) *holder {
	if int64(id) >= int64(len(x.blocks.holders)) || x.blocks.holders[id] == nil || x.blocks.holders[id].leaving {
		return nil
	}
	return x.blocks.holders[id]
}

// meet returns a holder and begins to know it if it is new; nil when its id is out of bounds.
func (x *Index) meet(id fleet.Holder) *holder {
	if id >= MaxHolders {
		return nil
	}
	for int(id) >= len(x.blocks.holders) {
		x.blocks.holders = append(x.blocks.holders, nil)
	}
	for x.blocks.holders[id] != nil && x.blocks.holders[id].leaving { // Forget lets other writers in between
		x.unlock()
		x.lock()
	}
	h := x.blocks.holders[id]
	if h == nil {
		h = &holder{id: id}
		x.blocks.holders[id] = h
		x.known++
		x.employ(h)
		x.publish(h)
	}
	return h
}

// allTiers is the bits of all tiers.
const allTiers = 1<<block.NumTiers - 1

// refuse counts a refused announcement or block of a holder. tiers are the tiers on which it would have been.
func (x *Index) refuse(h *holder, tiers uint8) {
	h.refused++
	h.broken |= tiers
	x.counts.Refused++
}

// find returns the place of an engine's group number, -1 when it is not known.
func (h *holder) find(id int) int {
	id = max(id, 0)
	for i := range h.groups {
		if h.groups[i].id == id {
			return i
		}
	}
	return -1
}

// join returns the group of an announcement, and updates it from the announcement; -1 when there are too many.
// Engines do not change a group's kind, but some of their events leave it out: any other kind wins over full.
func (x *Index) join(h *holder, s *Stored) int {
	g, changed := h.find(s.Group), false
	if g < 0 {
		if len(h.groups) == MaxGroups {
			if !h.tooMany {
				h.tooMany = true
				x.publish(h)
			}
			return -1
		}
		g, changed = len(h.groups), true
		h.groups = append(h.groups, group{id: max(s.Group, 0), kind: s.Attention})
	}
	now := h.groups[g]
	if now.kind == block.AttentionFull {
		now.kind = s.Attention
	}
	now.window = max(now.window, s.Window)
	now.unit = max(now.unit, s.BlockSize)
	if old := h.groups[g]; now != old || changed {
		if old.kind != now.kind && (old.kind == block.AttentionStateSpace || now.kind == block.AttentionStateSpace) {
			x.recount(h, uint8(g), now.kind)
		}
		h.groups[g] = now
		x.publish(h)
	}
	if s.AnyTierOrder && s.Tier != block.TierGPU && !h.anyTier {
		h.anyTier = true
		x.publish(h)
	}
	return g
}

// recount computes anew what the records of a group cover, for another kind of the group. If the budget has no room for
// the result, the records are dropped.
func (x *Index) recount(h *holder, g uint8, kind block.Attention) {
	if most := x.recountGrowth(h, g); most > x.config.Bytes/4 ||
		!x.evict(h, func(bool) bool { return x.bytes()+most <= x.config.Bytes }) {
		x.dropAll(h, func(p *point, r *record) bool {
			if r.group == g && p.end != 0 {
				h.broken |= 1 << r.tier
			}
			return r.group == g && p.end != 0
		})
		return
	}
	old := h.groups[g].kind
	for p := h.points.first; p != nil; p = p.links[ofHolder].next {
		x.blocks.steps++
		for _, r := range p.records {
			if r.group != g || p.end == 0 {
				continue
			}
			h.groups[g].kind = old
			x.contribute(h, p, r, false)
			h.groups[g].kind = kind
			x.contribute(h, p, r, true)
		}
	}
	h.groups[g].kind = old
}

// recountGrowth returns an upper bound of the memory that recount takes.
func (x *Index) recountGrowth(h *holder, g uint8) (bytes int64) {
	for p := h.points.first; p != nil; p = p.links[ofHolder].next {
		x.blocks.steps++
		for _, r := range p.records {
			if r.group == g && p.end != 0 {
				bytes += int64((p.end-p.from(r.size))/x.size+2) * (partsBytes + 2*partBytes + 64) // 64: segments
			}
		}
	}
	return bytes
}

// publish shows readers a new view of a holder.
func (x *Index) publish(h *holder) {
	x.setView(h.id, x.digest(h))
}

func (x *Index) digest(h *holder) *view {
	v := &view{anyTier: h.anyTier, unknown: h.tooMany}
	for i := range h.groups {
		g := &h.groups[i]
		l := limit{unit: uint64(max(g.unit, 1))}
		switch {
		case g.kind == block.AttentionFull:
			v.full |= 1 << (4 * i)
		case g.kind == block.AttentionSlidingWindow && g.window > 0:
			// The engine looks for whole blocks of its own that cover window-1 tokens before the length.
			tokens := (uint64(g.window) - 1 + l.unit - 1) / l.unit * l.unit
			l.window = uint32(min((tokens+uint64(x.size)-1)/uint64(x.size), 1<<31))
		case g.kind == block.AttentionStateSpace:
			l = limit{window: 1, unit: 1} // a checkpoint counts at its end only
		default:
			v.unknown = true // the kind, or the width of the window
		}
		v.groups = append(v.groups, l)
	}
	if v.full == 1 && len(h.groups) == 1 {
		if v.groups = nil; !v.anyTier {
			return fullView
		}
	}
	return v
}

// view returns the view of a holder, nil when it is not known.
func (x *Index) view(id fleet.Holder) *view {
	views := x.views.Load()
	if views == nil || int(id) >= len(*views) {
		return nil
	}
	return (*views)[id].Load()
}

// setView shows readers another view of a holder.
func (x *Index) setView(id fleet.Holder, v *view) {
	var views []atomic.Pointer[view]
	if old := x.views.Load(); old != nil {
		views = *old
	}
	if int(id) >= len(views) {
		grown := make([]atomic.Pointer[view], max(int(id)+1, len(views)+len(views)/2))
		for i := range views {
			grown[i].Store(views[i].Load())
		}
		x.views.Store(&grown)
		views = grown
	}
	x.viewing.Add(1)
	old := views[id].Swap(v)
	x.sparse.Add(int32(one(v.sparse()) - one(old.sparse())))
	x.special.Add(int32(one(v.special()) - one(old.special())))
	x.viewing.Add(1)
}

// special reports whether a holder with blocks has other groups than one of full attention.
func (v *view) special() bool { return v != nil && v != fullView && (v.full != 0 || len(v.groups) > 0) }

// sparse reports whether a holder's blocks may count without the first one: no group has full attention.
func (v *view) sparse() bool { return v != nil && v.full == 0 && len(v.groups) > 0 }
