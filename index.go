package warmpath

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

// modelIndex is the index of one base model. It is replaced when its block size must change.
type modelIndex struct {
	model      string
	generation uint64 // unique among all indexes of the router, and growing
	hasher     *block.Hasher
	index      *kvindex.Index
	memo       *keyMemo
	learned    atomic.Pointer[map[*policy.Policy]*promptStore]
	aheads     atomic.Pointer[aheads] // nil: no engine hashes with a look-ahead; changed under the router's mu
	checked    atomic.Uint64          // the fleet's generation for which the block size was found right
}

// index returns the index of a base model, made on first use and made anew when its workers need smaller blocks. It
// takes a lock only when the fleet changed since the last call.
func (r *Router) index(snap *fleet.Snapshot, base string) *modelIndex {
	x := (*r.indexes.Load())[base]
	if x != nil && x.checked.Load() >= snap.Generation() {
		return x
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	all := *r.indexes.Load()
	x = all[base]
	size := r.blockSize(snap, base)
	// Blocks only get smaller: engines' larger blocks are cut to ours, and a rebuild costs all there is in the index.
	if x == nil || size < x.hasher.Size() {
		h, err := block.NewHasher(r.options.Algorithm, size)
		if err != nil {
			panic("bug: " + err.Error())
		}
		r.created++
		x = &modelIndex{model: base, generation: r.created, hasher: h, index: kvindex.New(h, r.indexConfig()), memo: newKeyMemo()}
		x.learned.Store(&map[*policy.Policy]*promptStore{})
		all = maps.Clone(all)
		all[base] = x
		r.indexes.Store(&all)
	}
	x.checked.Store(max(x.checked.Load(), snap.Generation()))
	return x
}

// blockSize returns the tokens of our blocks for a base model.
func (r *Router) blockSize(snap *fleet.Snapshot, base string) int {
	configured := r.options.BlockSize
	pool, ok := snap.Pool(base)
	known := ok && pool.Smallest > 0
	switch size := min(max(pool.Smallest, minBlockSize), block.MaxSize); {
	case known && configured > 0:
		return min(size, configured) // a larger one would hide blocks that the engine has
	case known:
		return size
	case configured > 0:
		return configured
	}
	return minBlockSize
}

// indexConfig is the options' with the fleet's word on which holders are one worker's.
func (r *Router) indexConfig() kvindex.Config {
	cfg := r.options.Index
	if cfg.Worker == nil {
		cfg.Worker = func(h fleet.Holder) (fleet.WorkerID, bool) {
			w := r.fleet.Snapshot().Worker(h)
			if w == nil {
				return 0, false
			}
			return w.ID, true
		}
	}
	return cfg
}

// of returns the index that h's events belong to. model is what the events say they are about, or "": most say nothing,
// and mean the worker's base model. It is nil for a holder that serves nothing we know of.
func (r *Router) of(h fleet.Holder, model string) *modelIndex {
	snap := r.fleet.Snapshot()
	if model != "" {
		if pool, ok := snap.Pool(model); ok {
			return r.index(snap, pool.Model)
		}
	}
	w := snap.Worker(h)
	if w == nil {
		return nil
	}
	base := w.Facts.BaseModel()
	if base == "" {
		return nil
	}
	return r.index(snap, base)
}

// Store applies an announcement of blocks by h. The router sets s.Scope.Model.
//
// It returns the generation of the index it was applied to; see [Router.Generation]. 0 means that h serves no model we
// know of and nothing was stored.
func (r *Router) Store(h fleet.Holder, model string, s *kvindex.Stored) (generation uint64) {
	x := r.of(h, model)
	if x == nil {
		return 0
	}
	s.Scope.Model = x.model
	x.index.Store(h, s)
	if s.Tier == block.TierGPU {
		r.fleet.Cached(h, len(s.Handles), 0)
	}
	return x.generation
}

// Remove applies a removal of blocks by h, and returns the generation as Store does.
func (r *Router) Remove(h fleet.Holder, model string, s Removed) (generation uint64) {
	x := r.of(h, model)
	if x == nil {
		return 0
	}
	x.index.Remove(h, s.Tier, s.Group, s.Handles)
	if s.Tier == block.TierGPU {
		r.fleet.Cached(h, 0, len(s.Handles))
	}
	return x.generation
}

// Removed is one announcement that blocks are gone.
type Removed struct {
	Tier    block.Tier
	Group   int
	Handles []uint64 // engine hashes
}

// Clear forgets what h holds on one tier: its other tiers survive a reset of the engine. It returns the generation as
// Store does.
func (r *Router) Clear(h fleet.Holder, model string, tier block.Tier) (generation uint64) {
	x := r.of(h, model)
	if x == nil {
		return 0
	}
	x.index.Clear(h, tier)
	if tier == block.TierGPU {
		r.fleet.Emptied(h)
		x.forgetLearned(h)
		r.forgetInPolicies(h)
	}
	return x.generation
}

// Forget forgets all that h holds, in the index and in what policies remember: its engine restarted, its history is lost, or
// it left.
func (r *Router) Forget(h fleet.Holder) {
	r.fleet.Lost(h)
	for _, x := range *r.indexes.Load() {
		x.index.Forget(h)
		r.forgetAhead(x, h)
		x.forgetLearned(h)
	}
	r.forgetInPolicies(h)
}

// Reclaim frees the ids of holders that left long ago, so that new holders may have them, and returns how many there
// were: see [fleet.Fleet.Retire]. All that the router and its policies knew of them is forgotten. now is in Unix
// nanoseconds; once in ten minutes is often enough. Call Store and its companions for holders of present workers only:
// what comes for another one would count for the next holder with its id.
func (r *Router) Reclaim(now int64) int {
	retired := r.fleet.Retire(now)
	for _, h := range retired {
		r.Forget(h)
	}
	r.fleet.Reuse(retired)
	return len(retired)
}

// ForgetLearned makes policies and the learned index forget h, because another process serves there. Blocks that
// events announced stay.
func (r *Router) ForgetLearned(h fleet.Holder) {
	for _, x := range *r.indexes.Load() {
		x.forgetLearned(h)
	}
	r.forgetInPolicies(h)
}

func (r *Router) forgetInPolicies(h fleet.Holder) {
	for _, p := range r.table.Load().all {
		p.Forget(h)
	}
}

// Generation returns the generation of the index that h's events go to, 0 when it serves no model we know of. An index
// is made anew, empty and with a new generation, when a worker with smaller blocks joins. Whoever feeds h's events then
// has to forget h and replay its history: compare with the last value whenever the fleet changed.
func (r *Router) Generation(h fleet.Holder) uint64 {
	x := r.of(h, "")
	if x == nil {
		return 0
	}
	return x.generation
}

// HolderStats returns the statistics of h in the index of its events, and whether that index knows h. model is as for
// [Router.Store]. It takes the index's lock for a moment.
func (r *Router) HolderStats(h fleet.Holder, model string) (kvindex.HolderStats, bool) {
	x := r.of(h, model)
	if x == nil {
		return kvindex.HolderStats{Holder: h}, false
	}
	return x.index.Holder(h)
}

// BlockSize returns the tokens of a block in the index of h's events, 0 when there is none. model is as for
// [Router.Store].
func (r *Router) BlockSize(h fleet.Holder, model string) int {
	x := r.of(h, model)
	if x == nil {
		return 0
	}
	return x.hasher.Size()
}

// IndexStats describes the index of one base model.
type IndexStats struct {
	Model      string
	BlockSize  int // tokens
	Generation uint64
	kvindex.Stats
}

// IndexStats describes all indexes, by model name.
func (r *Router) IndexStats() []IndexStats {
	all := *r.indexes.Load()
	stats := make([]IndexStats, 0, len(all))
	for _, x := range all {
		stats = append(stats, IndexStats{x.model, x.hasher.Size(), x.generation, x.index.Stats()})
	}
	slices.SortFunc(stats, func(a, b IndexStats) int { return strings.Compare(a.Model, b.Model) })
	return stats
}
