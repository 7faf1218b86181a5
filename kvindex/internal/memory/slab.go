package memory

import (
	"math/bits"
	"sync/atomic"
)

// Slab hands out runs of words of any length, by 31-bit references, in chunks without pointers that never move. Readers
// may read a run while it is given back or written again: they then find out by the version of what led them there.
type Slab struct {
	chunks atomic.Pointer[[][]uint64]
	free   [64]uint32 // by size class; a free run's first word is the next
	next   uint32     // in the last chunk
	open   int        // the chunk that is being filled
	words  int        // of all chunks
	used   int        // handed out
}

const (
	slabBits  = 9
	slabChunk = 1 << slabBits // words: 4 KiB, small enough for the smallest budget
)

// slabClass returns the class of runs of n words and how long its runs are: powers of two and what is in the middle.
func slabClass(n int) (class, size int) {
	if n <= 2 {
		return 0, 2
	}
	e := bits.Len(uint(n - 1)) // 2^(e-1) < n ≤ 2^e
	if mid := 3 << (e - 2); n <= mid {
		return 2*e - 3, mid
	}
	return 2*e - 2, 1 << e
}

// At returns the run of a reference to its chunk's end, nil when there is none any more.
func (s *Slab) At(ref uint32) []uint64 {
	c := s.chunks.Load()
	if c == nil || int(ref>>slabBits) >= len(*c) {
		return nil
	}
	chunk := (*c)[ref>>slabBits]
	if at := int(ref & (slabChunk - 1)); at < len(chunk) {
		return chunk[at:]
	}
	return nil // a reader came by a reference from before Clear
}

// Alloc returns the reference of a run of at least n words, whose content is anything.
func (s *Slab) Alloc(n int) uint32 {
	class, size := slabClass(n)
	s.used += size
	if ref := s.free[class]; ref != 0 {
		s.free[class] = uint32(s.At(ref)[0])
		return ref
	}
	if size > slabChunk {
		return uint32(s.add(size)) << slabBits
	}
	if s.words == 0 || s.next+uint32(size) > slabChunk {
		s.open, s.next = s.add(slabChunk), 0
		if s.open == 0 {
			s.next = 2 // no run has reference 0
		}
	}
	ref := uint32(s.open)<<slabBits | s.next
	s.next += uint32(size)
	return ref
}

// add appends a chunk and returns its number.
func (s *Slab) add(size int) int {
	var chunks [][]uint64
	if c := s.chunks.Load(); c != nil {
		chunks = *c
	} else if size > slabChunk {
		chunks = [][]uint64{nil}
	}
	n := len(chunks)
	chunks = append(chunks, make([]uint64, size))
	s.chunks.Store(&chunks)
	s.words += size
	return n
}

// Release frees a run of n words.
func (s *Slab) Release(ref uint32, n int) {
	class, size := slabClass(n)
	s.used -= size
	if s.used == 0 {
		s.Clear()
		return
	}
	atomic.StoreUint64(&s.At(ref)[0], uint64(s.free[class]))
	s.free[class] = ref
}

// Clear frees all runs and their memory.
func (s *Slab) Clear() {
	s.chunks.Store(nil)
	s.free = [64]uint32{}
	s.next, s.open, s.words, s.used = 0, 0, 0, 0
}

// Bytes returns how much memory the slab takes.
func (s *Slab) Bytes() int64 {
	n := int64(s.words) * 8
	if c := s.chunks.Load(); c != nil {
		n += int64(cap(*c)) * 24
	}
	return n
}

// Growth returns an upper bound of what n more runs of so many words make the Slab allocate.
func (s *Slab) Growth(n, words int) int64 {
	_, size := slabClass(words)
	left := 0
	if s.words > 0 {
		left = slabChunk - int(s.next)
	}
	if n*size <= left {
		return 0
	}
	bytes := int64(n*size+slabChunk) * 8
	if size > slabChunk/2 {
		bytes = int64(n) * int64(max(size, slabChunk)) * 8
	}
	if c := s.chunks.Load(); c != nil && cap(*c) == len(*c) {
		bytes += int64(len(*c)) * 2 * 24
	}
	return bytes + 24*(int64(n*size)/slabChunk+2)
}

// SameClass reports whether runs of a and of c words take the same memory.
func SameClass(a, c int) bool {
	x, _ := slabClass(a)
	y, _ := slabClass(c)
	return x == y
}
