package kvindex

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
)

// milestones are some of what a strand's blocks are: four bits of the keys at offsets that are multiples of a power
// of two, the least with which 127 of them reach the strand's end. They tell a reader within some blocks where a
// request leaves the strand, from the line beside the strand's own. They are a hint, which slots must confirm: one is
// right by chance one time in 16, and what is beyond the strand's end is anything.
type milestones [8]uint64 // half bytes: the power's exponent, and then the 1st to 127th milestone

const (
	lastMilestone  = 127
	milestoneBits  = 4
	milestoneWidth = 1<<milestoneBits - 1
)

// milestone is what is kept of a key.
func milestone(key block.Key) uint64 { return mixKey(key, 0) >> (64 - milestoneBits) }

// reset forgets all.
func (m *milestones) reset() { atomic.StoreUint64(&m[0], 0) }

// note notes the keys of blocks that are added to a strand from an offset on.
func (m *milestones) note(from uint32, keys []block.Key) {
	end, shift := from+uint32(len(keys)), uint32(m[0]&milestoneWidth)
	for (end-1)>>shift > lastMilestone {
		shift++
		m.thin(uint64(shift))
	}
	step := uint32(1) << shift
	off := max(step, (from+step-1)&^(step-1))
	for off < end { // a word of them
		k := off >> shift >> 4 & 7
		w := m[k]
		for last := min(end, (k+1)<<4<<shift); off < last; off += step {
			bit := off >> shift & 15 * milestoneBits
			w = w&^(milestoneWidth<<bit) | milestone(keys[off-from])<<bit
		}
		atomic.StoreUint64(&m[k], w)
	}
}

// thin leaves out every second one.
func (m *milestones) thin(shift uint64) {
	var half [4]uint64
	for k, w := range m {
		w &= 0x0f0f0f0f0f0f0f0f
		w = (w | w>>4) & 0x00ff00ff00ff00ff
		w = (w | w>>8) & 0x0000ffff0000ffff
		half[k/2] |= (w | w>>16) & 0xffffffff << (k % 2 * 32)
	}
	half[0] = half[0]&^milestoneWidth | shift
	for k, w := range half {
		atomic.StoreUint64(&m[k], w)
	}
}

// leave returns between which two keys a request leaves a strand of some blocks, if its first key is the strand's
// first: the last key that seems to be on it, and the first that is not, which may be the one after the last; and how
// many keys lie between two milestones.
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
