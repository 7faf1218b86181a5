package fleet

import (
	"sync"
	"sync/atomic"
	"time"
)

// ledger is the work on one holder: the work that this router has put there, and the work that its peers told it of
// (Work.Peer). Writers take mu. Readers of the atomics never wait, so a
// reader may see a new request in some of the atomics and not yet in others.
//
// Writers use a lock because three parts must stay consistent with each other: the order of the queue, the shared
// marks, and what is learned from first tokens. The lock is cheap enough: a holder gets a few hundred requests a
// second, and each request takes the lock for about a microsecond.
type ledger struct {
	requests, waiting, prefill, blocks, context, output atomic.Int64
	processed, turns, leaked                            atomic.Uint64

	peers peers // the part of the figures above that peers have put on the holder

	// heard is the time of the last sign of life of any request of this router: a first token, a call of Tokens, or an
	// OutcomeServed. If a request was dispatched later to the idle holder, heard is the time of this dispatch. Unix
	// nanoseconds.
	heard atomic.Int64

	// Waiting prompts are computed in the order of their dispatch. predicted is the predicted nanoseconds of all
	// waiting prompts, head is the predicted nanoseconds of the first one, and since is the time at which the engine
	// began to compute the first one.
	predicted, head, since atomic.Int64

	// If an answer comes in one piece, the router does not see when its prompt is computed. whole, unseen and queued
	// concern the requests with such answers: whole is the time at which all their prompts will be computed, as predicted.
	// unseen is the number of uncached tokens of these prompts. queued is the number of these tokens that were in the
	// engine's queue at the engine's last load report.
	whole, unseen, queued atomic.Int64

	kind   atomic.Pointer[kind] // changed under mu
	pace   pace                 // guarded by the kind's mutex
	member bool                 // pace is a member of kind; false after the holder left; guarded by the fleet's mutex

	filled atomic.Uint64 // the share of the cache that has blocks, as the bits of a float64; 0 if it is not known

	mean atomic.Int64 // the mean of UncachedTokens over the last requests

	mu        sync.Mutex
	queue     list               // the requests in stageWaiting, by dispatch
	running   list               // the requests in stageRunning, by first token
	shared    map[uint64]sharing // the marks of requests under way, by Mark.Key
	recency   recency
	owned     int   // reservations, expired ones included, that their owners have not released
	released  int64 // when the last reservation was released, Unix nanoseconds
	computing int64 // uncached tokens of all prompts under way, plus tokens of their answers
	passes    passes
	learnAt   int64 // the earliest time of the next measurement of an answer
	blurred   bool  // since comes from what a peer told, so it is too late by an unknown time
}

// sharing counts the requests under way whose prompts have the same Mark (a position in a prompt), and the blocks
// between this mark and the mark before it. These blocks take memory once, for all of these requests.
type sharing struct {
	requests int32
	blocks   int32 // as the first request counted them: the engine's block size may change meanwhile
}

// timing returns how long passes take, without a lock.
func (l *ledger) timing() Timing { return l.kind.Load().times.load().at(l.pace.believed()) }

// become moves the holder to another kind. Its pace was relative to the times of the old kind, so the pace starts anew.
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

// meanUncached returns the mean of the uncached tokens of the requests to the holder that are known. The same number is
// assumed for a request of another router that is not known.
func (l *ledger) meanUncached() int64 { return l.mean.Load() }

// maxShared bounds the marks that are counted for a holder: 1,024 prompts with MaxMarks marks each, and nothing in
// common. The blocks of further marks count as not shared.
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
	l.peers.add(&out)
	out.PendingTokens = out.PrefillTokens
	return out
}

// A prompt is late if its first token takes longer than a bound: late × the predicted time + lateAfter. The time beyond
// the bound then counts as load, up to the constant latest.
const (
	// late is a factor. A smaller factor would be wrong: twice the predicted time is usual, because decodes run in the
	// same passes, and the times may not be learned yet.
	late = 3
	// lateAfter, in nanoseconds, is for short prompts: the API server of a busy engine on a CPU needs 40 to 60 ms for a
	// chat (bench/results/simulator.md).
	lateAfter = 100_000_000
	// latest, in nanoseconds, is half of the backlog that makes a worker saturated by default (queue.max_backlog). So
	// one client or engine that holds back the first text of an answer cannot make a worker saturated that still serves
	// other requests.
	latest = 1_000_000_000
)

// project sets the backlog and the pending tokens at now. The part of the first prompt in the queue that is computed by
// now, as predicted, does not count. The prompts behind the first one count in full, also if the first one takes longer
// than predicted. If the first prompt is late, its delay is added, because the holder computes more slowly than was
// learned, or not at all.
func (l *ledger) project(out *Load, now int64) {
	total := l.predicted.Load()
	out.PendingTokens, out.Backlog = 0, 0
	if l.peers.answers.Load() != nil {
		out.OutputTokens += l.peers.tokens(now, out.Timing.Step(out.Requests-out.Waiting, out.ContextTokens+out.OutputTokens))
	}
	if total > 0 && out.PrefillTokens > 0 {
		since, head := l.since.Load(), l.head.Load()
		done := min(max(now-since, 0), head, total)
		begun := max(since, l.whole.Load()) // prompts of answers in one piece are computed between the others
		over := now - begun - late*head - lateAfter
		out.Backlog = time.Duration(total - done + min(max(over, 0), latest))
		out.PendingTokens = int64(float64(out.PrefillTokens) * float64(total-done) / float64(total))
	}
	l.projectWhole(out, now)
}

// projectWhole adds to out the prompts of answers in one piece: the tokens that are not computed yet at now, as
// predicted. Their number is at most the number of all uncached tokens of these prompts, and at least the number of
// tokens in the engine's queue at the engine's last report.
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

// report records how many requests wait in the engine's queue. These are the newest requests, because engines take
// requests in order. report returns how many of the waiting requests are this router's requests with an answer in one
// piece, and the uncached tokens of those requests.
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
	l.requests.Add(1)
	switch {
	case w.Peer:
		l.peers.requests.Add(1)
		l.peers.processed.Add(1)
	case l.own() == 1:
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
		if w.Peer {
			l.peers.wait(r, 1)
		}
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

// share counts the marks of r. It returns how many more blocks are in use because of r: blocks that other requests also
// use do not count.
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

// unshare removes the marks of r, and returns how many blocks no request uses any more. computed is how many of the
// first blocks of r's prompt are in the cache now.
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
		if r.work.Whole { // the engine announced the answer's blocks before the router knew its length: recency has them already
			answer = 0
		}
		l.recency.rest(r.blocks, answer)
	}
	return freed + r.blocks
}

// begin records that the engine computes the first prompt of the queue from now on. mu is held.
func (l *ledger) begin(now int64) {
	l.blurred = false
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
	if r.work.Peer {
		l.peers.wait(r, -1)
	}
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
	if r.work.Peer {
		l.told(r, now)
		return
	}
	if r.stage == stageRunning && r.work.Whole && r.came.at == 0 {
		r.came, r.first = l.wholeAt(r, now), now
		l.computed(r)
	}
	l.heard.Store(now)
	if r.stage != stageWaiting {
		return
	}
	alone := l.peers.waiting.Load() == 0 // otherwise passes computed other prompts, too, and how much of them is not known
	l.passPeers(r, now)
	l.observePrompt(r, now)
	l.passes.group.guess = l.passes.group.guess || !alone
	if l.queue.first != r {
		l.since.Store(now) // r overtook the first prompt: the holder is not slow, so the first prompt is not late
	}
	l.leaveQueue(r, now)
	r.stage, r.touched, r.first = stageRunning, now, now
	l.running.push(r)
	r.sample = l.sampleAt(r, now)
}

func (l *ledger) tokens(r *Reservation, n, now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.stage == stageNone || r.work.Peer {
		return
	}
	l.heard.Store(now)
	r.touched = now
	if r.stage != stageRunning || n <= r.output {
		return
	}
	if n > int64(r.longest) {
		return // the count exceeds the longest possible answer: it is not believed, and nothing is learned from it
	}
	came := n - r.output
	l.output.Add(came)
	if !r.work.Whole {
		l.recency.unannounced += came
	}
	l.computing += came
	r.output = n
	switch {
	case r.work.Whole:
		if r.came.at != 0 && came == n { // nothing was reported before: n is the whole answer
			l.observeWhole(r, n)
		}
	case came > sampleTokens: // many tokens in one call: the times at which they came are unknown
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

// disown ends the ownership of a reservation that expired, so that its memory may be used for another request. If r
// still holds a request, disown does nothing and returns false.
func (l *ledger) disown(r *Reservation, now int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.stage != stageNone {
		return false
	}
	l.renounce(r, now)
	return true
}

// renounce records that r's owner no longer refers to the holder. mu is held.
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
	if r.stage == stageWaiting || r.unseen { // refused, or the client left: the engine computes nothing more
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
		if r.work.Peer && !r.work.Whole {
			l.peers.answer(r, -1)
		}
		l.computed(r)
		if early := r.until - now; early > 0 { // the prompt ended sooner than predicted, and so will the prompts behind it
			l.whole.Add(-min(early, r.predict))
		}
		l.passes.elapse(now, l.answered(now))
		l.passes.decoding--
		l.passes.context -= int64(r.work.PromptTokens)
	}
	if r.work.Peer {
		l.peers.requests.Add(-1)
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

// expire ends the requests whose last sign of life was earlier than cutoff, and returns how many of them are requests
// of this router. now is the present time. Both times are Unix nanoseconds.
func (l *ledger) expire(cutoff, now int64) (leaks int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, requests := range []*list{&l.queue, &l.running} {
		for r := requests.first; r != nil; {
			next := r.next
			switch {
			case r.touched == 0:
				r.touched = now // the caller gave no time, so the request counts from this call on
			case r.touched < cutoff:
				l.end(r, now)
				if !r.work.Peer { // a peer that told of no end is no bug of a caller
					leaks++
				}
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
