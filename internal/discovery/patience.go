package discovery

import (
	"slices"
	"sync"
	"time"
)

const (
	// minPatience: an API server that is not overloaded answers within some 10 ms, a busy one within 100.
	minPatience = 500 * time.Millisecond
	// maxPatience bounds how long a worker's slow answers delay that it is found frozen. A question waits that long for
	// its answer: one that comes late ends the suspicion, and the next is waited for longer.
	maxPatience = 2 * time.Second
)

// answerTimes are the durations of a worker's last ten answers to questions that need no engine: the guard's, and vLLM's
// load reports, one a second. They show how slow its API server is. They have no age limit: SGLang's load waits for its
// scheduler, so there only the guard's questions count, and old answers stay. Safe for concurrent use; the zero value has
// no answers.
type answerTimes struct {
	mu   sync.Mutex
	last [10]time.Duration // a ring
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
