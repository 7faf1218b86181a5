package gateway

import (
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/fleet"
)

// evidence remembers how the workers answered recently, by scope. A scope is a model name at an endpoint. evidence
// shows whether the worker or the client is at fault, in two ways.
//
// A useless answer has no valid result, so another worker can get the same request. The answer of the other worker is
// called a second opinion. If the second opinion is good, the first worker is at fault, and is blamed for its answer.
// If the second opinion is useless, too, the client is at fault.
//
// A lost answer, such as a stream that broke, or an answer without a token, cannot be repeated. A worker is at fault if
// it loses far more answers than the best other worker.
//
// evidence is safe for concurrent use.
type evidence struct {
	open   atomic.Bool // true after the first useless or lost answer
	mu     sync.Mutex  // guards the rest
	scopes map[fleet.Scope]*scopeEvidence
	order  []fleet.Scope // the scopes, the oldest first
	// streaks count over all scopes, because a worker may be useless in more scopes than are remembered.
	streaks map[fleet.WorkerID]*streak
}

// streak counts a worker's blamed answers since its last good one, over all scopes.
type streak struct {
	incarnation uint64
	answers     int
	first       fleet.Scope
	mixed       bool // true if the blamed answers come from several scopes
}

// scopeEvidence is the conduct of the workers in one scope.
type scopeEvidence struct {
	workers map[fleet.WorkerID]*conduct
	passed  int // number of answers for which all conditions of known (a method of evidence) held
}

// conduct is the quality of a worker's recent answers in a scope.
type conduct struct {
	incarnation uint64 // incarnation of the worker: after a restart, a new process may behave differently
	// useless is the share of useless answers among all answers, whether the worker or the client was at fault.
	useless share
	long    share // the same share over more answers (longMemory)
	blamed  share // share of blamed answers among the good and the blamed answers
	// bettered is the share of second opinions on the worker's useless answers in which the other worker's answer was
	// better.
	bettered  share
	lost      share // share of lost answers among the good and the lost answers
	blamedRow int   // number of blamed answers since the last good answer
	// agreed counts useless answers of the worker, by verdict, to requests that also got a useless answer from another
	// worker. A count begins again at 0 when the worker is blamed for an answer of that verdict.
	agreed [verdicts]int
}

// share is the part of the recent answers that was bad. An older answer counts less.
type share struct {
	part float64
	of   int // number of answers in part, at most the parameter memory of note
}

// note adds an answer: bad is 1 if the answer was bad, else 0. memory is about how many of the last answers the share
// covers.
func (s *share) note(bad float64, memory int) {
	s.of = min(s.of+1, memory)
	s.part += (bad - s.part) / float64(s.of)
}

// count returns about how many of the answers were bad.
func (s *share) count() int { return int(math.Round(s.part * float64(s.of))) }

const (
	// memory is about the number of recent answers that a share covers. If all answers of a good worker become useless,
	// its share reaches distrustShare after 11 answers.
	memory     = 16
	longMemory = 128  // memory for shares in which rare useless answers count
	lostMemory = 1024 // memory for lost answers: enough to show a loss of one answer in a hundred
	// minAnswers is the least number of answers for which a worker's share is compared.
	minAnswers = 4
	// minBadAnswers is the number of bad answers below which no worker is left out, because one or two may be chance.
	// Blamed answers must come in a row: a client may choose a request that only one worker refuses.
	minBadAnswers = 3
	// minBadEverywhere replaces minBadAnswers when the answers in all scopes are counted together. These answers must come
	// from several scopes, because a worker may be useless in only one scope.
	minBadEverywhere = 4 * minBadAnswers
	// mostScopes bounds the number of remembered scopes: a new scope replaces the oldest. Each served model name has
	// two scopes.
	mostScopes = 1024
	// distrustShare is the share of useless answers at which a worker is distrusted in a scope, and the share of blamed
	// answers at which the worker is left out of the scope. A worker below this share still gets requests, and other
	// workers serve the requests that it fails. A client may know requests that only one worker refuses. With such
	// requests the client can exclude the worker only by sending half of the worker's traffic.
	distrustShare = 0.5
	// betteredShare is a share of second opinions that were better than the worker's answer. A worker at or above this
	// share gets a second opinion on each of its refusals.
	betteredShare = 0.05
	// similarFactor and similarMargin: a worker's share of useless answers is similar to another worker's share if it is
	// at most 3 times as large, and at most 0.3 greater. Smaller limits, such as 2 times and 0.1, would often be exceeded
	// by chance, because each share is computed from few answers.
	similarFactor = 3
	similarMargin = 0.3
	// sampled: even if refusals seem to be the requests' fault, one refusal in 16 gets a second opinion. This finds a
	// worker that becomes useless while many requests are bad.
	sampled = 16
	// lostShare is the share of lost answers at which a worker is left out if the other workers have too few answers to
	// compare with. Enough is a quarter of the worker's own number of answers, or 64 (the constant comparableAnswers) if
	// that is less. While the worker is left out, the other workers get requests, and can be compared later.
	lostShare         = 0.02
	comparableAnswers = 64
	// worseMargin and worseFactor: a worker is not asked next if its share of useless answers exceeds the best worker's
	// share by more than 0.03, and is more than 2 times as large.
	worseMargin = 0.03
	worseFactor = 2
	// deviations is the difference between two workers' shares of lost answers that is significant, in standard
	// deviations: by chance, one difference in 4,000 is larger.
	deviations = 3.5
)

// forget drops the streaks of workers that left.
func (e *evidence) forget(gone func(fleet.WorkerID) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.streaks, func(id fleet.WorkerID, _ *streak) bool { return gone(id) })
}

// served records a good answer. losable is true if such an answer can be lost: a stream, or a generated text.
func (e *evidence) served(scope fleet.Scope, w *fleet.Worker, losable bool) {
	if !e.open.Load() {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.streaks, w.ID)
	if s := e.scopes[scope]; s != nil {
		c := s.of(w)
		c.useless.note(0, memory)
		c.long.note(0, longMemory)
		c.blamed.note(0, memory)
		c.blamedRow = 0
		if losable {
			c.lost.note(0, lostMemory)
		}
	}
}

// useless records a useless answer. all are the workers that serve the scope's model. If there is evidence about more
// workers, the evidence about workers that are not in all is dropped.
func (e *evidence) useless(scope fleet.Scope, w *fleet.Worker, all []*fleet.Worker) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.scope(scope)
	c := s.of(w)
	c.useless.note(1, memory)
	c.long.note(1, longMemory)
	if len(s.workers) > len(all) {
		maps.DeleteFunc(s.workers, func(id fleet.WorkerID, _ *conduct) bool {
			return !slices.ContainsFunc(all, func(w *fleet.Worker) bool { return w.ID == id })
		})
	}
}

// blame records that w gave a useless answer with this verdict to a request that another worker served. The first
// result says whether w should be left out of the scope, and the second result whether w should be left out of all
// scopes.
func (e *evidence) blame(scope fleet.Scope, w *fleet.Worker, v verdict) (here, everywhere bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.scope(scope).of(w)
	c.blamed.note(1, memory)
	c.bettered.note(1, longMemory)
	c.agreed[v] = 0
	c.blamedRow++
	r := e.streaks[w.ID]
	if r == nil || r.incarnation != w.Incarnation {
		if e.streaks == nil {
			e.streaks = map[fleet.WorkerID]*streak{}
		}
		r = &streak{incarnation: w.Incarnation, first: scope}
		e.streaks[w.ID] = r
	}
	r.answers++
	r.mixed = r.mixed || scope != r.first
	return c.blamed.part >= distrustShare && c.blamedRow >= minBadAnswers, r.mixed && r.answers >= minBadEverywhere
}

// confirm records that w gave a useless answer with this verdict, and that another worker gave a useless answer to the
// same request.
func (e *evidence) confirm(scope fleet.Scope, w *fleet.Worker, v verdict) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.scope(scope).of(w)
	c.bettered.note(0, longMemory)
	c.agreed[v]++
}

// lose records that an answer of w was lost and could not be repeated. all are the workers that serve the scope's
// model. lose returns true if w loses far more answers than the best other worker.
func (e *evidence) lose(scope fleet.Scope, w *fleet.Worker, all []*fleet.Worker) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.scope(scope)
	own := s.of(w)
	own.lost.note(1, lostMemory)
	var best, together share
	for _, other := range all {
		if other.ID == w.ID {
			continue
		}
		c := s.look(other).lost
		if c.of >= 2*minAnswers && (best.of == 0 || c.part < best.part) {
			best = c
		}
		together.part += c.part * float64(c.of)
		together.of += c.of
	}
	if best.of == 0 && together.of > 0 { // no single worker has enough answers
		best = share{together.part / float64(together.of), together.of}
	}
	if own.lost.count() < minBadAnswers || !own.standsOut(best) {
		return false
	}
	// With a smaller of, the answers after the worker's return count more than the old answers.
	own.lost.of = min(own.lost.of, comparableAnswers)
	return true
}

// standsOut reports whether a worker loses significantly more answers than another worker (two-proportion z-test). If
// the other worker has too few answers to compare, the worker stands out when its share of lost answers is at least 2 %
// (the constant lostShare). The worker is then left out, and the other workers get requests.
func (c *conduct) standsOut(other share) bool {
	if c.lost.of < memory {
		return false
	}
	if other.of < min(c.lost.of/4, comparableAnswers) {
		return c.lost.part >= lostShare
	}
	p, n, q, m := c.lost.part, float64(c.lost.of), other.part, float64(other.of)
	mean := (p*n + q*m) / (n + m)
	return p-q > deviations*math.Sqrt(mean*(1-mean)*(1/n+1/m))
}

// oftenBettered reports whether at least 5 % of the second opinions on w's useless answers in the scope were better
// (the constant betteredShare). If so, w may be at fault for its refusals, even if many requests are bad.
func (e *evidence) oftenBettered(scope fleet.Scope, w *fleet.Worker) bool {
	if !e.open.Load() {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.conduct(scope, w).bettered.part >= betteredShare
}

// known reports whether a useless answer of w with this verdict is the request's fault, so that no second opinion is
// needed. All of these conditions must hold:
//   - since the last good second opinion on an answer of w with this verdict, at least 4 second opinions were useless,
//     too (the constant minAnswers). Each verdict has a count of its own: many confirmed refusals must not excuse a
//     page of HTML;
//   - each other worker has given at least 4 answers, and w's share of useless answers is similar to the share of each
//     other worker (the constants similarFactor and similarMargin);
//   - for w and for each other worker, fewer than 5 % of the second opinions were better (the constant betteredShare).
//
// For one answer in 16 (the constant sampled), known returns false although the conditions hold. The second opinion
// that follows shows whether the conditions still hold.
func (e *evidence) known(scope fleet.Scope, w *fleet.Worker, v verdict, others []*fleet.Worker) bool {
	if !e.open.Load() || len(others) == 0 {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.scopes[scope]
	if s == nil {
		return false
	}
	own := s.look(w)
	if own.agreed[v] < minAnswers || own.bettered.part >= betteredShare {
		return false
	}
	for _, other := range others {
		if c := s.look(other); c.useless.of < minAnswers || c.useless.part == 0 || c.bettered.part >= betteredShare ||
			own.useless.part > min(similarFactor*c.useless.part, c.useless.part+similarMargin) {
			return false
		}
	}
	s.passed++
	return s.passed%sampled != 0
}

// distrusted reports whether at least half of a worker's answers in a scope were useless (the constant distrustShare).
func (e *evidence) distrusted(scope fleet.Scope, w *fleet.Worker) bool {
	if !e.open.Load() {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.conduct(scope, w).useless.part >= distrustShare
}

// better compares the given workers. It returns a function that reports whether a worker should not be asked next,
// because half of its answers or more were useless, or because another of the workers gave far fewer useless answers.
func (e *evidence) better(scope fleet.Scope, these []*fleet.Worker) (avoid func(*fleet.Worker) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	best := 1.0
	for _, w := range these {
		best = min(best, e.conduct(scope, w).long.part)
	}
	return func(w *fleet.Worker) bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		c := e.conduct(scope, w)
		return c.useless.part >= distrustShare || c.long.part > max(best+worseMargin, worseFactor*best)
	}
}

// conduct returns a worker's conduct in a scope. Callers hold e.mu.
func (e *evidence) conduct(scope fleet.Scope, w *fleet.Worker) conduct {
	if s := e.scopes[scope]; s != nil {
		return s.look(w)
	}
	return conduct{}
}

// scope returns a scope's evidence, made on first use. Callers hold e.mu.
func (e *evidence) scope(scope fleet.Scope) *scopeEvidence {
	if s := e.scopes[scope]; s != nil {
		return s
	}
	if e.scopes == nil {
		e.scopes = map[fleet.Scope]*scopeEvidence{}
	}
	if len(e.order) >= mostScopes {
		delete(e.scopes, e.order[0])
		e.order = e.order[1:]
	}
	s := &scopeEvidence{}
	e.scopes[scope], e.order = s, append(e.order, scope)
	e.open.Store(true)
	return s
}

// look returns a worker's conduct. It returns the zero conduct if nothing is known about the worker's present process.
func (s *scopeEvidence) look(w *fleet.Worker) conduct {
	if c := s.workers[w.ID]; c != nil && c.incarnation == w.Incarnation {
		return *c
	}
	return conduct{}
}

// of returns a worker's conduct, to which the caller adds an answer. If the answer came from an older process of the
// worker, the result is a new conduct that is not kept.
func (s *scopeEvidence) of(w *fleet.Worker) *conduct {
	c := s.workers[w.ID]
	if c == nil || c.incarnation < w.Incarnation {
		if s.workers == nil {
			s.workers = map[fleet.WorkerID]*conduct{}
		}
		c = &conduct{incarnation: w.Incarnation}
		s.workers[w.ID] = c
	}
	if c.incarnation > w.Incarnation {
		return &conduct{}
	}
	return c
}
