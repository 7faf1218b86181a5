package fleet

import "time"

// Outcome is how a request to a worker ended, as evidence about the worker.
type Outcome uint8

// The outcomes.
const (
	// OutcomeUnknown is no evidence: the client went away, or the request was never sent.
	OutcomeUnknown Outcome = iota
	// OutcomeServed: the worker did its part. An answer that refuses the request (4xx) counts: the worker is alive.
	OutcomeServed
	// OutcomeFailed: the worker is certainly at fault: it could not be reached, or another worker served the same
	// request.
	OutcomeFailed
)

var outcomeNames = [...]string{"unknown", "served", "failed"}

// String returns the outcome's name as metrics and the decision log write it.
func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return "unknown"
}

// BreakerConfig tunes passive health. A zero field means its default.
type BreakerConfig struct {
	// Failures is how many failed connections in a row make a holder unavailable. Other failures are compared with
	// other workers' answers first. Default 3: one may be an accident, and two happen when a client's request is
	// retried. More would send too many requests to a dead engine between two active checks.
	Failures int `yaml:"failures"`
	// Delay until the first trial. Default 2 s, less than the interval of active checks, so that a short failure costs
	// little. It doubles with every failed trial up to MaxDelay.
	Delay time.Duration `yaml:"delay"`
	// MaxDelay bounds the delay. Default 30 s: an engine takes that long to start.
	MaxDelay time.Duration `yaml:"max_delay"`
	// Trial is how long the one request that is let through may take before another is let through. Default 30 s: a
	// long prompt on a busy engine takes that long to its first token.
	Trial time.Duration `yaml:"trial"`
}

// DefaultBreakerConfig is what a zero BreakerConfig means.
func DefaultBreakerConfig() BreakerConfig { return BreakerConfig{}.withDefaults() }

func (c BreakerConfig) withDefaults() BreakerConfig {
	if c.Failures <= 0 {
		c.Failures = 3
	}
	if c.Delay <= 0 {
		c.Delay = 2 * time.Second
	}
	if c.MaxDelay <= 0 {
		c.MaxDelay = 30 * time.Second
	}
	c.MaxDelay = max(c.MaxDelay, c.Delay)
	if c.Trial <= 0 {
		c.Trial = 30 * time.Second
	}
	return c
}

// Breaker is the passive health of one holder: a state machine without a clock. Closed, it lets all requests pass.
// After too many failures in a row it is open and lets none pass until a delay is over. Then it is half open and lets
// one request pass, the trial. Its outcome closes the breaker, or opens it for longer.
//
// The zero value is closed. It is not safe for concurrent use.
type Breaker struct {
	failures int   // in a row
	trips    int   // times it opened; reset after settled good answers
	served   int   // good answers since it closed
	until    int64 // no request passes before this time in Unix nanoseconds; 0 is closed
	trial    bool  // the one request of the half-open state is on its way
}

// settled is the number of good answers after which a closed breaker forgets how often it opened. A worker that fails
// one request in three passes most trials: without this memory it would be back after the shortest delay each time.
const settled = rampServed

// Closed reports whether all requests pass.
func (b *Breaker) Closed() bool { return b.until == 0 }

// Allows reports whether a request may be sent at now.
func (b *Breaker) Allows(now int64) bool { return now >= b.until }

// Begin records that a request is sent at now. If the breaker is half open, it is the trial, and no other request
// passes until it ends or c.Trial is over.
func (b *Breaker) Begin(c BreakerConfig, now int64) {
	if !b.Closed() && b.Allows(now) {
		b.trial = true
		b.until = now + int64(c.Trial)
	}
}

// Observe records how a request ended at now.
func (b *Breaker) Observe(c BreakerConfig, o Outcome, now int64) {
	// Requests that were under way when it opened end later. They are no new evidence.
	if !b.Closed() && !b.trial && !b.Allows(now) {
		return
	}
	switch o {
	case OutcomeServed:
		b.failures, b.until, b.trial = 0, 0, false
		if b.served++; b.trips == 0 || b.served >= settled {
			*b = Breaker{}
		}
	case OutcomeFailed:
		b.failures++
		if b.failures < c.Failures && b.Closed() {
			return
		}
		b.until = now + int64(c.delay(b.trips))
		b.trips++
		b.served = 0
		b.trial = false
	case OutcomeUnknown:
		// A trial without evidence: the next request may be one at once.
		if b.trial {
			b.trial = false
			b.until = now
		}
	}
}

// delay returns how long a breaker stays open that opened this many times before.
func (c BreakerConfig) delay(trips int) time.Duration {
	d := c.Delay
	for ; trips > 0 && d < c.MaxDelay; trips-- {
		d *= 2
	}
	return min(d, c.MaxDelay)
}
