package kvindex

import (
	"sort"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex/internal/memory"
)

// strand is a stretch of a chain: the blocks that follow one block, or the chain's root, up to some block. Blocks that
// follow the same block in another way are a strand of their own, which hangs where the ways part. A strand knows its
// blocks' keys, the hashes that name them, and in segments which set of holders has which of them. A block never moves
// to another spot. 64 bytes, one cache line; readers read all of it atomically, and the version before and after.
type strand struct {
	version uint32 // odd while it changes
	parent  uint32 // the strand on which it hangs; 0: none
	extent  uint32 // its length in the lower 16 bits; above them the holder that began it, see begin
	used    uint32 // when it was last stored to or matched
	depth   uint32 // blocks of the chain before the first: they say after which block of the parent it hangs
	child   uint32 // its first child strand
	next    uint32 // its neighbours among its parent's children
	prev    uint32
	segs    [inlineSegments]uint64
	more    memory.List // all segments, if they are more than inlineSegments
	run     memory.Run  // keys and hashes of its blocks; a hash is written as veiled
}

const (
	inlineSegments = 2
	// fullStrand is the length from which on a strand is not added to: its keys and hashes would be moved too often.
	fullStrand   = 256
	strandLength = 1<<16 - 1 // the bits of strand.extent that are the length, and so the longest strand
	beganShift   = 16
	mostBegan    = 1<<(32-beganShift) - 1
)

// turn begins and ends a change of a strand: the version is odd in between.
func (s *strand) turn() { atomic.StoreUint32(&s.version, s.version+1) }

// length returns the number of blocks; 0: the strand is free, or new.
func (s *strand) length() uint32 { return atomic.LoadUint32(&s.extent) & strandLength }

// spot is a place on a strand: the strand's index and an offset of 16 bits. 0 is none.
type spot uint64

func spotOf(strand, offset uint32) spot { return spot(strand)<<16 | spot(offset) }

func (s spot) strand() uint32 { return uint32(s >> 16) }
func (s spot) offset() uint32 { return uint32(s & 0xffff) }

// entry returns the value of a spot in a table, see memory.Table.
func (s spot) entry() uint64 { return uint64(s) + 1 }

// segment of a strand: its blocks up to an end (exclusive), and the set of the holders that have these blocks.
type segment struct {
	end uint32
	set setID
}

func (g segment) word() uint64 { return uint64(g.end)<<32 | uint64(g.set) }

func segmentOf(w uint64) segment { return segment{uint32(w >> 32), setID(w)} }

// agree returns how many keys, from the first on, are the keys of a strand's blocks. A key determines all blocks before
// it: where one is equal, so are all before.
func agree(blocks []uint64, keys []block.Key) int {
	n := min(len(blocks), len(keys))
	if n == 0 || atomic.LoadUint64(&blocks[n-1]) == uint64(keys[n-1]) {
		return n
	}
	return sort.Search(n-1, func(i int) bool { return atomic.LoadUint64(&blocks[i]) != uint64(keys[i]) })
}
