package gateway

import (
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/fleet"
)

// evidence is how many of each worker's answers were useless of late, by scope: what tells a worker's fault from the client's. A
// refusal that all workers give alike is the client's fault; one that a worker gives more often than the others is open, until
// another worker was asked the same. It is safe for concurrent use, and costs a look at one atomic where nothing was ever useless.
type evidence struct {
	open   atomic.Int64 // scopes in it
	mu     sync.Mutex   // guards scopes and what is in them
	scopes map[fleet.Scope]map[fleet.WorkerID]*conduct
}

// conduct is what a worker's answers in a scope were like.
type conduct struct {
	share   float64 // of useless ones among the last few
	answers int     // at most memory
}

const (
	memory = 16 // answers that a share is of, about
	// enough is how many answers of the others make their share mean something.
	enough = 4
	// mostScopes bounds the scopes that are remembered; there are two for each model name that is served. Beyond it all are
	// forgotten.
	mostScopes = 1024
	// usual is the share of useless answers from which on a worker is no more trusted in a scope. Below it the requests may be what
	// is odd: a client that finds requests which one worker refuses and another serves must not get that worker left alone, unless
	// it has half of the worker's traffic.
	usual = 0.5
)

// served notes a good answer.
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

// useless notes a useless answer. It reports whether it is known to be the client's fault: other workers give their part of them.
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

// known reports whether useless answers of a worker in a scope are the client's fault.
func (e *evidence) known(scope fleet.Scope, w fleet.WorkerID) bool {
	if e.open.Load() == 0 {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return among(e.scopes[scope], w)
}

// among reports whether the others give as many useless answers as w does, or half as many.
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

// distrusted reports whether so many of a worker's answers in a scope are useless that it is the worker's fault.
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
