package kvindextest

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex"
)

var (
	window   = kvindex.Stored{Group: 0, Attention: block.AttentionSlidingWindow, Window: 128}
	fullTwo  = kvindex.Stored{Group: 1}
	state    = kvindex.Stored{Group: 0, Attention: block.AttentionStateSpace}
	otherOne = kvindex.Stored{Group: 0, Attention: block.AttentionOther}
)

// hybrid announces a text as vLLM does for models with sliding windows. The event of the window's group comes first.
// This event has only the hashes of the last blocks of the text, and no tokens.
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
		r.want(a[:192], nil) // the window before token 192 is not cached any more
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
	{name: "a group without blocks still limits the match", size: 32, run: func(r *rig) {
		a := words(1, 2048)
		r.Store(0, &kvindex.Stored{Attention: block.AttentionSlidingWindow, Window: 128, BlockSize: 32, Tokens: a})
		r.store(a, cut{Stored: fullTwo})
		r.want(a, nil)
	}},
	{name: "windows alone prove what aligns with tokens", size: 32, run: func(r *rig) {
		a := words(1, 480)
		w := window
		w.RootUnknown, w.BlockSize = true, 32
		r.hint(a, cut{size: 32, from: 11, Stored: w}) // the event does not say which tokens the hashes stand for
		r.want(a, nil)
		b := words(2, 128)
		r.store(b, cut{Stored: window})
		r.want(b, only(4))
		r.want(b[:64], only(2))
		r.remove(b, cut{to: 1, Stored: window})
		r.want(b, nil)
		c := words(3, 192)
		r.store(c, cut{Stored: window})
		r.remove(c, cut{to: 2, Stored: window}) // these blocks are out of the window, so a longer prefix does not need them
		r.want(c, only(6))
		r.want(c[:160], nil)
	}},
	{name: "a window of engine blocks bigger than the index's ends where they end", size: 16, run: func(r *rig) {
		a := words(1, 256)
		w := kvindex.Stored{Attention: block.AttentionSlidingWindow, Window: 33}
		r.store(a, cut{size: 32, Stored: w})
		r.store(a, cut{size: 32, Stored: fullTwo})
		r.want(a, only(16))
		r.want(a[:80], only(4)) // 80 tokens have two whole engine blocks, which are four blocks of the index
	}},
	{name: "a state-space group needs a checkpoint at the end", size: 16, run: func(r *rig) {
		a := words(1, 160)
		s := state
		s.RootUnknown, s.BlockSize = true, 16
		r.store(a, cut{Stored: fullTwo})
		r.want(a, only(10)) // the index does not know yet that there is a state-space group
		r.hint(a, cut{from: 3, to: 4, Stored: s})
		r.hint(a, cut{from: 7, to: 8, Stored: s})
		r.want(a, only(8))
		r.want(a[:112], only(4))
		r.want(a[:48], nil)
		r.remove(a, cut{from: 7, to: 8, Stored: s})
		r.want(a, only(4))
	}},
	{name: "a checkpoint of a big block proves no block inside it", size: 16, run: func(r *rig) {
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
		r.hint(a, cut{from: 2, Stored: kvindex.Stored{Group: 1, RootUnknown: true, BlockSize: 16}}) // group 1 does not have the first two blocks
		r.want(a, nil)
		r.store(a, cut{to: 3, Stored: kvindex.Stored{Group: 1}})
		r.want(a, only(4))
	}},
	{name: "a group's kind that comes late counts from then on", size: 16, run: func(r *rig) {
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
		r.want(a, nil) // the window's group has no blocks on the CPU tier
		r.hint(a, cut{from: 4, Stored: kvindex.Stored{Attention: block.AttentionSlidingWindow, Window: 128, Tier: block.TierCPU, RootUnknown: true}})
		r.want(a, only(8))
	}},
}
