package queue

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// Config says whether requests wait in the router when all workers that could serve them are saturated, and in which
// order.
type Config struct {
	// Order is the order in which waiting requests are served. off: no request waits. fcfs: first come, first served.
	// shortest: the request with the fewest uncached tokens first. priority: by the priority in the body. deadline: the
	// request with the earliest deadline first. fair: the tenants in turns, so that each tenant gets the same number of
	// tokens, and each tenant's shortest request first. With off, a request that finds all workers at routing.max_requests
	// is answered 429. With any other order the request waits. Requests also wait when MaxBacklog, MaxWaiting or MaxKVUsed
	// says that all workers are saturated.
	Order string `yaml:"order"`
	// MaxRequests is the number of requests that may wait for the workers of one base model. If one more request
	// arrives, it gets 429. With fair, the newest request of the tenant with the most waiting requests gets the 429
	// instead. At tens of requests a second, 256 requests wait for some seconds; a client that would wait longer should
	// retry elsewhere.
	MaxRequests int `yaml:"max_requests"`
	// MaxBytes bounds the memory for the bodies of waiting requests.
	MaxBytes int64 `yaml:"max_bytes"`
	// MaxWait is how long a request may wait; after that it is answered 429. A client may ask for a shorter time
	// (X-Warmpath-Max-Wait). If the queue moves so slowly that a request would wait longer, the request is refused
	// immediately. The default is 30 s, as long as most clients wait.
	MaxWait time.Duration `yaml:"max_wait"`
	// AgeingTokens is for shortest and fair. A second of waiting counts as this number of uncached tokens less. With
	// 500, a prompt of 8,000 tokens is served before all prompts that come more than 16 s later, however short they
	// are. With a smaller value waiting counts more; with a larger value the length of the prompt counts more.
	AgeingTokens int `yaml:"ageing_tokens"`
	// AgeingPriority is for priority. One step of priority counts as this time of waiting. The default is 30 s, the
	// same as MaxWait: with this value a higher priority is always served first.
	AgeingPriority time.Duration `yaml:"ageing_priority"`
	// HighFirst serves the higher priority number first, as SGLang does by default. If false, the lower number is
	// first, as in vLLM.
	HighFirst bool `yaml:"high_first"`
	// Quantum is for fair. It is the number of tokens of a tenant that may be served in a row while other tenants wait.
	// The default of 8192 is one large engine step.
	Quantum int `yaml:"quantum"`
	// OutputWeight is for fair. It is the number of prompt tokens that one token of an answer counts as. The default is
	// 2, as in the papers on VTC and DLPM.
	OutputWeight int `yaml:"output_weight"`
	// MaxBacklog, MaxWaiting and MaxKVUsed say when a holder is saturated. One of three signals is enough. The first:
	// the prompts that were sent to the holder are predicted to take MaxBacklog or more to compute. The second: the
	// holder's engine reports MaxWaiting or more requests in its queue, and the router also counts MaxWaiting or more
	// requests there without a first token. The third: the engine reports that running requests use the share MaxKVUsed
	// of the KV cache, or more. A report counts for 10 s. The defaults are 2 s, 5 and 0.95. An engine serves requests
	// in the order of arrival, so the engine should have just enough requests to stay busy, and an engine with a full
	// cache preempts requests. 0 turns a signal off.
	MaxBacklog time.Duration `yaml:"max_backlog"`
	MaxWaiting int           `yaml:"max_waiting"`
	MaxKVUsed  float64       `yaml:"max_kv_used"`
}

// The orders.
const (
	Off      = "off"
	FCFS     = "fcfs"
	Shortest = "shortest"
	Priority = "priority"
	Deadline = "deadline"
	Fair     = "fair"
)

var orders = []string{Off, FCFS, Shortest, Priority, Deadline, Fair}

// DefaultConfig returns the defaults: the queue is off.
func DefaultConfig() Config {
	return Config{
		Order:          Off,
		MaxRequests:    256,
		MaxBytes:       256 << 20,
		MaxWait:        30 * time.Second,
		AgeingTokens:   500,
		AgeingPriority: 30 * time.Second,
		Quantum:        fleet.PassTokens,
		OutputWeight:   2,
		MaxBacklog:     2 * time.Second,
		MaxWaiting:     5,
		MaxKVUsed:      0.95,
	}
}

// On reports whether requests may wait.
func (c Config) On() bool { return c.Order != "" && c.Order != Off }

// maxRequests bounds MaxRequests, because Push looks at all waiting requests.
const maxRequests = 65536

// Validate returns all problems of c, each beginning with its key.
func (c Config) Validate() error {
	var problems []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	check(slices.Contains(orders, c.Order), "order: %q is none of %s", c.Order, strings.Join(orders, ", "))
	check(c.MaxRequests >= 1 && c.MaxRequests <= maxRequests, "max_requests: %d is outside 1..%d", c.MaxRequests, maxRequests)
	check(c.MaxBytes >= 1, "max_bytes: %d is below 1", c.MaxBytes)
	check(c.MaxWait > 0 && c.MaxWait <= time.Hour, "max_wait: %v is outside 0s..1h, 0 excluded", c.MaxWait)
	check(c.AgeingTokens >= 1, "ageing_tokens: %d is below 1: long prompts would wait for ever", c.AgeingTokens)
	check(c.AgeingPriority > 0 && c.AgeingPriority <= time.Hour, "ageing_priority: %v is outside 0s..1h, 0 excluded", c.AgeingPriority)
	check(c.Quantum >= 1, "quantum: %d is below 1", c.Quantum)
	check(c.OutputWeight >= 0 && c.OutputWeight <= 1000, "output_weight: %d is outside 0..1000", c.OutputWeight)
	check(c.MaxBacklog >= 0, "max_backlog: %v is negative", c.MaxBacklog)
	check(c.MaxWaiting >= 0, "max_waiting: %d is negative", c.MaxWaiting)
	check(c.MaxKVUsed >= 0 && c.MaxKVUsed <= 1, "max_kv_used: %v is outside 0..1", c.MaxKVUsed)
	return errors.Join(problems...)
}
