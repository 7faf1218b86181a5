package tenant

import (
	"math"
	"sync"
	"time"
)

// A Limit is one of a tenant's limits.
type Limit uint8

const (
	// Requests is the limit of requests_per_second and burst.
	Requests Limit = iota
	// Concurrency is the limit of max_concurrent.
	Concurrency
	// Tokens is the limit of tokens_per_minute.
	Tokens
)

// String returns the limit's name in errors and metrics.
func (l Limit) String() string { return [...]string{"requests", "concurrency", "tokens"}[l] }

// Limited says which limit a request exceeds.
type Limited struct {
	Limit Limit
	// RetryAfter is the time after which the request fits, if no other request comes before it. For Concurrency it is a
	// second, because nobody knows when a request ends.
	RetryAfter time.Duration
}

// state is what a tenant has used. It survives reloads.
type state struct {
	mu       sync.Mutex // guards the fields below; nothing is called while it is held
	requests bucket
	tokens   bucket
	active   int
	counts   Counts
	spent    Spent // at this router, since its start; Active is not used
	// elsewhere is the number of requests under way at other routers.
	elsewhere int
	changed   bool // spent or active changed since they were told, and the tenant is in the ledger
}

// Counts are a tenant's requests and tokens since the start of the process.
type Counts struct {
	Requests    uint64 `json:"requests"` // including the refused ones
	Limited     uint64 `json:"limited"`  // refused by one of the limits
	Prompt      uint64 `json:"prompt_tokens"`
	Output      uint64 `json:"output_tokens"`
	Active      int    `json:"active"` // requests under way now
	LastRequest int64  `json:"-"`      // time of the last request, in Unix nanoseconds
}

// bucket is a token bucket. The zero value is full.
type bucket struct {
	level float64 // what may be used now; negative after more was used than was allowed
	at    int64   // time of level, in Unix nanoseconds; 0: the bucket was never used
}

// refill brings the level to the present. rate is the refill in a second, size is the greatest level.
func (b *bucket) refill(rate, size float64, now int64) {
	switch {
	case b.at == 0:
		b.level, b.at = size, now
	case now > b.at:
		b.level += float64(now-b.at) / 1e9 * rate
		b.at = now
	}
	b.level = min(b.level, size)
}

// wait returns the time until the level is n.
func (b *bucket) wait(n, rate float64) time.Duration {
	seconds := max(0, n-b.level) / rate
	return time.Duration(min(math.Ceil(seconds*1e9), float64(24*time.Hour)))
}

// Enter begins a request of the tenant at a time in Unix nanoseconds. If it returns nil, the caller calls Leave when
// the request ends. Otherwise the request must be refused.
func (t *Tenant) Enter(now int64) *Limited {
	s := t.state()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Requests++
	s.counts.LastRequest = now
	if t.MaxConcurrent > 0 && s.active+s.elsewhere >= t.MaxConcurrent {
		s.counts.Limited++
		return &Limited{Concurrency, time.Second}
	}
	if t.RequestsPerSecond > 0 {
		s.requests.refill(t.RequestsPerSecond, t.burst(), now)
		if s.requests.level < 1 {
			s.counts.Limited++
			return &Limited{Requests, s.requests.wait(1, t.RequestsPerSecond)}
		}
		s.requests.level--
	}
	s.active++
	if t.limited() { // what is used without a limit must not be charged when there is one
		s.spent.Requests++
	}
	t.note(s)
	return nil
}

// Leave ends a request for which Enter returned nil.
func (t *Tenant) Leave() {
	s := t.state()
	s.mu.Lock()
	s.active--
	t.note(s)
	s.mu.Unlock()
}

// Spend takes the tokens of a prompt before the request is sent. If it returns nil, the caller calls Settle at the end
// of the request. A prompt that is longer than tokens_per_minute fits while the tenant has used nothing; afterwards the
// tenant waits until the tokens are paid back.
func (t *Tenant) Spend(prompt int, now int64) *Limited {
	if t.TokensPerMinute == 0 {
		return nil
	}
	s := t.state()
	s.mu.Lock()
	defer s.mu.Unlock()
	rate, size := float64(t.TokensPerMinute)/60, float64(t.TokensPerMinute)
	s.tokens.refill(rate, size, now)
	if needed := min(float64(prompt), size); s.tokens.level < needed {
		s.counts.Limited++
		return &Limited{Tokens, s.tokens.wait(needed, rate)}
	}
	s.tokens.level -= float64(prompt)
	s.spent.Tokens += int64(prompt)
	t.note(s)
	return nil
}

// Settle replaces the tokens that Spend took, spent, by the tokens that the request used.
func (t *Tenant) Settle(spent, prompt, output int) {
	s := t.state()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.Prompt += uint64(max(prompt, 0))
	s.counts.Output += uint64(max(output, 0))
	if t.TokensPerMinute > 0 && s.tokens.at != 0 {
		used := max(prompt, 0) + max(output, 0)
		s.tokens.level += float64(spent - used)
		s.spent.Tokens += int64(used - spent)
		t.note(s)
	}
}

// Budget is what is left of one limit.
type Budget struct {
	Limit     int           // the greatest number that may be used at the same moment; 0: there is no limit
	Remaining int           // what may be used now
	Reset     time.Duration // time until Remaining equals Limit, if nothing more is used
}

// Budgets returns what is left of the tenant's requests and tokens at a time in Unix nanoseconds.
func (t *Tenant) Budgets(now int64) (requests, tokens Budget) {
	if t.RequestsPerSecond == 0 && t.TokensPerMinute == 0 {
		return requests, tokens
	}
	s := t.state()
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.RequestsPerSecond > 0 {
		s.requests.refill(t.RequestsPerSecond, t.burst(), now)
		requests = s.requests.budget(t.RequestsPerSecond, t.burst())
	}
	if t.TokensPerMinute > 0 {
		s.tokens.refill(float64(t.TokensPerMinute)/60, float64(t.TokensPerMinute), now)
		tokens = s.tokens.budget(float64(t.TokensPerMinute)/60, float64(t.TokensPerMinute))
	}
	return requests, tokens
}

func (b *bucket) budget(rate, size float64) Budget {
	return Budget{Limit: int(size), Remaining: max(0, int(b.level)), Reset: b.wait(size, rate)}
}

// Counts returns the tenant's counts. A tenant without requests has no state, and gets none here.
func (t *Tenant) Counts() Counts {
	s := t.cell.Load()
	if s == nil {
		return Counts{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	counts := s.counts
	counts.Active = s.active
	return counts
}
