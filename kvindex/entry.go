package kvindex

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// entry is one distinct block of ours that some holder has, or is believed to have. 32 bytes.
type entry struct {
	key     block.Key
	parent  block.Key // 0: the chain's first block
	members uint32    // head of the list of holders that have it, ascending
	specs   uint32    // head of the list of holders that are believed to have it, ascending
	depth   uint32    // blocks before it; the highest bit marks it for eviction
	used    uint32    // when it was last stored or matched, atomic: readers write it
}

const doomed = 1 << 31

// member is one holder's confirmed possession of a block. 16 bytes.
type member struct {
	mask   uint64 // bit 4·group + tier
	holder fleet.Holder
	next   uint32
}

func maskBit(tier block.Tier, group uint8) uint64 { return 1 << (4*uint64(group) + uint64(tier)) }

// anyGroup has the lowest bit of every group's nibble.
const anyGroup = 0x0111111111111111

// enter returns the entry of key and makes it if it is new. It needs tableMu.
func (x *Index) enter(key, parent block.Key, depth uint32) uint32 {
	e := x.keys.get(uint64(key))
	if e == 0 {
		e = x.entries.alloc()
		*x.entries.at(e) = entry{key: key, parent: parent, depth: depth}
		x.keys.put(uint64(key), e)
	}
	atomic.StoreUint32(&x.entries.at(e).used, x.tick())
	return e
}

// leave drops an entry that nobody has. It needs tableMu.
func (x *Index) leave(e uint32) {
	en := x.entries.at(e)
	if en.members == 0 && en.specs == 0 {
		x.keys.del(uint64(en.key))
		x.entries.release(e)
	}
}

// held returns the mask of a holder's possession of a block.
func (x *Index) held(key block.Key, id fleet.Holder) uint64 {
	e := x.keys.get(uint64(key))
	if e == 0 {
		return 0
	}
	return x.heldBy(e, id)
}

// heldBy is held for the block's entry.
func (x *Index) heldBy(e uint32, id fleet.Holder) uint64 {
	for m := x.entries.at(e).members; m != 0; {
		mem := x.members.at(m)
		if mem.holder >= id {
			if mem.holder == id {
				return mem.mask
			}
			return 0
		}
		m = mem.next
	}
	return 0
}

// set notes that a holder has a block on a tier in a group and reports whether that is new. It needs tableMu.
func (x *Index) set(h *holder, key, parent block.Key, depth uint32, r *record) bool {
	e := x.enter(key, parent, depth)
	link := &x.entries.at(e).members
	for *link != 0 && x.members.at(*link).holder < h.id {
		link = &x.members.at(*link).next
	}
	if *link == 0 || x.members.at(*link).holder != h.id {
		m := x.members.alloc()
		*x.members.at(m) = member{holder: h.id, next: *link}
		*link = m
	}
	mem := x.members.at(*link)
	bit := maskBit(r.tier, r.group)
	if mem.mask&bit != 0 {
		return false
	}
	if mem.mask>>r.tier&anyGroup == 0 {
		h.blocks[r.tier]++
	}
	mem.mask |= bit
	if x.entries.at(e).specs != 0 {
		x.confirm(h, e, mem.mask)
	}
	return true
}

// unset takes it back. It needs tableMu.
func (x *Index) unset(h *holder, key block.Key, r *record) {
	e := x.keys.get(uint64(key))
	if e == 0 {
		panic("bug: a block that is covered has no entry")
	}
	link := &x.entries.at(e).members
	for *link != 0 && x.members.at(*link).holder < h.id {
		link = &x.members.at(*link).next
	}
	if *link == 0 || x.members.at(*link).holder != h.id {
		panic("bug: a block that is covered is not held")
	}
	m := *link
	mem := x.members.at(m)
	mem.mask &^= maskBit(r.tier, r.group)
	if mem.mask>>r.tier&anyGroup == 0 {
		h.blocks[r.tier]--
	}
	if mem.mask == 0 {
		*link = mem.next
		x.members.release(m)
		x.leave(e)
	}
}

// tick returns the present moment as entries note it. Overflow after 2^32 operations is met by rebasing.
func (x *Index) tick() uint32 {
	return uint32(min(x.clock.Load()-x.base, 1<<32-1))
}

// advance lets time pass by one operation. It needs mu and not tableMu.
func (x *Index) advance() {
	if x.clock.Add(1)-x.base < 1<<32-1 {
		return
	}
	// The older half of history becomes one moment.
	x.tableMu.Lock()
	defer x.tableMu.Unlock()
	x.base += 1 << 31
	for i := uint32(1); i < x.entries.next; i++ {
		e := x.entries.at(i)
		e.used = uint32(max(int64(e.used)-1<<31, 0))
	}
}
