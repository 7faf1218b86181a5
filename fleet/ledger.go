package fleet

import (
	"sync"
	"sync/atomic"
	"time"
)

// ledger is the work that this router has on one holder. Writers take mu. Readers read the atomics and never wait; so
// a reader may see a request in some of them and not yet in others.
//
// Each holder has a lock, and not more atomics, because the order of the queue, the shared marks and the learning
// from a first token must stay consistent. A holder gets a few hundred requests a second, and each takes the lock for
// a microsecond.
type ledger struct {
	requests, waiting, prefill, blocks, context, output atomic.Int64
	processed, turns, leaked                            atomic.Uint64

	heard atomic.Int64 // the last sign of life of any request, or the dispatch to an idle holder; Unix nanoseconds

	// The waiting prompts, in the order in which the engine takes them: the predicted nanoseconds of all of them,
	// those of the first, and the time since which the first is being computed.
	predicted, head, since atomic.Int64

	// For answers in one piece, whose first token is not seen: the time at which their prompts will be computed by the
	// time model; the uncached tokens of all such requests under way; and the part of these tokens in the engine's
	// queue by its last report.
	whole, unseen, queued atomic.Int64

	kind   atomic.Pointer[kind] // changed under mu
	pace   pace                 // guarded by the kind's mutex
	member bool                 // pace is a member of kind; false once the holder left; guarded by the fleet's mutex

	mean atomic.Int64 // of UncachedTokens, over the last requests

	mu        sync.Mutex
	queue     list               // stageWaiting, by dispatch
	running   list               // stageRunning, by first token
	shared    map[uint64]sharing // by mark
	recency   recency
	owned     int   // reservations that their owners have not released, whether or not they expired
	released  int64 // when the last reservation was released, Unix nanoseconds
	computing int64 // uncached tokens of all prompts, plus tokens of the answers
	passes    passes
	learnAt   int64 // the earliest time of the next measurement of an answer
}

// sharing is the blocks between one mark and the mark before it, and how many requests have them.
type sharing struct {
	requests int32
	blocks   int32 // as the first request counted them: the engine's block size may change meanwhile
}

// timing returns how long passes take, without a lock.
func (l *ledger) timing() Timing { return l.kind.Load().times.load().at(l.pace.believed()) }

// become moves the holder to another kind. Its pace was relative to the old kind's times, so it starts anew.
func (l *ledger) become(next *kind) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.kind.Load(); old != nil {
		old.leave(&l.pace)
	}
	next.join(&l.pace)
	l.kind.Store(next)
}

// restart forgets the holder's pace: its engine is a new process, perhaps on another machine.
func (l *ledger) restart() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kind.Load().restart(&l.pace)
}

// meanUncached is the mean of our own requests' uncached tokens there. A request of another router is assumed to have
// as many.
func (l *ledger) meanUncached() int64 { return l.mean.Load() }

// maxShared bounds the marks that a holder counts: 1,024 long prompts with nothing in common. Blocks beyond it count
// as not shared.
const maxShared = 1 << 16

func (l *ledger) load() Load {
	out := Load{
		Requests:      l.requests.Load(),
		Waiting:       l.waiting.Load(),
		PrefillTokens: l.prefill.Load(),
		ContextBlocks: l.blocks.Load(),
		ContextTokens: l.context.Load(),
		OutputTokens:  l.output.Load(),
		Processed:     l.processed.Load(),
		Turns:         l.turns.Load(),
	}
	out.PendingTokens = out.PrefillTokens
	return out
}

// A prompt is late when it takes longer than late times its predicted time plus lateAfter. Twice the predicted time is
// usual: decodes run in the same passes, and times may not be learned yet. lateAfter is for short prompts: the API
// server of a busy engine on a CPU needs 40 to 60 ms for a chat (bench/results/simulator.md). The delay that counts is
// at most latest: a client or an engine that holds back the first text of an answer must not close a worker that serves
// others.
const (
	late      = 3
	lateAfter = 100_000_000   // nanoseconds
	latest    = 1_000_000_000 // nanoseconds; half of what makes a worker saturated by default (queue.max_backlog)
)

// project subtracts from the backlog what is computed by now. It subtracts at most the first prompt in the queue: if
// that prompt takes longer than predicted, the prompts behind it still count. The delay of a late first prompt is
// added: its holder computes more slowly than was learned, or not at all.
func (l *ledger) project(out *Load, now int64) {
	total := l.predicted.Load()
	out.PendingTokens, out.Backlog = 0, 0
	if total > 0 && out.PrefillTokens > 0 {
		since, head := l.since.Load(), l.head.Load()
		done := min(max(now-since, 0), head, total)
		begun := max(since, l.whole.Load()) // prompts of answers in one piece are computed in between
		over := now - begun - late*head - lateAfter
		out.Backlog = time.Duration(total - done + min(max(over, 0), latest))
		out.PendingTokens = int64(float64(out.PrefillTokens) * float64(total-done) / float64(total))
	}
	l.projectWhole(out, now)
}

// projectWhole adds the prompts of answers in one piece: the tokens that are left by the time model, at most their
// prompts' tokens, and at least the tokens in the engine's queue by its report.
func (l *ledger) projectWhole(out *Load, now int64) {
	if out.Timing.Token <= 0 {
		return
	}
	left := max(l.whole.Load()-now, 0)
	tokens := min(int64(float64(left)/1e6/out.Timing.Token), l.unseen.Load())
	if queued := l.queued.Load(); queued > tokens {
		tokens, left = queued, max(left, int64(float64(queued)*out.Timing.Token*1e6))
	}
	out.Backlog += time.Duration(left)
	out.PrefillTokens += tokens
	out.PendingTokens += tokens
}

// report records the number of requests in the engine's queue: the newest ones, as engines take requests in order. It
// returns how many of these are ours with an answer in one piece, and their uncached tokens.
func (l *ledger) report(waiting int64) (requests, tokens int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := l.queue.last
	for r := l.running.last; r != nil; r = r.previous {
		if !r.unseen {
			continue
		}
		for ; seen != nil && seen.dispatched > r.dispatched; seen = seen.previous {
			waiting--
		}
		r.queued = waiting > 0
		waiting--
		if r.queued {
			requests++
			tokens += int64(r.work.UncachedTokens)
		}
	}
	l.queued.Store(tokens)
	return requests, tokens
}

// computed records that the prompt of an answer in one piece is computed, or that its request is over. mu is held.
func (l *ledger) computed(r *Reservation) {
	if !r.unseen {
		return
	}
	n := int64(r.work.UncachedTokens)
	l.unseen.Add(-n)
	if r.queued {
		l.queued.Add(-n)
	}
	r.unseen, r.queued = false, false
}

func (l *ledger) reserve(r *Reservation, w Work, cache cacheShape, now int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.Most > 0 && l.requests.Load() >= int64(w.Most) {
		return false
	}
	l.recency.resize(cache)
	*r = Reservation{ledger: l, work: w, stage: stageWaiting, owned: true, touched: now, dispatched: now}
	l.owned++
	t := l.timing()
	r.predict = int64(t.Prompt(w.UncachedTokens, w.PromptTokens) * 1e6)
	if l.requests.Add(1) == 1 {
		l.heard.Store(now)
	}
	l.recency.unannounced += int64(w.UncachedTokens)
	l.computing += int64(w.UncachedTokens)
	l.processed.Add(1)
	l.turns.Add(uint64(1000 * l.pace.believed()))
	l.context.Add(int64(w.PromptTokens))
	l.blocks.Add(l.share(r))
	if w.Whole {
		r.stage = stageRunning
		l.running.push(r)
		r.sample = l.wholeAt(r, now)
		l.join(&w, now)
		r.unseen = true
		l.unseen.Add(int64(w.UncachedTokens))
		r.until = max(l.whole.Load(), now) + r.predict
		l.whole.Store(r.until)
	} else {
		l.waiting.Add(1)
		l.prefill.Add(int64(w.UncachedTokens))
		l.predicted.Add(r.predict)
		l.queue.push(r)
		if l.queue.first == r {
			l.begin(now)
		}
	}
	l.mean.Add((int64(w.UncachedTokens) - l.mean.Load()) / 16)
	return true
}

// share counts the marks of r, and returns the blocks that it adds to those of other requests.
func (l *ledger) share(r *Reservation) (added int64) {
	if l.shared == nil {
		l.shared = map[uint64]sharing{}
	}
	before, cached := int32(0), r.cachedBlocks()
	usable := int32(r.work.ContextBlocks) - 1 // an engine computes at least the last token of a prompt
	for i, m := range r.work.Marks {
		if i == MaxMarks {
			break
		}
		part := m.Blocks - before
		s := l.shared[m.Key]
		if s.requests == 0 {
			l.recency.take(m.Key, r.work.Trust == TrustExact && cached < min(m.Blocks, usable))
			added += int64(part)
			if len(l.shared) >= maxShared {
				r.blocks += int64(part)
				before = m.Blocks
				continue
			}
			s.blocks = part
		}
		before = m.Blocks
		s.requests++
		l.shared[m.Key] = s
		r.tracked |= 1 << i
	}
	rest := int64(r.work.ContextBlocks) - int64(before)
	r.blocks += rest
	return added + rest
}

// unshare removes the marks of r, and returns the blocks that no other request has. The first computed blocks of its
// prompt are in the cache.
func (l *ledger) unshare(r *Reservation, computed int32) (freed int64) {
	l.recency.pass()
	for i, m := range r.work.Marks {
		if i == MaxMarks {
			break
		}
		if r.tracked&(1<<i) == 0 {
			continue
		}
		s := l.shared[m.Key]
		if s.requests--; s.requests > 0 {
			l.shared[m.Key] = s
			continue
		}
		delete(l.shared, m.Key)
		freed += int64(s.blocks)
		if m.Blocks <= computed {
			l.recency.put(m.Key, int64(s.blocks))
		}
	}
	if int(computed) == r.work.ContextBlocks {
		answer := r.output
		if r.work.Whole { // announced before its length was known: its blocks are in the order already
			answer = 0
		}
		l.recency.rest(r.blocks, answer)
	}
	return freed + r.blocks
}

// begin records that the first prompt of the queue is computed from now on. mu is held.
func (l *ledger) begin(now int64) {
	head := int64(0)
	if l.queue.first != nil {
		head = l.queue.first.predict
	}
	l.head.Store(head)
	l.since.Store(now)
}

// leaveQueue releases the load of r's prompt. mu is held; r is waiting.
func (l *ledger) leaveQueue(r *Reservation, now int64) {
	l.waiting.Add(-1)
	l.prefill.Add(-int64(r.work.UncachedTokens))
	l.predicted.Add(-r.predict)
	first := l.queue.first == r
	l.queue.remove(r)
	if first {
		l.begin(now)
	}
}

func (l *ledger) firstToken(r *Reservation, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.stage == stageRunning && r.work.Whole && r.came.at == 0 {
		r.came = l.wholeAt(r, now)
		l.computed(r)
	}
	l.heard.Store(now)
	if r.stage != stageWaiting {
		return
	}
	l.observePrompt(r, now)
	if l.queue.first != r {
		l.since.Store(now) // r overtook the first prompt: the holder computes, so the first prompt's wait does not show a slow holder
	}
	l.leaveQueue(r, now)
	r.stage, r.touched = stageRunning, now
	l.running.push(r)
	r.sample = l.sampleAt(r, now)
}

func (l *ledger) tokens(r *Reservation, n, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.stage != stageRunning || n <= r.output {
		return
	}
	l.heard.Store(now)
	if n > int64(r.longest) {
		r.touched = now
		return // longer than any possible answer: it is not believed, and nothing is learned from it
	}
	came := n - r.output
	l.output.Add(came)
	if !r.work.Whole {
		l.recency.unannounced += came
	}
	l.computing += came
	r.output, r.touched = n, now
	switch {
	case r.work.Whole:
		if r.came.at != 0 && came == n { // only the first time
			l.observeWhole(r, n)
		}
	case came > sampleTokens: // the count came at the end, or pieces were held back: the times of the tokens are unknown
		r.sample = l.sampleAt(r, now)
	case n-r.sample.output >= sampleTokens:
		l.observeSteps(r, now)
	}
}

func (l *ledger) release(r *Reservation, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end(r, now)
	l.renounce(r, now)
}

// disown ends the ownership of a reservation that expired, so that it may be used again. It reports false, and does
// nothing, when r holds a request.
func (l *ledger) disown(r *Reservation, now int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.stage != stageNone {
		return false
	}
	l.renounce(r, now)
	return true
}

// renounce records that r's owner refers to the holder no more. mu is held.
func (l *ledger) renounce(r *Reservation, now int64) {
	if r.owned {
		r.owned = false
		l.owned--
		l.released = max(l.released, now)
	}
}

// end releases all load of r. mu is held.
func (l *ledger) end(r *Reservation, now int64) bool {
	computed := int32(r.work.ContextBlocks)
	if r.stage == stageWaiting || r.unseen { // it was refused, or its client left: nothing more is computed or announced
		computed = r.cachedBlocks()
		l.recency.unannounced = max(l.recency.unannounced-int64(r.work.UncachedTokens), 0)
	}
	switch r.stage {
	case stageNone:
		return false
	case stageWaiting:
		l.leaveQueue(r, now)
	case stageRunning:
		l.running.remove(r)
		l.computed(r)
		if early := r.until - now; early > 0 { // it was computed sooner than predicted, and so will be the prompts behind it
			l.whole.Add(-min(early, r.predict))
		}
		l.passes.elapse(now, l.output.Load())
		l.passes.decoding--
		l.passes.context -= int64(r.work.PromptTokens)
	}
	r.stage = stageNone
	l.requests.Add(-1)
	l.context.Add(-int64(r.work.PromptTokens))
	l.output.Add(-r.output)
	l.computing -= int64(r.work.UncachedTokens) + r.output
	l.recency.unannounced = min(l.recency.unannounced, l.computing)
	l.blocks.Add(-l.unshare(r, computed))
	return true
}

// expire ends the requests without a sign of life since before, at now, and returns their number.
func (l *ledger) expire(before, now int64) (leaks int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, requests := range []*list{&l.queue, &l.running} {
		for r := requests.first; r != nil; {
			next := r.next
			if r.touched < before {
				l.end(r, now)
				leaks++
			}
			r = next
		}
	}
	l.leaked.Add(uint64(leaks))
	return leaks
}

// list is an ordered, doubly linked list of reservations.
type list struct{ first, last *Reservation }

func (q *list) push(r *Reservation) {
	r.previous, r.next = q.last, nil
	if q.last == nil {
		q.first = r
	} else {
		q.last.next = r
	}
	q.last = r
}

func (q *list) remove(r *Reservation) {
	if r.previous == nil {
		q.first = r.next
	} else {
		r.previous.next = r.next
	}
	if r.next == nil {
		q.last = r.previous
	} else {
		r.next.previous = r.previous
	}
	r.previous, r.next = nil, nil
}
