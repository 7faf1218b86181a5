package tokens

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"time"
)

// maxLine bounds the number of questions that wait in line for their turn. Within the time that requests wait, engines
// answer a few dozen questions. If a question comes to a full line, the last question of the line is dropped without
// being asked.
const maxLine = 64

// grant is the result of a question's wait: the call that was booked for it, or the reason why no call was booked.
type grant struct {
	worker    Worker
	call      *call
	admission admission
}

// acquire books a call to the service or a worker for f's question. If the service and all workers have reached their
// limits of calls, the question waits: in line if a request waits for its answer, otherwise until an engine is calm
// (see workerState.calm). The admission is full if no call could be booked before ctx ended. If the question is not in
// the background, the admission is also full in two other cases: the line was full, or all requests stopped waiting.
func (s *Source) acquire(ctx context.Context, f *flight) grant {
	for {
		if !s.flights.watched(f) {
			g, wanted := s.calmly(ctx, f.question)
			if !wanted {
				return g
			}
		}
		g := s.inLine(ctx, f.question)
		if g.admission != full || ctx.Err() != nil || !s.flights.isBackground(f) {
			return g
		}
		select { // a question in the background tries again after a pause
		case <-time.After(calmCheck):
		case <-ctx.Done():
		}
	}
}

const (
	// settle is the shortest delay of a question for which no request waits. Within this delay the request that caused the
	// question reaches its engine. So that engine is not calm until it has sent the request's first token.
	settle = 50 * time.Millisecond
	// calmCheck is the time between two checks whether an engine is calm.
	calmCheck = 25 * time.Millisecond
)

// calmly books a call for q to a calm engine, or to the service. When ctx ends, calmly tries to book a call to any
// engine. wanted is true if a request now waits for the answer; in that case no call is booked.
func (s *Source) calmly(ctx context.Context, q *question) (g grant, wanted bool) {
	next := time.NewTimer(settle)
	defer next.Stop()
	for {
		select {
		case <-q.wanted:
			return grant{}, true
		case <-next.C:
		case <-ctx.Done():
			q.anyhow = true
		}
		if g = s.another(q); g.admission != full || q.anyhow {
			return g, false
		}
		next.Reset(calmCheck)
	}
}

// inLine books a call for q: without waiting if a worker is free, and otherwise after a wait in line.
func (s *Source) inLine(ctx context.Context, q *question) grant {
	s.states.mu.Lock()
	g := s.states.grant(q, time.Now())
	if g.admission != full || !s.states.enter(q) {
		s.states.mu.Unlock()
		return g
	}
	s.states.mu.Unlock()
	s.waited.Add(1)
	select {
	case g = <-q.granted:
		return g
	case <-ctx.Done():
	}
	if s.states.leave(q) {
		return grant{admission: full}
	}
	return <-q.granted // another goroutine has taken q from the line, so the channel has q's grant
}

// grant books a call for q to the service if the service may be asked, and to a worker if not. The caller holds ps.mu.
func (ps *workerStates) grant(q *question, now time.Time) grant {
	why := noWorkers
	if q.not == "" {
		w, c, v := ps.pick(q, q.service, now)
		if v == granted {
			return grant{w, c, v}
		}
		why = v
	}
	w, c, v := ps.pick(q, q.workers, now)
	return grant{w, c, min(v, why)}
}

// enter puts q into the line. If the line has become too long, enter drops its last question. It returns false if this
// question is q. The caller holds ps.mu.
func (ps *workerStates) enter(q *question) bool {
	ps.line = append(ps.line, q)
	if _, here := ps.turns[q.client]; !here {
		ps.turns[q.client] = ps.turn
	}
	ps.arrange()
	if len(ps.line) <= maxLine {
		return true
	}
	last := ps.line[maxLine]
	if ps.line = ps.line[:maxLine]; last == q {
		return false
	}
	last.granted <- grant{admission: full}
	return true
}

// arrange orders the line in rounds. Each round has one question of each client; a client's questions that save more
// time come in earlier rounds. Within a round, clients are ordered by the time when they were last served, or came into
// the line: the longest ago is first. Of otherwise equal questions, the question that saves more time is first.
// Questions for which no request waits come after all rounds. The caller holds ps.mu.
func (ps *workerStates) arrange() {
	slices.SortStableFunc(ps.line, func(a, b *question) int { return cmp.Compare(b.worth, a.worth) })
	of := make(map[uint64]int, len(ps.turns)) // client → number of its questions so far
	for _, q := range ps.line {
		q.behind = of[q.client]
		if of[q.client]++; q.worth == 0 {
			q.behind = math.MaxInt
		}
	}
	slices.SortStableFunc(ps.line, func(a, b *question) int {
		return cmp.Or(cmp.Compare(a.behind, b.behind), cmp.Compare(ps.turns[a.client], ps.turns[b.client]))
	})
	maps.DeleteFunc(ps.turns, func(client, _ uint64) bool { return of[client] == 0 })
}

// leave removes q from the line. It returns false if q is not in the line.
func (ps *workerStates) leave(q *question) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	before := len(ps.line)
	ps.line = slices.DeleteFunc(ps.line, func(other *question) bool { return other == q })
	return len(ps.line) < before
}

// waits reports whether q is in the line.
func (ps *workerStates) waits(q *question) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return slices.Contains(ps.line, q)
}

// raise sets q's worth to at least worth, because a request waits for the answer now.
func (ps *workerStates) raise(q *question, worth time.Duration) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if q.worth >= worth {
		return
	}
	q.worth = worth
	select {
	case q.wanted <- struct{}{}:
	default: // the channel already has a signal
	}
	ps.arrange()
}

// lower removes q from the line, because no request waits for the answer any more. It returns false if q is not in the
// line.
func (ps *workerStates) lower(q *question) bool {
	if !ps.leave(q) {
		return false
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	q.worth = 0
	q.granted <- grant{admission: full}
	return true
}

// serve books calls for the questions in line, as far as workers have calls free. If no worker may be asked for a
// question, the question also leaves the line. The caller holds ps.mu.
func (ps *workerStates) serve(now time.Time) {
	if len(ps.line) == 0 {
		return
	}
	ps.line = slices.DeleteFunc(ps.line, func(q *question) bool {
		g := ps.grant(q, now)
		if g.admission == full {
			return false
		}
		if g.admission == granted {
			ps.took(q)
		}
		q.granted <- g // never blocks: the capacity is 1
		return true
	})
}

// took records that q had its turn. The caller holds ps.mu.
func (ps *workerStates) took(q *question) {
	ps.turn++
	ps.turns[q.client] = ps.turn
}
