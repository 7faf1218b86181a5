package fleet

import (
	"math"
	"time"
)

// Work is the work that one request puts on a holder.
type Work struct {
	UncachedTokens int // prompt tokens that the holder has to compute: they count until the first token
	PromptTokens   int // all tokens of the prompt: every step of the answer reads them
	ContextBlocks  int // engine blocks of the prompt: they take memory until the end

	Most  int   // most requests that its holder may have, this one included; 0 is no limit
	Scope Scope // the request's scope, in which the holder has a health of its own; 0 is none

	// Whole says that the answer comes in one piece, so that its first token is not seen: FirstToken then means that
	// the whole answer is there. The prompt counts as computed when the time model says so, but not before the engine
	// reports that the request left its queue ([Fleet.Report]). If Tokens is called after FirstToken, the duration of
	// prompt and answer together is a measurement.
	Whole bool

	// MostTokens is the greatest length of one answer; 0 is unknown. A count beyond it, or beyond the model's length,
	// is not believed.
	MostTokens int

	// Choices is how many answers are generated at once: n for each prompt of the request; 0 is one. The number of
	// passes that several answers took is not known: nothing is learned from them, except from the first token of a
	// stream.
	Choices int

	// Guess says that UncachedTokens is an estimate: nothing is learned from its duration.
	Guess bool

	// Trust is how far UncachedTokens can be believed. If it is TrustExact, blocks that are not cached were evicted.
	Trust Trust

	// Marks are places in the prompt up to which requests may share its blocks, ascending, at most MaxMarks: see
	// [NextMark]. They must not change before the reservation is released. nil means that nothing is shared.
	Marks []Mark
}

// Mark is a place in a prompt, and a key that only prompts with the same blocks up to that place have.
type Mark struct {
	Key    uint64
	Blocks int32 // engine blocks up to here
}

// MaxMarks is the greatest number of marks of a request.
const MaxMarks = 64

// NextMark returns the place after place at which a mark is made, in blocks of the index; the first is after 0. The
// places are the same for all prompts: each block up to 8, then four in each octave. So the shared part of two
// prompts is found to 20 %, from below, with a few dozen marks instead of one for each block. MaxMarks marks reach
// beyond 100,000 blocks.
func NextMark(place int) int {
	step := 1
	for at := place >> 3; at > 0; at >>= 1 {
		step <<= 1
	}
	return place + step
}

// Reservation is one request's part of a holder's load. [Fleet.Reserve] fills it; the zero value holds nothing and may
// be released. All methods may be called from any goroutine, in any order, any number of times: each part of the load
// is released exactly once. A reservation must not be copied or moved while it holds something.
type Reservation struct {
	ledger  *ledger // nil: never used
	longest int     // tokens that all answers may have together; set before anyone else sees the reservation

	// What follows is guarded by the ledger's mutex.
	work  Work
	stage stage
	owned bool // its owner has not released it or used it again, even if it expired

	tracked             uint64 // bit i: mark i is counted
	blocks              int64  // the part of ContextBlocks that no mark counts
	predict             int64  // predicted nanoseconds of the prompt
	unseen, queued      bool   // of an answer in one piece: unseen until it comes; queued if the engine's last report had it in its queue
	until               int64  // of a whole answer: when the prompt was predicted to be computed, Unix nanoseconds
	output              int64  // tokens of the answer so far
	dispatched, touched int64  // when it was dispatched, and its last sign of life; Unix nanoseconds
	sample              sample // where the measured interval began
	came                sample // of a whole answer: when it came

	previous, next *Reservation // in one of the ledger's lists
}

// stage is the state of a request.
type stage uint8

const (
	stageNone    stage = iota // it holds nothing
	stageWaiting              // dispatched
	stageRunning              // the first token has come
)

// Reserve puts w on holder h and fills r, which must hold nothing. A request to a holder whose breaker waits for a
// trial is that trial. Work for a holder that does not exist is a bug of the caller.
//
// It reports false, and r holds nothing, when h has w.Most requests already.
//
// It allocates nothing in steady state. It takes h's own lock for a microsecond; other holders and all readers take
// none.
func (f *Fleet) Reserve(r *Reservation, h Holder, w Work, now int64) bool {
	snap := f.Snapshot()
	s := snap.state(h)
	if s == nil {
		panic("bug: reserve on a holder that does not exist")
	}
	if r.ledger != nil && !r.ledger.disown(r, now) {
		panic("bug: reserve with a reservation that is not released")
	}
	if !s.work.reserve(r, w, snap.cacheShape(h), now) {
		return false
	}
	r.longest = w.longestAnswer(snap.Worker(h))
	s.begin(f.config.Breaker, w.Scope, now)
	return true
}

// longestContext is the assumed length of a model that reports none: no published model has a longer one (Llama 4
// Scout).
const longestContext = 10 << 20

// longestAnswer returns how many tokens the answers to w may have together on a worker; nil is a worker that left.
func (w *Work) longestAnswer(worker *Worker) int {
	longest := longestContext
	if worker != nil && worker.longest > 0 {
		longest = min(longest, worker.longest)
	}
	if !w.Guess {
		longest = max(longest-w.PromptTokens, 1)
	}
	if w.MostTokens > 0 {
		longest = min(longest, w.MostTokens)
	}
	return int(min(int64(longest)*min(int64(max(w.Choices, 1)), math.MaxInt32), math.MaxInt32))
}

// cachedBlocks returns the engine blocks of the prompt that the holder had at dispatch.
func (r *Reservation) cachedBlocks() int32 {
	w := &r.work
	if w.PromptTokens <= 0 {
		return 0
	}
	return int32(int64(w.ContextBlocks) * int64(max(w.PromptTokens-w.UncachedTokens, 0)) / int64(w.PromptTokens))
}

// FirstToken records that the prompt is computed at now, in Unix nanoseconds: its tokens no longer count as load.
func (r *Reservation) FirstToken(now int64) {
	if r.ledger != nil {
		r.ledger.firstToken(r, now)
	}
}

// Tokens records that the answer has n tokens at now, in Unix nanoseconds. It is also the request's sign of life.
func (r *Reservation) Tokens(n int, now int64) {
	if r.ledger != nil {
		r.ledger.tokens(r, int64(n), now)
	}
}

// Output returns how many tokens of the answer were reported and believed.
func (r *Reservation) Output() int {
	if r.ledger == nil {
		return 0
	}
	r.ledger.mu.Lock()
	defer r.ledger.mu.Unlock()
	return int(r.output)
}

// Release releases all load that is still held, at now in Unix nanoseconds.
func (r *Reservation) Release(now int64) {
	if r.ledger != nil {
		r.ledger.release(r, now)
	}
}

// Held reports whether the reservation still holds a request on its holder.
func (r *Reservation) Held() bool {
	if r.ledger == nil {
		return false
	}
	r.ledger.mu.Lock()
	defer r.ledger.mu.Unlock()
	return r.stage != stageNone
}

// Expire releases the load of requests that gave no sign of life for Config.Expiry, at now in Unix nanoseconds, and
// returns their number. Their owner lost them without a release, which is a bug. They are counted as leaks. It visits
// all holders; twice a minute is often enough.
func (f *Fleet) Expire(now int64) (leaks int) {
	s := f.Snapshot()
	for i := range s.holders {
		if s.holders[i].state == nil {
			continue // its id was retired
		}
		leaks += s.holders[i].state.work.expire(now-int64(f.config.Expiry), now)
	}
	return leaks
}

// DefaultExpiry is how long a request may be silent: longer than a client would wait in any engine's queue. Dynamo
// uses the same [lib/kv-router, DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS].
const DefaultExpiry = 300 * time.Second
