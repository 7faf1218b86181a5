package discovery

import (
	"slices"
	"sync"
	"time"
)

const (
	// minPatience: an API server that is not overloaded answers within some 10 ms, a busy one within 100.
	minPatience = 500 * time.Millisecond
	// maxPatience bounds how long a worker's slow answers delay that it is found frozen.
	maxPatience = 2 * time.Second
)

// answerTimes are how long a worker's last answers to the router's own questions took. Such a question needs no engine:
// what it takes is the API server's delay. Safe for concurrent use; the zero value has no answers.
type answerTimes struct {
	mu   sync.Mutex
	last [10]time.Duration // a ring: with a question a second, the last ten seconds
	next int
}

func (a *answerTimes) add(took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last[a.next] = took
	a.next = (a.next + 1) % len(a.last)
}

// patience returns how long the worker may take for an answer before it seems to be frozen: twice the longest of the
// last. An API server whose machine is overloaded answers in hundreds of milliseconds and is alive.
func (a *answerTimes) patience() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return min(max(2*slices.Max(a.last[:]), minPatience), maxPatience)
}
