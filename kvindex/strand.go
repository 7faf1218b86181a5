package kvindex

import (
	"sync/atomic"
)

// strand is a stretch of a chain: the blocks that follow one block, or the chain's root, up to some block. What
// follows in another way hangs as a strand of its own at the block where the ways part. A strand knows how many
// blocks it has and who has which of them, in segments; which blocks these are only the slots know. Nothing ever
// moves to another spot. 64 bytes, one cache line, and one more with milestones; readers read all of it atomically,
// and the version before and after.
type strand struct {
	version uint32 // odd while it changes
	parent  uint32 // the strand on which it hangs; 0: none
	at      uint32 // offset of the block on the parent after which it hangs; strandFloats, strandClosed; who began it
	length  uint32 // blocks; 0: it is free, or new
	segs    [inlineSegments]uint64
	more    uint32 // the run of the slab that has the segments, when they do not fit; else 0
	used    uint32 // when it was last stored to or matched
	depth   uint32 // blocks before the first, 0 when that is not known
	child   uint32 // the first of those that hang on it
	next    uint32 // neighbours among them, or among those that float; of free ones the next
	prev    uint32
	marks   milestones
}

const strandBytes = 128

// turn begins a change of a strand, and ends it. What is stored between is seen by readers after the first turn and
// before the second.
func (s *strand) turn() { atomic.StoreUint32(&s.version, s.version+1) }

// segment of a strand: its blocks up to an end (exclusive), and the set of those that have them.
type segment struct {
	end uint32
	set setID
}

func (g segment) word() uint64 { return uint64(g.end)<<32 | uint64(g.set) }

func segmentOf(w uint64) segment { return segment{uint32(w >> 32), setID(w)} }

const (
	inlineSegments = 3
	maxStrand      = 1<<16 - 1

	strandOffset = 1<<16 - 1 // of strand.at
	// strandFloats: the block on which the strand hangs is not known.
	strandFloats = 1 << 16
	// strandClosed: slots that nobody cleared point beyond the end, so that it must not grow.
	strandClosed = 1 << 17
	// The rest is the id of the holder that began the strand, plus 1. It is 0 when there is none, or when the id does
	// not fit, in a fleet larger than any known: such strands count for no holder.
	beganShift = 18
	mostBegan  = 1<<(32-beganShift) - 1
)

// strands hands out strands by 32-bit indexes, in chunks that never move and are given back one by one.
type strands struct {
	chunks atomic.Pointer[[]atomic.Pointer[strandChunk]]
	states []chunkState
	room   []uint32 // chunks that may have room
	holes  []uint32 // chunks that were given back
	live   int
	n      int // chunks
}

const (
	strandBits    = 6
	strandsAChunk = 1 << strandBits // 8 KiB
)

type strandChunk [strandsAChunk]strand

type chunkState struct {
	free  uint32 // first free strand by index, 0: none
	fresh uint32 // how many were ever used
	live  uint32
	open  bool // listed in room
}

// at returns a strand, nil when its chunk was given back.
func (a *strands) at(i uint32) *strand {
	c := a.chunks.Load()
	if c == nil || int(i>>strandBits) >= len(*c) {
		return nil
	}
	chunk := (*c)[i>>strandBits].Load()
	if chunk == nil {
		return nil
	}
	return &chunk[i&(strandsAChunk-1)]
}

// alloc returns the index of a strand without blocks.
func (a *strands) alloc() uint32 {
	for len(a.room) > 0 {
		c := a.room[len(a.room)-1]
		st := &a.states[c]
		if st.free != 0 || st.fresh < strandsAChunk {
			return a.take(c)
		}
		st.open = false
		a.room = a.room[:len(a.room)-1]
	}
	return a.take(a.addChunk())
}

func (a *strands) take(c uint32) uint32 {
	st := &a.states[c]
	st.live++
	a.live++
	if i := st.free; i != 0 {
		st.free = a.at(i).next
		return i
	}
	i := c<<strandBits | st.fresh
	st.fresh++
	return i
}

func (a *strands) addChunk() uint32 {
	var list []atomic.Pointer[strandChunk]
	if c := a.chunks.Load(); c != nil {
		list = *c
	}
	c := uint32(len(list))
	if n := len(a.holes); n > 0 {
		c, a.holes = a.holes[n-1], a.holes[:n-1]
	} else {
		if len(list) == cap(list) {
			grown := make([]atomic.Pointer[strandChunk], len(list), 2*len(list)+16)
			for i := range list {
				grown[i].Store(list[i].Load())
			}
			list = grown
		}
		list = list[:len(list)+1]
		a.chunks.Store(&list)
		a.states = append(a.states, chunkState{})
	}
	list[c].Store(new(strandChunk))
	a.states[c] = chunkState{open: true}
	if c == 0 {
		a.states[c].fresh = 1 // no strand has index 0
	}
	a.room = append(a.room, c)
	a.n++
	return c
}

// release takes a strand back, which its user has emptied.
func (a *strands) release(i uint32) {
	c := i >> strandBits
	st := &a.states[c]
	st.live--
	a.live--
	if st.live == 0 && a.live > 0 {
		(*a.chunks.Load())[c].Store(nil)
		a.states[c] = chunkState{}
		for k := len(a.room) - 1; k >= 0; k-- {
			if a.room[k] == c {
				a.room = append(a.room[:k], a.room[k+1:]...)
			}
		}
		a.holes = append(a.holes, c)
		a.n--
		return
	}
	atomic.StoreUint32(&a.at(i).next, st.free)
	st.free = i
	if !st.open {
		st.open = true
		a.room = append(a.room, c)
	}
}

// each calls f for all strands that have blocks.
func (a *strands) each(f func(i uint32, s *strand)) {
	for c := range a.states {
		st := a.states[c]
		if st.live == 0 {
			continue
		}
		for k := uint32(0); k < st.fresh; k++ {
			i := uint32(c)<<strandBits | k
			if s := a.at(i); s != nil && s.length > 0 {
				f(i, s)
			}
		}
	}
}

// postOrder calls f for all strands that have blocks, children before their parent. f must not change the strands.
func (a *strands) postOrder(f func(i uint32, s *strand)) {
	a.each(func(root uint32, s *strand) {
		if s.parent != 0 {
			return
		}
		i := a.leftmost(root)
		for {
			s := a.at(i)
			f(i, s)
			if i == root {
				return
			}
			if i = s.parent; s.next != 0 {
				i = a.leftmost(s.next)
			}
		}
	})
}

// leftmost returns the first strand in postOrder of a strand and its descendants.
func (a *strands) leftmost(i uint32) uint32 {
	for c := a.at(i).child; c != 0; c = a.at(i).child {
		i = c
	}
	return i
}

func (a *strands) reset() {
	a.chunks.Store(nil)
	a.states, a.room, a.holes, a.live, a.n = nil, nil, nil, 0, 0
}

func (a *strands) bytes() int64 {
	n := int64(a.n)*strandsAChunk*strandBytes + int64(cap(a.states))*16 + int64(cap(a.room)+cap(a.holes))*4
	if c := a.chunks.Load(); c != nil {
		n += int64(cap(*c)) * 8
	}
	return n
}

// growth returns an upper bound of what n more strands make it allocate.
func (a *strands) growth(n int) int64 {
	chunks := n/strandsAChunk + 1
	bytes := int64(chunks) * (strandsAChunk*strandBytes + 8)
	if len(a.states)+chunks > cap(a.states) {
		bytes += int64(len(a.states)+chunks+16) * 2 * 32
	}
	return bytes
}
