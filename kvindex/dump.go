package kvindex

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Held is a run of blocks of one chain that a holder has. [Index.Dump] yields runs and [Index.Load] takes them, to fill
// another router's index. A run without blocks announces a cache group: a group without blocks limits matches too.
type Held struct {
	// Tier is block.NumTiers if the run only says which hashes name the blocks: the holder lost the blocks, but its
	// events may still name them as parents, or the next runs have the blocks, with Copies.
	Tier      block.Tier
	Group     int
	Attention block.Attention
	Window    int // in tokens
	// AnyTierOrder says that each block of the holder counts on its fastest tier: see Stored.AnyTierOrder.
	AnyTierOrder bool

	Depth  int    // the number of blocks of the chain before the run
	Parent uint64 // the engine hash of the block before the run
	Keys   []block.Key
	// Hashes are the engine's hashes of the blocks, one for each key.
	Hashes []uint64
	Copies uint32 // how many copies of each block the holder has there; 0 counts as 1
}

var (
	// ErrChanged means that a holder changed while it was dumped, or was forgotten while it was loaded. Hold its events
	// back and begin again.
	ErrChanged = errors.New("the holder changed while it was dumped: hold its events back and begin again")
	// ErrExceptions means that some of a holder's engine hashes do not name single blocks of the index's size, or name
	// other blocks for other holders, or that the holder announced more than MaxGroups cache groups. Only the holder's
	// events can announce its blocks.
	ErrExceptions = errors.New("some engine blocks of the holder cannot be dumped (another block size, or a hash that names another block at another holder): replay its events instead")
)

// Dump calls emit with all blocks of one holder, parents before children. Waiting blocks are left out. If the holder
// changes meanwhile, Dump returns ErrChanged before it calls emit. Readers go on meanwhile, and Dump lets writers in
// between. Dump looks at all strands (runs of blocks), and takes memory in proportion to the holder's blocks. emit must
// not keep the run. If emit returns an error, Dump ends with that error.
func (x *Index) Dump(id fleet.Holder, emit func(*Held) error) error {
	x.lock()
	h := x.holder(id)
	if h == nil {
		x.unlock()
		return fmt.Errorf("holder %d is not known", id)
	}
	list, err := x.collectHeld(h)
	x.unlock()
	if err != nil {
		return err
	}
	slices.SortStableFunc(list, func(p, q Held) int { return cmp.Compare(p.Depth, q.Depth) })
	for i := range list {
		if err := emit(&list[i]); err != nil {
			return err
		}
	}
	return nil
}

// collectHeld returns a run without blocks for each of a holder's cache groups, and then the runs of the holder's
// blocks in any order.
func (x *Index) collectHeld(h *holder) (list []Held, err error) {
	b, moment := &x.blocks, h.changes
	for _, g := range h.groups {
		if h.tooMany || g.unit > int(x.size) {
			return nil, ErrExceptions
		}
		list = append(list, Held{Group: g.id, Attention: g.kind, Window: g.window, AnyTierOrder: h.anyTier})
	}
	for c := uint32(0); c < b.strands.Space(); c++ {
		if h.pointed-h.twins > h.waiting || h.disowned {
			return nil, ErrExceptions
		}
		if s := b.strands.At(c); c > 0 && s != nil && s.length() > 0 {
			from := uint32(0)
			for _, g := range b.appendSegments(s, nil) {
				if st := b.sets.state(b.sets.get(g.set, h.id)); st.named&known != 0 {
					if list, err = x.appendHeld(list, h, spotOf(c, from), g.end-from, st); err != nil {
						return nil, err
					}
				}
				from = g.end
			}
		}
		if c%mostStretch == mostStretch-1 && (!x.yield(h) || h.changes != moment) {
			return nil, ErrChanged
		}
	}
	return list, nil
}

// appendHeld appends n consecutive blocks, from a spot on, that the holder has on the same tiers and in the same
// groups. It appends one run for each tier and group, or one run with the tier block.NumTiers if there is none. The
// copies of a block that the holder has several times are a run of their own.
func (x *Index) appendHeld(list []Held, h *holder, at spot, n uint32, st state) ([]Held, error) {
	b := &x.blocks
	held := Held{Depth: int(b.end(at)) - 1, Tier: block.NumTiers}
	if up := b.before(at); up != 0 {
		held.Parent, _ = b.hash(up)
	}
	held.Keys, held.Hashes = make([]block.Key, 0, n), make([]uint64, 0, n)
	for k := range spot(n) {
		hash, _ := b.hash(at + k)
		held.Keys, held.Hashes = append(held.Keys, b.key(at+k)), append(held.Hashes, hash)
	}
	if st.named&possession == 0 {
		list = append(list, held)
	}
	on := func(held Held, tier block.Tier, place uint8) Held {
		g := h.groups[place]
		held.Tier, held.Group, held.Attention, held.Window = tier, g.id, g.kind, g.window
		return held
	}
	for bits := st.named & possession; bits != 0; bits &= bits - 1 {
		tier, place := placeOf(bits & -bits)
		list = append(list, on(held, tier, place))
	}
	for k := 0; k < int(n) && h.twins > 0; k++ {
		p := h.byHash.get(held.Hashes[k])
		if p == nil || !p.twin {
			continue
		}
		one := held
		if one.Depth += k; k > 0 {
			one.Parent = held.Hashes[k-1]
		}
		one.Keys, one.Hashes = held.Keys[k:k+1], held.Hashes[k:k+1]
		for _, r := range p.records {
			if r.size != x.size {
				return nil, ErrExceptions
			}
			one.Copies = r.count
			list = append(list, on(one, r.tier, r.group))
		}
	}
	return list, nil
}

// Load adds a run of a holder's blocks that another index dumped. Runs must be loaded in the order of the dump. After
// the last run, the holder's next events can be applied. From then on, an announcement that may be a report or a copy
// counts as a report.
func (x *Index) Load(id fleet.Holder, r *Held) error {
	if r.Depth < 0 || len(r.Keys) > MaxChain/int(x.size) || r.Depth > MaxChain/int(x.size)-len(r.Keys) || len(r.Hashes) != len(r.Keys) || r.Tier > block.NumTiers {
		return fmt.Errorf("load %d blocks of holder %d at depth %d: not a run that Dump gives", len(r.Keys), id, r.Depth)
	}
	x.lock()
	defer x.unlock()
	h := x.meet(id)
	if h == nil {
		return fmt.Errorf("load blocks of holder %d: the index's budget has no room for so large an id, or for so many holders", id)
	}
	x.pass()
	if r.AnyTierOrder && !h.anyTier {
		h.anyTier = true
		x.publish(h)
	}
	bit, one := uint64(0), record{tier: r.Tier, size: x.size}
	if r.Tier < block.NumTiers {
		g := x.join(h, &Stored{Group: r.Group, Attention: r.Attention, Window: r.Window, BlockSize: int(x.size)})
		if g < 0 {
			return ErrExceptions
		}
		if len(r.Keys) > 0 {
			h.vague |= 1 << r.Tier
		}
		one.group = uint8(g)
		bit = placeBit(one.tier, one.group)
	}
	parent, has := r.Parent, r.Depth > 0
	for keys, hashes := r.Keys, r.Hashes; len(keys) > 0; {
		n := min(len(keys), x.stretch(0))
		if !x.makeRoom(h, need{hashes: n * int(max(1, min(r.Copies, 2))), size: int(x.size)}) {
			x.refuse(h, allTiers)
			return fmt.Errorf("load %d blocks of holder %d: the index's budget is too small for them", len(r.Keys), id)
		}
		var pos position
		if has {
			var known bool
			if pos, known = x.after(x.refer(h, parent)); !known || pos.point != nil || int(pos.end) != (r.Depth+len(r.Keys)-len(keys))*int(x.size) {
				return fmt.Errorf("load blocks of holder %d at depth %d: the parent block is missing: load the runs in the order of the dump", id, r.Depth)
			}
		}
		done := x.placeKeys(h, &pos, hashes[:n], keys[:n], bit, true)
		if p, at := x.refer(h, hashes[min(done, n-1)]); done < n && p != nil && p.twin && x.blocks.key(at) == keys[done] && bit != 0 {
			x.announce(h, p.hash, p, at, one, true) // one more copy
			done++
		}
		for _, hash := range hashes[:done] {
			if bit == 0 || r.Copies < 2 {
				break
			}
			p, at := x.refer(h, hash)
			x.announce(h, hash, p, at, one, true) // the second copy makes the record that counts the others
			p, _ = x.refer(h, hash)
			p.records[p.find(one.tier, one.group)].count += r.Copies - 2
		}
		if !x.wake(h) {
			return ErrChanged
		}
		if done == 0 {
			return ErrExceptions
		}
		parent, has = hashes[done-1], true
		if keys, hashes = keys[done:], hashes[done:]; len(keys) > 0 && !x.yield(h) {
			return ErrChanged
		}
	}
	return nil
}
