package kvindextest

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

var chainCases = []conformanceCase{
	{name: "a request matches the leading blocks it shares", size: 16, learned: true, run: func(r *rig) {
		a := words(1, 160)
		r.store(a, cut{})
		r.store(a[:64], cut{holder: 1})
		b := append(append([]block.Token(nil), a[:100]...), words(2, 60)...)
		r.want(a, map[fleet.Holder]uint32{0: 10, 1: 4})
		r.want(b, map[fleet.Holder]uint32{0: 6, 1: 4})
		r.want(a[:15], nil)
		r.want(words(3, 160), nil)
	}},
	{name: "a chain grows through its parent", size: 16, learned: true, run: func(r *rig) {
		a := words(1, 160)
		for i := range 10 {
			r.store(a, cut{from: i, to: i + 1})
			r.want(a, only(uint32(i+1)))
		}
	}},
	{name: "scopes are kept apart", size: 16, learned: true, run: func(r *rig) {
		a := words(1, 64)
		r.store(a, cut{Stored: kvindex.Stored{Scope: block.Scope{Salt: "s"}}})
		r.store(a, cut{holder: 1, Stored: kvindex.Stored{Scope: block.Scope{LoRA: "l"}}})
		r.want(a, nil)
		r.wantOf(r.keys(a, block.Scope{Salt: "s"}), only(4))
		r.wantOf(r.keys(a, block.Scope{LoRA: "l"}), map[fleet.Holder]uint32{1: 4})
	}},
	{name: "an image changes the keys from its offset on, however the blocks are cut into events", size: 16, run: func(r *rig) {
		a := words(1, 96)
		image, clip := block.Feature{ID: "image", Offset: 20}, block.Feature{ID: "clip", Offset: 79}
		r.store(a, cut{size: 32, to: 1, Stored: kvindex.Stored{Features: []block.Feature{image}}})
		r.store(a, cut{size: 32, from: 1, Stored: kvindex.Stored{Features: []block.Feature{{ID: "image", Offset: -12}, {ID: "clip", Offset: 47}}}})
		r.wantOf(r.keys(a, block.Scope{}, image, clip), only(6))
		r.wantOf(r.keys(a, block.Scope{}, image), only(4))
		r.want(a, only(1))
	}},
	{name: "an image in a partial head counts when the block is completed", size: 16, run: func(r *rig) {
		a := words(1, 48)
		image := block.Feature{ID: "image", Offset: 20}
		r.store(a, cut{size: 8, to: 3, Stored: kvindex.Stored{Features: []block.Feature{image}}})
		r.store(a, cut{size: 8, from: 3})
		r.wantOf(r.keys(a, block.Scope{}, image), only(3))
		r.want(a, only(1))
	}},
	{name: "llm-d: a child whose parent was lost counts when the parent comes again", size: 16, run: func(r *rig) {
		a := words(1, 128)
		r.store(a, cut{from: 4})
		r.want(a, nil)
		r.store(a, cut{to: 4})
		r.want(a, only(8))
		if w := r.Stats().Waiting; w != 0 {
			r.Errorf("%d still wait", w)
		}
	}},
	{name: "a chain that arrives backwards is joined", size: 16, run: func(r *rig) {
		a := words(1, 160)
		for i := 9; i >= 0; i-- {
			r.want(a, nil)
			r.store(a, cut{from: i, to: i + 1})
		}
		r.want(a, only(10))
	}},
	{name: "an announcement that begins a chain knows the place of a block better than the parent it waits for", size: 4, run: func(r *rig) {
		a := words(1, 8)
		r.Store(0, &kvindex.Stored{HasParent: true, Parent: 40, Hashes: []uint64{50, 11}, Tokens: words(2, 8), BlockSize: 4})
		r.Store(1, &kvindex.Stored{Hashes: []uint64{50, 31}, Tokens: a, BlockSize: 4}) // the second block has another hash than at holder 0
		r.Store(0, &kvindex.Stored{Tier: block.TierDisk, Hashes: []uint64{50, 11}, Tokens: a, BlockSize: 4})
		if all := r.Match(r.keys(a, block.Scope{}), nil); len(all) != 2 || all[0].Tier != [block.NumTiers]uint32{2} {
			r.Errorf("matches %+v", all)
		}
	}},
	{name: "waiting blocks can be removed, copy by copy", size: 16, run: func(r *rig) {
		a := words(1, 64)
		r.store(a, cut{from: 1, to: 2})
		r.store(a, cut{from: 1, to: 2})
		r.store(a, cut{from: 2, to: 3})
		r.remove(a, cut{from: 1, to: 3})
		r.store(a, cut{to: 1})
		r.want(a, only(2))
	}},
	{name: "a hole ends the match, and the tail counts again when it is filled", size: 16, run: func(r *rig) {
		a := words(1, 160)
		r.store(a, cut{})
		r.remove(a, cut{from: 3, to: 5})
		r.want(a, only(3))
		r.store(a, cut{from: 3, to: 4})
		r.want(a, only(4))
		r.store(a, cut{from: 4, to: 5})
		r.want(a, only(10))
	}},
	{name: "the key of a removed parent is known while children live", size: 16, run: func(r *rig) {
		a := words(1, 160)
		r.store(a, cut{to: 6})
		r.remove(a, cut{to: 5})
		r.want(a, nil)
		r.store(a, cut{from: 6})        // children of block 5, which is still stored
		r.store(a, cut{from: 4, to: 5}) // block 4, whose parent is removed
		r.hint(a, cut{from: 3, to: 4})  // block 3 without its tokens: the index knows its place by the hash
		r.store(a, cut{from: 0, to: 3}) // the remaining blocks
		r.want(a, only(10))
	}},
	{name: "removed blocks leave nothing", size: 16, run: func(r *rig) {
		a := words(1, 160)
		for range 3 {
			r.store(a, cut{})
			r.remove(a, cut{to: 5}) // these parents are removed before their children
			r.remove(a, cut{from: 5})
		}
		if s := r.Stats(); s.Hashes != 0 || s.Blocks != 0 || s.Memberships != 0 {
			r.Errorf("kept %+v", s)
		}
	}},
	{name: "removals of unknown blocks mean nothing", size: 16, run: func(r *rig) {
		a, b := words(1, 64), words(2, 64)
		r.remove(a, cut{})
		r.store(a, cut{})
		r.remove(b, cut{})
		r.remove(a, cut{Stored: kvindex.Stored{Tier: block.TierCPU}})
		r.remove(a, cut{Stored: kvindex.Stored{Group: 7}})
		r.remove(a, cut{holder: 1})
		r.want(a, only(4))
	}},
	{name: "engine hashes are each holder's own", size: 16, run: func(r *rig) {
		a, b := words(1, 16), words(2, 16)
		r.Store(0, &kvindex.Stored{Hashes: []uint64{7}, Tokens: a, BlockSize: 16})
		r.Store(1, &kvindex.Stored{Hashes: []uint64{7}, Tokens: b, BlockSize: 16})
		r.want(a, only(1))
		r.want(b, map[fleet.Holder]uint32{1: 1})
		r.Remove(0, 0, 0, []uint64{7})
		r.want(b, map[fleet.Holder]uint32{1: 1})
	}},
	{name: "hashes of any 64 bits", size: 16, run: func(r *rig) {
		a := words(1, 64)
		hashes := []uint64{1<<64 - 5, 0, 1 << 63, 1}
		r.Store(0, &kvindex.Stored{Hashes: hashes, Tokens: a, BlockSize: 16})
		r.want(a, only(4))
		r.Remove(0, 0, 0, hashes[1:2])
		r.want(a, only(1))
	}},
	{name: "a hash that comes to name other tokens names nothing else", size: 16, run: func(r *rig) {
		a, b := words(1, 16), words(2, 16)
		r.Store(0, &kvindex.Stored{Hashes: []uint64{7}, Tokens: a, BlockSize: 16})
		r.Store(0, &kvindex.Stored{Hashes: []uint64{7}, Tokens: b, BlockSize: 16})
		r.want(a, nil)
		r.want(b, only(1))
		r.Remove(0, 0, 0, []uint64{7})
		r.want(b, nil)
	}},
	{name: "llm-d: the same prefix on 64 holders", size: 16, learned: true, run: func(r *rig) {
		a := words(1, 64)
		want := map[fleet.Holder]uint32{}
		for h := range fleet.Holder(64) {
			r.store(a, cut{holder: (h * 37) % 64})
			want[h] = 4
		}
		r.want(a, want)
	}},
	{name: "a forgotten holder has nothing, and its later blocks count", size: 16, learned: true, run: func(r *rig) {
		a := words(1, 160)
		r.store(a, cut{})
		r.store(a[:64], cut{holder: 1})
		for range 3 {
			r.Forget(0)
			r.want(a, map[fleet.Holder]uint32{1: 4})
			r.store(a[:96], cut{})
			r.want(a, map[fleet.Holder]uint32{0: 6, 1: 4})
		}
	}},
	{name: "llm-d: an index that gets the same history answers the same", size: 16, run: func(r *rig) {
		again := newRig(r.T, func(*block.Hasher, kvindex.Config) *Door { return r.Door }, 16, kvindex.Config{})
		a, b := words(1, 160), append(words(1, 80), words(2, 80)...)
		for range 2 { // the second round begins after the holder was forgotten
			again.store(a, cut{})
			again.store(b, cut{from: 5})
			again.remove(a, cut{from: 8})
			again.want(a, only(8))
			again.want(b, only(10))
			again.Forget(0)
			again.want(a, nil)
		}
	}},
}
