package tokens

import (
	"context"
	"encoding/binary"
	"sync"
	"time"
)

// flight is one question to engines, with everyone who waits for its answer. It has a goroutine of its own: an answer
// under way has been paid for, and is remembered when nobody waits for it any more.
type flight struct {
	key      key
	question *question
	done     chan struct{} // closed when result stands
	result   Found         // written by the flight's goroutine only, before done is closed

	waiting    int  // guarded by flights.mu; requests
	background bool // guarded by flights.mu; asked in the background: nobody needs to wait
}

// of is k where one client asks. Clients do not share a question: it is asked with the key of the client whose request
// came first, which the engine may refuse. They share its answer, which is remembered.
func (k key) of(client uint64) key {
	binary.LittleEndian.PutUint64(k[:], binary.LittleEndian.Uint64(k[:])^client)
	return k
}

// flights are the questions under way, by what decides their answers. It is safe for concurrent use.
type flights struct {
	peers *peers
	room  *room

	mu         sync.Mutex      // taken before peers.mu
	all        map[key]*flight // guarded by mu
	background int             // guarded by mu; of all, those asked in the background
	bytes      int64           // guarded by mu; of their questions
	limit      int64           // of bytes
}

const (
	// maxBackground and backgroundShare bound the questions in the background, in number and as a part of the cache's
	// bytes: engines that are too busy to answer are not asked ever more.
	maxBackground   = 32
	backgroundShare = 8
	// backgroundFor is how long such a question waits for its turn: a conversation's next request comes seconds later.
	backgroundFor = 5 * time.Second
)

// join returns the flight for k, for which the caller waits from now on; the caller leads it, and has to begin it, when
// there was none. bytes is the size of the question; f is nil when there is no room for so much.
func (fs *flights) join(k key, bytes int64, worth time.Duration) (f *flight, leads bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f = fs.all[k]; f != nil {
		f.waiting++
		fs.peers.raise(f.question, worth)
		return f, false
	}
	if !fs.room.take(bytes) {
		return nil, false
	}
	f = newFlight(k, bytes, worth)
	f.waiting = 1
	fs.all[k] = f
	return f, true
}

// inBackground returns a flight for k that nobody waits for and that the caller has to begin; nil when there is one
// already, or when too many of the kind are under way.
func (fs *flights) inBackground(k key, bytes int64) *flight {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.all[k] != nil || !fs.room.take(bytes) {
		return nil
	}
	f := newFlight(k, bytes, 0)
	if !fs.toBackground(f) {
		fs.room.give(bytes)
		return nil
	}
	fs.all[k] = f
	return f
}

// toBackground makes f one that is asked though nobody waits for it, if there is room. The caller holds fs.mu.
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

// leave notes that one request waits for f no more. inLine says that the question is still in line. When it is, and no
// other request waits for it, it is asked in the background, as the answer serves the conversation's next request.
// Without room for that it is dropped.
func (fs *flights) leave(f *flight) (inLine bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f.waiting--
	inLine = fs.peers.waits(f.question)
	if !inLine || f.background || f.waiting > 0 {
		return inLine
	}
	if fs.toBackground(f) {
		fs.peers.lower(f.question)
		return true
	}
	if fs.peers.lower(f.question) {
		delete(fs.all, f.key) // who comes now begins anew
	}
	return true
}

// watched reports whether anyone waits for f.
func (fs *flights) watched(f *flight) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.waiting > 0
}

// isBackground reports whether f is asked though nobody needs to wait for it.
func (fs *flights) isBackground(f *flight) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.background
}

// end ends f, whose result stands. late says that requests waited for it and all gave up.
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

// fly starts f with the question that p asks. The goroutine ends backgroundFor after it was started at the latest, or
// callTimeout after the last of its two calls was; Close waits for it.
func (s *Source) fly(f *flight, p *Prompt, l *list, workers []Worker) {
	s.fill(f.question, p, s.serviceFor(p), workers)
	model, asked := p.Model, *l
	asked.turns = nil // the request's, which the question outlives
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

// wait returns what f finds within so long. The caller has joined f.
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
