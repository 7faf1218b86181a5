package kvindex

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Held is a run of blocks of one chain that a holder has: what [Index.Dump] gives and [Index.Load] takes, to warm
// another router's index.
type Held struct {
	Tier      block.Tier // block.NumTiers: the holder has them no more, but its events may still name them as parents
	Group     int
	Attention block.Attention
	Window    int // tokens

	Depth  int       // blocks of the chain before the first
	Parent block.Key // of the last of them
	Keys   []block.Key
	// Handles are the engine's hashes of the blocks; nil when the holder's events carry keys.
	Handles []uint64
}

var (
	// ErrChanged says that a holder changed while it was dumped. Hold its events back and begin anew.
	ErrChanged = errors.New("the holder changed while it was dumped: hold its events back and begin anew")
	// ErrOdd says that a holder's handles do not name single blocks of the index's size, or name others' blocks
	// otherwise. Its own events have to tell what it has.
	ErrOdd = errors.New("the holder's handles do not name one block each as those of others do: learn it from its events")
)

// part of a dump: one block of a holder.
type dumped struct {
	at     spot
	depth  uint32 // of the strand
	key    block.Key
	handle uint64
	mask   uint64
}

// Dump gives all blocks of one holder to emit, parents before children, a block that it has more than once as often;
// what is believed of it and what waits is left out. It is of one moment, or else ErrChanged is returned and what was
// given is worth nothing. Readers and other holders' writers go on meanwhile: they wait for a 256th of the index at a
// time. It costs a look at all blocks, and memory in proportion to the holder's. emit must not keep the run, and its
// error ends the dump.
func (x *Index) Dump(id fleet.Holder, emit func(*Held) error) error {
	x.lock()
	h := x.holder(id)
	if h == nil {
		x.unlock()
		return fmt.Errorf("holder %d is not known", id)
	}
	list, parents, err := x.collectHeld(h)
	groups, keyed, copies := slices.Clone(h.groups), h.keyed, map[copyKey]uint32{}
	for k, n := range x.copies {
		if k.holder == id {
			copies[k] = n
		}
	}
	x.unlock()
	if err != nil {
		return err
	}
	slices.SortFunc(list, func(p, q dumped) int { return cmp.Or(cmp.Compare(p.depth, q.depth), cmp.Compare(p.at, q.at)) })
	d := dump{emit: emit, id: id, groups: groups, keyed: keyed, copies: copies}
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].at == list[n-1].at+1 && list[n].mask == list[0].mask {
			n++
		}
		if err := d.run(list[:n], parents[list[0].at]); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// collectHeld returns a holder's blocks in any order, and the keys of the blocks before them by their spots.
func (x *Index) collectHeld(h *holder) ([]dumped, map[spot]block.Key, error) {
	if h.odd {
		return nil, nil, ErrOdd
	}
	b, moment := &x.blocks, h.changes
	var list []dumped
	for i := range nameSegments {
		add := func(handle uint64, key block.Key) {
			at := b.locate(key)
			if at == 0 {
				return
			}
			if mask := b.maskAt(at, h.id); mask != 0 && (h.keyed || mask&maskNamed != 0) {
				list = append(list, dumped{at, b.strands.at(at.strand()).depth, key, handle, mask})
			}
		}
		if h.keyed {
			b.slots.each(i, func(key block.Key) { add(0, key) })
		} else {
			b.names.each(i, add)
		}
		if !x.yield(h) || h.changes != moment {
			return nil, nil, ErrChanged
		}
	}
	// The keys of the blocks before each, which may be nobody's or others'.
	parents := make(map[spot]block.Key, len(list))
	wanted := map[spot][]spot{}
	for _, d := range list {
		if up := b.before(d.at); up != 0 {
			wanted[up] = append(wanted[up], d.at)
		}
	}
	for i := range slotSegments {
		b.slots.each(i, func(key block.Key) {
			for _, at := range wanted[b.locate(key)] {
				parents[at] = key
			}
		})
		if !x.yield(h) || h.changes != moment {
			return nil, nil, ErrChanged
		}
	}
	return list, parents, nil
}

// dump is a dump under way.
type dump struct {
	emit   func(*Held) error
	id     fleet.Holder
	groups []group
	keyed  bool
	copies map[copyKey]uint32
}

// run emits blocks that follow each other and have the same mask: once for each tier and group, and for copies.
func (d *dump) run(list []dumped, parent block.Key) error {
	held := Held{Depth: int(list[0].depth) + int(list[0].at.offset()), Parent: parent, Tier: block.NumTiers}
	for _, one := range list {
		held.Keys = append(held.Keys, one.key)
		if !d.keyed {
			held.Handles = append(held.Handles, one.handle)
		}
	}
	mask := list[0].mask & possession
	if mask == 0 {
		return d.emit(&held)
	}
	for ; mask != 0; mask &= mask - 1 {
		bit := bits.TrailingZeros64(mask)
		g := d.groups[bit/4]
		held.Tier, held.Group, held.Attention, held.Window = block.Tier(bit%4), g.id, g.kind, g.window
		if err := d.emit(&held); err != nil {
			return err
		}
		if list[0].mask&maskCopied == 0 {
			continue
		}
		for k, one := range list {
			again := held
			if again.Depth += k; k > 0 {
				again.Parent = held.Keys[k-1]
			}
			again.Keys = held.Keys[k : k+1]
			if !d.keyed {
				again.Handles = held.Handles[k : k+1]
			}
			for range d.copies[copyKey{one.key, 1 << bit, d.id}] {
				if err := d.emit(&again); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Load adds a run of blocks that another index dumped of a holder, in the order in which they came. The holder's events
// go on from there. Where an engine's reports cannot be told from copies they count as reports from then on.
func (x *Index) Load(id fleet.Holder, r *Held) error {
	if r.Depth < 0 || len(r.Keys) > MaxChain/int(x.size) || r.Depth > MaxChain/int(x.size)-len(r.Keys) || len(r.Handles) > 0 && len(r.Handles) != len(r.Keys) || r.Tier > block.NumTiers {
		return fmt.Errorf("load %d blocks of holder %d at depth %d: not a run that Dump gives", len(r.Keys), id, r.Depth)
	}
	if len(r.Handles) == 0 {
		if r.Tier < block.NumTiers {
			x.StoreKeys(id, r.Tier, r.Group, r.Parent, r.Depth > 0, r.Keys)
		}
		return nil
	}
	x.lock()
	defer x.unlock()
	h := x.meet(id)
	switch {
	case h == nil:
		return fmt.Errorf("load blocks of holder %d: there are no more than %d", id, MaxHolders)
	case h.odd || h.keyed:
		return ErrOdd
	}
	x.advance()
	c := change{h: h, bit: maskNamed, add: true}
	if r.Tier < block.NumTiers {
		g := x.join(h, &Stored{Group: r.Group, Attention: r.Attention, Window: r.Window, BlockSize: int(x.size)})
		if g < 0 {
			return ErrOdd
		}
		h.vague |= 1 << r.Tier
		c.bit |= maskBit(r.Tier, uint8(g))
	}
	line := line{key: r.Parent, end: r.Depth, placed: true}
	for keys, handles := r.Keys, r.Handles; len(keys) > 0; {
		if at := x.blocks.locate(line.key); line.end > 0 && (at == 0 || x.blocks.end(at) != line.end) {
			return fmt.Errorf("load blocks of holder %d at depth %d: what is before them is not there", id, line.end)
		}
		n := min(len(keys), x.stretch(keyStretch, 0))
		if !x.makeRoom(h, need{handles: n, size: int(x.size)}) {
			x.refuse(h, allTiers)
			return fmt.Errorf("load %d blocks of holder %d: the index's budget is too small for them", len(r.Keys), id)
		}
		x.tableMu.Lock()
		done := x.placeKeys(&line, handles[:n], keys[:n], c, true)
		x.tableMu.Unlock()
		if !x.wake(h) {
			return ErrChanged
		}
		if done < n {
			return ErrOdd
		}
		if keys, handles = keys[n:], handles[n:]; len(keys) > 0 && !x.yield(h) {
			return ErrChanged
		}
	}
	return nil
}
