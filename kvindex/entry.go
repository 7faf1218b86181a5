package kvindex

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

func maskBit(tier block.Tier, group uint8) uint64 { return 1 << (4*uint64(group) + uint64(tier)) }

// anyGroup has the lowest bit of every group's nibble.
const anyGroup = 0x0111111111111111

// held returns the mask of a holder's possession of a block.
func (x *Index) held(key block.Key, id fleet.Holder) uint64 {
	at := x.blocks.locate(key)
	if at == 0 {
		return 0
	}
	return x.blocks.maskAt(at, id)
}

// set notes that a holder has a block on a tier in a group and reports whether that is new. It needs tableMu.
func (x *Index) set(h *holder, key, parent block.Key, depth uint32, r *record) bool {
	b, bit := &x.blocks, maskBit(r.tier, r.group)
	at := b.locate(key)
	if at == 0 {
		x.single[0] = key
		b.grow(x.single[:], parent, depth == 0, depth, change{h: h, bit: bit, add: true}, x.tick())
	} else {
		if b.maskAt(at, h.id)&bit != 0 {
			return false
		}
		b.ghosts = b.ghosts[:0] // it may be one of them
		b.paint(at.strand(), at.offset(), at.offset()+1, change{h: h, bit: bit, add: true})
		b.use(at.strand(), x.tick())
	}
	return true
}

// unset takes it back. It needs tableMu.
func (x *Index) unset(h *holder, key block.Key, r *record) {
	bit := maskBit(r.tier, r.group)
	at := x.blocks.locate(key)
	if at == 0 || x.blocks.maskAt(at, h.id)&bit == 0 {
		panic("bug: a block that is covered is not held")
	}
	x.single[0] = key
	x.blocks.findKeys(x.single[:])
	x.blocks.take(x.blocks.found, false, at, change{h: h, bit: bit})
}

// use notes that a strand was used. Readers call it too.
func (b *blocks) use(i, tick uint32) {
	if s := b.strands.at(i); s != nil && atomic.LoadUint32(&s.used) != tick {
		atomic.StoreUint32(&s.used, tick)
	}
}

// tick returns the present moment as strands note it: operations that stored, since base.
func (x *Index) tick() uint32 {
	return uint32(min(x.clock.Load()-x.base.Load(), 1<<32-1))
}

// advance begins an operation that stores: it sweeps for a stretch if there is enough to sweep, and lets time pass. It
// needs mu and not tableMu.
func (x *Index) advance() {
	x.sweepSome()
	x.pass()
}

// sweepSome sweeps for a stretch, if there is enough to sweep.
func (x *Index) sweepSome() {
	if b := &x.blocks; b.swept > 0 || b.dead > 1024 || len(b.limbo) > 1024 {
		b.ghosts = b.ghosts[:0]
		x.tableMu.Lock()
		b.sweep()
		x.tableMu.Unlock()
	}
}

// pass lets time pass by one operation.
func (x *Index) pass() {
	x.blocks.ghosts = x.blocks.ghosts[:0]
	x.clock.Store(x.clock.Load() + 1)
	if x.clock.Load()-x.base.Load() < 1<<32-1 {
		return
	}
	// The older half of history becomes one moment.
	x.base.Store(x.base.Load() + 1<<31)
	x.blocks.strands.each(func(_ uint32, s *strand) {
		used := atomic.LoadUint32(&s.used)
		atomic.StoreUint32(&s.used, uint32(max(int64(used)-1<<31, 0)))
	})
}
