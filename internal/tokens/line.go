package tokens

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"
	"time"
)

// maxLine bounds the questions that wait for their turn: more than a few dozen engines answer within the time that
// requests wait. Beyond it the question whose turn comes last is not asked.
const maxLine = 64

// grant is the end of a question's wait for its turn.
type grant struct {
	worker  Worker
	call    *call
	verdict verdict
}

// acquire books a call for f's question to the service or a worker. While all of them have as many calls as they may, a
// question that requests wait for stands in line. One that no request waits for is held back until an engine is calm.
// The verdict is full when ctx ends first, or when the line is full of questions whose turns come before.
func (s *Source) acquire(ctx context.Context, f *flight) grant {
	for {
		if !s.flights.watched(f) {
			g, wanted := s.calmly(ctx, f.question)
			if !wanted {
				return g
			}
		}
		g := s.inLine(ctx, f.question)
		if g.verdict != full || ctx.Err() != nil || !s.flights.isBackground(f) {
			return g
		}
		select { // the line is full
		case <-time.After(calmCheck):
		case <-ctx.Done():
		}
	}
}

const (
	// settle is how long a question that nobody waits for waits at least: the request that it comes from is then at its
	// engine, which is not calm before it has sent the first token.
	settle = 50 * time.Millisecond
	// calmCheck is how often it looks for a calm engine.
	calmCheck = 25 * time.Millisecond
)

// calmly books a call for q to a calm engine, or to any that may be asked once ctx ends; wanted says that somebody
// waits for the answer now.
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
		if g = s.another(q); g.verdict != full || q.anyhow {
			return g, false
		}
		next.Reset(calmCheck)
	}
}

// inLine books a call for q, which waits in line for it.
func (s *Source) inLine(ctx context.Context, q *question) grant {
	s.peers.mu.Lock()
	g := s.peers.grant(q, time.Now())
	if g.verdict != full || !s.peers.enter(q) {
		s.peers.mu.Unlock()
		return g
	}
	s.peers.mu.Unlock()
	s.waited.Add(1)
	select {
	case g = <-q.granted:
		return g
	case <-ctx.Done():
	}
	if s.peers.leave(q) {
		return grant{verdict: full}
	}
	return <-q.granted // it was taken out of the line meanwhile, and told so
}

// grant picks whom q is asked of: the service, where it may be asked, else a worker. The caller holds ps.mu.
func (ps *peers) grant(q *question, now time.Time) grant {
	why := nobody
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

// enter puts q into the line; false when there is no room. The caller holds ps.mu.
func (ps *peers) enter(q *question) bool {
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
	last.granted <- grant{verdict: full}
	return true
}

// arrange orders the line: first that question of each client which is worth most, then the second one of each, and so
// on. Of clients the one comes first that was served, or came into the line, the longest ago: what others ask of other
// engines meanwhile changes nothing. Of equals the earlier question comes first. What nobody waits for comes last. The
// caller holds ps.mu.
func (ps *peers) arrange() {
	slices.SortStableFunc(ps.line, func(a, b *question) int { return cmp.Compare(b.worth, a.worth) })
	of := make(map[uint64]int, len(ps.turns)) // questions of each client so far
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

// leave takes q out of the line; false when it is not there.
func (ps *peers) leave(q *question) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	at := slices.Index(ps.line, q)
	if at < 0 {
		return false
	}
	ps.line = slices.Delete(ps.line, at, at+1)
	return true
}

// waits reports whether q is in the line.
func (ps *peers) waits(q *question) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return slices.Contains(ps.line, q)
}

// raise makes q worth at least so much, for somebody who waits for the answer now.
func (ps *peers) raise(q *question, worth time.Duration) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if q.worth >= worth {
		return
	}
	q.worth = worth
	select {
	case q.wanted <- struct{}{}:
	default: // told already
	}
	ps.arrange()
}

// lower takes q out of the line, as nobody waits for the answer any more; false when it is not there.
func (ps *peers) lower(q *question) bool {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	at := slices.Index(ps.line, q)
	if at < 0 {
		return false
	}
	ps.line = slices.Delete(ps.line, at, at+1)
	q.worth = 0
	q.granted <- grant{verdict: full}
	return true
}

// serve gives the places that are free to the questions in line, and sends those away that nobody can be asked any
// more. The caller holds ps.mu.
func (ps *peers) serve(now time.Time) {
	if len(ps.line) == 0 {
		return
	}
	ps.line = slices.DeleteFunc(ps.line, func(q *question) bool {
		g := ps.grant(q, now)
		if g.verdict == full {
			return false
		}
		if g.verdict == granted {
			ps.took(q)
		}
		q.granted <- g // has room for one
		return true
	})
}

// took books that q had its turn. The caller holds ps.mu.
func (ps *peers) took(q *question) {
	ps.turn++
	ps.turns[q.client] = ps.turn
}
