package tenant

import (
	"sync"
	"sync/atomic"
)

// Spent is what a tenant has spent of its limits: requests and tokens since the router's start, and requests under way
// now. As a change it has the differences.
type Spent struct {
	Requests, Tokens int64
	Active           int
}

// ledger has the tenants whose spending changed and was not told yet. Each of them is listed once.
//
// A state's lock is taken before mu, and never after it.
type ledger struct {
	shared atomic.Bool
	mu     sync.Mutex // guards names
	names  []string
}

// Share says whether other routers are told what tenants spend. While they are not, Spent has nothing to tell.
func (r *Registry) Share(on bool) {
	r.ledger.shared.Store(on)
	if !on {
		r.Spent(false, func(string, Spent) {})
	}
}

// note notes that the tenant's spending changed. Callers hold s.mu.
func (t *Tenant) note(s *state) {
	if s.changed || t.owner == nil || !t.owner.shared.Load() || !t.limited() {
		return
	}
	s.changed = true
	t.owner.mu.Lock()
	t.owner.names = append(t.owner.names, t.Name)
	t.owner.mu.Unlock()
}

// limited reports whether the tenant has a limit that other routers have to know of.
func (t *Tenant) limited() bool {
	return t.RequestsPerSecond > 0 || t.TokensPerMinute > 0 || t.MaxConcurrent > 0
}

// mostTold bounds the tenants that are told at a time. The others are told the next time.
const mostTold = 4096

// Spent calls visit for each tenant with a limit whose spending changed since it was told last; with all, for each
// tenant with a limit and a request since the start. It visits 4,096 tenants at most.
func (r *Registry) Spent(all bool, visit func(name string, s Spent)) {
	n := 0
	tell := func(t *Tenant, clear bool) {
		s := t.cell.Load()
		if s == nil {
			return
		}
		s.mu.Lock()
		told := s.spent
		told.Active = s.active
		s.changed = s.changed && !clear
		s.mu.Unlock()
		visit(t.Name, told)
		n++
	}
	if all {
		for _, t := range r.Tenants() {
			if n < mostTold && t.limited() {
				tell(t, false)
			}
		}
		return
	}
	l := &r.ledger
	l.mu.Lock()
	names := l.names[:min(len(l.names), mostTold)]
	l.names = append([]string(nil), l.names[len(names):]...)
	l.mu.Unlock()
	for _, name := range names {
		if t := r.ByName(name); t != nil {
			tell(t, true)
		}
	}
}

// SpentBy returns what a tenant has spent, and false if it has no limit or no request since the start.
func (r *Registry) SpentBy(name string) (spent Spent, ok bool) {
	t := r.ByName(name)
	if t == nil || !t.limited() {
		return spent, false
	}
	s := t.cell.Load()
	if s == nil {
		return spent, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	spent = s.spent
	spent.Active = s.active
	return spent, true
}

// SpentElsewhere takes what a tenant has spent at another router from its limits here. change has the differences to
// what was known before. now is Unix nanoseconds. A debt is bounded (mostDebt), so that no report can close out a
// tenant for long.
func (r *Registry) SpentElsewhere(name string, change Spent, now int64) {
	t := r.ByName(name)
	if t == nil {
		return
	}
	s := t.state()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.elsewhere = max(s.elsewhere+change.Active, 0)
	if t.RequestsPerSecond > 0 && change.Requests != 0 {
		s.requests.refill(t.RequestsPerSecond, t.burst(), now)
		s.requests.take(float64(change.Requests), t.burst())
	}
	if t.TokensPerMinute > 0 && change.Tokens != 0 {
		size := float64(t.TokensPerMinute)
		s.tokens.refill(size/60, size, now)
		s.tokens.take(float64(change.Tokens), size)
	}
}

// mostDebt bounds the debt that reports of other routers can make, in sizes of a bucket: bursts, and minutes of tokens.
// Five routers that all let a whole burst through before they hear of each other make a debt of four bursts.
const mostDebt = 4

// take takes n from the bucket. n may be negative.
func (b *bucket) take(n, size float64) { b.level = min(max(b.level-n, -mostDebt*size), size) }
