package gateway

import (
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/fleet"
)

// evidence is the recent share of useless answers of each worker, by scope. It separates a worker's fault from the
// client's: a refusal that all workers give alike is the client's fault. When one worker refuses more often than the
// others, the fault is open until another worker has answered the same request. evidence is safe for concurrent use,
// and costs one atomic load as long as no answer was useless.
type evidence struct {
	open   atomic.Int64 // scopes in it
	mu     sync.Mutex   // guards scopes and what is in them
	scopes map[fleet.Scope]map[fleet.WorkerID]*conduct
}

// conduct is the quality of a worker's recent answers in a scope.
type conduct struct {
	share   float64 // of useless answers among the last few
	answers int     // at most memory
}

const (
	memory = 16 // answers that a share is of, about
	// enough is the number of answers from which on another worker's share counts.
	enough = 4
	// mostScopes bounds the remembered scopes; each served model name has two. Beyond the bound all scopes are
	// forgotten.
	mostScopes = 1024
	// usual is the share of useless answers from which on a worker is distrusted in a scope. Below it the requests
	// may be at fault. A client that knows requests which only one worker refuses must not be able to exclude that
	// worker, unless it sends half of the worker's traffic.
	usual = 0.5
)

// served records a good answer.
func (e *evidence) served(scope fleet.Scope, w fleet.WorkerID) {
	if e.open.Load() == 0 {
		return
	}
	e.mu.Lock()
	if workers := e.scopes[scope]; workers != nil {
		conductOf(workers, w).note(0)
	}
	e.mu.Unlock()
}

// useless records a useless answer. It reports whether the client is known to be at fault, as other workers give such
// answers, too.
func (e *evidence) useless(scope fleet.Scope, w fleet.WorkerID) (known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	workers := e.scopes[scope]
	if workers == nil {
		if e.scopes == nil || len(e.scopes) >= mostScopes {
			e.scopes = map[fleet.Scope]map[fleet.WorkerID]*conduct{}
		}
		workers = map[fleet.WorkerID]*conduct{}
		e.scopes[scope] = workers
		e.open.Store(int64(len(e.scopes)))
	}
	conductOf(workers, w).note(1)
	return among(workers, w)
}

// known reports whether a worker's useless answers in a scope are known to be the client's fault.
func (e *evidence) known(scope fleet.Scope, w fleet.WorkerID) bool {
	if e.open.Load() == 0 {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return among(e.scopes[scope], w)
}

// among reports whether the other workers' mean share of useless answers is at least half of w's.
func among(workers map[fleet.WorkerID]*conduct, w fleet.WorkerID) bool {
	own, others, n := 0.0, 0.0, 0
	if c := workers[w]; c != nil {
		own = c.share
	}
	for id, c := range workers {
		if id != w && c.answers >= enough {
			others += c.share
			n++
		}
	}
	return others > 0 && 2*others/float64(n) >= own
}

// distrusted reports whether a worker's share of useless answers in a scope is at least usual.
func (e *evidence) distrusted(scope fleet.Scope, w fleet.WorkerID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.scopes[scope][w]
	return c != nil && c.share >= usual
}

func conductOf(workers map[fleet.WorkerID]*conduct, w fleet.WorkerID) *conduct {
	c := workers[w]
	if c == nil {
		c = &conduct{}
		workers[w] = c
	}
	return c
}

// note adds an answer: 1 is useless, 0 is good.
func (c *conduct) note(useless float64) {
	c.answers = min(c.answers+1, memory)
	c.share += (useless - c.share) / float64(c.answers)
}
