package gateway

import (
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/fleet"
)

// evidence is how the workers answered recently, by scope. It shows whether the worker or the client is at fault, in
// two ways.
// A useless answer to a request that can be repeated is the worker's fault if another worker served the same request.
// It is the client's fault if another worker gave the same answer.
// A lost answer, such as a stream that broke, cannot be repeated. A worker is at fault if it loses far more answers
// than the best other worker.
// evidence is safe for concurrent use.
type evidence struct {
	open   atomic.Bool // an answer was useless or lost once
	mu     sync.Mutex  // guards the rest
	scopes map[fleet.Scope]*scopeEvidence
	order  []fleet.Scope // the scopes, the oldest first
	// streaks are counted over all scopes, because a worker may be useless in more scopes than are remembered.
	streaks map[fleet.WorkerID]*streak
}

// streak counts a worker's blamed answers since its last good one, over all scopes.
type streak struct {
	incarnation uint64
	answers     int
	first       fleet.Scope
	mixed       bool // the blamed answers are of several scopes
}

// scopeEvidence is the conduct of the workers in one scope.
type scopeEvidence struct {
	workers map[fleet.WorkerID]*conduct
	passed  int // refusals that the method known took for the requests' fault
}

// conduct is the quality of a worker's recent answers in a scope.
type conduct struct {
	incarnation uint64 // of the worker: another process may behave otherwise
	useless     share  // all answers: the useless part, whichever side was at fault
	long        share  // the part of useless answers over a longer time
	blamed      share  // good and blamed answers: the part that was blamed
	bettered    share  // second opinions on the worker's useless answers: the part that was better
	lost        share  // good streams and lost ones: the part that was lost
	blamedRow   int    // answers blamed in a row
	// agreed counts, by verdict, the worker's useless answers to requests that also got a useless answer from another
	// worker. A count begins anew when the worker is blamed for an answer of that verdict.
	agreed [verdicts]int
}

// share is the part of the recent answers that was bad. Older answers count less and less.
type share struct {
	part float64
	of   int // answers, at most the memory
}

func (s *share) note(bad float64, memory int) {
	s.of = min(s.of+1, memory)
	s.part += (bad - s.part) / float64(s.of)
}

// count returns about how many of the answers were bad.
func (s *share) count() int { return int(math.Round(s.part * float64(s.of))) }

const (
	memory     = 16   // answers in a share, about: a worker that turns useless is known after half of them
	longMemory = 128  // as memory, where rare useless answers count
	lostMemory = 1024 // as memory, for streams: enough to show a loss of one in a hundred
	// enough is the number of answers from which on a worker's share can be compared.
	enough = 4
	// few is the number of bad answers below which no worker is left out, because one or two may be chance. Blamed
	// answers must come in a row: a client may choose a request that only one worker refuses.
	few = 3
	// fewEvery is the same for all scopes together. These answers must come from several scopes, because a worker may
	// be useless in only one.
	fewEvery = 4 * few
	// mostScopes bounds the remembered scopes: a new one replaces the oldest. Each served model name has two.
	mostScopes = 1024
	// usual is the share of useless answers at which a worker is distrusted in a scope, and the share of blamed answers
	// at which it is left out of the scope. Below usual, other workers serve the requests that this worker does not
	// serve. A client may know requests that only one worker refuses. It can exclude that worker only if it sends half
	// of the worker's traffic.
	usual = 0.5
	// apart is the share of better second opinions at which every refusal gets a second opinion.
	apart = 0.05
	// alike and above: two workers have similar shares of useless answers when one share is at most alike times the
	// other and at most above higher. Twice the share, or 0.1 more, would often be chance, because each share is of few
	// answers.
	alike = 3
	above = 0.3
	// One in sampled of the refusals that seem to be the requests' fault still gets a second opinion. So a worker is
	// found that turns useless among bad requests.
	sampled = 16
	// reason is the share of lost streams at which a worker is left out if no other worker can be compared. Another
	// worker with comparable streams can always be compared.
	reason     = 0.02
	comparable = 64
	// worse and times: a worker is not asked next when its share of useless answers is more than worse above the best
	// one's, and more than times as large.
	worse = 0.03
	times = 2
	// deviations is the significant difference between two workers' shares of lost answers, in standard deviations:
	// one difference in 4,000 is larger by chance.
	deviations = 3.5
)

// forget drops the streaks of workers that left.
func (e *evidence) forget(gone func(fleet.WorkerID) bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.DeleteFunc(e.streaks, func(id fleet.WorkerID, _ *streak) bool { return gone(id) })
}

// served records a good answer. streamed says that it could have been lost.
func (e *evidence) served(scope fleet.Scope, w *fleet.Worker, streamed bool) {
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
		if streamed {
			c.lost.note(0, lostMemory)
		}
	}
}

// useless records a useless answer. all are the workers that serve the scope's model; the evidence about other workers
// is dropped.
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

// blame records that w gave a useless answer with this verdict to a request that another worker served. It reports
// whether w should be left out of the scope, and of all scopes.
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
	return c.blamed.part >= usual && c.blamedRow >= few, r.mixed && r.answers >= fewEvery
}

// confirm records that w, with this verdict, and another worker gave useless answers to the same request.
func (e *evidence) confirm(scope fleet.Scope, w *fleet.Worker, v verdict) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.scope(scope).of(w)
	c.bettered.note(0, longMemory)
	c.agreed[v]++
}

// lose records that an answer of w was lost and could not be repeated. all are the workers that serve the scope's
// model. It reports whether w loses far more answers than the best other worker.
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
		if c.of >= 2*enough && (best.of == 0 || c.part < best.part) {
			best = c
		}
		together.part += c.part * float64(c.of)
		together.of += c.of
	}
	if best.of == 0 && together.of > 0 { // no single worker has enough answers
		best = share{together.part / float64(together.of), together.of}
	}
	if own.lost.count() < few || !own.standsOut(best) {
		return false
	}
	own.lost.of = min(own.lost.of, comparable) // after its return, new streams count more than old ones
	return true
}

// standsOut reports whether a worker loses significantly more answers than another one (two-proportion z-test). If the
// other worker has too few answers to compare, because this worker gets almost all requests, the worker stands out when
// its share of lost answers is at least reason: then the others get requests.
func (c *conduct) standsOut(other share) bool {
	if c.lost.of < memory {
		return false
	}
	if other.of < min(c.lost.of/4, comparable) {
		return c.lost.part >= reason
	}
	p, n, q, m := c.lost.part, float64(c.lost.of), other.part, float64(other.of)
	mean := (p*n + q*m) / (n + m)
	return p-q > deviations*math.Sqrt(mean*(1-mean)*(1/n+1/m))
}

// apart reports whether second opinions were better than w's recent answers in the scope. Then refusals may be w's
// fault, however many bad requests there are.
func (e *evidence) apart(scope fleet.Scope, w *fleet.Worker) bool {
	if !e.open.Load() {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.conduct(scope, w).bettered.part >= apart
}

// known reports whether a worker's useless answers of one verdict in a scope are known to be the requests' fault. They
// are if other workers' answers were useless, too, each time a second opinion was asked; the same verdict is required,
// so that common refusals do not excuse a page of HTML. Each of the other workers must have given enough answers and
// have a similar share of useless ones. No second opinion of late may have been better than an answer of w or of
// another worker: then the worker may be at fault. One in sampled such answers is called unknown, to find out whether
// this still holds.
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
	if own.agreed[v] < enough || own.bettered.part >= apart {
		return false
	}
	for _, other := range others {
		if c := s.look(other); c.useless.of < enough || c.useless.part == 0 || c.bettered.part >= apart ||
			own.useless.part > min(alike*c.useless.part, c.useless.part+above) {
			return false
		}
	}
	s.passed++
	return s.passed%sampled != 0
}

// distrusted reports whether a worker's share of useless answers in a scope is at least usual.
func (e *evidence) distrusted(scope fleet.Scope, w *fleet.Worker) bool {
	if !e.open.Load() {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.conduct(scope, w).useless.part >= usual
}

// better returns avoid, which reports whether a worker should not be asked next, because one of the workers in these
// gave fewer useless answers.
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
		return c.useless.part >= usual || c.long.part > max(best+worse, times*best)
	}
}

// conduct returns a worker's conduct in a scope. e.mu is held, as for scope.
func (e *evidence) conduct(scope fleet.Scope, w *fleet.Worker) conduct {
	if s := e.scopes[scope]; s != nil {
		return s.look(w)
	}
	return conduct{}
}

// scope returns a scope's evidence, made on first use.
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

// look returns a worker's conduct, the zero conduct when nothing is known about its present process.
func (s *scopeEvidence) look(w *fleet.Worker) conduct {
	if c := s.workers[w.ID]; c != nil && c.incarnation == w.Incarnation {
		return *c
	}
	return conduct{}
}

// of returns a worker's conduct, for an answer to be added. An answer of an older process of the worker is added to
// nothing.
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
