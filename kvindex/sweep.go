package kvindex

import (
	"github.com/warmpath/warmpath/block"
)

// sweepSlots is how many slots a sweep looks at in one go: about 20 µs.
const sweepSlots = 4096

// sweep clears dead slots, some at a time, once there is one in eight: first the names of blocks that nobody knows by
// them, for these keep slots. It needs tableMu.
func (b *blocks) sweep() {
	if b.swept == 0 {
		if b.dead <= 1024+b.slots.n/8 && len(b.limbo) <= 1024+b.strands.live/8 {
			return
		}
		b.dead, b.settled, b.stale = 0, len(b.limbo), false
	}
	for n := 0; n < sweepSlots && b.swept < nameSegments+slotSegments; b.swept++ {
		if b.swept < nameSegments {
			n += b.sweepNames(b.swept)
			continue
		}
		g := &b.slots.segments[b.swept-nameSegments]
		if a := g.array.Load(); a != nil {
			n += len(a.words) / 2
			b.steps += uint64(len(a.words) / 2)
			b.slots.rebuild(g, 0, b.kept)
		}
	}
	if b.swept < nameSegments+slotSegments {
		return
	}
	b.swept = 0
	b.sweepRoots()
	for _, i := range b.limbo[:b.settled] {
		b.strands.release(i)
	}
	b.limbo = append(b.limbo[:0], b.limbo[b.settled:]...)
}

// sweepNames drops the names of blocks that nobody knows by them from a segment, and returns how much it looked at.
func (b *blocks) sweepNames(segment int) int {
	b.names.sweep(segment, b.slots.touch, func(key block.Key) bool {
		p := b.slots.find(key)
		if p.at < 0 {
			return false
		}
		if b.alive(p.spot) && b.named(b.setAt(p.spot)) {
			return true
		}
		p.mark(false)
		return false
	})
	n := len(b.names.segments[segment].words) / 2
	b.steps += uint64(n)
	return n
}

// clear forgets all blocks and gives their memory back.
func (b *blocks) clear() {
	for i := range b.slots.segments {
		b.slots.segments[i].array.Store(nil)
		b.slots.segments[i].n = 0
		b.slots.segments[i].roots.clear()
	}
	b.slots.n, b.slots.words, b.slots.filled = 0, 0, nil
	b.roots.clear()
	b.names = names{seed: b.names.seed}
	b.strands.reset()
	b.runs.reset()
	b.sets.reset()
	b.beliefs.reset()
	b.held, b.memberships, b.begun = 0, 0, nil
	b.floats, b.floatKey = nil, nil
	b.dead, b.limbo, b.settled, b.swept, b.stale = 0, nil, 0, 0, false
	b.old, b.new, b.scan, b.ghosts = nil, nil, nil, nil
	b.lastSpot = 0
}
