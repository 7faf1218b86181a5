package engine

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/warmpath/warmpath/block"
)

// Request is one sequence to compute. The caller sets the fields up to Owner, and must not change them after Submit. If
// Output directly follows Prompt in the same array, the engine uses this array. Otherwise the engine copies the prompt.
type Request struct {
	Prompt []block.Token
	// Output is the answer, at least one token. The request ends with the last token of Output, or when prompt and
	// answer reach MaxModelLen.
	Output   []block.Token
	Scope    block.Scope // the root of the request's blocks
	Features []block.Feature
	Fresh    bool // do not use cached blocks, as vLLM does for a request with prompt_logprobs
	// Announce adds an event for the blocks that the request finds in the cache (vLLM: kv_cache_report_mode=full).
	Announce bool
	// Received is the number of tokens at the start of the prompt whose KV comes from a prefill worker. The engine does
	// not compute these tokens, but it always computes the last prompt token.
	Received int
	// Await means that the received tokens arrive while the request waits. The engine takes blocks for the whole
	// prompt, lists the request in Step.Awaiting, and computes nothing for it before the caller calls Arrive. So does
	// vLLM with a connector that loads between steps (WAITING_FOR_REMOTE_KVS in v1/core/sched/scheduler.py, 0.32).
	Await bool
	// Pin means that the request keeps its blocks when it ends, until the caller calls Release. So does vLLM while
	// another engine has yet to read the blocks.
	Pin   bool
	Owner any // a value of the caller; the model does not use it

	// HashState is memory for Config.Hash: the whole digest of the last hashed block. A Hash has only 64 bits of a
	// digest.
	HashState block.Digest

	// Cached is the number of prompt tokens that were found in the caches of all tiers. The engine sets it when it
	// admits the request for the first time, so the caller can read it with the first token.
	Cached int
	// Loaded is the number of tokens in Cached that came from the CPU tier.
	Loaded int
	// External is the number of received tokens that the engine's own cache lacks. The engine sets it when it lists the
	// request in Step.Awaiting.
	External int

	tokens   []block.Token // the prompt and the tokens generated so far
	hashes   []Hash        // hashes of the first full blocks of tokens
	blocks   []int32
	computed int // number of tokens whose KV is computed
	stored   int // number of blocks, from the first on, that are in the prefix cache
	emitted  int
	// admitted is true from the first admission on: Cached and Loaded are set, and an admission after a preemption does
	// not change them.
	admitted    bool
	arrived     bool // Arrive was called after the request took its blocks
	loadPending int  // number of tokens that the next step loads from the CPU tier
	state       state
}

type state uint8

const (
	idle state = iota
	waiting
	running
	awaiting // has blocks, and waits for Arrive
	pinned   // has ended, and keeps its blocks until Release
)

// Recycle empties r for another request, and keeps its memory. Call it only when r has ended or was never submitted.
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
	Last    bool // the request has ended and released its blocks, unless Request.Pin is set
}

// Step is the result of one scheduler pass. The result becomes visible at the end of the pass, Duration after the start
// of the pass.
type Step struct {
	Duration time.Duration
	Events   []Event // events in the order in which they happened
	Outputs  []Output
	// Admitted has the requests that began in this pass, without preempted requests that began again.
	Admitted []*Request
	// Awaiting has the requests that took their blocks in this pass and now wait for Arrive; see Request.Await.
	Awaiting  []*Request
	Tokens    int // number of computed tokens
	Preempted int

	hashes []Hash
}

// Stats are the gauges and counters of a rank.
type Stats struct {
	Running, Waiting      int
	Awaiting              int    // number of the waiting requests that wait for Arrive
	Blocks, UsedBlocks    int    // number of usable blocks, and of blocks that requests hold
	CachedBlocks          int    // number of distinct hashes on the accelerator
	CPUBlocks             int    // number of blocks in the CPU tier
	Queries, Hits         uint64 // prompt tokens that were looked up on the accelerator; prompt tokens that were found there
	CPUQueries, CPUHits   uint64 // the same numbers for the CPU tier
	PromptTokens, Outputs uint64
	Preemptions, Steps    uint64
	Finished              uint64
}

// Engine is one rank. It is not safe for concurrent use.
type Engine struct {
	cfg     Config
	pool    *pool
	cpu     *cpuTier // nil: there is no CPU tier
	running []*Request
	queue   []*Request
	// awaiting has the requests that wait for Arrive, in no particular order.
	awaiting []*Request
	// stuck: the last pass could not admit the first request of the queue, and no request has ended or left the queue
	// after it.
	stuck bool
	stats Stats

	scheduled []*Request // requests of the last pass; reused
	batch     Batch      // quantities of the current pass; a field, because a local variable would escape to the heap
}

// ErrTooLong says that a prompt leaves no room for an answer.
var ErrTooLong = errors.New("prompt is longer than the model's context")

// New returns an idle rank with an empty cache.
func New(cfg Config) (*Engine, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("make engine: %w", err)
	}
	// vLLM refuses to start if a request of MaxModelLen tokens does not fit in the pool. This model lowers MaxModelLen
	// instead.
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

// chainHash is the default HashFunc. Its root hash differs from the router's root for the same scope. So a test fails
// if the router takes an engine hash for one of its own keys.
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

// MaxModelLen returns the limit of prompt and output together, in tokens.
func (e *Engine) MaxModelLen() int { return e.cfg.MaxModelLen }

// Submit queues r. It returns ErrTooLong for a prompt that leaves no room for one token of answer.
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
		// Output follows Prompt in the same array, so an append to r.tokens writes a token over an equal token.
		r.tokens = r.Prompt
	} else {
		r.tokens = append(make([]block.Token, 0, n+room), r.Prompt...)
	}
	r.state = waiting
	e.queue = append(e.queue, r)
	e.stats.PromptTokens += uint64(len(r.Prompt))
	return nil
}

// Cancel ends a waiting or running request immediately. Its cached blocks stay cached. Cancel does nothing for any
// other request.
func (e *Engine) Cancel(r *Request) {
	switch r.state {
	case waiting:
		e.queue = slices.DeleteFunc(e.queue, func(other *Request) bool { return other == r })
		e.free(r) // a request whose tokens have arrived waits with blocks
		e.stuck = false
	case running:
		e.running = slices.DeleteFunc(e.running, func(other *Request) bool { return other == r })
		e.free(r)
		e.stuck = false
	case awaiting:
		e.awaiting = slices.DeleteFunc(e.awaiting, func(other *Request) bool { return other == r })
		e.free(r)
		e.stuck = false
	default:
		return
	}
	r.state = idle
}

// Arrive ends the wait of a request with Await: the first n of its External tokens have arrived. The engine caches and
// announces their blocks with the next step, and computes the other tokens. Arrive does nothing for any other request.
func (e *Engine) Arrive(r *Request, n int) {
	if r.state != awaiting {
		return
	}
	e.awaiting = slices.DeleteFunc(e.awaiting, func(other *Request) bool { return other == r })
	n = min(n, r.External)
	e.cache(r, r.computed+n)
	r.computed = min(r.computed+n, len(r.tokens)-1)
	r.Cached += n
	if e.cpu == nil { // otherwise they were counted when the request took its blocks
		e.stats.CPUQueries += uint64(len(r.tokens) - (r.Cached - n))
	}
	e.stats.CPUHits += uint64(n)
	r.state, r.arrived = waiting, true
	e.queue = slices.Insert(e.queue, 0, r)
	e.stuck = false
}

// Release lets go of the blocks of a request with Pin that has ended. It does nothing for any other request.
func (e *Engine) Release(r *Request) {
	if r.state == pinned {
		e.free(r)
		r.state, e.stuck = idle, false
	}
}

// BlockIDs returns the numbers of the blocks that r holds. The slice is valid until the next call that changes r.
func (r *Request) BlockIDs() []int32 { return r.blocks }

// Tokens returns the prompt and the tokens generated so far. The slice is valid until the next call that changes r.
func (r *Request) Tokens() []block.Token { return r.tokens }

// Computed returns the number of r's tokens whose KV is in its blocks.
func (r *Request) Computed() int { return r.computed }

// Hashes returns the hashes of the first full blocks of the request's tokens, as far as the engine has them. The slice
// is valid until the next call that changes r.
func (r *Request) Hashes() []Hash { return r.hashes }

// Caches reports whether a block with the hash is cached on some tier.
func (e *Engine) Caches(h Hash) bool {
	return e.pool.lookup(h) != nullBlock || e.cpu != nil && e.cpu.hit(h)
}

// Holds reports whether the block with the given number has the KV of the given hash.
func (e *Engine) Holds(id int32, h Hash) bool {
	return id > nullBlock && int(id) < len(e.pool.slots) && e.pool.slots[id].hashed && e.pool.slots[id].hash == h
}

// Idle reports whether no request runs or waits to run. A request that waits for Arrive does not count.
func (e *Engine) Idle() bool { return len(e.running) == 0 && len(e.queue) == 0 }

// Reset empties the accelerator's prefix cache, but not the CPU tier. While requests run, it does nothing and returns
// false. vLLM announces a reset with the next step that has events. SGLang announces a reset immediately: use
// TakeEvents for this.
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

// Stats returns the current gauges and totals.
func (e *Engine) Stats() Stats {
	s := e.stats
	s.Running, s.Waiting, s.Awaiting = len(e.running), len(e.queue)+len(e.awaiting), len(e.awaiting)
	s.Blocks, s.UsedBlocks, s.CachedBlocks = len(e.pool.slots)-1, e.pool.used(), e.pool.cached.n
	if e.cpu != nil {
		s.CPUBlocks = len(e.cpu.byHash)
	}
	return s
}

// CachedHashes calls f for each distinct hash of a tier, in no particular order, until f returns false.
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

// Load returns the numbers of running and waiting requests, and the share of the pool that requests hold.
func (e *Engine) Load() (running, waiting int, kv float64) {
	return len(e.running), len(e.queue) + len(e.awaiting), float64(e.pool.used()) / float64(len(e.pool.slots)-1)
}
