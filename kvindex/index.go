package kvindex

import (
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Config sizes an [Index]. A field at zero means its default.
type Config struct {
	// Bytes is a hard limit of the memory that the index allocates. A table that is being grown counts twice. At the
	// limit workers above their fair share lose their least recently used prefixes first, deepest blocks before their
	// parents. Default 1 GiB, which is some 20 M blocks on one holder each; at least 1 MiB.
	Bytes int64 `yaml:"bytes"`
	// MaxWaiting is how many announced blocks may wait for a parent or a hash that is not known yet, over all
	// holders; the oldest are dropped. Default 65,536: an offload event comes before its parent by some dozen blocks,
	// a lost message lets thousands wait until the holder is forgotten and learned again.
	MaxWaiting int `yaml:"max_waiting"`
	// WaitingBytes bounds the same in bytes. 0, the default, is 1/16 of Bytes, at most 64 MiB. A value above 1/4 of
	// Bytes counts as 1/4.
	WaitingBytes int64 `yaml:"waiting_bytes"`
	// Seed is a secret that decides where in the index's tables keys and engine hashes lie. Workers choose their
	// hashes and clients their tokens: with the seed, an attacker can choose them so that they collide, which makes
	// tables slow, or so that they are taken for another worker's. Two indexes of one seed behave alike. Default 0, for
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
	return c
}

// MaxHolders bounds holder ids: the index keeps a dense array by holder. Calls for holders beyond are ignored.
const MaxHolders = 1 << 20

// MaxGroups is how many cache groups one holder may announce. With more, none of its blocks proves a prefix.
const MaxGroups = 15

// MaxChain bounds a chain in tokens. The index ignores announced blocks beyond this bound.
const MaxChain = 1 << 30

// Origin is the reason why an engine announces a block, if its events contain it.
type Origin uint8

// The origins.
const (
	OriginUnknown Origin = iota // decided as the package comment says
	OriginNew                   // a new copy, also when the block is there already
	OriginReused                // a report of blocks that are there: it adds missing blocks and no copies
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

	Hashes []uint64      // engine hashes in order
	Tokens []block.Token // of the whole run; empty in placeholders
	// BlockSize is the engine's block size in tokens; 0: unknown. When len(Tokens) is not len(Hashes)·BlockSize, the
	// hashes do not align with the tokens, and blocks are known by their hashes alone.
	BlockSize int
	Features  []block.Feature // multimodal items, offsets relative to Tokens[0]; those before it are inherited
	// First is used if the engine's hashes have a look-ahead: it has the prompt's first tokens, as many as the
	// look-ahead. Tokens then begin after these tokens (block.Hasher.Ahead). First is used where Scope is.
	First []block.Token
	// RootUnknown says that the scope cannot be known (offload events drop the salt): no chain is begun, the blocks
	// only join a parent or a hash that is known.
	RootUnknown bool
	Origin      Origin
	// AnyTierOrder says that the engine loads the blocks of a chain from any tier in any order: each block counts on
	// its best tier, and a match may continue from the host back on the accelerator. TensorRT-LLM does:
	// loadOrAllocateBlocks in cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp walks its tree and onboards every
	// matched block that is not on the accelerator. vLLM and SGLang do not. It counts from the holder's first such
	// announcement for a tier below the accelerator on.
	AnyTierOrder bool
}

// Match says how much of a request one holder has.
type Match struct {
	Holder fleet.Holder
	// Blocks is the number of leading blocks that all cache groups of the holder let the engine use, over all tiers.
	Blocks uint32
	// Tier splits Blocks by the tier from which each block would be read. Blocks on one tier follow blocks on a faster
	// one, unless Stored.AnyTierOrder is set.
	Tier [block.NumTiers]uint32
	// Full is the match of the full-attention groups alone; 0 for holders that have none.
	Full uint32
}

// Index knows which holder has which blocks. All methods are safe for concurrent use; the events of one holder must be
// applied in order by one goroutine at a time. See the package comment for the memory model.
type Index struct {
	hasher *block.Hasher
	size   uint32 // of our blocks, in tokens
	config Config

	// mu serialises everything that changes the index; lock and unlock take it. It guards all fields below that are not
	// atomic. Match takes it where it cannot do without.
	mu sync.Mutex

	blocks  blocks
	views   atomic.Pointer[[]atomic.Pointer[view]] // by holder; nil: unknown
	viewing atomic.Uint64                          // changes of views
	sparse  atomic.Int32                           // how many of them have no full attention
	special atomic.Int32                           // holders with claims and a view other than fullView

	known        int   // of them that are not nil
	pointed      int64 // points of all holders
	waiting      int   // points that wait, of all holders
	waitingBytes int64
	woken        []uint64 // hashes that became known while points waited for them
	bare         []spot   // of blocks that were known before anything of them was stored
	scratch      scratch
	workers      map[workerKey]*worker
	counts       Stats         // the counters of Stats
	hand         uint32        // where evictSome continues
	debt         int           // looks at strands of evictSome for which no evicted block paid; below 0: none
	clock        atomic.Uint32 // operations so far: the unit of recency
	matchers     sync.Pool     // of *matcher
	slack        need          // it surely fits, so that room is not measured for each announcement
}

type scratch struct {
	keys     []block.Key
	tokens   []block.Token
	features []block.Feature
	spots    []spot
}

// New returns an empty index for blocks of the hasher's size.
func New(h *block.Hasher, cfg Config) *Index {
	x := &Index{hasher: h, size: uint32(h.Size()), config: cfg.withDefaults()}
	x.plant(cfg.Seed)
	x.matchers.New = func() any { return new(matcher) }
	return x
}

// Size returns the block size in tokens.
func (x *Index) Size() int { return int(x.size) }

// mostStretch is how many blocks a writer changes before it lets others in between.
const mostStretch = 256

// stretchTokens bounds a stretch in tokens: one block of the largest size. So a stretch needs no more room than a few
// hundred blocks of a usual size.
const stretchTokens = block.MaxSize

// stretch returns the bound of a stretch in blocks of size tokens. Room for a whole stretch is made before it is
// applied: in an index of less than 16 MiB stretches are shorter, so that this room is a small part of the budget.
func (x *Index) stretch(size int) int {
	most := min(mostStretch, int(x.config.Bytes>>16))
	return max(1, min(most, min(stretchTokens, int(x.config.Bytes>>9))/max(size, 1)))
}

func (x *Index) lock() { x.mu.Lock() }

func (x *Index) unlock() {
	x.blocks.compact(false)
	x.mu.Unlock()
}

// yield lets other writers in between two stretches of a holder's events, and reports whether the holder is still the
// same after that. A writer that has waited for a millisecond is served next: see sync.Mutex.
func (x *Index) yield(h *holder) bool {
	x.unlock()
	x.lock()
	return x.holder(h.id) == h
}

// tick returns the present moment as strands note it: operations that stored. It wraps around after 4 G operations: a
// strand that was unused for so long may count as used.
func (x *Index) tick() uint32 { return x.clock.Load() }

// pass lets time pass by one operation.
func (x *Index) pass() { x.clock.Store(x.clock.Load() + 1) }

// derive returns one of the numbers that a seed stands for, 0 for seed 0.
func derive(seed, number uint64) uint64 {
	if seed == 0 {
		return 0
	}
	return block.Mix64(seed + number*block.Golden)
}

// plant seeds the tables, which must be empty.
func (x *Index) plant(seed uint64) {
	b := &x.blocks
	b.heads.Seed, b.names.Seed, b.sets.byHash.Seed = derive(seed, 1), derive(seed, 2), derive(seed, 3)
	b.sets.byState.Seed = derive(seed, 5)
	b.heads.Shared = true
	if x.config.Bytes < 32<<20 {
		b.log.Words = 512 // a small part of the least budget
	}
	b.veil = 0x6a09e667f3bcc908 ^ derive(seed, 4)
}
