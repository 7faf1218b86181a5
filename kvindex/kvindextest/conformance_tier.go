package kvindextest

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex"
)

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
	{name: "a match takes each block from its best tier where the engine loads so", size: 16, run: func(r *rig) {
		a := words(1, 160)
		r.store(a, cut{Stored: kvindex.Stored{AnyTierOrder: true}})
		r.store(a, cut{from: 2, to: 5, Stored: kvindex.Stored{Tier: block.TierCPU, AnyTierOrder: true}})
		r.store(a, cut{from: 4, to: 6, Stored: kvindex.Stored{Tier: block.TierDisk, AnyTierOrder: true}})
		r.remove(a, cut{from: 3, to: 6})
		r.want(a, only(10))
		if m := r.matchOf(a); m.Tier != [block.NumTiers]uint32{7, 2, 1, 0} || m.Full != 10 {
			r.Errorf("%+v", m)
		}
		r.remove(a, cut{from: 4, to: 5, Stored: kvindex.Stored{Tier: block.TierCPU}})
		if m := r.matchOf(a); m.Tier != [block.NumTiers]uint32{7, 1, 2, 0} {
			r.Errorf("%+v", m)
		}
		r.remove(a, cut{from: 4, to: 5, Stored: kvindex.Stored{Tier: block.TierDisk}})
		r.want(a, only(4)) // the fifth block is on no tier
	}},
	{name: "groups take each block from their best tiers where the engine loads so", size: 16, run: func(r *rig) {
		a := words(1, 160)
		full := kvindex.Stored{AnyTierOrder: true}
		window := kvindex.Stored{AnyTierOrder: true, Group: 1, Attention: block.AttentionSlidingWindow, Window: 33}
		r.store(a, cut{Stored: full})
		r.store(a, cut{Stored: window})
		window.Tier, full.Tier = block.TierCPU, block.TierCPU
		r.store(a, cut{from: 6, to: 8, Stored: window})
		r.store(a, cut{from: 2, to: 4, Stored: full})
		r.remove(a, cut{from: 2, to: 4})
		r.remove(a, cut{from: 6, to: 8, Stored: kvindex.Stored{Group: 1}})
		r.want(a, only(10))
		if m := r.matchOf(a); m.Tier != [block.NumTiers]uint32{6, 4, 0, 0} {
			r.Errorf("%+v", m)
		}
	}},
	{name: "a match continues on a lower tier where a higher one has a hole", size: 16, run: func(r *rig) {
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
		r.store(a, cut{from: 4}) // the parent of the first of these blocks is the last block on the CPU tier
		r.want(a, only(4+0))     // after four blocks from the CPU tier a match cannot return to the GPU tier
		r.hint(a, cut{from: 4, to: 5, Stored: kvindex.Stored{Tier: block.TierCPU, RootUnknown: true}})
		r.want(a, only(5))
		r.Clear(0, block.TierCPU)
		r.want(a, nil)
	}},
	{name: "placeholders join through hashes that are known", size: 16, run: func(r *rig) {
		a := words(1, 96)
		hint := kvindex.Stored{Tier: block.TierCPU, RootUnknown: true}
		r.store(a, cut{to: 3})
		r.hint(a, cut{to: 6, Stored: hint})
		r.Clear(0, block.TierGPU)
		r.want(a, only(3))
		r.store(a, cut{from: 3}) // these tokens show the places of the last three hinted blocks
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
		r.store(a, cut{Stored: kvindex.Stored{Scope: block.Scope{Salt: "tenant"}}}) // with a salt the blocks have other hashes
		r.want(a, nil)
		r.store(a, cut{to: 1})
		r.want(a, only(6)) // the first block shows the beginning of the chain, and so the places of the blocks after it
		if m := r.matchOf(a); m.Tier[block.TierCPU] != 5 {
			r.Errorf("tiers %v", m.Tier)
		}
	}},
	{name: "offload events of salted prompts join the salted chain", size: 16, run: func(r *rig) {
		a := words(1, 48)
		salted := block.Scope{Salt: "tenant"}
		r.store(a, cut{Stored: kvindex.Stored{Scope: salted}})
		hashes := hashesOf(a, 16, "tenant")
		for i := 2; i >= 0; i-- { // children are announced before their parents
			s := &kvindex.Stored{Tier: block.TierCPU, RootUnknown: true, Hashes: hashes[i : i+1], Tokens: a[i*16 : i*16+16], BlockSize: 16}
			if i > 0 {
				s.Parent, s.HasParent = hashes[i-1], true
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
