package kvindex

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
)

// milestones are some of what a strand's blocks are: four bits of the keys at offsets that are multiples of a power of two,
// the least with which 127 of them reach the strand's end. They tell a reader within some blocks where a request leaves the
// strand, from the line beside the strand's own. They are a hint, which slots must confirm: one is right by chance one time in
// 16, and what is beyond the strand's end is anything.
type milestones [8]uint64 // half bytes: the power's exponent, and then the 1st to 127th milestone

const (
	lastMilestone  = 127
	milestoneBits  = 4
	milestoneWidth = 1<<milestoneBits - 1
)

// milestone is what is kept of a key.
func milestone(key block.Key) uint64 { return mixKey(key) >> (64 - milestoneBits) }

// reset forgets all.
func (m *milestones) reset() { store(&m[0], 0) }

// get returns the j-th, of which the 0th is the exponent.
func (m *milestones) get(j uint32) uint64 { return m[j>>4&7] >> (j & 15 * 4) & milestoneWidth }

func (m *milestones) set(j uint32, stone uint64) {
	w, shift := &m[j>>4&7], j&15*4
	store(w, *w&^(milestoneWidth<<shift)|stone<<shift)
}

// note notes the keys of blocks that are added to a strand from an offset on.
func (m *milestones) note(from uint32, keys []block.Key) {
	end, shift := from+uint32(len(keys)), uint32(m.get(0))
	for (end-1)>>shift > lastMilestone {
		for j := uint32(1); j <= lastMilestone/2; j++ {
			m.set(j, m.get(2*j))
		}
		shift++
		m.set(0, uint64(shift))
	}
	step := uint32(1) << shift
	for off := max(step, (from+step-1)&^(step-1)); off < end; off += step {
		m.set(off>>shift, milestone(keys[off-from]))
	}
}

// leave returns between which two keys a request leaves a strand of some blocks, if its first key is the strand's first: the
// last key that seems to be on it, and the first that is not, which may be the one after the last; and how many keys lie
// between two milestones.
func (m *milestones) leave(keys []block.Key, length uint32) (on, off, step int) {
	w := atomic.LoadUint64(&m[0])
	shift := uint(w) & milestoneWidth
	n := min(len(keys), int(length))
	// Long ones by strides of eight at first, of which two must be right.
	j := uint(1)
	for ; n>>shift > 32 && int((j+8)<<shift) < n; j += 8 {
		if !m.agrees(j+8, keys[(j+8)<<shift]) || !m.agrees(j+7, keys[(j+7)<<shift]) {
			break
		}
		on = int((j + 8) << shift)
	}
	w = atomic.LoadUint64(&m[j>>4])
	for ; j <= lastMilestone; j++ {
		if off = int(j << shift); off >= n {
			break
		}
		if j&15 == 0 {
			w = atomic.LoadUint64(&m[j>>4])
		}
		if (w>>(j&15*4)^milestone(keys[off]))&milestoneWidth != 0 && off > on {
			return on, off, 1 << shift
		}
		on = max(on, off)
	}
	return min(on, max(n-1, 0)), n, 1 << shift
}

// agrees reports whether a key may be that of the j-th milestone.
func (m *milestones) agrees(j uint, key block.Key) bool {
	return (atomic.LoadUint64(&m[j>>4&7])>>(j&15*4)^milestone(key))&milestoneWidth == 0
}
