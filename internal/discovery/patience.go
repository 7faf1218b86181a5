package discovery

import (
	"slices"
	"sync"
	"time"
)

const (
	// minPatience is the shortest patience: five times the 100 ms within which a busy API server answers. An idle API
	// server takes about 10 ms.
	minPatience = 500 * time.Millisecond
	// maxPatience is the longest patience. It bounds the time until the guard finds a frozen worker that answered slowly
	// before. A question always waits this long for its answer, because a late answer ends the suspicion and makes the
	// patience longer.
	maxPatience = 2 * time.Second
)

// answerTimes are the durations of a worker's last ten answers to questions that need no engine. They show how slow the
// worker's API server is. For vLLM the questions are the load reports, one each second, and the guard's questions.
// SGLang's load reports wait for its scheduler, so only the guard's questions count. The guard's questions are rare, so
// an answer counts no matter how old it is. answerTimes is safe for concurrent use. The zero value has no answers.
type answerTimes struct {
	mu   sync.Mutex
	last [10]time.Duration // a ring buffer
	next int
}

func (a *answerTimes) add(took time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.last[a.next] = took
	a.next = (a.next + 1) % len(a.last)
}

// patience returns how long the worker may take for an answer before it counts as frozen: twice the longest of its last
// ten answer times. An API server on an overloaded machine is alive, and answers in hundreds of milliseconds.
func (a *answerTimes) patience() time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return min(max(2*slices.Max(a.last[:]), minPatience), maxPatience)
}
