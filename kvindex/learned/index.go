package learned

import (
	"math"
	"sync"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// Config says for how long what was learned is believed. At least one of MaxHolderBlocks and MaxBlocks bounds the
// memory; New sets MaxBlocks when neither is given.
type Config struct {
	// MaxHolderBlocks is how many blocks each holder keeps after a pass of [Index.Evict]; between passes it may have
	// twice as many. 0: no limit by holder.
	MaxHolderBlocks int `yaml:"max_holder_blocks"`
	// TTL is how long a block is believed after the last request that used it. A pass of [Index.Evict] ends it, so call
	// that as often as exactness needs. 0: for ever.
	TTL time.Duration `yaml:"ttl"`
	// MaxBlocks is how many (holder, block) pairs there may be at once. When a request brings more, those used least
	// recently go, of all holders, until PruneTo of it are left. 0: no limit over all.
	MaxBlocks int `yaml:"max_blocks"`
	// PruneTo is the share of MaxBlocks that pruning leaves, above 0 and at most 1. Default 0.8, as Dynamo's prune_target_ratio.
	PruneTo float64 `yaml:"prune_to"`
	// Interval is how often the caller should call [Index.Evict]; the index itself has no clock and does not use it.
	Interval time.Duration `yaml:"interval"`
}

// TrackerConfig is the block cache tracker of seed 000 §6.6: max_blocks_per_backend 100,000 (some 1.6 M tokens in blocks
// of 16), eviction_interval_secs 60.
func TrackerConfig() Config {
	return Config{MaxHolderBlocks: 100_000, Interval: time.Minute}
}

// ApproximateConfig is the approximate index of seed 001: 120 s, there hard-coded, with the sizes of Dynamo's PruneConfig
// (max_tree_size 2^20, prune_target_ratio 0.8) and the 100 ms in which its timers are gathered.
func ApproximateConfig() Config {
	return Config{TTL: 120 * time.Second, MaxBlocks: 1 << 20, PruneTo: 0.8, Interval: 100 * time.Millisecond}
}

func (c Config) withDefaults() Config {
	c.MaxHolderBlocks = max(c.MaxHolderBlocks, 0)
	c.MaxBlocks = max(c.MaxBlocks, 0)
	if c.MaxHolderBlocks == 0 && c.MaxBlocks == 0 {
		c.MaxBlocks = 1 << 20
	}
	if !(c.PruneTo > 0 && c.PruneTo <= 1) {
		c.PruneTo = 0.8
	}
	c.TTL = max(c.TTL, 0)
	if c.Interval <= 0 {
		c.Interval = time.Minute
		if c.TTL > 0 {
			c.Interval = 100 * time.Millisecond
		}
	}
	return c
}

// Index guesses which holder has which blocks. See the package comment for its concurrency and memory.
type Index struct {
	config  Config
	present *kvindex.Index // what Match reads; it has exactly the blocks of the forests

	mu      sync.Mutex // guards all below, and writes to present
	forests []*forest  // by holder; nil: unknown
	blocks  int        // in all forests
	now     int64      // the latest time that was told: stamps never go back
	counts  counts
	gone    []block.Key // scratch: blocks that went from a forest and not yet from present
}

type counts struct{ learned, evicted, expired, pruned, forgotten int64 }

// New returns an empty index for keys of the hasher's block size.
func New(h *block.Hasher, cfg Config) *Index {
	return &Index{
		config: cfg.withDefaults(),
		// Its own budget must not evict: the limits here are counted in blocks.
		present: kvindex.New(h, kvindex.Config{Bytes: math.MaxInt64 / 4}),
	}
}

// Config returns the configuration with its defaults.
func (x *Index) Config() Config { return x.config }

// Match appends to dst what each holder is taken to have of a request, as [kvindex.Index.Match]; all blocks count as on the
// accelerator. What expired counts until the next [Index.Evict]. It refreshes nothing: that is [Index.Use].
func (x *Index) Match(keys []block.Key, now int64, dst []kvindex.Match) []kvindex.Match {
	return x.present.Match(keys, now, dst)
}

// Learned is what one call of [Index.Learn] did.
type Learned struct {
	known int   // blocks that the holder was taken to have before
	at    int64 // the index's time, which never goes back
}

// Learn tells that a request with these leading blocks, from the first of the prompt on, was sent to h at now: h is taken
// to have them all, and to have used them all just now. It costs a binary search and the blocks that are new. It returns
// what [Index.Unlearn] wants to know.
func (x *Index) Learn(h fleet.Holder, keys []block.Key, now int64) Learned {
	if len(keys) == 0 || h >= kvindex.MaxHolders {
		return Learned{}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.advance(now)
	x.counts.learned++
	f := x.forest(h)
	known := f.deepest(keys)
	f.learn(keys, known, x.now)
	if fresh := keys[known:]; len(fresh) > 0 {
		x.blocks += len(fresh)
		if known > 0 {
			x.present.StoreKeys(h, block.TierGPU, 0, keys[known-1], true, fresh)
		} else {
			x.present.StoreKeys(h, block.TierGPU, 0, 0, false, fresh)
		}
	}
	if limit := x.config.MaxHolderBlocks; limit > 0 && f.live > 2*limit {
		x.counts.evicted += x.shrink(h, limit)
	}
	if limit := x.config.MaxBlocks; limit > 0 && x.blocks > limit {
		x.counts.pruned += x.prune(int(float64(limit) * x.config.PruneTo))
	}
	return Learned{known: known, at: x.now}
}

// Unlearn takes back what Learn of these keys added, because the request was not sent. What was used since stays; a use at
// the same time is not told apart from it.
func (x *Index) Unlearn(h fleet.Holder, keys []block.Key, l Learned) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if f := x.known(h); f != nil {
		f.unlearn(keys, l.known, l.at, func(key block.Key) { x.dropped(h, key) })
		x.flush(h)
	}
}

// Use tells that what h has of these blocks was looked up and counts as used at now; it adds nothing. The tracker does
// so for the best match of each lookup, also when the request then goes elsewhere (seed 000 §7.3).
func (x *Index) Use(h fleet.Holder, keys []block.Key, now int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.advance(now)
	if f := x.known(h); f != nil {
		if n := f.deepest(keys); n > 0 {
			f.learn(keys[:n], n, x.now)
		}
	}
}

// Forget drops all that was learned of a holder: it left, or restarted.
func (x *Index) Forget(h fleet.Holder) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := x.known(h)
	if f == nil {
		return
	}
	x.blocks -= f.live
	x.forests[h] = nil
	x.counts.forgotten++
	x.present.Forget(h)
}

// Evict is the periodic pass: it ends what expired by now and brings each holder to its limit, the least recently used
// blocks first and the deepest of a request before those before them. It returns how many blocks went.
func (x *Index) Evict(now int64) int {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.advance(now)
	before := x.blocks
	for h := range x.forests {
		f := x.forests[h]
		if f == nil {
			continue
		}
		if x.config.TTL > 0 {
			x.counts.expired += x.expire(fleet.Holder(h), x.now-int64(x.config.TTL))
		}
		if limit := x.config.MaxHolderBlocks; limit > 0 {
			x.counts.evicted += x.shrink(fleet.Holder(h), limit)
		}
		f.giveBack()
	}
	return before - x.blocks
}

// Stats describes an [Index] at one moment.
type Stats struct {
	Memberships int64 // (holder, block) pairs
	Blocks      int64 // distinct blocks
	Bytes       int64 // allocated, the index below included
	Learned     int64 // requests, since the beginning
	Evicted     int64 // blocks that went for a holder's limit
	Expired     int64 // blocks that went because their time was over
	Pruned      int64 // blocks that went for the limit over all
	Forgotten   int64 // holders

	Holders []HolderStats // ascending
}

// HolderStats describes one holder.
type HolderStats struct {
	Holder   fleet.Holder
	Blocks   int64
	LastUsed int64 // Unix nanoseconds, of the last Learn or Use
}

// Stats returns figures of the whole index. It costs in proportion to the number of holders.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	below := x.present.Stats()
	s := Stats{
		Memberships: int64(x.blocks),
		Blocks:      below.Blocks,
		Bytes:       below.Bytes + int64(cap(x.forests))*8 + int64(cap(x.gone))*8,
		Learned:     x.counts.learned,
		Evicted:     x.counts.evicted,
		Expired:     x.counts.expired,
		Pruned:      x.counts.pruned,
		Forgotten:   x.counts.forgotten,
	}
	for h, f := range x.forests {
		if f != nil {
			s.Bytes += f.bytes()
			s.Holders = append(s.Holders, HolderStats{fleet.Holder(h), int64(f.live), f.used})
		}
	}
	return s
}

func (x *Index) advance(now int64) { x.now = max(x.now, now) }

func (x *Index) known(h fleet.Holder) *forest {
	if int(h) >= len(x.forests) {
		return nil
	}
	return x.forests[h]
}

func (x *Index) forest(h fleet.Holder) *forest {
	for int(h) >= len(x.forests) {
		x.forests = append(x.forests, nil)
	}
	if x.forests[h] == nil {
		x.forests[h] = newForest()
	}
	return x.forests[h]
}
