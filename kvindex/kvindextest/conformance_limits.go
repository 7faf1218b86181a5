package kvindextest

import (
	"math"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

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
	{name: "the byte budget holds, and blocks in use stay", size: 16, config: kvindex.Config{Bytes: 1 << 20}, run: func(r *rig) {
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
	{name: "evictions take chains from their ends", size: 16, config: kvindex.Config{Bytes: 1 << 20}, run: func(r *rig) {
		// The blocks of a text that are left are a prefix of the text, so every stored block is part of a match.
		for i := range 1000 {
			r.store(words(i, 800), cut{})
		}
		held := uint32(0)
		for i := range 1000 {
			for _, m := range r.Match(r.keys(words(i, 800), block.Scope{}), nil) {
				held += m.Blocks
			}
		}
		if s := r.Stats(); int64(held) != s.Memberships || held == 0 {
			r.Errorf("%d blocks are held, matches find %d", s.Memberships, held)
		}
	}},
	{name: "the budget holds for partial blocks and waiting blocks", size: 16, config: kvindex.Config{Bytes: 1 << 20}, run: func(r *rig) {
		for i := range 3000 {
			r.store(words(i, 40), cut{size: 5})
			r.store(words(i, 100), cut{holder: 1, size: 1, to: 7})
			r.store(words(i, 400), cut{holder: 2, from: 3})
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
			} else if b > first+first/4+4096 { // each new holder keeps a little memory in lists
				r.Fatalf("%d bytes after the first, %d after %d", first, b, i+1)
			}
		}
	}},
	{name: "llm-d: forgetting one of many costs what it holds", size: 16, run: func(r *rig) {
		start := time.Now()
		for i := range 100 {
			r.store(words(i, 32_000), cut{holder: fleet.Holder(i % 7)}) // 100 texts of 2,000 blocks
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
		if best > stored/100 { // a look at every block would take about a tenth of the time to store them
			r.Errorf("forgetting 10 blocks took %v, storing 200,000 %v", best, stored)
		}
		r.want(words(3, 160), map[fleet.Holder]uint32{3: 10})
	}},
	{name: "impossible calls do no harm", size: 16, run: func(r *rig) {
		a := words(1, 64)
		r.store(a, cut{})
		r.Store(0, &kvindex.Stored{Tier: 200, Hashes: []uint64{1}, Tokens: a[:16], BlockSize: 16})
		r.Store(0, &kvindex.Stored{Group: -9, Attention: 99, Window: -4, Hashes: []uint64{1}, BlockSize: -1})
		r.Store(0, &kvindex.Stored{Hashes: []uint64{1, 2}, Tokens: a[:5], BlockSize: math.MaxInt})
		r.Store(fleet.NoHolder, &kvindex.Stored{Hashes: []uint64{1}, Tokens: a[:16], BlockSize: 16})
		r.Remove(fleet.NoHolder, 99, -5, []uint64{1})
		r.Clear(77, 99)
		r.Forget(fleet.NoHolder)
		r.Match(nil, nil)
		r.Forget(0)
		r.store(a, cut{})
		r.want(a, only(4))
	}},
}
