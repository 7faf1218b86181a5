package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/bench/internal/machine"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

// fleetMemory measures the memory of the facts about n workers with 32,768 blocks each: after they came, and after each
// of them had a request.
func fleetMemory(n int) error {
	debug.FreeOSMemory()
	before, err := machine.ResidentBytes()
	if err != nil {
		return err
	}
	f := fleet.New(fleet.Config{})
	router, err := warmpath.New(warmpath.Options{Fleet: f, Policy: policy.DefaultMarginal().Spec("marginal")})
	if err != nil {
		return err
	}
	facts := fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16, BlocksPerRank: 32_768}
	began := time.Now()
	for i := range n {
		f.Put(fmt.Sprintf("http://10.%d.%d.%d:8000", i>>16, i>>8&255, i&255), facts)
	}
	took := time.Since(began)
	show := func(what string) error {
		debug.FreeOSMemory()
		after, err := machine.ResidentBytes()
		if err == nil {
			fmt.Printf("fleet of %d workers, %s: %.1f MB, %.0f bytes a worker\n", n, what, float64(after-before)/1e6, float64(after-before)/float64(n))
		}
		return err
	}
	fmt.Printf("fleet of %d workers: %.1f ms to put them one by one\n", n, took.Seconds()*1e3)
	if err := show("known"); err != nil {
		return err
	}
	began = time.Now()
	f.Put("http://10.0.0.0:8000", facts)
	fmt.Printf("fleet of %d workers: %.1f ms for a change of one worker\n", n, time.Since(began).Seconds()*1e3)
	for h := range fleet.Holder(f.Snapshot().Holders()) {
		var r fleet.Reservation
		if f.Reserve(&r, h, fleet.Work{PromptTokens: 8000, UncachedTokens: 4000}, 1) {
			r.Release(2)
		}
	}
	err = show("after a request each")
	runtime.KeepAlive(router)
	return err
}

// chainBlocks is the length of the chains of indexSweeps.
const chainBlocks = 512

// indexSweeps fills an index and measures how long Clear and Forget of one holder take, and the memory.
func indexSweeps(holders, blocks int) error {
	hasher, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		return err
	}
	debug.FreeOSMemory()
	before, err := machine.ResidentBytes()
	if err != nil {
		return err
	}
	x := kvindex.New(hasher, kvindex.Config{Bytes: 256 << 30})
	tokens, hashes := make([]block.Token, chainBlocks*16), make([]uint64, chainBlocks)
	scope := block.Scope{Model: "m"}
	for n := 0; n < blocks; n += chainBlocks {
		for i := range tokens {
			tokens[i] = block.Token(block.Mix64(uint64(n*16 + i)))
		}
		for i := range hashes {
			hashes[i] = block.Mix64(uint64(n+i)<<8 | 1)
		}
		x.Store(fleet.Holder(n/chainBlocks%holders), &kvindex.Stored{Scope: scope, Hashes: hashes, Tokens: tokens, BlockSize: 16})
	}
	debug.FreeOSMemory()
	after, err := machine.ResidentBytes()
	if err != nil {
		return err
	}
	s := x.Stats()
	fmt.Printf("index of %d blocks at %d holders: %d blocks, %.1f bytes a block resident, %.1f counted\n", blocks, holders, s.Memberships,
		float64(after-before)/float64(s.Memberships), float64(s.Bytes)/float64(s.Memberships))
	for i := range 3 {
		began := time.Now()
		x.Clear(fleet.Holder(i), block.TierGPU)
		cleared := time.Since(began)
		began = time.Now()
		x.Forget(fleet.Holder(holders - 1 - i))
		fmt.Printf("index of %d blocks at %d holders: Clear of a holder %.1f ms, Forget %.1f ms\n", blocks, holders, cleared.Seconds()*1e3, time.Since(began).Seconds()*1e3)
	}
	runtime.KeepAlive(x)
	return nil
}
