package kvindex

import "unsafe"

// arena hands out elements by 32-bit index, in chunks that never move. Index 0 is never handed out. Released elements
// are used again; chunks are given back all together, by [arena.reset]. The first four bytes of T must not be part of
// a pointer: in released elements they are the index of the next.
type arena[T any] struct {
	chunks []*[chunkLen]T
	free   uint32 // the first released element
	spare  int    // released elements
	next   uint32 // the first index that was never used; 0: none was
}

// chunkLen is small enough for an index of one megabyte and large enough that the list of chunks of an index of a
// hundred gigabytes stays in cache.
const (
	chunkLen  = 1024
	chunkBits = 10
)

// at returns the element with an index that alloc returned.
func (a *arena[T]) at(i uint32) *T { return &a.chunks[i>>chunkBits][i&(chunkLen-1)] }

func (a *arena[T]) link(i uint32) *uint32 { return (*uint32)(unsafe.Pointer(a.at(i))) }

// alloc returns the index of a zero element.
func (a *arena[T]) alloc() uint32 {
	if i := a.free; i != 0 {
		link := a.link(i)
		a.free, *link = *link, 0
		a.spare--
		return i
	}
	if a.next == 0 {
		a.next = 1
	}
	if int(a.next>>chunkBits) == len(a.chunks) {
		a.chunks = append(a.chunks, new([chunkLen]T))
	}
	i := a.next
	a.next++
	return i
}

// release takes an element back and clears it.
func (a *arena[T]) release(i uint32) {
	var zero T
	*a.at(i) = zero
	*a.link(i) = a.free
	a.free = i
	a.spare++
}

// reset gives all memory back.
func (a *arena[T]) reset() { *a = arena[T]{} }

// live returns how many elements are in use.
func (a *arena[T]) live() int { return max(int(a.next)-1, 0) - a.spare }

func (a *arena[T]) bytes() int64 {
	var zero T
	return int64(len(a.chunks))*chunkLen*int64(unsafe.Sizeof(zero)) + int64(cap(a.chunks))*8
}

// growth returns an upper bound of the bytes that n more elements make the arena allocate.
func (a *arena[T]) growth(n int) int64 {
	n -= a.spare + len(a.chunks)*chunkLen - max(int(a.next), 1)
	if n <= 0 {
		return 0
	}
	chunks := (n + chunkLen - 1) / chunkLen
	var zero T
	bytes := int64(chunks) * chunkLen * int64(unsafe.Sizeof(zero))
	if total := len(a.chunks) + chunks; cap(a.chunks) < total {
		bytes += 2 * 8 * int64(total)
	}
	return bytes
}
