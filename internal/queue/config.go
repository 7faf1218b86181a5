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
	// Order is off, fcfs (first come, first served), shortest (fewest uncached tokens first), priority (by the body's
	// priority), deadline (the request that would be refused first), or fair (tenants in turn by the tokens that they
	// cost, each tenant's shortest request first). Off: a request that finds all workers at routing.max_requests is
	// answered 429. With an order it waits, also when MaxBacklog, MaxWaiting or MaxKVUsed says that all workers are
	// saturated.
	Order string `yaml:"order"`
	// MaxRequests is how many requests may wait for the workers of one base model. When one more arrives it gets 429;
	// with fair, the newest request of the tenant with the most waiting requests gets it instead. 256 requests wait
	// some seconds at tens of requests a second; a client that would wait longer should retry elsewhere.
	MaxRequests int `yaml:"max_requests"`
	// MaxBytes bounds the bodies of waiting requests, which stay in memory.
	MaxBytes int64 `yaml:"max_bytes"`
	// MaxWait is how long a request may wait; then it is answered 429. A client may ask for less (X-Warmpath-Max-Wait).
	// A request that would wait longer, by the pace of the queue, is refused at once. The default is 30 s, the patience
	// of most clients.
	MaxWait time.Duration `yaml:"max_wait"`
	// AgeingTokens is, for shortest and fair, how many uncached tokens a second of waiting is worth. With 500, a prompt
	// of 8,000 tokens goes before all prompts that come more than 16 s after it, however short. With a smaller value
	// waiting counts more, with a larger one length does.
	AgeingTokens int `yaml:"ageing_tokens"`
	// AgeingPriority is, for priority, how much waiting one step of priority is worth. The default is 30 s, as long as
	// MaxWait: a higher priority is then always served first.
	AgeingPriority time.Duration `yaml:"ageing_priority"`
	// HighFirst serves a higher priority first, as SGLang does by default. False: the lower one first, as vLLM does.
	HighFirst bool `yaml:"high_first"`
	// Quantum is, for fair, how many tokens of a tenant may be served in a row while other tenants wait. The default of
	// 8192 is one large engine step.
	Quantum int `yaml:"quantum"`
	// OutputWeight is, for fair, how many prompt tokens a token of an answer counts as. The default is 2, as in the
	// papers on VTC and DLPM.
	OutputWeight int `yaml:"output_weight"`
	// MaxBacklog, MaxWaiting and MaxKVUsed say when a holder is saturated: when the prompts sent there are predicted to
	// take MaxBacklog to compute; when its engine reports MaxWaiting requests in its own queue; when its engine reports
	// that running requests use the share MaxKVUsed of its KV cache. The defaults are 2 s, 5 and 0.95: requests in the
	// engine are served in order of arrival, so it should hold enough to stay busy and no more, and an engine with a
	// full cache preempts. 0 turns a signal off.
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

// DefaultConfig has no queue.
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

// On reports whether requests wait.
func (c Config) On() bool { return c.Order != "" && c.Order != Off }

// maxRequests bounds MaxRequests: Push looks at all waiting requests.
const maxRequests = 65536

// Validate returns all problems of c, each beginning with the name of its field.
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
