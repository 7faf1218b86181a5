package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/warmpath/warmpath/block"
)

// Request is one sequence to compute. The fields up to Owner are the caller's and must not change once it is submitted.
// Where Output lies directly behind Prompt in the same array, that array is used; otherwise the prompt is copied.
type Request struct {
	Prompt   []block.Token
	Output   []block.Token // what it will answer; at least one token. It ends when all are out or the model length is reached
	Scope    block.Scope   // what its blocks are rooted in; Model is the engine's business
	Features []block.Feature
	Fresh    bool // do not read the prefix cache (vLLM: prompt_logprobs)
	Announce bool // announce the blocks it hits again (vLLM: kv_cache_report_mode=full)
	Received int  // leading prompt tokens whose KV a prefill worker has sent: they are not computed here, but for the last token
	Owner    any  // for the caller; the model never looks

	// HashState is for Config.Hash alone: the whole digest of the last block it hashed, where Hash keeps 64 bits of it.
	HashState block.Digest

	// Cached is the number of prompt tokens that were not computed, over all tiers; known when the first token is out.
	Cached int
	// Loaded is how many of Cached came from the CPU tier.
	Loaded int

	tokens      []block.Token // prompt and the output so far
	hashes      []Hash        // of the full blocks of tokens, as far as needed
	blocks      []int32
	computed    int // tokens with KV
	stored      int // leading blocks that are cached
	emitted     int
	admitted    bool // Cached is final: a preempted request keeps its first count
	loadPending int  // tokens from the CPU tier, for the step's time
	state       state
}

type state uint8

const (
	idle state = iota
	waiting
	running
)

// Recycle empties r for another request and keeps its memory. It must have ended, or never been submitted.
func (r *Request) Recycle() {
	if r.state != idle {
		panic("bug: request recycled while an engine has it")
	}
	*r = Request{hashes: r.hashes[:0], blocks: r.blocks[:0]}
}

// Output is a token that a step produced.
type Output struct {
	Request *Request
	Token   block.Token
	First   bool
	Last    bool // the request is finished and has given its blocks back
}

// Step is what one scheduler pass did. All of it becomes visible at the pass's end, Duration after its start.
type Step struct {
	Duration  time.Duration
	Events    []Event // in the order in which they happened
	Outputs   []Output
	Admitted  []*Request // those that it began to compute, preempted ones not again
	Tokens    int        // tokens computed
	Preempted int

	hashes []Hash
}

// Stats are a rank's gauges and totals.
type Stats struct {
	Running, Waiting      int
	Blocks, UsedBlocks    int    // usable blocks, and those that running requests hold
	CachedBlocks          int    // distinct hashes on the accelerator
	CPUBlocks             int    // blocks on the CPU tier
	Queries, Hits         uint64 // prompt tokens looked up and found on the accelerator
	CPUQueries, CPUHits   uint64 // the same for the CPU tier
	PromptTokens, Outputs uint64
	Preemptions, Steps    uint64
	Finished              uint64
}

// Engine is one rank. It is not safe for concurrent use.
type Engine struct {
	cfg     Config
	pool    *pool
	cpu     *cpuTier // nil: none
	running []*Request
	queue   []*Request
	stuck   bool // the queue's head could not be admitted, and nothing has happened since that lets it
	stats   Stats

	scheduled []*Request // of the last pass, kept for its memory
	batch     Batch      // of the pass that is made: a variable that a Timing is shown would be allocated
}

// ErrTooLong refuses a prompt that leaves no room for an answer.
var ErrTooLong = errors.New("prompt is longer than the model's context")

// New returns an idle rank with an empty cache.
func New(cfg Config) (*Engine, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("make engine: %w", err)
	}
	// vLLM does not start when one request of the model's length would not fit; the model shortens it instead.
	cfg.MaxModelLen = min(cfg.MaxModelLen, (cfg.Blocks-1)*cfg.BlockSize)
	if cfg.MaxModelLen < 2 {
		return nil, fmt.Errorf("make engine: %d blocks of %d tokens hold no request", cfg.Blocks, cfg.BlockSize)
	}
	if cfg.Hash == nil {
		hasher, err := block.NewHasher(block.XXH3, cfg.BlockSize)
		if err != nil {
			return nil, fmt.Errorf("make engine: %w", err)
		}
		cfg.Hash = chainHash(hasher)
	}
	e := &Engine{cfg: cfg, pool: newPool(cfg.Blocks)}
	if cfg.CPUBlocks > 0 {
		e.cpu = newCPUTier(&cfg)
		if cfg.Offload == OffloadOnEvict {
			e.pool.evicted = e.cpu.evicted
		}
	}
	return e, nil
}

// chainHash is the default HashFunc. The root differs from every router's root for the same scope: a router that took
// the engine's hashes for its own keys would be found out.
func chainHash(hasher *block.Hasher) HashFunc {
	return func(dst []Hash, r *Request, tokens []block.Token) []Hash {
		size := hasher.Size()
		start := len(dst) * size
		if len(tokens)-start < size {
			return dst
		}
		scope := r.Scope
		scope.Model = "engine\x00" + scope.Model
		parent := hasher.Root(scope)
		if len(dst) > 0 {
			parent = block.Key(dst[len(dst)-1])
		}
		var keys [64]block.Key
		for start+size <= len(tokens) {
			n := min((len(tokens)-start)/size, len(keys))
			for _, k := range hasher.Append(keys[:0], parent, start, tokens[start:start+n*size], r.Features) {
				dst = append(dst, Hash(k))
				parent = k
			}
			start += n * size
		}
		return dst
	}
}

// MaxModelLen is the longest prompt and output together that the rank takes.
func (e *Engine) MaxModelLen() int { return e.cfg.MaxModelLen }

// Submit queues r. It refuses prompts that cannot be answered with one token at least.
func (e *Engine) Submit(r *Request) error {
	switch {
	case r.state != idle || r.tokens != nil:
		panic("bug: request submitted twice")
	case len(r.Prompt) == 0:
		return errors.New("submit request: prompt has no tokens")
	case len(r.Output) == 0:
		return errors.New("submit request: output has no tokens")
	case len(r.Prompt) >= e.cfg.MaxModelLen:
		return fmt.Errorf("submit request: %d prompt tokens, limit %d: %w", len(r.Prompt), e.cfg.MaxModelLen, ErrTooLong)
	}
	room := min(len(r.Output), e.cfg.MaxModelLen-len(r.Prompt))
	if n := len(r.Prompt); cap(r.Prompt) > n && &r.Prompt[:n+1][n] == &r.Output[0] {
		r.tokens = r.Prompt // tokens that are appended are those that stand there
	} else {
		r.tokens = append(make([]block.Token, 0, n+room), r.Prompt...)
	}
	r.state = waiting
	e.queue = append(e.queue, r)
	e.stats.PromptTokens += uint64(len(r.Prompt))
	return nil
}

// Cancel ends r at once, wherever it is; what it cached stays cached. A finished or unknown request is left alone.
func (e *Engine) Cancel(r *Request) {
	switch r.state {
	case waiting:
		e.queue = slices.DeleteFunc(e.queue, func(other *Request) bool { return other == r })
		e.stuck = false
	case running:
		e.running = slices.DeleteFunc(e.running, func(other *Request) bool { return other == r })
		e.free(r)
		e.stuck = false
	}
	r.state = idle
}

// Idle reports whether a Step would find nothing to do.
func (e *Engine) Idle() bool { return len(e.running) == 0 && len(e.queue) == 0 }

// Reset empties the accelerator's prefix cache; false means that requests are running and nothing happened. The CPU tier is
// left alive. vLLM announces it with its next step that has events; SGLang at once: see TakeEvents.
func (e *Engine) Reset() bool {
	if !e.pool.reset() {
		return false
	}
	if e.cpu != nil {
		e.cpu.forgetWaiting()
	}
	e.stuck = false
	return true
}

// TakeEvents moves the events that no step has announced yet into s.Events.
func (e *Engine) TakeEvents(s *Step) {
	s.Events, e.pool.events = e.pool.events, s.Events[:0]
	s.hashes, e.pool.hashes = e.pool.hashes, s.hashes[:0]
}

// Stats returns the gauges and totals now.
func (e *Engine) Stats() Stats {
	s := e.stats
	s.Running, s.Waiting = len(e.running), len(e.queue)
	s.Blocks, s.UsedBlocks, s.CachedBlocks = len(e.pool.slots)-1, e.pool.used(), e.pool.cached.n
	if e.cpu != nil {
		s.CPUBlocks = len(e.cpu.byHash)
	}
	return s
}

// CachedHashes calls f for each distinct hash of a tier, in no order, and stops when f returns false.
func (e *Engine) CachedHashes(t block.Tier, f func(Hash) bool) {
	switch {
	case t == block.TierGPU:
		for _, p := range e.pool.cached.places {
			if p.id != nullBlock && !f(p.hash) {
				return
			}
		}
	case t == block.TierCPU && e.cpu != nil:
		for h := range e.cpu.byHash {
			if !f(h) {
				return
			}
		}
	}
}

// Load returns how many requests run and wait, and the share of the pool that the running ones hold.
func (e *Engine) Load() (running, waiting int, kv float64) {
	return len(e.running), len(e.queue), float64(e.pool.used()) / float64(len(e.pool.slots)-1)
}
