package fleet

import (
	"math"
	"time"
)

// Work is what one request puts on a holder.
type Work struct {
	UncachedTokens int // prompt tokens the holder has to compute: outstanding until the first token
	PromptTokens   int // all of them: read at every step of the answer, until the end
	ContextBlocks  int // engine blocks of the prompt: resident until the end

	Most  int   // requests that its holder may have with it; 0 is no limit
	Scope Scope // what the request asks for, where its holder's health depends on it; 0 is none

	// Whole says that the answer comes in one piece and its first token is not seen: FirstToken says that all
	// of it is there. The prompt counts as computed by the time model, but not before the engine reports that the
	// request left its queue ([Fleet.Report]). The duration that is learned is that of prompt and answer together,
	// where the number of its tokens is told after FirstToken.
	Whole bool

	// MostTokens is how long one answer may be; 0 is not told. A count beyond that, or beyond the model's length, is not
	// believed.
	MostTokens int

	// Choices is how many answers are generated at once: n for each prompt of the request; 0 is one. Of several nobody
	// can tell how many passes their tokens took: they teach nothing, but for the first token of a stream.
	Choices int

	// Guess says that UncachedTokens is an estimate: nothing is learned from how long they take.
	Guess bool

	// Trust is how far UncachedTokens can be believed. Where it is TrustExact, what is not cached was evicted.
	Trust Trust

	// Marks are places in the prompt up to which requests may share its blocks, ascending, at most MaxMarks: see
	// [NextMark]. They must not change before the reservation is released. nil: nothing is shared.
	Marks []Mark
}

// Mark says that the blocks of a prompt up to a place have a key that only prompts with the same blocks have.
type Mark struct {
	Key    uint64
	Blocks int32 // engine blocks up to here
}

// MaxMarks is how many marks a request may have.
const MaxMarks = 64

// NextMark returns the place after place at which a mark is made, in blocks of the index; the first is after 0. The
// places are the same for all prompts: each block up to 8, then four an octave. What two prompts share is so found to
// 20 %, from below, with a few dozen marks instead of one for each block; MaxMarks reach beyond 100,000 blocks.
func NextMark(place int) int {
	step := 1
	for at := place >> 3; at > 0; at >>= 1 {
		step <<= 1
	}
	return place + step
}

// Reservation is one request's share of a holder's load. It is filled by [Fleet.Reserve]; the zero value holds nothing
// and may be released. All methods may be called from any goroutine, in any order, any number of times: each share is
// given back exactly once. It must not be copied or moved while it holds something.
type Reservation struct {
	ledger  *ledger // nil: never used
	longest int     // tokens that all answers may have together; set before anyone else sees the reservation

	// What follows is guarded by the ledger's mutex.
	work  Work
	stage stage
	owned bool // its owner has not released it, even where it expired

	tracked             uint64 // bit i: mark i is counted
	blocks              int64  // of ContextBlocks, those that no mark counts
	predict             int64  // nanoseconds that the prompt was predicted to take
	unseen, queued      bool   // of a whole answer: it has not come; the engine's last report had it in its queue
	until               int64  // of a whole answer: when the prompt was predicted to be computed, Unix nanoseconds
	output              int64  // tokens of the answer so far
	dispatched, touched int64  // when it was, and when it last gave a sign of life; Unix nanoseconds
	sample              sample // where the measured interval began
	came                sample // of a whole answer: when it was there

	previous, next *Reservation // in one of the ledger's lists
}

// stage is where a request is in its life.
type stage uint8

const (
	stageNone    stage = iota // it holds nothing
	stageWaiting              // dispatched
	stageRunning              // the first token has come
)

// Reserve puts w on holder h and fills r, which must hold nothing. A request that goes to a holder whose breaker waits
// for a trial is that trial. Work for a holder nobody has heard of is a bug of the caller.
//
// It reports false, and r holds nothing, when h has w.Most requests already.
//
// It allocates nothing in steady state. It takes h's own lock, for a microsecond; other holders and all readers do
// without.
func (f *Fleet) Reserve(r *Reservation, h Holder, w Work, now int64) bool {
	snap := f.Snapshot()
	s := snap.state(h)
	if s == nil {
		panic("bug: reserve on a holder that does not exist")
	}
	if r.Held() {
		panic("bug: reserve with a reservation that is not released")
	}
	if !s.work.reserve(r, w, snap.cacheShape(h), now) {
		return false
	}
	r.longest = w.longestAnswer(snap.Worker(h))
	s.begin(f.config.Breaker, w.Scope, now)
	return true
}

// longestContext is the length of a model that tells none: of those that are published none has a longer one (Llama 4
// Scout).
const longestContext = 10 << 20

// longestAnswer returns how many tokens the answers to w may have together on a worker: nil is one that left.
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

// FirstToken gives the prompt tokens back, at now in Unix nanoseconds: they are computed.
func (r *Reservation) FirstToken(now int64) {
	if r.ledger != nil {
		r.ledger.firstToken(r, now)
	}
}

// Tokens notes that the answer has n tokens at now, in Unix nanoseconds. It also is the request's sign of life.
func (r *Reservation) Tokens(n int, now int64) {
	if r.ledger != nil {
		r.ledger.tokens(r, int64(n), now)
	}
}

// Output returns how many tokens of the answer were told.
func (r *Reservation) Output() int {
	if r.ledger == nil {
		return 0
	}
	r.ledger.mu.Lock()
	defer r.ledger.mu.Unlock()
	return int(r.output)
}

// Release gives back all that is still held, at now in Unix nanoseconds.
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

// Expire gives back the work of requests that gave no sign of life for Config.Expiry at now, in Unix nanoseconds, and
// returns how many there were: their owner lost them without a release, which is a bug. They are counted as leaks. It
// walks all holders; twice a minute is often enough.
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

// DefaultExpiry is how long a request may be silent: longer than any engine's queue that a client would wait for, and
// what Dynamo uses [lib/kv-router, DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS].
const DefaultExpiry = 300 * time.Second
