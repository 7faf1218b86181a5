package fleet

import "time"

// Outcome is how a request to a worker ended, as evidence about the worker.
type Outcome uint8

const (
	// OutcomeUnknown is no evidence: the client went away, or the request was never sent.
	OutcomeUnknown Outcome = iota
	// OutcomeServed: the worker did its part. An answer that refuses the request (4xx) also counts as served, because the
	// worker is alive.
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
	// Failures is how many failed connections in a row make a holder unavailable. A failure after the connection does not
	// count here: it is compared with other workers' answers first. Default 3: one failure may be an accident, and two
	// happen when a client's request is retried. With a larger number, too many requests would go to a dead engine between
	// two active checks.
	Failures int `yaml:"failures"`
	// Delay is how long a breaker lets no request pass after it opened for the first time. The next request is then a
	// trial. Default 2 s, less than the interval of active checks, so that a short failure costs little. The delay doubles
	// with every failed trial up to MaxDelay.
	Delay time.Duration `yaml:"delay"`
	// MaxDelay bounds the delay. Default 30 s: an engine takes that long to start.
	MaxDelay time.Duration `yaml:"max_delay"`
	// Trial is how long a trial may take: if its outcome is not known by then, the next request is another trial.
	// Default 30 s: a long prompt on a busy engine takes that long to its first token.
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

// Breaker is the passive health of one holder: a state machine without a clock. A closed breaker lets all requests
// pass. After too many failures in a row the breaker opens: it lets no request pass until a delay is over. Then it is
// half open: it lets one request pass, the trial. A good answer to the trial closes the breaker. A failed trial opens
// it for a longer delay.
//
// The zero value is closed. A Breaker is not safe for concurrent use.
type Breaker struct {
	failures int   // failures in a row
	trips    int   // how often the breaker opened; 0 again after `settled` good answers
	served   int   // good answers since the breaker closed
	until    int64 // no request passes before this time in Unix nanoseconds; 0: the breaker is closed
	trial    bool  // the trial is under way
}

// settled is the number of good answers after which a closed breaker forgets how often it opened. Until then, each
// opening lasts longer than the one before. Without this memory, a worker that fails one request in three would return
// after the shortest delay each time, because it passes most trials.
const settled = rampServed

// Closed reports whether all requests pass.
func (b *Breaker) Closed() bool { return b.until == 0 }

// Allows reports whether a request may be sent at now.
func (b *Breaker) Allows(now int64) bool { return now >= b.until }

// Begin records that a request is sent at now. If the breaker is half open, this request is the trial: no other request
// passes until the trial ends or c.Trial is over.
func (b *Breaker) Begin(c BreakerConfig, now int64) {
	if !b.Closed() && b.Allows(now) {
		b.trial = true
		b.until = now + int64(c.Trial)
	}
}

// Observe records how a request ended at now.
func (b *Breaker) Observe(c BreakerConfig, o Outcome, now int64) {
	// The request was sent before the breaker opened: its outcome is no new evidence.
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
		// The trial gave no evidence: the next request may be a trial without a delay.
		if b.trial {
			b.trial = false
			b.until = now
		}
	}
}

// delay returns how long a breaker stays open now, if it opened trips times before.
func (c BreakerConfig) delay(trips int) time.Duration {
	d := c.Delay
	for ; trips > 0 && d < c.MaxDelay; trips-- {
		d *= 2
	}
	return min(d, c.MaxDelay)
}
