package warmpath

import (
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

// modelIndex is the index of one base model: it knows which blocks each holder has cached. A holder is one
// data-parallel rank of a worker, with a KV cache of its own. If the block size must become smaller, a new modelIndex
// replaces the old one.
type modelIndex struct {
	model      string
	generation uint64 // unique among the router's indexes; a later index has a greater number
	hasher     *block.Hasher
	index      *kvindex.Index
	memo       *keyMemo
	checked    atomic.Uint64 // the last fleet generation at which the block size was checked

	// The values of these pointers are replaced under the router's mu. learned is for policies that do not use events,
	// and expected is for the other policies: see promptStore. aheads is nil if no engine hashes with a look-ahead.
	learned  atomic.Pointer[map[*policy.Policy]*promptStore]
	expected atomic.Pointer[[]*promptStore]
	aheads   atomic.Pointer[aheads]

	unserved     int64 // when Reclaim first found no worker of the model; 0: the model has workers. Guarded by the router's mu
	mostExpected int   // the limit of (holder, block) pairs in the stores of expected
	displaced    int64 // pairs that removed stores dropped before their TTL ended; guarded by the router's mu
}

// index returns the index of a base model. It makes the index on first use, and makes a new one if a worker with
// smaller blocks has joined. It takes a lock only if the fleet has changed since the last call for this model.
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
	if told := r.remoteSizes[base]; told > 0 {
		size = told
	}
	// The block size never grows. Larger blocks of an engine can be cut to the index's size, and a new index would lose
	// everything that the old one held.
	if x == nil || size < x.hasher.Size() {
		x = r.makeIndex(base, size)
	}
	x.checked.Store(max(x.checked.Load(), snap.Generation()))
	return x
}

// makeIndex makes the index of a base model, in place of the one that it may have. r.mu is held.
func (r *Router) makeIndex(base string, size int) *modelIndex {
	h, err := block.NewHasher(r.options.Algorithm, size)
	if err != nil {
		panic("bug: " + err.Error())
	}
	r.created++
	made := MadeIndex{Model: base, BlockSize: size, Generation: r.created}
	x := &modelIndex{model: base, generation: r.created, hasher: h, index: kvindex.New(h, r.indexConfig(made)), memo: newKeyMemo()}
	x.learned.Store(&map[*policy.Policy]*promptStore{})
	x.expected.Store(&[]*promptStore{})
	x.mostExpected = r.options.MaxSpeculative
	all := maps.Clone(*r.indexes.Load())
	all[base] = x
	r.dropForRoom(all, base)
	r.indexes.Store(&all)
	return x
}

// dropForRoom drops the oldest of the indexes without workers, apart from that of base, if there are more than
// mostUnserved. r.mu is held.
func (r *Router) dropForRoom(all map[string]*modelIndex, base string) {
	if len(all) <= mostUnserved {
		return
	}
	snap, unserved := r.fleet.Snapshot(), 0
	var oldest *modelIndex
	for model, x := range all {
		if _, served := snap.Pool(model); served || model == base {
			continue
		}
		if unserved++; oldest == nil || x.generation < oldest.generation {
			oldest = x
		}
	}
	if unserved > mostUnserved {
		delete(all, oldest.model)
	}
}

// MadeIndex is an index that the router made: the index of a base model. If a worker with smaller blocks joins, a new
// and empty index with a greater Generation replaces the model's old index.
type MadeIndex struct {
	Model      string
	BlockSize  int    // tokens
	Generation uint64 // see [Router.Generation]
}

// TellAgain tells the function of [Options.IndexChanged] again what the index of a generation claims of a holder, one
// part at a time: see [kvindex.Index.TellAgain]. It returns -1 if there is no such index any more.
func (r *Router) TellAgain(generation uint64, h fleet.Holder, from int) (next int) {
	for _, x := range *r.indexes.Load() {
		if x.generation == generation {
			return x.index.TellAgain(h, from)
		}
	}
	return -1
}

// blockSize returns the block size, in tokens, of the index for a base model.
func (r *Router) blockSize(snap *fleet.Snapshot, base string) int {
	configured := r.options.BlockSize
	pool, ok := snap.Pool(base)
	known := ok && pool.Smallest > 0
	switch size := min(max(pool.Smallest, minBlockSize), block.MaxSize); {
	case known && configured > 0:
		return min(size, configured) // a size above the engine's would hide blocks that the engine has
	case known:
		return size
	case configured > 0:
		return configured
	}
	return minBlockSize
}

// indexConfig returns the index configuration of the options. If this configuration has no function that returns the
// worker of a holder, indexConfig adds one that asks the fleet.
func (r *Router) indexConfig(made MadeIndex) kvindex.Config {
	cfg := r.options.Index
	if r.options.IndexChanged != nil {
		cfg.Changed = r.options.IndexChanged(made)
	}
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

// of returns the index for h's events, or nil if h serves no known model. It is the index of the worker's base model.
func (r *Router) of(h fleet.Holder) *modelIndex {
	snap := r.fleet.Snapshot()
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

// Store applies an announcement of holder h that its engine has stored blocks. The blocks belong to the base model of
// h's worker; the router sets s.Scope.Model.
//
// Package kvfeed calls Store, Remove and Clear for all engines of a fleet. A program that calls these methods itself
// must keep the rules that kvfeed's package comment lists. Otherwise the index claims blocks that are gone.
//
// Store returns the generation of the index that it changed; see [Router.Generation]. If h serves no known model, it
// stores nothing and returns 0.
func (r *Router) Store(h fleet.Holder, s *kvindex.Stored) (generation uint64) {
	x := r.of(h)
	if x == nil {
		return 0
	}
	s.Scope.Model = x.model
	x.index.Store(h, s)
	if s.Tier == block.TierGPU {
		r.fleet.Cached(h, len(s.Hashes), 0)
	}
	return x.generation
}

// Remove applies an announcement of holder h that its engine has removed blocks. It returns the generation as Store
// does.
func (r *Router) Remove(h fleet.Holder, s Removed) (generation uint64) {
	x := r.of(h)
	if x == nil {
		return 0
	}
	x.index.Remove(h, s.Tier, s.Group, s.Hashes)
	if s.Tier == block.TierGPU {
		r.fleet.Cached(h, 0, len(s.Hashes))
	}
	return x.generation
}

// Removed is one announcement that blocks are removed.
type Removed struct {
	Tier   block.Tier
	Group  int
	Hashes []uint64 // engine hashes
}

// Clear forgets the blocks of h on one tier, and the prompts that are expected in h's cache. The blocks on other tiers
// stay, as in vLLM; for an engine that empties all its tiers, call Clear for each tier. For the GPU tier, Clear also
// does what [Router.ForgetLearned] does. Clear returns the generation as Store does.
func (r *Router) Clear(h fleet.Holder, tier block.Tier) (generation uint64) {
	x := r.of(h)
	if x == nil {
		return 0
	}
	x.index.Clear(h, tier)
	if tier == block.TierGPU {
		r.fleet.Emptied(h)
		r.ForgetLearned(h)
		return x.generation
	}
	// Two workers may list different first names for one model. So a prompt that was sent to h may be expected in the
	// index of another name: see fleet.Pool.Others.
	for _, each := range *r.indexes.Load() {
		each.forgetExpected(h)
	}
	return x.generation
}

// Forget forgets everything that the index and the policies know about h's cache. Call it if h's engine restarted, if h
// left, or if events of h were lost.
func (r *Router) Forget(h fleet.Holder) {
	r.fleet.Lost(h)
	for _, x := range *r.indexes.Load() {
		x.index.Forget(h)
		r.forgetAhead(x, h)
		x.forgetLearned(h)
	}
	r.forgetInPolicies(h)
}

// Reclaim frees the ids of holders that left long ago, so that new holders can get them: see [fleet.Fleet.Retire]. The
// router and its policies forget everything about these holders. Reclaim returns their number. It also drops the index
// of a base model that no worker has served for an hour. now is in Unix nanoseconds. Calling it once in ten minutes is
// enough; calling it more often does no harm.
//
// Call Store, Remove and Clear only for holders of present workers. A call for a holder that left could count for the
// next holder with the same id.
func (r *Router) Reclaim(now int64) int {
	r.dropUnserved(now)
	retired := r.fleet.Retire(now)
	if len(retired) == 0 {
		return 0
	}
	for _, h := range retired {
		r.Forget(h)
	}
	for _, p := range r.table.Load().all {
		p.Retire(retired)
	}
	r.fleet.Reuse(retired)
	return len(retired)
}

// keepUnserved is how long the index of a model without workers is kept. If a worker comes back within this time, its
// blocks are still known. The fleet keeps the ids of removed holders for the same time.
const keepUnserved = int64(time.Hour)

// mostUnserved bounds the indexes of models without workers: names of models may come and go faster than an hour, such
// as those of an index service's groups. An empty index and its metrics take some 40 KB.
const mostUnserved = 256

// dropUnserved drops the indexes of models that no worker has served for keepUnserved, and the scouts of models without
// workers. Otherwise a worker that reports another model name at each probe would make the router grow without bound.
func (r *Router) dropUnserved(now int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	snap := r.fleet.Snapshot()
	indexes := maps.Clone(*r.indexes.Load())
	maps.DeleteFunc(indexes, func(base string, x *modelIndex) bool {
		if _, served := snap.Pool(base); served {
			x.unserved = 0
			return false
		}
		if x.unserved == 0 {
			x.unserved = now
		}
		return now-x.unserved >= keepUnserved
	})
	maps.DeleteFunc(r.remoteSizes, func(base string, _ int) bool { return indexes[base] == nil })
	r.indexes.Store(&indexes)
	scouts := maps.Clone(*r.scouts.Load())
	maps.DeleteFunc(scouts, func(key scoutKey, _ *scout) bool {
		_, served := snap.Pool(key.model)
		return !served
	})
	r.scouts.Store(&scouts)
}

// ForgetLearned forgets everything about h's cache that was learned from requests to h. Call it if another process now
// serves at h. Blocks that events announced stay.
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

// Generation returns the generation of the index for h's events, or 0 if h serves no known model. When a worker with
// smaller blocks joins, the model gets a new, empty index with a new generation. The source of h's events must then
// call Forget and replay h's history. So whenever the fleet changed, the source compares the generation with the
// generation that it saw last.
func (r *Router) Generation(h fleet.Holder) uint64 {
	x := r.of(h)
	if x == nil {
		return 0
	}
	return x.generation
}

// HolderStats returns h's statistics in the index for its events, and whether that index knows h. It takes the index's
// lock for a moment.
func (r *Router) HolderStats(h fleet.Holder) (kvindex.HolderStats, bool) {
	x := r.of(h)
	if x == nil {
		return kvindex.HolderStats{Holder: h}, false
	}
	return x.index.Holder(h)
}

// BlockSize returns the number of tokens of a block in the index for h's events, or 0 if there is no index.
func (r *Router) BlockSize(h fleet.Holder) int {
	x := r.of(h)
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

	Speculative        int64 // (holder, block) pairs that are expected, see Options.SpeculativeTTL
	SpeculativeDropped int64 // pairs that were dropped before their TTL ended, to keep the limits of Options.MaxSpeculative and of memory
	SpeculativeBytes   int64 // the memory of the Speculative pairs, which is not a part of Bytes

	kvindex.Stats
}

// IndexStats describes all indexes, by model name.
func (r *Router) IndexStats() []IndexStats {
	all := *r.indexes.Load()
	stats := make([]IndexStats, 0, len(all))
	for _, x := range all {
		s := IndexStats{Model: x.model, BlockSize: x.hasher.Size(), Generation: x.generation, Stats: x.index.Stats()}
		r.addExpectedStats(x, &s)
		stats = append(stats, s)
	}
	slices.SortFunc(stats, func(a, b IndexStats) int { return strings.Compare(a.Model, b.Model) })
	return stats
}

// addExpectedStats adds the figures of x's expected prompts to s.
func (r *Router) addExpectedStats(x *modelIndex, s *IndexStats) {
	r.mu.Lock() // so that no store is removed while the figures are added
	defer r.mu.Unlock()
	s.SpeculativeDropped = x.displaced
	for _, e := range *x.expected.Load() {
		sent := e.store.Stats()
		s.Speculative += sent.Units
		s.SpeculativeDropped += sent.Displaced
		s.SpeculativeBytes += sent.Bytes
	}
}
