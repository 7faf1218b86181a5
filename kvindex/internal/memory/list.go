package memory

import (
	"slices"
	"sync/atomic"
	"unsafe"
)

// List is a list of words that never change: the writer replaces the list as a whole. Readers may read the words while
// the writer replaces the list: Go's heap keeps the old words while a reader refers to them. The zero List is empty.
type List struct {
	// first points at a header, and the words follow the header. The upper half of the header has the allocated memory,
	// in words. The lower half has the number of words of the list.
	first atomic.Pointer[uint64]
}

// Words returns the words of the list.
func (l *List) Words() []uint64 {
	first := l.first.Load()
	if first == nil {
		return nil
	}
	return unsafe.Slice(first, 1+uint32(*first))[1:]
}

// Lists counts the memory of some lists. A list that was replaced no longer counts, even if the garbage collector has
// not freed it yet. There is one writer at a time.
type Lists struct{ words int64 }

// Set replaces a list by a copy of some words. If there are no words, the list becomes empty.
func (c *Lists) Set(l *List, words []uint64) {
	if old := l.first.Load(); old != nil {
		c.words -= int64(*old >> 32)
	}
	if len(words) == 0 {
		l.first.Store(nil)
		return
	}
	run := slices.Grow([]uint64(nil), 1+len(words)) // the capacity is the size class of Go's heap
	run = append(append(run, uint64(cap(run))<<32|uint64(len(words))), words...)
	c.words += int64(cap(run))
	l.first.Store(&run[0])
}

// Clear counts all lists as empty. The lists must not be used afterwards.
func (c *Lists) Clear() { c.words = 0 }

// Bytes returns how much memory the lists take.
func (c *Lists) Bytes() int64 { return c.words * 8 }

// ListBytes returns an upper bound of the memory that a list of n words takes. A size class of Go's heap is at most a
// quarter larger than the memory that was asked for. Size classes from 4 to 16 words have an even number of words.
func ListBytes(n int) int64 {
	n++ // the header
	if n <= 16 {
		return int64(n+n%2) * 8
	}
	return int64(n+n/4) * 8
}
