package kvindextest

import (
	"math"
	"slices"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

var beliefCases = []conformanceCase{
	{name: "what is believed is told apart and expires", size: 16, run: func(r *rig) {
		a := words(1, 96)
		r.store(a, cut{to: 2})
		keys := r.keys(a, block.Scope{})
		r.Speculate(0, keys[:5], 10)
		r.Speculate(1, keys[:3], 20)
		got := r.Match(keys, 9, nil)
		slices.SortFunc(got, func(a, b kvindex.Match) int { return int(a.Holder) - int(b.Holder) })
		if len(got) != 2 || got[0].Blocks != 2 || got[0].Speculative != 5 || got[1].Blocks != 0 || got[1].Speculative != 3 {
			r.Errorf("before: %+v", got)
		}
		if got = r.Match(keys, 10, nil); len(got) != 2 || got[0].Speculative+got[1].Speculative != 5 {
			r.Errorf("after the first expired: %+v", got)
		}
		if got = r.Match(keys, 20, nil); len(got) != 1 || got[0].Speculative != 2 {
			r.Errorf("after both expired: %+v", got)
		}
	}},
	{name: "a later time wins, an earlier one does not", size: 16, run: func(r *rig) {
		keys := r.keys(words(1, 32), block.Scope{})
		r.Speculate(0, keys, 10)
		r.Speculate(0, keys, 5)
		r.Speculate(0, keys[:1], 20)
		for now, want := range map[int64]int{7: 2, 15: 1} {
			if got := r.Match(keys, now, nil); len(got) != 1 || int(got[0].Speculative) != want {
				r.Errorf("at %d: %+v", now, got)
			}
		}
	}},
	{name: "what was not sent is doubted", size: 16, run: func(r *rig) {
		keys := r.keys(words(1, 640), block.Scope{})
		want := func(what string, now int64, n int) {
			r.Helper()
			got := 0
			if m := r.Match(keys, now, nil); len(m) > 0 {
				got = int(m[0].Speculative)
			}
			if got != n {
				r.Errorf("%s: %d of %d blocks are believed", what, got, n)
			}
		}
		r.Speculate(0, keys[:10], 10)
		r.Speculate(0, keys, 20)
		r.Speculate(0, keys[:20], 30)
		r.Doubt(0, keys, 10, 20)
		want("another one is sent", 1, 20)
		r.Doubt(0, keys[:20], 10, 30)
		want("neither is sent", 1, 10)
		r.Doubt(0, keys, 10, 20)
		r.Doubt(7, keys, 0, 20)
		want("again, and of a holder that is not known", 1, 10)
		want("what is left has expired", 30, 0)
		for range 3 { // and takes no room
			r.Speculate(1, keys[:1], 40)
		}
		if s := r.Stats(); s.Speculative > 1 || s.Blocks > 1 {
			r.Errorf("%d believed, %d blocks", s.Speculative, s.Blocks)
		}
	}},
	{name: "what is confirmed replaces what is believed", size: 16, run: func(r *rig) {
		a := words(1, 64)
		keys := r.keys(a, block.Scope{})
		r.Speculate(0, keys, 100)
		r.store(a, cut{to: 3})
		r.remove(a, cut{from: 1, to: 3})
		if m := r.matchOf(a); m.Blocks != 1 || m.Speculative != 1 {
			r.Errorf("confirmed and removed, but believed again: %+v", m)
		}
		r.store(a, cut{from: 1, to: 3})
		if m := r.matchOf(a); m.Blocks != 3 || m.Speculative != 4 {
			r.Errorf("the fourth is believed still: %+v", m)
		}
	}},
	{name: "belief fills holes and joins tiers", size: 16, run: func(r *rig) {
		a := words(1, 96)
		keys := r.keys(a, block.Scope{})
		r.store(a, cut{Stored: kvindex.Stored{Tier: block.TierCPU}})
		r.remove(a, cut{from: 2, to: 3, Stored: kvindex.Stored{Tier: block.TierCPU}})
		r.Speculate(0, keys[:4], 100)
		if m := r.matchOf(a); m.Blocks != 2 || m.Speculative != 6 {
			r.Errorf("%+v", m)
		}
	}},
	{name: "forgetting and clearing a holder end its beliefs", size: 16, run: func(r *rig) {
		keys := r.keys(words(1, 32), block.Scope{})
		r.Speculate(0, keys, 100)
		r.Speculate(1, keys, 100)
		r.Speculate(2, keys, 100)
		r.Forget(0)
		r.Clear(1, block.TierGPU)
		if got := r.Match(keys, 1, nil); len(got) != 1 || got[0].Holder != 2 {
			r.Errorf("%+v", got)
		}
	}},
	{name: "beliefs are bounded", size: 16, config: kvindex.Config{MaxSpeculative: 100}, run: func(r *rig) {
		for i := range 50 {
			r.Speculate(fleet.Holder(i%3), r.keys(words(i, 160), block.Scope{}), int64(1000+i%7))
		}
		if s := r.Stats(); s.Speculative > 100 || s.SpeculativeDropped != 400 {
			r.Errorf("%d believed, %d dropped", s.Speculative, s.SpeculativeDropped)
		}
		if got := r.Match(r.keys(words(49, 160), block.Scope{}), 1, nil); len(got) != 1 || got[0].Speculative != 10 {
			r.Errorf("the newest: %+v", got)
		}
	}},
	{name: "beliefs that expired take no room", size: 16, run: func(r *rig) {
		for i := range 200 {
			r.now = int64(i * 10)
			keys := r.keys(words(i, 160), block.Scope{})
			r.Match(keys, r.now, nil)
			r.Speculate(0, keys, r.now+20)
		}
		if s := r.Stats(); s.Speculative > 60 || s.Blocks > 60 {
			r.Errorf("%d believed, %d blocks", s.Speculative, s.Blocks)
		}
	}},
}

var boundCases = []conformanceCase{
	{name: "waiting blocks are bounded by number, the oldest go", size: 16, config: kvindex.Config{MaxWaiting: 50}, run: func(r *rig) {
		for i := range 100 {
			r.store(words(i, 32), cut{from: 1})
		}
		if s := r.Stats(); s.Waiting != 50 || s.WaitingDropped != 50 {
			r.Errorf("%d wait, %d dropped", s.Waiting, s.WaitingDropped)
		}
		for _, i := range []int{10, 90} {
			r.store(words(i, 32), cut{to: 1})
		}
		r.want(words(10, 32), only(1))
		r.want(words(90, 32), only(2))
	}},
	{name: "waiting blocks are bounded by bytes", size: 16, config: kvindex.Config{WaitingBytes: 1 << 16}, run: func(r *rig) {
		for i := range 1000 {
			r.store(words(i, 320), cut{size: 160, from: 1})
		}
		if s := r.Stats(); s.Waiting > 100 || s.Waiting < 20 {
			r.Errorf("%d wait, %d dropped", s.Waiting, s.WaitingDropped)
		}
	}},
	{name: "circles of waiting blocks hold up nothing", size: 16, run: func(r *rig) {
		a := words(1, 16)
		next := func(hash, parent uint64) {
			r.Store(0, &kvindex.Stored{Hashes: []uint64{hash}, Tokens: a, BlockSize: 16, Parent: parent, HasParent: true})
		}
		next(1, 2)
		next(2, 3)
		next(3, 1)
		next(4, 4)
		r.Store(0, &kvindex.Stored{Hashes: []uint64{2}, Tokens: a, BlockSize: 16})
		r.want(a, only(1))
		r.Forget(0)
		if s := r.Stats(); s.Hashes != 0 || s.Waiting != 0 || s.Blocks != 0 {
			r.Errorf("kept %+v", s)
		}
	}},
	{name: "the byte budget holds, and what is used stays", size: 16, config: kvindex.Config{Bytes: 1 << 20}, run: func(r *rig) {
		used := words(0, 320)
		r.store(used, cut{})
		for i := 1; i < 2000; i++ {
			r.store(words(i, 320), cut{holder: fleet.Holder(i % 5)})
			r.want(used, only(20))
			if s := r.Stats(); s.Bytes > s.Budget || s.Budget != 1<<20 {
				r.Fatalf("%d bytes of %d after %d texts", s.Bytes, s.Budget, i)
			}
		}
		r.want(words(1, 320), nil)
		r.want(words(1999, 320), map[fleet.Holder]uint32{4: 20})
		if s := r.Stats(); s.Evictions == 0 || s.Blocks < 500 {
			r.Errorf("%d blocks left, %d evicted", s.Blocks, s.Evictions)
		}
	}},
	{name: "what is evicted goes from its end", size: 16, config: kvindex.Config{Bytes: 1 << 20}, run: func(r *rig) {
		// Whatever is left of a text is a prefix: every block that is held is part of the match.
		for i := range 1000 {
			r.store(words(i, 800), cut{})
		}
		held := uint32(0)
		for i := range 1000 {
			for _, m := range r.Match(r.keys(words(i, 800), block.Scope{}), 1, nil) {
				held += m.Blocks
			}
		}
		if s := r.Stats(); int64(held) != s.Memberships || held == 0 {
			r.Errorf("%d blocks are held, matches find %d", s.Memberships, held)
		}
	}},
	{name: "the budget holds for partial blocks, waiting blocks and beliefs", size: 16, config: kvindex.Config{Bytes: 1 << 20}, run: func(r *rig) {
		for i := range 3000 {
			r.store(words(i, 40), cut{size: 5})
			r.store(words(i, 100), cut{holder: 1, size: 1, to: 7})
			r.store(words(i, 400), cut{holder: 2, from: 3})
			r.Speculate(3, r.keys(words(i, 160), block.Scope{}), 1<<40)
			if s := r.Stats(); s.Bytes > s.Budget {
				r.Fatalf("%d bytes of %d after %d texts", s.Bytes, s.Budget, i)
			}
		}
		r.want(words(2999, 40), only(2))
	}},
	{name: "memory that is free again is used again", size: 16, run: func(r *rig) {
		a := words(1, 16_000)
		var first int64
		for i := range 20 {
			r.store(a, cut{holder: fleet.Holder(i)})
			r.Forget(fleet.Holder(i))
			if b := r.Stats().Bytes; i == 0 {
				first = b
			} else if b > first+first/4+4096 { // a holder's place in lists stays
				r.Fatalf("%d bytes after the first, %d after %d", first, b, i+1)
			}
		}
	}},
	{name: "llm-d: forgetting one of many costs what it holds", size: 16, run: func(r *rig) {
		start := time.Now()
		for i := range 100 {
			r.store(words(i, 32_000), cut{holder: fleet.Holder(i % 7)}) // 200,000 blocks
		}
		stored := time.Since(start)
		best := time.Hour
		for i := range 20 {
			r.store(words(1000+i, 160), cut{holder: 8})
			start := time.Now()
			r.Forget(8)
			best = min(best, time.Since(start))
			r.want(words(1000+i, 160), nil)
		}
		if best > stored/100 { // a look at every block takes some tenth
			r.Errorf("forgetting 10 blocks took %v, storing 200,000 %v", best, stored)
		}
		r.want(words(3, 160), map[fleet.Holder]uint32{3: 10})
	}},
	{name: "what makes no sense does no harm", size: 16, run: func(r *rig) {
		a := words(1, 64)
		r.store(a, cut{})
		r.Store(0, &kvindex.Stored{Tier: 200, Hashes: []uint64{1}, Tokens: a[:16], BlockSize: 16})
		r.Store(0, &kvindex.Stored{Group: -9, Attention: 99, Window: -4, Hashes: []uint64{1}, BlockSize: -1})
		r.Store(0, &kvindex.Stored{Hashes: []uint64{1, 2}, Tokens: a[:5], BlockSize: math.MaxInt})
		r.Store(fleet.NoHolder, &kvindex.Stored{Hashes: []uint64{1}, Tokens: a[:16], BlockSize: 16})
		r.Remove(fleet.NoHolder, 99, -5, []uint64{1})
		r.Clear(77, 99)
		r.Forget(fleet.NoHolder)
		r.Speculate(fleet.NoHolder, r.keys(a, block.Scope{}), 5)
		r.Match(nil, 0, nil)
		r.Forget(0)
		r.store(a, cut{})
		r.want(a, only(4))
	}},
}
