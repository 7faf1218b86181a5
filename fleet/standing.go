package fleet

import "time"

// Bar is the reason why a holder should get no request.
type Bar uint8

// The bars. A suspect, and a holder whose answers were useless, still get requests that no other holder can take.
const (
	BarNone        Bar = iota
	BarUnavailable     // its worker is not ready, or its breaker is open
	BarUseless         // its answers in the request's scope were useless, and another worker's were not
	BarLimited         // its worker answered 429, and the pause is not over
	BarSuspect         // its worker seems to be frozen
)

// Standing says whether a holder may get a request now, and which share of its requests.
type Standing struct {
	Bar   Bar
	Share float64 // the part of its requests that it gets during slow start: 1 unless it returned recently
}

// Standing returns h's standing at now, in Unix nanoseconds, for a tenant's requests in a scope. It takes no lock.
func (s *Snapshot) Standing(h Holder, scope Scope, tenant string, now int64) Standing {
	if !s.Available(h, now) {
		return Standing{Bar: BarUnavailable}
	}
	st := s.holders[h].state
	one, every := st.scopes.of(scope), st.scopes.of(EveryScope)
	switch {
	case one.leavesOut(now) || every.leavesOut(now):
		return Standing{Bar: BarUseless}
	case now < st.limit.Load().until(tenant):
		return Standing{Bar: BarLimited}
	case st.suspect.Load():
		return Standing{Bar: BarSuspect}
	}
	underWay := st.work.requests.Load()
	share := st.ramp.standing(now, underWay)
	if one != nil {
		share = min(share, one.ramp.standing(now, underWay))
	}
	if every != nil {
		share = min(share, every.ramp.standing(now, underWay))
	}
	return Standing{Share: share}
}

// observe passes an outcome to a breaker, and begins a ramp when the breaker closes.
func observe(b *Breaker, r *ramp, c BreakerConfig, o Outcome, now int64) {
	closed := b.Closed()
	b.Observe(c, o, now)
	switch {
	case o == OutcomeServed && !closed:
		r.begin(now)
	case o == OutcomeServed:
		r.serve()
	case o == OutcomeFailed:
		r.fail(now)
	}
}

// limit is the pauses that a worker asked for by a 429. A pause may be for one tenant only. The limit is replaced as
// a whole.
type limit struct {
	since int64 // when the first of these pauses began, Unix nanoseconds
	all   int64 // until when it holds for all tenants
	own   []ownLimit
}

// ownLimit is one tenant's pause.
type ownLimit struct {
	tenant uint64
	until  int64 // Unix nanoseconds
}

// A limit applies to all tenants when manyLimited tenants got a 429 within limitedAlike and none was served
// meanwhile. Clients can invent tenants. With a smaller number a client could shut out the others by two keys.
const (
	manyLimited  = 8
	limitedAlike = int64(time.Second)
	mostOwn      = 16 // tenants whose own limits are kept; the pause that ends first is dropped, and set again by the next 429
)

// until returns the end of a tenant's pause. A time that is not after now means that there is none.
func (l *limit) until(tenant string) int64 {
	if l == nil {
		return 0
	}
	until := l.all
	if len(l.own) > 0 {
		who := uint64(ScopeOf(tenant, ""))
		for _, o := range l.own {
			if o.tenant == who {
				until = max(until, o.until)
			}
		}
	}
	return until
}

// last returns the end of the last of the pauses.
func (l *limit) last() int64 {
	if l == nil {
		return 0
	}
	last := l.all
	for _, o := range l.own {
		last = max(last, o.until)
	}
	return last
}

// Limit keeps a tenant's requests from h before until, in Unix nanoseconds. It keeps all requests from h if tenant is
// "", or if many tenants are limited and none is served. After a limit for all, h starts slowly.
func (f *Fleet) Limit(h Holder, tenant string, until, now int64) {
	s := f.Snapshot().state(h)
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := limit{since: now}
	if old := s.limit.Load(); old != nil {
		next.all = old.all
		for _, o := range old.own {
			if o.until > now {
				next.own = append(next.own, o)
			}
		}
		if old.all > now || len(next.own) > 0 {
			next.since = old.since
		}
	}
	if tenant != "" {
		next.add(ownLimit{uint64(ScopeOf(tenant, "")), until})
		if len(next.own) >= manyLimited && now-next.since >= limitedAlike && s.servedAt.Load() < next.since {
			tenant = ""
		}
	}
	if tenant == "" {
		next.all = max(next.all, until)
		s.ramp.begin(next.all)
	}
	s.limit.Store(&next)
}

// add adds a tenant's limit, in place of the one that ends first when there are too many.
func (l *limit) add(o ownLimit) {
	first := 0
	for i := range l.own {
		if l.own[i].tenant == o.tenant {
			l.own[i].until = max(l.own[i].until, o.until)
			return
		}
		if l.own[i].until < l.own[first].until {
			first = i
		}
	}
	if len(l.own) < mostOwn {
		l.own = append(l.own, o)
		return
	}
	l.own[first] = o
}

// LimitedUntil returns the end of the limit that keeps a tenant's requests from h, 0 when there is none.
func (s *Snapshot) LimitedUntil(h Holder, tenant string, now int64) int64 {
	if st := s.state(h); st != nil {
		if until := st.limit.Load().until(tenant); until > now {
			return until
		}
	}
	return 0
}

// Suspect starts or ends the suspicion that a worker is frozen. During it, its holders get only requests that no
// other worker can take; afterwards they start slowly. It reports whether anything changed.
func (f *Fleet) Suspect(id WorkerID, suspect bool, now int64) (changed bool) {
	w := f.Snapshot().ByID(id)
	if w == nil {
		return false
	}
	for _, h := range w.Holders {
		s := f.Snapshot().state(h)
		if s.suspect.Swap(suspect) == suspect {
			continue
		}
		changed = true
		if !suspect {
			s.ramp.begin(now)
		}
	}
	return changed
}

// Suspected reports whether h's worker seems to be frozen.
func (s *Snapshot) Suspected(h Holder) bool {
	st := s.state(h)
	return st != nil && st.suspect.Load()
}

// Returned makes h start slowly and with an empty cache: its engine is a new process.
func (f *Fleet) Returned(h Holder) {
	if s := f.Snapshot().state(h); s != nil {
		s.returned()
		s.emptied()
	}
}

// returned makes the holder start slowly and at its kind's pace, unless it never had a request.
func (s *holderState) returned() {
	if s.work.processed.Load() > 0 {
		s.ramp.begin(rampPending)
		s.work.restart()
	}
}

// Share returns the part that h gets during slow start, at now, of its requests beyond the first N at once. N is one
// more than the answers since its return, and 0 after a failure. 1 means no slow start. Share changes nothing: a
// pending slow start begins with a request, not with a reader.
func (s *Snapshot) Share(h Holder, now int64) float64 {
	st := s.state(h)
	if st == nil {
		return 1
	}
	return st.ramp.share(now)
}

// Silence returns the time of the last byte from h, in Unix nanoseconds; 0 when h has no requests of ours. An engine
// that computes a long prompt is silent, too.
func (s *Snapshot) Silence(h Holder) (since int64) {
	st := s.state(h)
	if st == nil || st.work.requests.Load() == 0 {
		return 0
	}
	return st.work.heard.Load()
}
