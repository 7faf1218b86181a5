package memory

import (
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// Arena allocates elements of one type. The name of an element is an index, from 1 on. Elements are in chunks. A chunk
// never moves. The arena gives back the memory of an empty chunk, but keeps the first chunk, and the last chunk that
// becomes empty. There is one writer at a time. Readers may call At at the same time, also with the index of a released
// element.
type Arena[T any] struct {
	chunks atomic.Pointer[[]atomic.Pointer[[arenaChunk]T]]
	states []arenaState // the states of the chunks
	room   []uint32     // the numbers of chunks that may have a free element
	holes  []uint32     // the numbers of chunks that were given back
	live   int          // the number of elements in use
	n      int          // the number of chunks in memory
}

type arenaState struct {
	used   uint64 // a bit for each element in use
	listed bool   // the chunk is in room
}

// arenaChunk is the number of elements in a chunk. The number is small, so that chunks become empty often, and a budget
// of 1 MiB has room for several chunks.
const (
	arenaBits  = 6
	arenaChunk = 1 << arenaBits
)

// At returns the element of an index. It returns nil if the element's chunk was given back.
func (a *Arena[T]) At(i uint32) *T {
	c := a.chunks.Load()
	if c == nil || int(i>>arenaBits) >= len(*c) {
		return nil
	}
	chunk := (*c)[i>>arenaBits].Load()
	if chunk == nil {
		return nil
	}
	return &chunk[i&(arenaChunk-1)]
}

// Alloc returns the index of a free element. The element has the content of its last use, or is zero.
func (a *Arena[T]) Alloc() uint32 {
	for len(a.room) > 0 {
		c := a.room[len(a.room)-1]
		if a.states[c].used != 1<<arenaChunk-1 {
			return a.take(c)
		}
		a.states[c].listed = false
		a.room = a.room[:len(a.room)-1]
	}
	return a.take(a.addChunk())
}

func (a *Arena[T]) take(c uint32) uint32 {
	k := uint32(bits.TrailingZeros64(^a.states[c].used))
	a.states[c].used |= 1 << k
	a.live++
	return c<<arenaBits | k
}

func (a *Arena[T]) addChunk() uint32 {
	var list []atomic.Pointer[[arenaChunk]T]
	if c := a.chunks.Load(); c != nil {
		list = *c
	}
	c := uint32(len(list))
	if n := len(a.holes); n > 0 {
		c, a.holes = a.holes[n-1], a.holes[:n-1]
	} else {
		if len(list) == cap(list) {
			grown := make([]atomic.Pointer[[arenaChunk]T], len(list), len(list)+len(list)/2+16)
			for i := range list {
				grown[i].Store(list[i].Load())
			}
			list = grown
		}
		list = list[:len(list)+1]
		a.chunks.Store(&list)
		a.states = append(a.states, arenaState{})
	}
	list[c].Store(new([arenaChunk]T))
	st := &a.states[c]
	st.used = 0
	if c == 0 {
		st.used = 1 // no element has index 0
	}
	if !st.listed {
		st.listed = true
		a.room = append(a.room, c)
	}
	a.n++
	return c
}

// Release frees an element.
func (a *Arena[T]) Release(i uint32) {
	c := i >> arenaBits
	st := &a.states[c]
	st.used &^= 1 << (i & (arenaChunk - 1))
	a.live--
	if st.used == 0 && a.live > 0 {
		(*a.chunks.Load())[c].Store(nil)
		st.used = 1<<arenaChunk - 1 // so that Alloc does not use the chunk if it is listed in room
		a.holes = append(a.holes, c)
		a.n--
		return
	}
	if !st.listed {
		st.listed = true
		a.room = append(a.room, c)
	}
}

// Space returns a number that is greater than all indexes in use.
func (a *Arena[T]) Space() uint32 { return uint32(len(a.states)) << arenaBits }

// Clear frees all elements and their memory.
func (a *Arena[T]) Clear() {
	a.chunks.Store(nil)
	a.states, a.room, a.holes, a.live, a.n = nil, nil, nil, 0, 0
}

// Bytes returns how much memory the arena takes.
func (a *Arena[T]) Bytes() int64 {
	var zero T
	n := int64(a.n)*arenaChunk*int64(unsafe.Sizeof(zero)) + int64(cap(a.states))*16 + int64(cap(a.room)+cap(a.holes))*4
	if c := a.chunks.Load(); c != nil {
		n += int64(cap(*c)) * 8
	}
	return n
}

// Growth returns an upper bound of the memory that n more elements take.
func (a *Arena[T]) Growth(n int) int64 {
	if n -= a.n*arenaChunk - a.live - 1; n <= 0 {
		return 0
	}
	var zero T
	chunks := n/arenaChunk + 1
	bytes := int64(chunks) * (arenaChunk*int64(unsafe.Sizeof(zero)) + 8)
	if len(a.states)+chunks > cap(a.states)+len(a.holes) {
		bytes += int64(len(a.states)+chunks)*60 + 16*8 // append doubles slices, and addChunk makes a list half as long again
	}
	return bytes
}
