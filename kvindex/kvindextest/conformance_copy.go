package kvindextest

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex"
)

var copyCases = []conformanceCase{
	{name: "a block stored twice is removed twice", size: 16, run: func(r *rig) {
		a, b := words(1, 48), append(words(1, 32), words(2, 16)...)
		r.store(a, cut{})
		r.store(b, cut{}) // computed at the same time as a: copies of the first two blocks, and another third block
		r.remove(a, cut{})
		r.want(b, only(3))
		r.remove(b, cut{})
		r.want(b, nil)
	}},
	{name: "a last block that is computed again is a copy", size: 16, run: func(r *rig) {
		a := words(1, 48)
		r.store(a, cut{})
		r.store(a, cut{from: 2})
		r.remove(a, cut{from: 2})
		r.want(a, only(3))
		r.remove(a, cut{from: 2})
		r.want(a, only(2))
	}},
	{name: "a report of what is there adds no copy", size: 16, run: func(r *rig) {
		a := words(1, 48)
		r.store(a, cut{})
		r.store(a, cut{to: 2})
		r.store(a, cut{})
		r.remove(a, cut{from: 1, to: 2})
		r.want(a, only(1))
	}},
	{name: "a report adds blocks that were not known", size: 16, run: func(r *rig) {
		a := words(1, 80)
		r.store(a, cut{from: 3}) // these blocks wait, because their parent is not known
		r.store(a, cut{})
		r.want(a, only(5))
		r.remove(a, cut{from: 4})
		r.want(a, only(4))
	}},
	{name: "an origin in the event decides between copy and report", size: 16, run: func(r *rig) {
		a := words(1, 32)
		r.store(a, cut{})
		r.store(a, cut{Stored: kvindex.Stored{Origin: kvindex.OriginNew}})
		r.store(a, cut{from: 1, Stored: kvindex.Stored{Origin: kvindex.OriginReused}})
		r.remove(a, cut{})
		r.want(a, only(2))
		r.remove(a, cut{})
		r.want(a, nil)
	}},
	{name: "copies are counted for each tier and group", size: 16, run: func(r *rig) {
		a := words(1, 32)
		cpu := kvindex.Stored{Tier: block.TierCPU}
		r.store(a, cut{})
		r.store(a, cut{Stored: cpu})
		r.remove(a, cut{})
		r.want(a, only(2))
		r.remove(a, cut{Stored: cpu})
		r.want(a, nil)
	}},
	{name: "offloaded chunks that share blocks are counted", size: 16, run: func(r *rig) {
		a, b := words(1, 32), append(words(1, 16), words(2, 16)...)
		r.store(a, cut{})
		r.store(b, cut{from: 1})
		off := kvindex.Stored{Tier: block.TierCPU, RootUnknown: true}
		r.store(a, cut{Stored: off})
		r.store(b, cut{Stored: off})
		r.Clear(0, block.TierGPU)
		r.remove(a, cut{Stored: off})
		r.want(b, only(2))
		r.remove(b, cut{Stored: off})
		r.want(b, nil)
	}},
}

var cutCases = []conformanceCase{
	{name: "llm-d: blocks of 64 from engine blocks of 16, 80 then 176 tokens", size: 64, run: func(r *rig) {
		a := words(1, 256)
		r.store(a, cut{size: 16, to: 5})
		r.want(a, only(1))
		r.store(a, cut{size: 16, from: 5})
		r.want(a, only(4))
		r.remove(a, cut{size: 16, from: 4, to: 5})
		r.want(a, only(1))
		r.store(a, cut{size: 16, from: 4, to: 5})
		r.want(a, only(4))
	}},
	{name: "llm-d: pages of one token, one an event", size: 16, run: func(r *rig) {
		a := words(1, 64)
		for i := range a {
			r.store(a, cut{size: 1, from: i, to: i + 1})
		}
		r.want(a, only(4))
		r.remove(a, cut{size: 1, from: 20, to: 21})
		r.want(a, only(1))
	}},
	{name: "engine blocks that are bigger", size: 16, run: func(r *rig) {
		a := words(1, 256)
		r.store(a, cut{size: 64})
		r.want(a, only(16))
		r.want(a[:100], only(6))
		r.remove(a, cut{size: 64, from: 2, to: 3})
		r.want(a, only(8))
	}},
	{name: "engine blocks that are no multiple", size: 16, run: func(r *rig) {
		a := words(1, 240)
		r.store(a, cut{size: 24, to: 3})
		r.want(a, only(4)) // 72 tokens are four whole blocks
		r.store(a, cut{size: 24, from: 3})
		r.want(a, only(15))
		r.remove(a, cut{size: 24, from: 1, to: 2}) // tokens 24..48: half of the second block, and the third block
		r.want(a, only(1))
		r.store(a, cut{size: 24, from: 1, to: 2})
		r.want(a, only(15))
	}},
	{name: "sizes that vary in one stream", size: 16, run: func(r *rig) {
		a := words(1, 128)
		// An engine block's hash depends only on the tokens up to its end, not on the sizes of the blocks.
		at := func(n int) uint64 { return hashesOf(a, 1, "")[n-1] }
		for from, to := 0, 0; to < 128; from = to {
			to = min(128, to+[]int{8, 40, 4, 12, 64}[to%5])
			r.Store(0, &kvindex.Stored{
				Hashes: []uint64{at(to)}, Tokens: a[from:to], BlockSize: to - from,
				HasParent: from > 0, Parent: at(max(from, 1)),
			})
			r.want(a, only(uint32(to/16)))
		}
	}},
	{name: "a partial head has several continuations", size: 16, run: func(r *rig) {
		a := words(1, 32)
		b := append(append([]block.Token(nil), a[:24]...), words(2, 8)...)
		r.store(a, cut{size: 8})
		r.store(b, cut{size: 8, from: 3})
		r.want(a, only(2))
		r.want(b, only(2))
		r.remove(a, cut{size: 8, from: 2, to: 3}) // both texts need this partial block
		r.want(a, only(1))
		r.want(b, only(1))
		r.store(a, cut{size: 8, from: 2, to: 3})
		r.want(a, only(2))
		r.want(b, only(2))
	}},
	{name: "a block in two cuts is held while either covers it", size: 16, run: func(r *rig) {
		a := words(1, 16)
		r.store(a, cut{size: 16, Stored: kvindex.Stored{Origin: kvindex.OriginNew}})
		r.Store(0, &kvindex.Stored{Hashes: []uint64{1, 2}, Tokens: a, BlockSize: 8})
		r.remove(a, cut{size: 16})
		r.want(a, only(1))
		r.Remove(0, 0, 0, []uint64{1})
		r.want(a, nil)
	}},
	{name: "overlapping parts add up to a block only if they cover it", size: 16, run: func(r *rig) {
		a := words(1, 16)
		r.Store(0, &kvindex.Stored{Hashes: []uint64{1, 2, 3, 4}, Tokens: a, BlockSize: 4})
		r.Store(0, &kvindex.Stored{Hashes: []uint64{11, 12}, Tokens: a, BlockSize: 8, Origin: kvindex.OriginNew})
		r.Remove(0, 0, 0, []uint64{3, 12})
		r.want(a, nil) // no part has tokens 8..12, although the parts have 20 tokens together
	}},
	{name: "a coarse block is named by its last fine hash", size: 4, run: func(r *rig) {
		// As vLLM with groups of block sizes 8 and 4: both groups use the same hashes, for blocks of different sizes.
		a := words(1, 16)
		fine := hashesOf(a, 4, "")
		r.Store(0, &kvindex.Stored{Group: 0, Hashes: []uint64{fine[1], fine[3]}, Tokens: a, BlockSize: 8})
		r.want(a, only(4))
		r.Store(0, &kvindex.Stored{Group: 1, Hashes: fine, Tokens: a, BlockSize: 4})
		r.want(a, only(4))
		r.Remove(0, 0, 1, fine[2:3])
		r.want(a, only(2))
	}},
}
