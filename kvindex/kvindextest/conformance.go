package kvindextest

import (
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// Conformance checks what any index has to keep, promise by promise. The eight defects of facts/llm-d.md §3.4 are
// among them as far as they are an index's (marked "llm-d"); the two that are a decoder's are in the tests of
// kvindex that replay payloads.
func Conformance(t *testing.T, make Maker) {
	for _, c := range conformance {
		t.Run(c.name, func(t *testing.T) { c.run(newRig(t, make, c.size, c.config)) })
	}
}

type conformanceCase struct {
	name   string
	size   int
	config kvindex.Config
	run    func(r *rig)
}

var conformance = concat(chainCases, copyCases, cutCases, tierCases, groupCases, beliefCases, boundCases)

func concat(lists ...[]conformanceCase) (all []conformanceCase) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

var (
	full    = kvindex.Stored{}
	unknown = kvindex.Stored{RootUnknown: true}
)

var chainCases = []conformanceCase{
	{name: "a request matches the leading blocks it shares", size: 16, run: func(r *rig) {
		a := words(1, 160)
		r.store(a, cut{})
		r.store(a[:64], cut{holder: 1})
		b := append(append([]block.Token(nil), a[:100]...), words(2, 60)...)
		r.want(a, map[fleet.Holder]uint32{0: 10, 1: 4})
		r.want(b, map[fleet.Holder]uint32{0: 6, 1: 4})
		r.want(a[:15], nil)
		r.want(words(3, 160), nil)
	}},
	{name: "a chain grows through its parent", size: 16, run: func(r *rig) {
		a := words(1, 160)
		for i := range 10 {
			r.store(a, cut{from: i, to: i + 1})
			r.want(a, only(uint32(i+1)))
		}
	}},
	{name: "scopes are kept apart", size: 16, run: func(r *rig) {
		a := words(1, 64)
		r.store(a, cut{Stored: kvindex.Stored{Scope: block.Scope{Salt: "s"}}})
		r.store(a, cut{holder: 1, Stored: kvindex.Stored{Scope: block.Scope{LoRA: "l"}}})
		r.want(a, nil)
		r.wantOf(r.keys(a, block.Scope{Salt: "s"}), only(4))
		r.wantOf(r.keys(a, block.Scope{LoRA: "l"}), map[fleet.Holder]uint32{1: 4})
	}},
	{name: "images are folded in where they begin, however the event was cut", size: 16, run: func(r *rig) {
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
	{name: "what waits can be removed, copy by copy", size: 16, run: func(r *rig) {
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
		r.store(a, cut{from: 6})        // a child of a block that is there
		r.store(a, cut{from: 4, to: 5}) // a block whose parent is gone
		r.hint(a, cut{from: 3, to: 4})  // known by its handle
		r.store(a, cut{from: 0, to: 3}) // the rest
		r.want(a, only(10))
	}},
	{name: "nothing is kept of what is gone", size: 16, run: func(r *rig) {
		a := words(1, 160)
		for range 3 {
			r.store(a, cut{})
			r.remove(a, cut{to: 5}) // parents first
			r.remove(a, cut{from: 5})
		}
		if s := r.Stats(); s.Handles != 0 || s.Blocks != 0 || s.Memberships != 0 {
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
	{name: "handles are each holder's own", size: 16, run: func(r *rig) {
		a, b := words(1, 16), words(2, 16)
		r.Store(0, &kvindex.Stored{Handles: []uint64{7}, Tokens: a, BlockSize: 16})
		r.Store(1, &kvindex.Stored{Handles: []uint64{7}, Tokens: b, BlockSize: 16})
		r.want(a, only(1))
		r.want(b, map[fleet.Holder]uint32{1: 1})
		r.Remove(0, 0, 0, []uint64{7})
		r.want(b, map[fleet.Holder]uint32{1: 1})
	}},
	{name: "handles of any 64 bits", size: 16, run: func(r *rig) {
		a := words(1, 64)
		handles := []uint64{1<<64 - 5, 0, 1 << 63, 1}
		r.Store(0, &kvindex.Stored{Handles: handles, Tokens: a, BlockSize: 16})
		r.want(a, only(4))
		r.Remove(0, 0, 0, handles[1:2])
		r.want(a, only(1))
	}},
	{name: "a handle that comes to name other tokens names nothing else", size: 16, run: func(r *rig) {
		a, b := words(1, 16), words(2, 16)
		r.Store(0, &kvindex.Stored{Handles: []uint64{7}, Tokens: a, BlockSize: 16})
		r.Store(0, &kvindex.Stored{Handles: []uint64{7}, Tokens: b, BlockSize: 16})
		r.want(a, nil)
		r.want(b, only(1))
		r.Remove(0, 0, 0, []uint64{7})
		r.want(b, nil)
	}},
	{name: "llm-d: the same prefix on 64 holders", size: 16, run: func(r *rig) {
		a := words(1, 64)
		want := map[fleet.Holder]uint32{}
		for h := range fleet.Holder(64) {
			r.store(a, cut{holder: (h * 37) % 64})
			want[h] = 4
		}
		r.want(a, want)
	}},
	{name: "llm-d: a new index that hears the history answers as the old one", size: 16, run: func(r *rig) {
		again := newRig(r.T, func(*block.Hasher, kvindex.Config) *Door { return r.Door }, 16, kvindex.Config{})
		a, b := words(1, 160), append(words(1, 80), words(2, 80)...)
		for range 2 { // the second time after it forgot
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

var copyCases = []conformanceCase{
	{name: "a block stored twice is removed twice", size: 16, run: func(r *rig) {
		a, b := words(1, 48), append(words(1, 32), words(2, 16)...)
		r.store(a, cut{})
		r.store(b, cut{}) // computed at the same time, ends with a block of its own
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
	{name: "a report teaches what was not known", size: 16, run: func(r *rig) {
		a := words(1, 80)
		r.store(a, cut{from: 3}) // the parent is not known
		r.store(a, cut{})
		r.want(a, only(5))
		r.remove(a, cut{from: 4})
		r.want(a, only(4))
	}},
	{name: "origins that the wire tells are believed", size: 16, run: func(r *rig) {
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
		r.want(a, only(4)) // 72 tokens
		r.store(a, cut{size: 24, from: 3})
		r.want(a, only(15))
		r.remove(a, cut{size: 24, from: 1, to: 2}) // tokens 24..48: half of the second block and the third
		r.want(a, only(1))
		r.store(a, cut{size: 24, from: 1, to: 2})
		r.want(a, only(15))
	}},
	{name: "sizes that vary in one stream", size: 16, run: func(r *rig) {
		a := words(1, 128)
		// The handles of one text cut in any way are the engine's hashes of its beginnings.
		at := func(n int) uint64 { return handlesOf(a, 1, "")[n-1] }
		for from, to := 0, 0; to < 128; from = to {
			to = min(128, to+[]int{8, 40, 4, 12, 64}[to%5])
			r.Store(0, &kvindex.Stored{
				Handles: []uint64{at(to)}, Tokens: a[from:to], BlockSize: to - from,
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
		r.remove(a, cut{size: 8, from: 2, to: 3}) // the head of both
		r.want(a, only(1))
		r.want(b, only(1))
		r.store(a, cut{size: 8, from: 2, to: 3})
		r.want(a, only(2))
		r.want(b, only(2))
	}},
	{name: "a block in two cuts is held while either covers it", size: 16, run: func(r *rig) {
		a := words(1, 16)
		r.store(a, cut{size: 16, Stored: kvindex.Stored{Origin: kvindex.OriginNew}})
		r.Store(0, &kvindex.Stored{Handles: []uint64{1, 2}, Tokens: a, BlockSize: 8})
		r.remove(a, cut{size: 16})
		r.want(a, only(1))
		r.Remove(0, 0, 0, []uint64{1})
		r.want(a, nil)
	}},
	{name: "overlapping parts add up to a block only if they cover it", size: 16, run: func(r *rig) {
		a := words(1, 16)
		r.Store(0, &kvindex.Stored{Handles: []uint64{1, 2, 3, 4}, Tokens: a, BlockSize: 4})
		r.Store(0, &kvindex.Stored{Handles: []uint64{11, 12}, Tokens: a, BlockSize: 8, Origin: kvindex.OriginNew})
		r.Remove(0, 0, 0, []uint64{3, 12})
		r.want(a, nil) // 0..12 twice, 12..16 once: as many tokens as a block
	}},
	{name: "a coarse block is named by its last fine hash", size: 4, run: func(r *rig) {
		// vLLM with groups of block size 8 and 4: the same hashes in both, of other lengths.
		a := words(1, 16)
		fine := handlesOf(a, 4, "")
		r.Store(0, &kvindex.Stored{Group: 0, Handles: []uint64{fine[1], fine[3]}, Tokens: a, BlockSize: 8})
		r.want(a, only(4))
		r.Store(0, &kvindex.Stored{Group: 1, Handles: fine, Tokens: a, BlockSize: 4})
		r.want(a, only(4))
		r.Remove(0, 0, 1, fine[2:3])
		r.want(a, only(2))
	}},
}

var tierCases = []conformanceCase{
	{name: "a match descends the tiers and never climbs back", size: 16, run: func(r *rig) {
		a := words(1, 160)
		r.store(a, cut{})
		r.store(a, cut{from: 0, to: 8, Stored: kvindex.Stored{Tier: block.TierCPU}})
		r.remove(a, cut{from: 3, to: 5})
		r.want(a, only(8))
		if m := r.matchOf(a); m.Tier != [block.NumTiers]uint32{3, 5, 0, 0} {
			r.Errorf("tiers %v", m.Tier)
		}
		r.store(a, cut{from: 8, Stored: kvindex.Stored{Tier: block.TierDisk}})
		if m := r.matchOf(a); m.Tier != [block.NumTiers]uint32{3, 5, 2, 0} {
			r.Errorf("tiers %v", m.Tier)
		}
	}},
	{name: "a lower tier is reached over what is missing", size: 16, run: func(r *rig) {
		a := words(1, 64)
		r.store(a, cut{Stored: kvindex.Stored{Tier: block.TierRemote}})
		if m := r.matchOf(a); m.Tier != [block.NumTiers]uint32{0, 0, 0, 4} {
			r.Errorf("tiers %v", m.Tier)
		}
	}},
	{name: "clearing a tier leaves the others alive and known", size: 16, run: func(r *rig) {
		a := words(1, 160)
		cpu := kvindex.Stored{Tier: block.TierCPU}
		r.store(a, cut{to: 6})
		r.store(a, cut{to: 4, Stored: cpu})
		r.Clear(0, block.TierGPU)
		r.want(a, only(4))
		r.store(a, cut{from: 4}) // the handle of the CPU's last block is its parent
		r.want(a, only(4+0))     // but the GPU has none of the first: the match has descended
		r.hint(a, cut{from: 4, to: 5, Stored: kvindex.Stored{Tier: block.TierCPU, RootUnknown: true}})
		r.want(a, only(5))
		r.Clear(0, block.TierCPU)
		r.want(a, nil)
	}},
	{name: "placeholders join through handles that are known", size: 16, run: func(r *rig) {
		a := words(1, 96)
		hint := kvindex.Stored{Tier: block.TierCPU, RootUnknown: true}
		r.store(a, cut{to: 3})
		r.hint(a, cut{to: 6, Stored: hint})
		r.Clear(0, block.TierGPU)
		r.want(a, only(3))
		r.store(a, cut{from: 3}) // the others become known afterwards
		r.want(a, only(6))
		if m := r.matchOf(a); m.Tier != [block.NumTiers]uint32{0, 6, 0, 0} {
			r.Errorf("tiers %v", m.Tier)
		}
		r.remove(a, cut{from: 5, Stored: hint})
		r.want(a, only(5))
	}},
	{name: "offload events never begin a chain", size: 16, run: func(r *rig) {
		a := words(1, 96)
		off := kvindex.Stored{Tier: block.TierCPU, RootUnknown: true}
		r.store(a, cut{Stored: off})
		r.want(a, nil)
		r.store(a, cut{Stored: kvindex.Stored{Scope: block.Scope{Salt: "tenant"}}}) // other hashes
		r.want(a, nil)
		r.store(a, cut{to: 1})
		r.want(a, only(6)) // the first is known now, and the others are its descendants
		if m := r.matchOf(a); m.Tier[block.TierCPU] != 5 {
			r.Errorf("tiers %v", m.Tier)
		}
	}},
	{name: "offload events of salted prompts join the salted chain", size: 16, run: func(r *rig) {
		a := words(1, 48)
		salted := block.Scope{Salt: "tenant"}
		r.store(a, cut{Stored: kvindex.Stored{Scope: salted}})
		handles := handlesOf(a, 16, "tenant")
		for i := 2; i >= 0; i-- { // children before parents
			s := &kvindex.Stored{Tier: block.TierCPU, RootUnknown: true, Handles: handles[i : i+1], Tokens: a[i*16 : i*16+16], BlockSize: 16}
			if i > 0 {
				s.Parent, s.HasParent = handles[i-1], true
			}
			r.Store(0, s)
		}
		r.Clear(0, block.TierGPU)
		r.want(a, nil)
		r.wantOf(r.keys(a, salted), only(3))
	}},
	{name: "a chunk that is named by its last block covers its size", size: 16, run: func(r *rig) {
		a := words(1, 128)
		r.store(a, cut{})
		for _, last := range []int{3, 7} {
			r.hint(a, cut{from: last, to: last + 1, Stored: kvindex.Stored{Tier: block.TierCPU, RootUnknown: true, BlockSize: 64}})
		}
		r.Clear(0, block.TierGPU)
		r.want(a, only(8))
	}},
}

var (
	window   = kvindex.Stored{Group: 0, Attention: block.AttentionSlidingWindow, Window: 128}
	fullTwo  = kvindex.Stored{Group: 1}
	state    = kvindex.Stored{Group: 0, Attention: block.AttentionStateSpace}
	otherOne = kvindex.Stored{Group: 0, Attention: block.AttentionOther}
)

// hybrid announces a text as vLLM does for models with sliding windows: the window's group first, its last blocks only,
// without the tokens that would align with them.
func (r *rig) hybrid(a []block.Token, blocks int) {
	w := window
	w.RootUnknown, w.BlockSize = true, 32
	r.hint(a, cut{size: 32, from: max(0, blocks-4), to: blocks, Stored: w})
	r.store(a, cut{size: 32, to: blocks, Stored: fullTwo})
}

var groupCases = []conformanceCase{
	{name: "a sliding window makes a prefix usable where its last window is there", size: 32, run: func(r *rig) {
		a := words(1, 480)
		r.hybrid(a, 15)
		r.want(a, only(15))
		r.want(a[:192], nil) // the window before the cut is gone
		if m := r.matchOf(a[:192]); m.Full != 6 {
			r.Errorf("full attention claims %d", m.Full)
		}
		r.hybrid(a, 6)
		r.want(a[:192], only(6))
		r.want(a[:320], only(6))
		w := window
		r.remove(a, cut{size: 32, from: 14, to: 15, Stored: w})
		r.want(a, only(6))
	}},
	{name: "a prefix shorter than the window needs all of its blocks", size: 32, run: func(r *rig) {
		a := words(1, 64)
		r.hybrid(a, 2)
		r.want(a, only(2))
		w := window
		r.remove(a, cut{size: 32, to: 1, Stored: w})
		r.want(a, nil)
	}},
	{name: "a group that keeps nothing still has a say", size: 32, run: func(r *rig) {
		a := words(1, 2048)
		r.Store(0, &kvindex.Stored{Attention: block.AttentionSlidingWindow, Window: 128, BlockSize: 32, Tokens: a})
		r.store(a, cut{Stored: fullTwo})
		r.want(a, nil)
	}},
	{name: "windows alone prove what aligns with tokens", size: 32, run: func(r *rig) {
		a := words(1, 480)
		w := window
		w.RootUnknown, w.BlockSize = true, 32
		r.hint(a, cut{size: 32, from: 11, Stored: w}) // which of the tokens is not told
		r.want(a, nil)
		b := words(2, 128)
		r.store(b, cut{Stored: window})
		r.want(b, only(4))
		r.want(b[:64], only(2))
		r.remove(b, cut{to: 1, Stored: window})
		r.want(b, nil)
		c := words(3, 192)
		r.store(c, cut{Stored: window})
		r.remove(c, cut{to: 2, Stored: window}) // out of the window
		r.want(c, only(6))
		r.want(c[:160], nil)
	}},
	{name: "a window of engine blocks bigger than ours ends where they end", size: 16, run: func(r *rig) {
		a := words(1, 256)
		w := kvindex.Stored{Attention: block.AttentionSlidingWindow, Window: 33}
		r.store(a, cut{size: 32, Stored: w})
		r.store(a, cut{size: 32, Stored: fullTwo})
		r.want(a, only(16))
		r.want(a[:80], only(4)) // 80 tokens hold two blocks of the engine
	}},
	{name: "a state-space group needs a checkpoint at the end", size: 16, run: func(r *rig) {
		a := words(1, 160)
		s := state
		s.RootUnknown, s.BlockSize = true, 16
		r.store(a, cut{Stored: fullTwo})
		r.want(a, only(10)) // no such group is known yet
		r.hint(a, cut{from: 3, to: 4, Stored: s})
		r.hint(a, cut{from: 7, to: 8, Stored: s})
		r.want(a, only(8))
		r.want(a[:112], only(4))
		r.want(a[:48], nil)
		r.remove(a, cut{from: 7, to: 8, Stored: s})
		r.want(a, only(4))
	}},
	{name: "a checkpoint of a big block says nothing of what is inside", size: 16, run: func(r *rig) {
		a := words(1, 128)
		r.store(a, cut{Stored: fullTwo})
		r.store(a, cut{size: 64, Stored: state})
		r.want(a, only(8))
		r.want(a[:96], only(4))
		r.want(a[:48], nil)
	}},
	{name: "other groups prove nothing", size: 16, run: func(r *rig) {
		a := words(1, 64)
		r.store(a, cut{Stored: fullTwo})
		r.store(a, cut{Stored: otherOne})
		r.want(a, nil)
		if m := r.matchOf(a); m.Full != 4 {
			r.Errorf("full attention claims %d", m.Full)
		}
	}},
	{name: "a window of unknown width proves nothing", size: 16, run: func(r *rig) {
		a := words(1, 64)
		r.store(a, cut{Stored: fullTwo})
		r.store(a, cut{Stored: kvindex.Stored{Attention: block.AttentionSlidingWindow}})
		r.want(a, nil)
	}},
	{name: "groups without a kind must all have a block", size: 16, run: func(r *rig) {
		a := words(1, 64)
		r.store(a, cut{})
		r.hint(a, cut{from: 2, Stored: kvindex.Stored{Group: 1, RootUnknown: true, BlockSize: 16}}) // the first two left out
		r.want(a, nil)
		r.store(a, cut{to: 3, Stored: kvindex.Stored{Group: 1}})
		r.want(a, only(4))
	}},
	{name: "a kind that is told late counts from then on", size: 16, run: func(r *rig) {
		a := words(1, 64)
		r.store(a, cut{Stored: fullTwo})
		r.hint(a, cut{from: 3, Stored: kvindex.Stored{RootUnknown: true}})
		r.want(a, nil)
		r.Store(0, &kvindex.Stored{Attention: block.AttentionStateSpace})
		r.want(a, only(4))
	}},
	{name: "too many groups prove nothing", size: 16, run: func(r *rig) {
		a := words(1, 64)
		for g := range kvindex.MaxGroups + 1 {
			r.store(a, cut{Stored: kvindex.Stored{Group: g}})
		}
		r.want(a, nil)
	}},
	{name: "each tier needs all groups", size: 32, run: func(r *rig) {
		a := words(1, 256)
		r.hybrid(a, 8)
		r.store(a, cut{Stored: kvindex.Stored{Group: 1, Tier: block.TierCPU}})
		r.Clear(0, block.TierGPU)
		r.want(a, nil) // the window's group has nothing on this tier
		r.hint(a, cut{from: 4, Stored: kvindex.Stored{Attention: block.AttentionSlidingWindow, Window: 128, Tier: block.TierCPU, RootUnknown: true}})
		r.want(a, only(8))
	}},
	{name: "the last block of pairs is not provable", size: 16, run: func(r *rig) {
		a := words(1, 64)
		r.store(a, cut{Stored: kvindex.Stored{Bigram: true}})
		r.want(a, only(3))
		r.want(a[:16], nil)
	}},
}
