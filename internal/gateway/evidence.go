package gateway

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/fleet"
)

// evidence is the recent share of useless answers of each worker, by scope. It separates a worker's fault from the
// client's: a refusal that all workers give alike is the client's fault. When one worker refuses more often than the
// best other worker, the fault is open until another worker has answered the same request. evidence is safe for
// concurrent use, and costs one atomic load as long as no answer was useless.
type evidence struct {
	open   atomic.Bool // an answer was useless once
	mu     sync.Mutex  // guards the rest
	scopes map[fleet.Scope]map[fleet.WorkerID]*conduct
	order  []fleet.Scope // the scopes, the oldest first
}

// conduct is the quality of a worker's recent answers in a scope.
type conduct struct {
	incarnation uint64  // of the worker: another process may behave otherwise
	share       float64 // of useless answers among the last few
	answers     int     // at most memory
}

const (
	memory = 16 // answers that a share is of, about
	// enough is the number of answers from which on another worker's share counts.
	enough = 4
	// mostScopes bounds the remembered scopes; each served model name has two. Beyond the bound the oldest scope is
	// forgotten.
	mostScopes = 1024
	// usual is the share of useless answers from which on a worker is distrusted in a scope. Below it the requests
	// may be at fault. A client that knows requests which only one worker refuses must not be able to exclude that
	// worker, unless it sends half of the worker's traffic.
	usual = 0.5
)

// served records a good answer.
func (e *evidence) served(scope fleet.Scope, w *fleet.Worker) {
	if !e.open.Load() {
		return
	}
	e.mu.Lock()
	if workers := e.scopes[scope]; workers != nil {
		note(workers, w, 0)
	}
	e.mu.Unlock()
}

// useless records a useless answer. all are the workers that serve the scope's model: others are forgotten.
func (e *evidence) useless(scope fleet.Scope, w *fleet.Worker, all []*fleet.Worker) {
	e.mu.Lock()
	defer e.mu.Unlock()
	workers := e.scopes[scope]
	if workers == nil {
		if e.scopes == nil {
			e.scopes = map[fleet.Scope]map[fleet.WorkerID]*conduct{}
		}
		if len(e.order) >= mostScopes {
			delete(e.scopes, e.order[0])
			e.order = e.order[1:]
		}
		workers = map[fleet.WorkerID]*conduct{}
		e.scopes[scope], e.order = workers, append(e.order, scope)
		e.open.Store(true)
	}
	note(workers, w, 1)
	if len(workers) > len(all) {
		maps.DeleteFunc(workers, func(id fleet.WorkerID, _ *conduct) bool {
			return !slices.ContainsFunc(all, func(w *fleet.Worker) bool { return w.ID == id })
		})
	}
}

// known reports whether a worker's useless answers in a scope are known to be the requests' fault: each of the other
// workers has given enough answers, and their share of useless ones is at least half of w's.
func (e *evidence) known(scope fleet.Scope, w *fleet.Worker, others []*fleet.Worker) bool {
	if !e.open.Load() || len(others) == 0 {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	workers := e.scopes[scope]
	own := of(workers, w).share
	for _, other := range others {
		if c := of(workers, other); c.answers < enough || c.share == 0 || 2*c.share < own {
			return false
		}
	}
	return true
}

// distrusted reports whether a worker's share of useless answers in a scope is at least usual.
func (e *evidence) distrusted(scope fleet.Scope, w *fleet.Worker) bool {
	if !e.open.Load() {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return of(e.scopes[scope], w).share >= usual
}

// of returns a worker's conduct, the zero conduct when nothing is known about its present process.
func of(workers map[fleet.WorkerID]*conduct, w *fleet.Worker) conduct {
	if c := workers[w.ID]; c != nil && c.incarnation == w.Incarnation {
		return *c
	}
	return conduct{}
}

// note adds an answer: 1 is useless, 0 is good. Answers of a process that has ended since do not count.
func note(workers map[fleet.WorkerID]*conduct, w *fleet.Worker, useless float64) {
	c := workers[w.ID]
	if c == nil || c.incarnation < w.Incarnation {
		c = &conduct{incarnation: w.Incarnation}
		workers[w.ID] = c
	}
	if c.incarnation == w.Incarnation {
		c.answers = min(c.answers+1, memory)
		c.share += (useless - c.share) / float64(c.answers)
	}
}
