package kvindextest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// Truth compares an index with the caches of small modelled engines, and not with the engines' events. An engine has a
// pool of physical blocks, like vLLM. The engine evicts the least recently used block first, and the end of a prompt
// before its beginning. Requests that run at the same time may compute the same block twice. The pool may be reset, and
// reused blocks may be announced again. An engine also has a host tier, to which it offloads blocks.
//
// A match must never claim more blocks than the engine has. If the engine's blocks have the size of the index's blocks,
// it must not claim fewer blocks either, except after an event that can mean a new copy or a reused block.
func Truth(t *testing.T, make Maker, effort Effort) {
	t.Helper()
	runTruths(t, effort, func(r *rand.Rand) error { return runTruth(make, r, effort.Steps, false) })
}

func runTruths(t *testing.T, effort Effort, run func(r *rand.Rand) error) {
	t.Helper()
	seed := effort.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	err := effort.inParallel(func(i int) error {
		if err := run(rand.New(rand.NewPCG(seed, uint64(i)))); err != nil {
			return fmt.Errorf("seed %d, run %d: %w", seed, i, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// engine is a model of an inference engine.
type engine struct {
	holder    fleet.Holder
	door      *Door
	size      int      // the tokens of an engine block
	room      int      // the number of physical blocks in the pool
	pool      []uint64 // the hashes of cached blocks, least recently used first; copies of a block have the same hash
	hostRoom  int      // the number of blocks in the host tier
	host      []uint64 // the hashes of the blocks in the host tier, oldest first
	reported  bool     // the engine announced reused blocks: then announcements that begin a chain count as reports
	ambiguous bool     // the index could not recognise a copy, so it may claim too few blocks
}

func (e *engine) has(h uint64) bool { return slices.Contains(e.pool, h) }

// hit returns how many leading blocks of a prompt the engine need not compute, and how many of these blocks come from
// its pool. The rest of them come from the host tier.
func (e *engine) hit(hashes []uint64) (all, fromPool int) {
	for fromPool < len(hashes) && e.has(hashes[fromPool]) {
		fromPool++
	}
	for all = fromPool; all < len(hashes) && slices.Contains(e.host, hashes[all]); {
		all++
	}
	return all, fromPool
}

// serve caches a prompt as several requests do that run at the same time. atOnce is the number of these requests. No
// request uses the new blocks of another request. If report is true, the engine announces the reused blocks again.
func (e *engine) serve(r *rand.Rand, t *text, atOnce int, report bool) {
	hashes := hashesOf(t.tokens, e.size, t.scope.Salt)
	usable := hashes[:(len(t.tokens)-1)/e.size]
	hits, _ := e.hit(usable)
	_, fromPool := e.hit(usable)
	if report && fromPool > 0 {
		e.announce(t, hashes, 0, fromPool, kvindex.Stored{})
		e.reported = true
	}
	for range atOnce {
		e.touch(hashes[:hits]) // blocks from the host tier are loaded into the pool, and announced like computed blocks
		if fromPool == len(hashes) {
			return
		}
		if fromPool == 0 && (e.has(hashes[len(hashes)-1]) || e.reported && slices.ContainsFunc(hashes, e.has)) {
			e.ambiguous = true
		}
		for len(e.pool)+len(hashes)-fromPool > e.room {
			e.evict()
		}
		// An engine frees the last block of a prompt first, so it also evicts this block first.
		for i := len(hashes) - 1; i >= fromPool; i-- {
			e.pool = append(e.pool, hashes[i])
		}
		e.announce(t, hashes, fromPool, len(hashes), kvindex.Stored{})
	}
	e.offload(r, t, hashes)
}

func (e *engine) touch(hashes []uint64) {
	for i := len(hashes) - 1; i >= 0; i-- {
		if at := slices.Index(e.pool, hashes[i]); at >= 0 {
			e.pool = append(slices.Delete(e.pool, at, at+1), hashes[i])
		}
	}
}

func (e *engine) evict() {
	gone := e.pool[0]
	e.pool = e.pool[1:]
	e.door.Remove(e.holder, block.TierGPU, 0, []uint64{gone})
}

func (e *engine) announce(t *text, hashes []uint64, from, to int, s kvindex.Stored) {
	s.Scope, s.BlockSize = t.scope, e.size
	s.Hashes, s.Tokens = hashes[from:to], t.tokens[from*e.size:to*e.size]
	if from > 0 {
		s.HasParent, s.Parent = true, hashes[from-1]
	}
	for _, f := range t.features {
		s.Features = append(s.Features, block.Feature{ID: f.ID, Offset: f.Offset - from*e.size})
	}
	e.door.Store(e.holder, &s)
}

// offload copies some blocks to the host tier in random order, so that children may come before their parents. Some of
// the events have no tokens.
func (e *engine) offload(r *rand.Rand, t *text, hashes []uint64) {
	for _, i := range r.Perm(len(hashes)) {
		if r.IntN(2) == 0 || slices.Contains(e.host, hashes[i]) || !e.has(hashes[i]) {
			continue
		}
		if len(e.host) == e.hostRoom {
			e.door.Remove(e.holder, block.TierCPU, 0, e.host[:1])
			e.host = e.host[1:]
		}
		e.host = append(e.host, hashes[i])
		s := kvindex.Stored{Tier: block.TierCPU, RootUnknown: true, Hashes: hashes[i : i+1]}
		if r.IntN(3) > 0 {
			s.Tokens, s.BlockSize = t.tokens[i*e.size:(i+1)*e.size], e.size
			if i > 0 {
				s.HasParent, s.Parent = true, hashes[i-1]
			}
		}
		e.door.Store(e.holder, &s)
	}
}

// runTruth plays one history. If atLimit is true, the index is full: see Evicting.
func runTruth(make Maker, r *rand.Rand, steps int, atLimit bool) error {
	m := newModel(&seeded{r})
	size := m.hasher.Size()
	var cfg kvindex.Config
	if atLimit {
		cfg.Bytes = leastBudget
	}
	door := make(m.hasher, cfg)
	var engines []*engine
	for h := range fleet.Holder(2) {
		e := &engine{holder: h, door: door, size: []int{size, size, 2 * size, max(1, size/2), size + 1}[r.IntN(5)], room: 24 + r.IntN(40), hostRoom: 1 + r.IntN(30)}
		e.room = max(e.room, modelBlocks*size/e.size+1)
		engines = append(engines, e)
	}
	for step := range steps {
		e := engines[r.IntN(len(engines))]
		e.live(r, m)
		if atLimit && r.IntN(10) == 0 {
			if err := fill(door, r); err != nil {
				return fmt.Errorf("after %d steps: %w", step+1, err)
			}
		}
		if s := door.Stats(); atLimit && s.Bytes > s.Budget {
			return fmt.Errorf("after %d steps: %d bytes of %d", step+1, s.Bytes, s.Budget)
		}
		for i := range m.texts {
			for _, e := range engines {
				if err := e.compare(m, &m.texts[i], atLimit); err != nil {
					return fmt.Errorf("after %d steps, text %d, holder %d with blocks of %d for %d: %w", step+1, i, e.holder, e.size, size, err)
				}
			}
		}
	}
	return nil
}

// compare compares the match of a text with the engine's cache. If less is true, the index may claim fewer blocks than
// the engine has, because the index may have lost some.
func (e *engine) compare(m *model, t *text, less bool) error {
	size := m.hasher.Size()
	hashes := hashesOf(t.tokens, e.size, t.scope.Salt)
	all, _ := e.hit(hashes)
	var got kvindex.Match
	for _, x := range e.door.Match(t.keys, nil) {
		if x.Holder == e.holder {
			got = x
		}
	}
	if claimed := int(got.Blocks) * size / e.size; claimed > all {
		return fmt.Errorf("%d blocks of the engine are claimed, it has %d", claimed, all)
	}
	if !less && e.size == size && !e.ambiguous && int(got.Blocks) < all {
		return fmt.Errorf("%d blocks are claimed, the engine has %d", got.Blocks, all)
	}
	return nil
}
