package discovery

import (
	"slices"
	"sync"
	"time"
)

const (
	// minPatience is five times the 100 ms within which a busy API server answers. An idle one takes about 10 ms.
	minPatience = 500 * time.Millisecond
	// maxPatience bounds the time until a frozen worker is found that answered slowly before. A question always waits
	// that long for its answer: a late answer ends the suspicion, and makes the patience longer.
	maxPatience = 2 * time.Second
)

// answerTimes are the durations of a worker's last ten answers to questions that need no engine. They show how slow its
// API server is. With vLLM these are the load reports, one a second, and the guard's questions. SGLang's load reports
// wait for its scheduler, so only the guard's questions count; since they are rare, answers have no age limit. Safe for
// concurrent use. The zero value has no answers.
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

// patience returns how long the worker may take for an answer before it counts as frozen: twice its longest of the last
// ten. An API server on an overloaded machine is alive and answers in hundreds of milliseconds.
func (a *answerTimes) patience() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return min(max(2*slices.Max(a.last[:]), minPatience), maxPatience)
}
