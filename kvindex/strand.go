package kvindex

import (
	"sort"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex/internal/memory"
)

// strand is a run of consecutive blocks of a chain. It begins at the chain's root, or after a block of its parent
// strand. If a block has two continuations, at least one of them is a strand of its own. A strand has its blocks' keys,
// the engine hashes that name the blocks, and segments that say which set of holders has which blocks. A block stays at
// its place in its strand. A strand takes 64 bytes, one cache line. Readers read each field atomically, and check that
// the version is the same before and after.
type strand struct {
	version uint32 // odd while the strand changes
	parent  uint32 // the parent strand; 0: the strand begins a chain
	extent  uint32 // the number of blocks in the lower 16 bits; above them the owner, see blocks.own
	used    uint32 // the time of the last store or match, see Index.tick
	depth   uint32 // the number of blocks of the chain before the strand's first block
	child   uint32 // the first child strand; 0: none
	next    uint32 // the next child of the same parent; 0: none
	prev    uint32 // the previous child of the same parent; 0: none
	segs    [inlineSegments]uint64
	more    memory.List // all segments, if there are more than inlineSegments
	run     memory.Run  // for each block its key, and its engine hash XORed with blocks.veil; 0: no hash names the block
}

const (
	inlineSegments = 2
	// fullStrand bounds growth: a strand with this number of blocks or more gets no further blocks. If strands grew
	// longer, their keys and hashes would be moved too often.
	fullStrand   = 256
	strandLength = 1<<16 - 1              // the bits of strand.extent that have the number of blocks, and so the longest strand
	ownerShift   = 16                     // the place of the owner in strand.extent
	mostOwners   = 1<<(32-ownerShift) - 1 // holders from this id on own no strands
)

// flip is called at the beginning and at the end of a change of a strand: the version is odd between the two calls.
func (s *strand) flip() { atomic.StoreUint32(&s.version, s.version+1) }

// length returns the number of blocks. 0 means that the strand is free or new.
func (s *strand) length() uint32 { return atomic.LoadUint32(&s.extent) & strandLength }

// spot is the place of a block: the index of its strand, and its offset in the strand in the lower 16 bits. 0 means no
// block.
type spot uint64

func spotOf(strand, offset uint32) spot { return spot(strand)<<16 | spot(offset) }

func (s spot) strand() uint32 { return uint32(s >> 16) }
func (s spot) offset() uint32 { return uint32(s & 0xffff) }

// entry returns the value that a table has for a spot. A table's values begin at 1.
func (s spot) entry() uint64 { return uint64(s) + 1 }

// segment is a run of blocks of a strand that the same set of holders has. It begins where the segment before it ends.
// end is the offset after its last block.
type segment struct {
	end uint32
	set setID
}

func (g segment) word() uint64 { return uint64(g.end)<<32 | uint64(g.set) }

func segmentOf(w uint64) segment { return segment{uint32(w >> 32), setID(w)} }

// agree returns how many leading keys are equal to the keys of a strand's blocks. A key determines all blocks before
// its own: if a key is equal, all keys before it are equal.
func agree(blocks []uint64, keys []block.Key) int {
	n := min(len(blocks), len(keys))
	if n == 0 || atomic.LoadUint64(&blocks[n-1]) == uint64(keys[n-1]) {
		return n
	}
	return sort.Search(n-1, func(i int) bool { return atomic.LoadUint64(&blocks[i]) != uint64(keys[i]) })
}
