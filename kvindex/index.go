package kvindex

import (
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Config sizes an [Index]. A field at zero means its default.
type Config struct {
	// Bytes is a hard limit of what the index allocates, in bytes: everything it keeps is counted, tables that are
	// being grown twice. At the limit workers above their fair share lose their least recently used prefixes first,
	// deepest blocks before their parents. Default 1 GiB, which is some 10 M blocks on one holder each; at least 1 MiB.
	Bytes int64 `yaml:"bytes"`
	// MaxWaiting is how many announced blocks may wait for a parent or a handle that is not known yet, over all
	// holders; the oldest are dropped. Default 65,536: an offload event comes before its parent by some dozen blocks,
	// a lost message lets thousands wait until the holder is forgotten and learned again.
	MaxWaiting int `yaml:"max_waiting"`
	// WaitingBytes bounds the same in bytes. 0, the default, is 1/16 of Bytes, at most 64 MiB. A value above 1/4 of
	// Bytes counts as 1/4.
	WaitingBytes int64 `yaml:"waiting_bytes"`
	// MaxSpeculative is how many speculative entries there may be; the oldest are dropped. Default 1 M: two minutes
	// of requests to holders without events, at 100 requests of 80 new blocks a second.
	MaxSpeculative int `yaml:"max_speculative"`
	// Seed is a secret that decides where in the index's tables keys and engine hashes lie. Workers choose their
	// hashes and clients their tokens: whoever knows it can choose them so that they collide, which makes tables
	// slow, or so that they are taken for another worker's. Two indexes of one seed behave alike. Default 0, for
	// tests and simulations; a router draws one at start.
	Seed uint64 `yaml:"-"`
	// Worker returns the worker of a holder, asked once when the holder is first heard of. The holders of one worker
	// share one fair share of Bytes, so that a worker gains nothing by having many ranks. It must not block or call the
	// index. Default nil: each holder has a share of its own.
	Worker func(fleet.Holder) (fleet.WorkerID, bool) `yaml:"-"`
}

// DefaultConfig has the values that a zero Config stands for. Its WaitingBytes is 0, so that it follows Bytes.
func DefaultConfig() Config {
	c := Config{}.withDefaults()
	c.WaitingBytes = 0
	return c
}

func (c Config) withDefaults() Config {
	if c.Bytes == 0 {
		c.Bytes = 1 << 30
	}
	c.Bytes = max(c.Bytes, 1<<20)
	if c.MaxWaiting <= 0 {
		c.MaxWaiting = 1 << 16
	}
	if c.WaitingBytes <= 0 {
		c.WaitingBytes = min(c.Bytes/16, 64<<20)
	}
	c.WaitingBytes = min(c.WaitingBytes, c.Bytes/4)
	if c.MaxSpeculative <= 0 {
		c.MaxSpeculative = 1 << 20
	}
	return c
}

// MaxHolders bounds holder ids: the index keeps a dense array by holder. Calls for holders beyond are ignored.
const MaxHolders = 1 << 20

// MaxGroups is how many cache groups one holder may announce. With more, none of its blocks proves a prefix.
const MaxGroups = 15

// MaxChain bounds a chain in tokens. What an engine announces beyond is ignored.
const MaxChain = 1 << 30

// Origin tells why an engine announces a block, where its wire says so.
type Origin uint8

// The origins.
const (
	OriginUnknown Origin = iota // decided as the package comment says
	OriginNew                   // a new copy, also when the block is there already
	OriginReused                // a report of what is there: adds what is missing and no copy
)

// Stored is one announcement of blocks by an engine: a run of blocks of one chain.
type Stored struct {
	Tier      block.Tier
	Group     int             // the engine's number of the cache group; negative (none named) counts as 0
	Attention block.Attention // of the group; AttentionFull also when the engine names no kind
	Window    int             // of a sliding-window group, in tokens

	Scope     block.Scope // of the chain; used when HasParent and RootUnknown are false
	Parent    uint64      // engine hash of the block before the first
	HasParent bool        // false: the run begins at the chain's first token

	Handles []uint64      // engine hashes in order; kept by nobody
	Tokens  []block.Token // of the whole run; empty in placeholders
	// BlockSize is the engine's block size in tokens; 0 when not told. When len(Tokens) is not
	// len(Handles)·BlockSize, the handles do not align with the tokens, and blocks are known by their handles alone.
	BlockSize int
	Features  []block.Feature // multimodal items, offsets relative to Tokens[0]; those before it are inherited
	// First are the prompt's first tokens where the engine hashes blocks with a look-ahead of so many tokens; Tokens
	// then begin after them (block.Hasher.Ahead). It is used where Scope is.
	First []block.Token
	// RootUnknown says that the scope cannot be known (offload events drop the salt): no chain is begun, the blocks
	// only join a parent or a handle that is known.
	RootUnknown bool
	Origin      Origin
	// AnyTierOrder says that the engine loads the blocks of a chain from any tier in any order: each block counts on
	// its best tier, and a match may go from the host back to the accelerator. TensorRT-LLM does:
	// loadOrAllocateBlocks in cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp walks its tree and onboards every
	// matched block that is not on the accelerator. vLLM and SGLang do not. It counts from the holder's first such
	// announcement for a tier below the accelerator on.
	AnyTierOrder bool
}

// Match is what one holder has of a request.
type Match struct {
	Holder fleet.Holder
	// Blocks is the number of leading blocks that are confirmed and that all cache groups of the holder let the
	// engine use, over all tiers.
	Blocks uint32
	// Tier splits Blocks by the tier from which each block would be read. Blocks on one tier follow those on a faster
	// one, but with Stored.AnyTierOrder.
	Tier [block.NumTiers]uint32
	// Speculative is Blocks if speculative entries were confirmed; at least Blocks.
	Speculative uint32
	// Full is what the full-attention groups alone would claim; 0 for holders that have none.
	Full uint32
}

// Index knows which holder has which blocks. All methods are safe for concurrent use; the events of one holder must be
// applied in order by one goroutine at a time. See the package comment for the memory model.
type Index struct {
	hasher *block.Hasher
	size   uint32 // of our blocks, in tokens
	config Config

	// mu serialises everything that changes the index; lock and unlock take it. It guards all fields below that tableMu
	// does not guard, except later, which has its own mutex.
	mu sync.Mutex
	// tableMu is taken after mu. Whoever changes what readers see holds it exclusively, for short stretches; Match
	// holds it shared where it cannot do without. Writers need only mu to read what it guards: blocks.
	tableMu sync.RWMutex

	blocks  blocks
	views   atomic.Pointer[[]atomic.Pointer[view]] // by holder; nil: unknown
	viewing atomic.Uint64                          // changes of views
	special atomic.Int32                           // holders that are not plain, or are being forgotten
	sparse  atomic.Pointer[[]fleet.Holder]         // holders without full attention, ascending
	base    atomic.Uint64                          // the clock's value that a strand notes as 0

	holders []*holder // by id
	known   int       // of them that are not nil
	handles table     // (holder, engine hash) → points
	points  arena[point]
	records arena[record]
	extras  arena[extra]
	covers  table // (holder, tier, group, key) → parts, for blocks that are not simply covered once
	parts   arena[part]
	waiters table // (holder, engine hash of a parent) → first point that waits for it

	queued       arena[queued]
	waiting      int // points that wait, of all holders
	waitingBytes int64
	extraBytes   int64
	woken        []uint64    // handles that became known while points waited for them
	bare         []block.Key // that were named and not stored
	scratch      scratch
	single       [1]block.Key
	copies       map[copyKey]uint32 // blocks of StoreKeys that are there more than once: how often beyond that
	workers      map[workerKey]*worker
	counts       counters
	lost         bool          // copies may tell of blocks that are gone
	hand         uint64        // where relieve looks next
	resting      int           // how often it is not worth it
	compared     int           // how often until it compares shares again
	clock        atomic.Uint64 // operations so far: what recency is measured in
	now          atomic.Int64  // the latest time a Match was told
	matchers     sync.Pool     // of *matcher
	later        later
	slack        need  // what surely fits, so that room is not measured for each announcement
	reserve      int64 // bytes for one more stretch, as measured last; 0 where there is room for many
}

type scratch struct {
	keys     []block.Key
	tokens   []block.Token
	features []block.Feature
	path     []uint32 // points
}

// New returns an empty index for blocks of the hasher's size.
func New(h *block.Hasher, cfg Config) *Index {
	x := &Index{hasher: h, size: uint32(h.Size()), config: cfg.withDefaults()}
	x.plant(cfg.Seed)
	x.matchers.New = func() any { return newMatcher() }
	x.blocks.init()
	x.clock.Store(1)
	return x
}

// Size returns the block size in tokens.
func (x *Index) Size() int { return int(x.size) }

// Remove tells that a holder dropped one copy of each block from a tier and group. Handles that are not known are
// ignored.
func (x *Index) Remove(id fleet.Holder, tier block.Tier, group int, handles []uint64) {
	x.lock()
	defer x.unlock()
	x.blocks.ghosts = x.blocks.ghosts[:0]
	h := x.holder(id)
	if h == nil || tier >= block.NumTiers {
		return
	}
	g := h.find(group)
	if g < 0 {
		x.counts.unknownRemoved += int64(len(handles))
		h.unknown += int64(len(handles))
		return
	}
	for len(handles) > 0 {
		n := min(len(handles), x.stretch(h.stretch(), 0))
		x.roomToSplit(n)
		x.tableMu.Lock()
		if !h.odd {
			x.removePlain(h, tier, uint8(g), handles[:n])
		} else {
			for _, handle := range handles[:n] {
				x.removePoint(h, tier, uint8(g), handle)
			}
		}
		x.tableMu.Unlock()
		if handles = handles[n:]; len(handles) > 0 && !x.yield(h) {
			return
		}
	}
}

// Clear tells that a holder emptied one tier. What it has on other tiers stays, and stays known by its handles. The
// tier is whole again. If it was not, the tiers of blocks that still wait are not whole: the index may have lost the
// blocks that they wait for.
func (x *Index) Clear(id fleet.Holder, tier block.Tier) {
	x.lock()
	defer x.unlock()
	x.blocks.ghosts = x.blocks.ghosts[:0]
	h := x.holder(id)
	if h == nil || tier >= block.NumTiers {
		return
	}
	lost := h.broken&(1<<tier) != 0
	h.broken &^= 1 << tier
	h.vague &^= 1 << tier
	if h.keyed || h.named > 0 || h.believed > 0 {
		x.clearStrands(h, tier)
	}
	x.inStretches(h.points, func(p uint32) {
		waits := x.points.at(p).end == 0
		x.dropRecords(h, p, func(r *record) bool {
			if waits && lost && r.tier != tier {
				h.broken |= 1 << r.tier
			}
			return r.tier == tier
		})
	})
	x.collectAll(h)
}

// Forget drops all that is known of a holder, at a cost in proportion to what it holds. Memory that it alone needed
// is given back then, or in steps with what is stored next.
func (x *Index) Forget(id fleet.Holder) {
	x.lock()
	defer x.unlock()
	x.blocks.ghosts = x.blocks.ghosts[:0]
	h := x.holder(id)
	if h == nil {
		return
	}
	x.tableMu.Lock()
	x.special.Add(1)
	x.setView(id, nil) // from here on no reader sees it
	x.tableMu.Unlock()
	// Strand by strand is cheaper than block by block, if it has much, and right if no block is covered in part.
	whole := h.odd && h.covers == 0 && h.handles > int64(x.blocks.strands.live)
	if h.keyed || h.named > 0 || whole || h.believed > 0 {
		c := change{h: h, doubt: anyBelief}
		if !h.odd || whole {
			c.bit = 1<<64 - 1
		}
		x.blocks.stale = true
		x.sweepStrands(c)
	}
	x.inStretches(h.points, func(p uint32) {
		if whole {
			x.releaseRecords(p)
		} else {
			x.dropRecords(h, p, func(*record) bool { return true })
		}
	})
	x.releaseAll(h)
	x.blocks.disinherit(h)
	x.special.Add(-1) // nothing claims it any more
	x.holders[id] = nil
	x.known--
	x.dismiss(h)
	x.counts.forgotten++
	x.giveBack()
}

// clearStrands takes a tier of a holder that is not odd from all strands, and all that is believed of it.
func (x *Index) clearStrands(h *holder, tier block.Tier) {
	c := change{h: h, doubt: anyBelief}
	if !h.odd {
		c.bit = anyGroup << tier
	}
	others := int64(0)
	for t, n := range h.blocks {
		if t != int(tier) {
			others += n
		}
	}
	if others == 0 && h.named > 0 {
		c.bit |= maskNamed
	}
	x.blocks.stale = x.blocks.stale || h.named > 0
	touched := x.sweepStrands(c)
	if h.named == 0 {
		return
	}
	// What it has no more is known while it has descendants.
	x.tableMu.Lock()
	for k, i := range touched {
		if k%stretch == stretch-1 {
			x.tableMu.Unlock()
			x.tableMu.Lock()
		}
		x.blocks.unnameStrand(h, i)
	}
	x.tableMu.Unlock()
}

// stretch is how many blocks a writer changes before it lets readers pass: some µs.
const stretch = 64

// keyStretch is stretch for keys and for handles that name blocks, which cost less.
const keyStretch = 256

// stretchTokens bounds a stretch in tokens: one block of the largest size. So a stretch needs no more room than a few
// hundred blocks of a usual size.
const stretchTokens = block.MaxSize

// stretch returns the bound of a stretch in blocks of size tokens. Room for a whole stretch is made before it is
// applied: in an index of less than 16 MiB stretches are shorter, so that this room is a small part of the budget.
func (x *Index) stretch(most, size int) int {
	most = min(most, int(x.config.Bytes>>16))
	return max(1, min(most, min(stretchTokens, int(x.config.Bytes>>9))/max(size, 1)))
}

// stretch returns the bound of a stretch of a holder's events.
func (h *holder) stretch() int {
	if h.odd {
		return stretch
	}
	return keyStretch
}

// yield lets other writers in between two stretches of a holder's events, and reports whether the holder is still the
// same after that. Who waits for a millisecond is served next: see sync.Mutex.
func (x *Index) yield(h *holder) bool {
	x.unlock()
	x.lock()
	return x.holder(h.id) == h
}

// pause is yield in the middle of an operation: what the operation has still to wake is set aside. The operation must
// look up again what it had in hand.
func (x *Index) pause(h *holder) bool {
	woken, bare := x.woken, x.bare
	x.woken, x.bare = nil, nil
	known := x.yield(h)
	if known {
		x.woken, x.bare = woken, bare
	}
	return known
}

// inStretches calls f for the points of a holder's list from p on, with tableMu held. f must not unlink points.
func (x *Index) inStretches(p uint32, f func(p uint32)) {
	for p != 0 {
		x.tableMu.Lock()
		for n := 0; p != 0 && n < stretch; n++ {
			next := x.points.at(p).next
			x.blocks.steps++
			f(p)
			p = next
		}
		x.tableMu.Unlock()
	}
}
