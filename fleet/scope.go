package fleet

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Scope is the hash of a request's model name and endpoint. A worker that is useless in one scope may be good in other
// scopes. The zero Scope means no scope.
type Scope uint64

// EveryScope stands for all scopes of a worker: a worker may be useless for every request.
const EveryScope = ^Scope(0)

// ScopeOf returns the scope of requests for a model name at an endpoint.
func ScopeOf(model, endpoint string) Scope {
	h := uint64(0xcbf29ce484222325) // FNV-1a
	for i := range len(model) {
		h = (h ^ uint64(model[i])) * 0x100000001b3
	}
	h *= 0x100000001b3 // a zero byte, which neither text contains, separates the two texts
	for i := range len(endpoint) {
		h = (h ^ uint64(endpoint[i])) * 0x100000001b3
	}
	return min(Scope(max(h, 1)), EveryScope-1)
}

// scopes is the passive health of one worker, in the scopes with recent trouble: from a failed request until the
// breaker of the scope is closed and its slow start is over. The ranks of a worker are one process. So they share one
// value of this type, and a trial at one rank is a trial of all ranks.
type scopes struct {
	mu  sync.Mutex                             // guards the breakers; held while the map of all is replaced
	all atomic.Pointer[map[Scope]*scopeHealth] // nil is none
}

// scopeHealth is the passive health of one worker in one scope.
type scopeHealth struct {
	until   atomic.Int64 // breaker.until, for readers
	ramp    ramp
	breaker Breaker // guarded by scopes.mu
}

// leavesOut reports whether the worker gets no request of the scope at now. A nil scopeHealth is a scope without
// trouble.
func (x *scopeHealth) leavesOut(now int64) bool { return x != nil && now < x.until.Load() }

// mostScopes bounds the scopes that are kept for a worker: no worker serves so many adapters. If more scopes have
// trouble, the scope whose pause ends first is dropped. EveryScope is never dropped.
const mostScopes = 1024

// ObserveScope records how a request in a scope at h ended, at now. It changes the passive health of h's worker in that
// scope, and returns how this health changed. An OutcomeServed also records that h serves requests while some tenants
// are in a pause (see Limit). One OutcomeFailed is enough to leave the worker out of the scope, because the caller has
// compared the worker's answers with those of other workers. If a trial ends with OutcomeUnknown, the next request may
// be a trial.
func (f *Fleet) ObserveScope(h Holder, scope Scope, o Outcome, now int64) ScopeChange {
	s := f.Snapshot().state(h)
	if s == nil {
		return ScopeUnchanged
	}
	if o == OutcomeServed && s.limit.Load() != nil {
		s.servedAt.Store(now)
	}
	if scope == 0 {
		return ScopeUnchanged
	}
	return s.scopes.observe(f.config.Breaker, scope, o, now)
}

func (s *scopes) observe(c BreakerConfig, scope Scope, o Outcome, now int64) ScopeChange {
	if o != OutcomeFailed && s.of(scope) == nil {
		return ScopeUnchanged
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.of(scope)
	if x == nil {
		if o != OutcomeFailed {
			return ScopeUnchanged
		}
		x = s.add(scope)
	}
	c.Failures = 1
	closed := x.breaker.Closed()
	observe(&x.breaker, &x.ramp, c, o, now)
	x.until.Store(x.breaker.until)
	if x.breaker == (Breaker{}) && x.ramp.share(now) == 1 {
		s.remove(scope)
	}
	switch {
	case closed && !x.breaker.Closed():
		return ScopeLeftOut
	case !closed && x.breaker.Closed():
		return ScopeReadmitted
	}
	return ScopeUnchanged
}

// begin records that a request is sent. The request may be a trial of two breakers: the breaker of its scope, and the
// breaker of EveryScope.
func (s *scopes) begin(c BreakerConfig, scope Scope, now int64) {
	if s.all.Load() == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, scope := range [...]Scope{scope, EveryScope} {
		if x := s.of(scope); x != nil {
			x.breaker.Begin(c, now)
			x.until.Store(x.breaker.until)
		}
	}
}

// of returns the health in a scope. It returns nil if the scope had no recent trouble.
func (s *scopes) of(scope Scope) *scopeHealth {
	all := s.all.Load()
	if all == nil {
		return nil
	}
	return (*all)[scope]
}

// add adds a scope whose breaker is closed. Readers may still use the old map, so add and remove change a copy of the
// map. s.mu is held.
func (s *scopes) add(scope Scope) *scopeHealth {
	all := map[Scope]*scopeHealth{}
	if old := s.all.Load(); old != nil {
		all = maps.Clone(*old)
	}
	if len(all) >= mostScopes {
		var first Scope
		for at, x := range all {
			if at != EveryScope && (first == 0 || x.until.Load() < all[first].until.Load()) {
				first = at
			}
		}
		delete(all, first)
	}
	x := &scopeHealth{}
	all[scope] = x
	s.all.Store(&all)
	return x
}

// clear forgets all scopes.
func (s *scopes) clear() {
	s.mu.Lock()
	s.all.Store(nil)
	s.mu.Unlock()
}

func (s *scopes) remove(scope Scope) {
	all := maps.Clone(*s.all.Load())
	delete(all, scope)
	if len(all) == 0 {
		s.all.Store(nil)
		return
	}
	s.all.Store(&all)
}
