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

	Most  int   // the greatest number of requests that the holder may have, this request included; 0 is no limit
	Scope Scope // the request's model name and endpoint, for which the holder has a health of its own; 0 is none

	// Peer says that another router sent the request, and told this router of it. Such a request counts as load. Nothing
	// is learned from its times, because they are as late as the messages of the peer. It is no sign of the holder's
	// life, no trial of a breaker and no leak.
	Peer bool

	// Whole says that the answer comes in one piece, so that its first token is not seen. FirstToken then means that the
	// whole answer has come. The prompt counts as computed from the predicted time on, but not while the engine reports
	// that the request waits in its queue ([Fleet.Report]). If Tokens is called after FirstToken, the time of prompt and
	// answer together is a measurement.
	Whole bool

	// MostTokens is the greatest length of one answer; 0 is unknown. A count beyond it, or beyond the model's length,
	// is not believed.
	MostTokens int

	// Class is the same for requests whose answers are expected to be alike in length; 0 is none.
	Class uint64

	// Choices is how many answers the engine generates at the same time: n for each prompt of the request; 0 is one. With
	// several answers, the number of passes is not known. Then only the first token of a stream is a measurement.
	Choices int

	// Guess says that UncachedTokens is an estimate: nothing is learned from its duration.
	Guess bool

	// Levels are the service levels of the request, at most MaxServiceLevels; further ones do not count. nil means none.
	// The slice must never change: lists of requests under way share it, also after the release.
	Levels []ServiceLevel
	// Arrived is when the request arrived, in Unix nanoseconds: the time limits of Levels count from then on. 0 is the
	// time of the reservation.
	Arrived int64

	// Trust is how far UncachedTokens can be believed. If it is TrustExact, blocks that are not cached were evicted.
	Trust Trust

	// Marks are positions in the prompt, ascending, at most MaxMarks: see [NextMark]. Requests under way may share the
	// blocks up to a mark, which then count once. The slice must not change before the reservation is released. nil
	// means that nothing is shared.
	Marks []Mark
}

// Mark is a position in a prompt. Its key is the same for two prompts only if all their blocks up to this position are
// the same.
type Mark struct {
	Key    uint64
	Blocks int32 // the number of engine blocks before the mark
}

// MaxMarks is the greatest number of marks of a request.
const MaxMarks = 64

// NextMark returns the position of the first mark after a given position. Both positions are counted in blocks of the
// index. NextMark(0) is the first mark of a prompt. The positions are the same for all prompts: each block up to block
// 8, then four between one power of two and the next. So a few dozen marks suffice instead of one for each block. The
// shared part of two prompts is found within 20 %, and never too long. MaxMarks marks reach beyond 100,000 blocks.
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
	longest int     // the greatest number of tokens of all answers together; not changed after Reserve

	// The fields below are guarded by the ledger's mutex.
	work  Work
	stage stage
	owned bool // the owner has neither released the reservation nor used it again; it may have expired

	tracked    uint64 // bit i is set if mark i is counted in ledger.shared
	blocks     int64  // the part of ContextBlocks that no mark counts
	predict    int64  // the predicted nanoseconds of the prompt
	output     int64  // tokens of the answer so far
	dispatched int64  // Unix nanoseconds
	first      int64  // when the first token came, Unix nanoseconds; 0 is not yet
	touched    int64  // the last sign of life of the request, Unix nanoseconds
	sample     sample // the beginning of the present measurement

	// Used only if the answer comes in one piece:
	unseen bool   // the answer has not come yet
	queued bool   // the engine's last report showed the request in its queue
	until  int64  // when the prompt was predicted to be computed, Unix nanoseconds
	came   sample // the state when the answer came

	previous, next *Reservation // the neighbours in a list of the ledger
}

// stage is the state of a request.
type stage uint8

const (
	stageNone    stage = iota // the reservation holds no request
	stageWaiting              // the request was dispatched, and its first token has not come
	stageRunning              // the first token has come, or the answer comes in one piece
)

// Reserve puts w on holder h and fills r, which must hold nothing. If h already has w.Most requests, Reserve reserves
// nothing and returns false. It also returns false if h does not exist, because its id was retired after the caller
// chose h. If h's breaker is half open, the request is the breaker's trial, unless w.Peer is set.
//
// Reserve allocates nothing in steady state. It takes a lock of h for about a microsecond. Requests to other holders do
// not wait for this lock.
func (f *Fleet) Reserve(r *Reservation, h Holder, w Work, now int64) bool {
	snap := f.Snapshot()
	s := snap.state(h)
	if s == nil {
		return false
	}
	if r.ledger != nil && !r.ledger.disown(r, now) {
		panic("bug: reserve with a reservation that is not released")
	}
	if !s.work.reserve(r, w, snap.cacheShape(h), now) {
		return false
	}
	r.longest = w.longestAnswer(snap.Worker(h))
	if !w.Peer {
		s.begin(f.config.Breaker, w.Scope, now)
	}
	return true
}

// longestContext is the assumed context length if a worker reports none. It is the longest of all published models
// (Llama 4 Scout).
const longestContext = 10 << 20

// longestAnswer returns how many tokens all answers to w may have together on a worker. worker is nil if the worker has
// left the fleet.
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

// cachedBlocks returns how many engine blocks of the prompt the holder had in its cache at dispatch.
func (r *Reservation) cachedBlocks() int32 {
	w := &r.work
	if w.PromptTokens <= 0 {
		return 0
	}
	return int32(int64(w.ContextBlocks) * int64(max(w.PromptTokens-w.UncachedTokens, 0)) / int64(w.PromptTokens))
}

// FirstToken records that the first token has come. now is the time at which it came, in Unix nanoseconds. The prompt
// is then computed, and its uncached tokens no longer count as load.
func (r *Reservation) FirstToken(now int64) {
	if r.ledger != nil {
		r.ledger.firstToken(r, now)
	}
}

// Tokens records that the answer has n tokens. now is the present time in Unix nanoseconds. The call is also a sign of
// life of the request: see [Fleet.Expire].
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

// Alive records a sign of life of the request at now, in Unix nanoseconds: see [Fleet.Expire]. It reports whether the
// reservation still holds the request. It is for requests of peers (Work.Peer), of which no tokens are told.
func (r *Reservation) Alive(now int64) bool {
	if r.ledger == nil {
		return false
	}
	r.ledger.mu.Lock()
	defer r.ledger.mu.Unlock()
	if r.stage == stageNone {
		return false
	}
	r.touched = max(r.touched, now)
	return true
}

// Release ends the request and removes all its load from the holder. now is the present time in Unix nanoseconds.
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

// Expire releases the load of requests that gave no sign of life for Config.Expiry. now is the present time in Unix
// nanoseconds. Expire returns the number of leaks, which are these requests without those of peers: a leak is a bug of
// a caller that never called Release. Expire visits all holders; two calls a minute are enough.
func (f *Fleet) Expire(now int64) (leaks int) {
	s := f.Snapshot()
	for i := range s.holders {
		if s.holders[i].state == nil {
			continue // the id was retired
		}
		leaks += s.holders[i].state.work.expire(now-int64(f.config.Expiry), now)
	}
	return leaks
}

// DefaultExpiry is how long a request may give no sign of life. It is longer than a client would wait in any engine's
// queue. Dynamo uses the same time [lib/kv-router, DYN_ROUTER_ACTIVE_REQUEST_EXPIRY_SECS].
const DefaultExpiry = 300 * time.Second
