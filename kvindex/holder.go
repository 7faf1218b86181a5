package kvindex

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// holder is what writers know of one holder.
type holder struct {
	id      fleet.Holder
	groups  []group
	tooMany bool  // the holder announced more than MaxGroups groups
	anyTier bool  // the engine loads blocks from any tier in any order, and the holder announced blocks below the accelerator
	vague   uint8 // a bit for each tier on which an announcement may have been a copy or a report, see judge
	broken  uint8 // a bit for each tier of which the index evicted, dropped or refused something: see HolderStats.Whole
	refused int64 // the number of refused announcements and blocks
	unknown int64 // the number of removals of blocks that the holder was not known to have

	blocks  [block.NumTiers]int64 // the number of the index's blocks that the holder has in any group, by tier
	evicted [block.NumTiers]int64 // the number of blocks that were evicted to keep within the budget, by tier
	named   int64                 // the number of blocks that the holder knows by their hashes, or keeps as parents
	claims  int64                 // the number of blocks on which the holder has a claim, see claim
	owned   int64                 // the number of strands (runs of blocks) that the holder owns, see blocks.own
	leaving bool                  // Forget is removing the holder
	muted   uint64                // tiers and groups whose losses are not told one by one, because one change tells all of them
	changes uint64                // the number of changes of the holder's claims so far

	// The exceptions: points are the records of engine blocks that claims cannot express.
	points       list                   // all points, oldest first
	pointed      int64                  // the number of points
	twins        int64                  // the number of points that stand beside a claim, see point.twin
	byHash       lookup[uint64, *point] // points by engine hash
	pins         lookup[spot, *pin]     // the blocks that points need
	parts        lookup[cover, []part]  // the parts that points cover, of blocks that are not covered as a whole by one record
	queue        list                   // waiting points, oldest first
	waiters      lookup[uint64, *list]  // points that wait for a parent, by the parent's hash
	waiting      int64                  // the number of waiting points
	waitingBytes int64                  // the memory of waiting points
	disowned     bool                   // some block is kept as a parent although its hash means another block now
	woken        []uint64               // engine hashes that became known while points waited for them
	bare         []spot                 // blocks that got an engine hash before a tier announced them; wake removes unneeded ones
	extra        int64                  // the memory of all these exceptions, in bytes

	worker *worker // the holder's worker
	weight float64 // the bytes that compareShares charged the holder
	over   bool    // the holder exceeded its share in the last compareShares
	quota  int64   // how many of the holder's claims may be evicted until it no longer exceeds its share
}

// group is one cache group of a holder.
type group struct {
	id     int
	kind   block.Attention
	window int // in tokens
	unit   int // the largest announced block size, in tokens
}

// view is what readers know of a holder: an immutable digest of its cache groups.
type view struct {
	full    uint64  // for each full-attention group, the lowest of the group's four bits in state
	anyTier bool    // each block counts on its fastest tier, in any order
	groups  []limit // the limits of all groups; empty if the only group has full attention, or if there is no group
	unknown bool    // some group proves nothing, so all matches are 0
}

// fullView is the view of all holders with one group, which has full attention.
var fullView = &view{full: 1}

// limit is the condition of one group for a usable length.
type limit struct {
	window uint32 // how many blocks of the index at the end of the length must be there
	unit   uint64 // a usable length is a multiple of this number of tokens
}

// holder returns a holder. It returns nil if the holder is not known or is being forgotten.
func (x *Index) holder(id fleet.Holder) *holder {
	if int64(id) >= int64(len(x.blocks.holders)) || x.blocks.holders[id] == nil || x.blocks.holders[id].leaving {
		return nil
	}
	return x.blocks.holders[id]
}

// admits reports whether a holder with the id is known or may become known: see MaxHolders.
func (x *Index) admits(id fleet.Holder) bool {
	if int64(id) < int64(len(x.blocks.holders)) && x.blocks.holders[id] != nil {
		return true
	}
	return id < MaxHolders && max(int64(id)*idBytes, int64(x.known)*holderBytes) <= x.config.Bytes/4
}

// idBytes is the most memory that the arrays of holders and views take for each id up to the greatest one.
const idBytes = 24

// meet returns a holder, and adds it if it is new. It returns nil if the id is out of bounds, or if the known holders
// take a quarter of the budget already.
func (x *Index) meet(id fleet.Holder) *holder {
	if !x.admits(id) {
		x.counts.Refused++
		return nil
	}
	for int(id) >= len(x.blocks.holders) {
		x.blocks.holders = append(x.blocks.holders, nil)
	}
	for x.blocks.holders[id] != nil && x.blocks.holders[id].leaving { // wait until Forget, which lets other writers in between, has ended
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

// allTiers has the bits of all tiers.
const allTiers = 1<<block.NumTiers - 1

// refuse counts a refused announcement or block of a holder. tiers has a bit for each tier on which the block would
// have been.
func (x *Index) refuse(h *holder, tiers uint8) {
	h.refused++
	h.broken |= tiers
	x.counts.Refused++
}

// find returns the index in groups of an engine's group number, or -1.
func (h *holder) find(id int) int {
	id = max(id, 0)
	for i := range h.groups {
		if h.groups[i].id == id {
			return i
		}
	}
	return -1
}

// join returns the index in groups of an announcement's group, and updates the group from the announcement. It returns
// -1 if there are too many groups. Engines do not change a group's kind, but some events leave the kind out and look
// like full attention. So any other kind replaces full attention.
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

// recount computes which blocks the points' records of a group cover if the group has another kind. If the budget has
// no room for the result, recount drops the records.
func (x *Index) recount(h *holder, g uint8, kind block.Attention) {
	if most := x.recountGrowth(h, g); most > x.config.Bytes/4 ||
		!x.evict(h, func(bool) bool { return x.bytes()+most <= x.config.Bytes }) {
		x.dropAll(h, false, func(p *point, r *record) bool {
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

// recountGrowth returns an upper bound of the memory that recount allocates.
func (x *Index) recountGrowth(h *holder, g uint8) (bytes int64) {
	for p := h.points.first; p != nil; p = p.links[ofHolder].next {
		x.blocks.steps++
		for _, r := range p.records {
			if r.group == g && p.end != 0 {
				bytes += int64(x.coversOf(p, r.size)) * coverBytes
			}
		}
	}
	return bytes
}

// publish computes a holder's view and shows it to readers.
func (x *Index) publish(h *holder) {
	x.blocks.teller.regrouped(h)
	x.setView(h.id, digest(h.groups, x.size, h.anyTier, h.tooMany))
}

// digest returns the view of a holder. size is the number of tokens of a block of the index.
func digest(groups []group, size uint32, anyTier, tooMany bool) *view {
	v := &view{anyTier: anyTier, unknown: tooMany}
	for i := range groups {
		g := &groups[i]
		l := limit{unit: uint64(max(g.unit, 1))}
		switch {
		case g.kind == block.AttentionFull:
			v.full |= 1 << (4 * i)
		case g.kind == block.AttentionSlidingWindow && g.window > 0:
			// The engine looks for whole blocks of its own that cover window-1 tokens before the length.
			tokens := (uint64(g.window) - 1 + l.unit - 1) / l.unit * l.unit
			l.window = uint32(min((tokens+uint64(size)-1)/uint64(size), 1<<31))
		case g.kind == block.AttentionStateSpace:
			l = limit{window: 1, unit: 1} // a length is usable if a checkpoint is at its end
		default:
			v.unknown = true // the kind or the width of the window is not known
		}
		v.groups = append(v.groups, l)
	}
	if v.full == 1 && len(groups) == 1 {
		if v.groups = nil; !v.anyTier {
			return fullView
		}
	}
	return v
}

// view returns the view of a holder. It returns nil if the holder is not known.
func (x *Index) view(id fleet.Holder) *view {
	views := x.views.Load()
	if views == nil || int(id) >= len(*views) {
		return nil
	}
	return (*views)[id].Load()
}

// setView shows readers another view of a holder. nil hides the holder.
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

// special reports whether a holder's view needs the general match: it has a group, and is not fullView.
func (v *view) special() bool { return v != nil && v != fullView && (v.full != 0 || len(v.groups) > 0) }

// sparse reports whether a holder's blocks may count although its first block is missing: no group has full attention.
func (v *view) sparse() bool { return v != nil && v.full == 0 && len(v.groups) > 0 }
