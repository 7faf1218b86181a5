package kvindex

import (
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// Config sizes an [Index]. A field at zero means its default.
type Config struct {
	// Bytes is a hard limit of the memory that the index allocates. While a table grows, its old and its new memory
	// count. If the index is full, it evicts the least recently used prefixes of workers above their fair share first,
	// and children before their parents. Default 1 GiB, which is some 30 M blocks of long prompts on one holder each;
	// at least 1 MiB.
	Bytes int64 `yaml:"bytes"`
	// MaxWaiting is how many announced blocks of all holders together may wait for a parent or a hash that is not known
	// yet. Above this number, the index drops the oldest ones of the holder that has the most. Default 65,536: an
	// offload event comes before its parent by some dozen blocks. After a lost message thousands of blocks wait, until
	// the holder is forgotten and learned again.
	MaxWaiting int `yaml:"max_waiting"`
	// WaitingBytes bounds the waiting blocks in bytes. 0, the default, means 1/16 of Bytes, at most 64 MiB. A value
	// above 1/4 of Bytes counts as 1/4.
	WaitingBytes int64 `yaml:"waiting_bytes"`
	// Seed is a secret that decides where in the index's tables keys and engine hashes lie. Workers choose their
	// hashes, and clients choose their tokens. An attacker who knows the seed can choose values that collide, which
	// makes tables slow. Two indexes with the same seed behave alike. Default 0, for tests and simulations; a router
	// draws a random seed at start.
	Seed uint64 `yaml:"-"`
	// Worker returns the worker of a holder. The index calls Worker at the holder's first event, and at its first event
	// after Forget. The holders of one worker share one fair share of Bytes, so that a worker gains nothing by having
	// many ranks. Worker must not block or call the index. Default nil: each holder has a share of its own.
	Worker func(fleet.Holder) (fleet.WorkerID, bool) `yaml:"-"`
	// Changed is told of each change of what the index claims. The index calls it under its lock, in the order of the
	// changes, so Changed must not block or call the index. The change and its slices are valid during the call only.
	// Default nil: nobody is told.
	Changed func(*Change) `yaml:"-"`
}

// DefaultConfig has the values that a zero Config stands for, except WaitingBytes: 0 stays, so that the limit follows
// Bytes.
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

// MaxHolders bounds holder ids, because the index has arrays with one element for each id up to the greatest one. The
// index refuses events of ids from MaxHolders on, and of ids whose arrays would take more than a quarter of
// Config.Bytes. It also refuses events of further holders when the known ones take a quarter of Config.Bytes, even
// without blocks. With 1 MiB these are the ids from 10,923 on, and more than 342 holders.
const MaxHolders = 1 << 20

// MaxGroups is how many cache groups one holder may announce. If a holder announces more, none of its blocks proves a
// prefix.
const MaxGroups = 15

// MaxChain bounds a chain in tokens. The index refuses announced blocks beyond this bound: see HolderStats.Refused.
const MaxChain = 1 << 30

// Origin is the reason why an engine announces a block, if its events contain it.
type Origin uint8

// The origins.
const (
	OriginUnknown Origin = iota // the index decides between a copy and a report, as the package comment says
	OriginNew                   // a new copy, also when the block is there already
	OriginReused                // a report of blocks that are there: it adds missing blocks and no copies
)

// Stored is one announcement of blocks by an engine: a run of blocks of one chain.
type Stored struct {
	Tier      block.Tier
	Group     int             // the engine's number of the cache group; negative (none named) counts as 0
	Attention block.Attention // the kind of the group; AttentionFull also when the engine names no kind
	Window    int             // the window of a sliding-window group, in tokens

	Scope     block.Scope // the scope of the chain; used when HasParent and RootUnknown are false
	Parent    uint64      // the engine hash of the block before the run
	HasParent bool        // false: the run begins at the chain's first token

	Hashes []uint64      // the engine hashes of the blocks, in order
	Tokens []block.Token // the tokens of the whole run; empty if the event has only hashes
	// BlockSize is the engine's block size in tokens; 0: unknown. If len(Tokens) is not len(Hashes)·BlockSize, the
	// hashes do not align with the tokens, and the index knows the blocks only by their hashes.
	BlockSize int
	// Features are the multimodal items that start in the run, with offsets relative to Tokens[0]. Items before the run
	// are already in the parent's key.
	Features []block.Feature
	// First is used if the engine's hashes have a look-ahead, and only where Scope is used. First has the prompt's first
	// tokens, as many as the look-ahead. Tokens then begin after these tokens (block.Hasher.Ahead).
	First []block.Token
	// RootUnknown says that the scope cannot be known (offload events drop the salt). The index then begins no chain: it
	// adds the blocks only after a known parent, or at the place of a known hash.
	RootUnknown bool
	Origin      Origin
	// AnyTierOrder says that the engine loads the blocks of a chain from any tier in any order: each block counts on
	// its fastest tier, and a match may continue from the host back on the accelerator. The C++ cache manager of
	// TensorRT-LLM does: loadOrAllocateBlocks in cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp walks its tree and
	// onboards every matched block that is not on the accelerator. vLLM and SGLang do not. The index applies the rule
	// to a holder from the holder's first announcement on that has AnyTierOrder and a tier below the accelerator.
	AnyTierOrder bool
}

// Match says how much of a request one holder has.
type Match struct {
	Holder fleet.Holder
	// Blocks is the number of leading blocks that the engine can use: all cache groups of the holder allow this length.
	// All tiers count.
	Blocks uint32
	// Tier splits Blocks by the tier from which the engine would read each block. The blocks on a faster tier come before
	// the blocks on a slower tier, unless Stored.AnyTierOrder is set.
	Tier [block.NumTiers]uint32
	// Full is the match of the full-attention groups alone; 0 for holders without such a group.
	Full uint32
}

// Index knows which holder has which blocks. All methods are safe for concurrent use; the events of one holder must be
// applied in order by one goroutine at a time. See the package comment for the memory model.
type Index struct {
	hasher *block.Hasher
	size   uint32 // the size of the index's blocks, in tokens
	config Config

	// mu serialises everything that changes the index; lock and unlock take and release it. mu guards the fields below,
	// except the atomic ones, matchers, and the parts of blocks that Match reads. Match takes mu only after 16 failed
	// version checks, see patience.
	mu sync.Mutex

	blocks  blocks
	views   atomic.Pointer[[]atomic.Pointer[view]] // what readers know of each holder; nil: not known
	viewing atomic.Uint64                          // the version of views: odd while views change
	sparse  atomic.Int32                           // how many views are sparse, see view.sparse
	special atomic.Int32                           // special views (see view.special) plus running Forgets

	known        int   // the number of known holders
	pointed      int64 // the number of points of all holders; see point
	waiting      int   // the number of points that wait for a place, of all holders
	waitingBytes int64 // the memory of these points
	scratch      scratch
	workers      map[workerKey]*worker
	counts       Stats         // the counters of Stats
	hand         uint32        // where evictSome continues
	debt         int           // how many strands fair calls of evictSome looked at beyond their allowance, see there; 0 or less: none
	clock        atomic.Uint32 // the number of calls of Store and Load so far: the unit of a strand's age
	matchers     sync.Pool     // pool of *matcher
	slack        need          // room that was measured and is not used yet: not every announcement measures room
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
	x.blocks.teller = newTeller(cfg.Changed)
	x.matchers.New = func() any { return new(matcher) }
	return x
}

// mostStretch bounds a stretch: the blocks that a writer changes before it lets others in between.
const mostStretch = 256

// stretchTokens bounds a stretch in tokens: one block of the largest size. So a stretch needs no more room than some
// thousand blocks of 16 tokens.
const stretchTokens = block.MaxSize

// stretch returns how many blocks of size tokens a stretch may have. The index makes room for a whole stretch before it
// applies the stretch. In an index of less than 16 MiB stretches are shorter, and in an index of less than 32 MiB
// stretches of large blocks are, so that this room is a small part of the budget.
func (x *Index) stretch(size int) int {
	most := min(mostStretch, int(x.config.Bytes>>16))
	return max(1, min(most, min(stretchTokens, int(x.config.Bytes>>9))/max(size, 1)))
}

// pauseSteps is the number of steps after which a writer lets others in between, if it may change much for each block:
// some milliseconds.
const pauseSteps = 100_000

func (x *Index) lock() { x.mu.Lock() }

func (x *Index) unlock() {
	x.blocks.compact(false)
	x.mu.Unlock()
}

// yield lets other writers in between two stretches of a holder's event. It reports false if the holder was forgotten
// meanwhile. A writer that has waited for a millisecond is served next: see sync.Mutex.
func (x *Index) yield(h *holder) bool {
	x.unlock()
	x.lock()
	return x.holder(h.id) == h
}

// tick returns the time as strands note it: the number of calls of Store and Load. It wraps around after 4 G calls: a
// strand that was unused for so long may count as used.
func (x *Index) tick() uint32 { return x.clock.Load() }

// pass adds one call of Store or Load to the clock.
func (x *Index) pass() { x.clock.Store(x.clock.Load() + 1) }

// derive returns the seed of one table, given its number. For seed 0 it returns 0.
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
