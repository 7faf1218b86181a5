package kvindex

import "unsafe"

// arena hands out elements by 32-bit index, in chunks that never move. Index 0 is never handed out. Released elements
// are used again. All but one of the chunks without elements are given back, so that elements that come and go
// allocate nothing. The first four bytes of T must not be part of a pointer: in released elements they hold the index
// of the next released one.
type arena[T any] struct {
	chunks []*[chunkLen]T // nil: given back
	states []arenaState   // of chunks
	room   []uint32       // chunks that may have room
	holes  []uint32       // chunks that were given back
	n      int            // chunks that are there
	used   int            // elements in use
	idle   uint32         // the chunk without elements that is kept, and 1; 0: there is none
}

type arenaState struct {
	free  uint32 // the first released element, 0: none
	fresh uint16 // how many were ever handed out
	live  uint16
	open  bool // listed in room
}

// chunkLen is small enough for an index of one megabyte, and for chunks to become empty; large enough that the list of
// chunks of an index of a hundred gigabytes stays in cache.
const (
	chunkLen  = 256
	chunkBits = 8
)

// at returns the element with an index that alloc returned.
func (a *arena[T]) at(i uint32) *T { return &a.chunks[i>>chunkBits][i&(chunkLen-1)] }

func (a *arena[T]) link(i uint32) *uint32 { return (*uint32)(unsafe.Pointer(a.at(i))) }

// alloc returns the index of a zero element.
func (a *arena[T]) alloc() uint32 {
	for len(a.room) > 0 {
		c := a.room[len(a.room)-1]
		if st := &a.states[c]; st.free != 0 || st.fresh < chunkLen {
			return a.take(c)
		}
		a.states[c].open = false
		a.room = a.room[:len(a.room)-1]
	}
	return a.take(a.addChunk())
}

func (a *arena[T]) take(c uint32) uint32 {
	st := &a.states[c]
	if st.live == 0 && a.idle == c+1 {
		a.idle = 0
	}
	st.live++
	a.used++
	if i := st.free; i != 0 {
		link := a.link(i)
		st.free, *link = *link, 0
		return i
	}
	i := c<<chunkBits | uint32(st.fresh)
	st.fresh++
	return i
}

func (a *arena[T]) addChunk() uint32 {
	c := uint32(len(a.chunks))
	if n := len(a.holes); n > 0 {
		c, a.holes = a.holes[n-1], a.holes[:n-1]
	} else {
		a.chunks = append(a.chunks, nil)
		a.states = append(a.states, arenaState{})
	}
	a.chunks[c] = new([chunkLen]T)
	a.states[c] = arenaState{open: true}
	if c == 0 {
		a.states[c].fresh = 1 // index 0 is nothing
	}
	a.room = append(a.room, c)
	a.n++
	return c
}

// release takes an element back and clears it.
func (a *arena[T]) release(i uint32) {
	var zero T
	c := i >> chunkBits
	st := &a.states[c]
	*a.at(i) = zero
	*a.link(i) = st.free
	st.free = i
	st.live--
	a.used--
	if !st.open {
		st.open = true
		a.room = append(a.room, c)
	}
	if st.live > 0 {
		return
	}
	if a.idle == 0 {
		a.idle = c + 1
		return
	}
	a.chunks[c] = nil
	a.holes = append(a.holes, c)
	a.n--
	for k := len(a.room) - 1; k >= 0; k-- {
		if a.room[k] == c {
			a.room = append(a.room[:k], a.room[k+1:]...)
			break
		}
	}
}

// reset gives all memory back.
func (a *arena[T]) reset() { *a = arena[T]{} }

// live returns how many elements are in use.
func (a *arena[T]) live() int { return a.used }

func (a *arena[T]) bytes() int64 {
	var zero T
	return int64(a.n)*chunkLen*int64(unsafe.Sizeof(zero)) + int64(cap(a.chunks))*8 + int64(cap(a.states))*12 +
		int64(cap(a.room)+cap(a.holes))*4
}

// growth returns an upper bound of the bytes that n more elements make the arena allocate.
func (a *arena[T]) growth(n int) int64 {
	n -= a.n*chunkLen - a.used - 1
	if n <= 0 {
		return 0
	}
	chunks := (n + chunkLen - 1) / chunkLen
	var zero T
	bytes := int64(chunks) * chunkLen * int64(unsafe.Sizeof(zero))
	if total := len(a.chunks) + chunks; cap(a.chunks) < total {
		bytes += 2 * (8 + 12 + 2*4) * int64(total)
	}
	return bytes
}
