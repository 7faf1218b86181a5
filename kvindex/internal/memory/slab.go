package memory

import (
	"math/bits"
	"sync/atomic"
)

// Slab allocates runs of words of any length and names each by a reference of 31 bits. Runs lie in chunks without
// pointers, which never move. Readers may read a run while the writer releases or rewrites it: they must then compare
// the version of the element that led them to the run.
type Slab struct {
	chunks atomic.Pointer[[][]uint64]
	free   [64]uint32 // the first free run of each size class; the first word of a free run names the next
	next   uint32     // the first free word of the open chunk
	open   int        // the chunk that is being filled
	words  int        // in all chunks
	used   int        // in runs in use
}

const (
	slabBits  = 9
	slabChunk = 1 << slabBits // words: 4 KiB, small enough for the smallest budget
)

// slabClass returns the size class for n words and its run length: 2^k, or 3·2^k between two powers of two.
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

// At returns the words from a run to the end of its chunk, nil when the chunk is gone.
func (s *Slab) At(ref uint32) []uint64 {
	c := s.chunks.Load()
	if c == nil || int(ref>>slabBits) >= len(*c) {
		return nil
	}
	chunk := (*c)[ref>>slabBits]
	if at := int(ref & (slabChunk - 1)); at < len(chunk) {
		return chunk[at:]
	}
	return nil // a reader has a reference from before Clear
}

// Alloc returns the reference of a run of at least n words. Their content is undefined.
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

// Growth returns an upper bound of the memory that n more runs of the given number of words take.
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
