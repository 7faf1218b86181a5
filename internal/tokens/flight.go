package tokens

import (
	"context"
	"encoding/binary"
	"sync"
	"time"
)

// flight is one question to engines that is under way, with all requests that wait for the answer. A flight has its own
// goroutine: the answer is remembered even if no request waits for it any more.
type flight struct {
	key      key
	question *question
	done     chan struct{} // closed after result is written
	result   Found         // written by the flight's goroutine only, before done is closed

	waiting    int  // guarded by flights.mu; number of requests that wait
	background bool // guarded by flights.mu; the question is asked in the background, that is without a request that needs the answer now
}

// of returns the key of a client's question for the prompt with key k. Clients do not share a question, because a
// question carries the API key of one client, which an engine may refuse. Clients share remembered answers.
func (k key) of(client uint64) key {
	binary.LittleEndian.PutUint64(k[:], binary.LittleEndian.Uint64(k[:])^client)
	return k
}

// flights holds the questions under way, by key. It is safe for concurrent use.
type flights struct {
	states *workerStates
	memory *memory

	mu         sync.Mutex      // taken before workerStates.mu
	all        map[key]*flight // guarded by mu
	background int             // guarded by mu; number of flights in the background
	bytes      int64           // guarded by mu; size of all questions in the background
	limit      int64           // upper bound of bytes
}

const (
	// maxBackground bounds the number of questions in the background. These questions take at most 1/backgroundShare of
	// the cache's bytes. Without the two bounds, questions to busy engines would pile up.
	maxBackground   = 32
	backgroundShare = 8
	// backgroundFor is how long a question in the background waits for its turn: a conversation's next request comes
	// seconds later.
	backgroundFor = 5 * time.Second
)

// join returns the flight for k, and counts the caller as a request that waits. If there was no flight for k, leads is
// true, and the caller must start the new flight with fly. bytes is the size of the question. If there is no memory for
// the question, f is nil.
func (fs *flights) join(k key, bytes int64, worth time.Duration) (f *flight, leads bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f = fs.all[k]; f != nil {
		f.waiting++
		fs.states.raise(f.question, worth)
		return f, false
	}
	if !fs.memory.take(bytes) {
		return nil, false
	}
	f = newFlight(k, bytes, worth)
	f.waiting = 1
	fs.all[k] = f
	return f, true
}

// inBackground returns a new flight for k, for which no request waits. The caller must start this flight with fly. The
// result is nil if there is already a flight for k, if too many flights are in the background, or if there is no memory
// for the question.
func (fs *flights) inBackground(k key, bytes int64) *flight {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.all[k] != nil || !fs.memory.take(bytes) {
		return nil
	}
	f := newFlight(k, bytes, 0)
	if !fs.toBackground(f) {
		fs.memory.give(bytes)
		return nil
	}
	fs.all[k] = f
	return f
}

// toBackground moves f to the background, if there is room. The caller holds fs.mu.
func (fs *flights) toBackground(f *flight) bool {
	if fs.background >= maxBackground || fs.bytes+f.question.size > fs.limit {
		return false
	}
	f.background = true
	fs.background++
	fs.bytes += f.question.size
	return true
}

func newFlight(k key, bytes int64, worth time.Duration) *flight {
	q := &question{worth: worth, size: bytes, granted: make(chan grant, 1), wanted: make(chan struct{}, 1)}
	q.hold()
	return &flight{key: k, question: q, done: make(chan struct{}), result: Found{Outcome: Failed}}
}

// leave records that one request stops waiting for f. inLine is true if the question was still in the line. If no other
// request waits for f, a question in the line moves to the background, because its answer serves the conversation's
// next request. If the background has no room, the question leaves the line and is not asked.
func (fs *flights) leave(f *flight) (inLine bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.waiting--
	inLine = fs.states.waits(f.question)
	if !inLine || f.background || f.waiting > 0 {
		return inLine
	}
	if fs.toBackground(f) {
		fs.states.lower(f.question)
		return true
	}
	if fs.states.lower(f.question) {
		delete(fs.all, f.key) // the question will not be asked: a later request with this key must not join f
	}
	return true
}

// watched reports whether a request waits for f.
func (fs *flights) watched(f *flight) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.waiting > 0
}

// isBackground reports whether f is in the background.
func (fs *flights) isBackground(f *flight) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.background
}

// end ends f after f.result is written. late is true if requests waited for f and all of them gave up.
func (fs *flights) end(f *flight) (late bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.all[f.key] == f {
		delete(fs.all, f.key)
	}
	if f.background {
		fs.background--
		fs.bytes -= f.question.size
	}
	close(f.done)
	return f.waiting == 0 && !f.background
}

// fly starts f's goroutine with p's question. The goroutine waits until a call can be booked, for at most the longer of
// backgroundFor and Config.Budget. The goroutine then makes at most two calls, and each call ends within callTimeout.
// Close waits for the goroutine.
func (s *Source) fly(f *flight, p *Prompt, l *promptTurns, workers []Worker) {
	s.fill(f.question, p, s.serviceFor(p), workers)
	model, asked := p.Model, *l
	asked.turns = nil // asked.turns is memory of the request, which may end before the question
	s.calls.Go(func() {
		defer s.drop(f.question)
		ctx, cancel := context.WithTimeout(s.ctx, max(backgroundFor, s.cfg.Budget))
		defer cancel()
		f.result = s.ask(ctx, f)
		if f.result.Tokens != nil {
			s.remember(model, &asked, &f.result)
		}
		if s.flights.end(f) && f.result.Tokens != nil {
			s.late.Add(1)
		}
	})
}

// wait returns f's result. If the result has not come after the time patience, or when ctx ends, wait returns an
// outcome without ids. The caller has joined f.
func (s *Source) wait(ctx context.Context, f *flight, patience time.Duration, leads bool) Found {
	limit := time.NewTimer(patience)
	defer limit.Stop()
	outcome := TimedOut
	select {
	case <-f.done:
		found := f.result
		if found.Tokens != nil && !leads {
			found.Outcome = Shared
		}
		s.flights.leave(f)
		return found
	case <-limit.C:
	case <-ctx.Done():
	}
	if s.flights.leave(f) {
		outcome = Limited
	}
	return Found{Outcome: outcome}
}
