package fleet

import "time"

// Bar is the reason why a holder should get no request.
type Bar uint8

// The bars. A holder with BarSuspect or BarUseless still gets the requests that no other holder can take.
const (
	BarNone        Bar = iota
	BarUnavailable     // the holder's worker is not ready, or the holder's breaker is open
	BarUseless         // the worker's answers in the request's scope were useless, and another worker's answers were good
	BarLimited         // the worker answered 429, and the pause is not over
	BarSuspect         // the worker seems to be frozen
)

// Standing says whether a holder may get a request now, and which share of its usual requests it gets.
type Standing struct {
	Bar   Bar     // BarNone if the holder may get a request
	Share float64 // 0 if there is a bar; otherwise below 1 only during slow start
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
	case st.suspect.Load() != 0:
		return Standing{Bar: BarSuspect}
	}
	underWay := st.work.own()
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

// limit holds the pauses of one holder. A worker asks for a pause by answering 429. A pause is for one tenant, or for
// all tenants. A limit is immutable: each change stores a new one.
type limit struct {
	since int64      // when the first of these pauses began, Unix nanoseconds
	all   int64      // the end of the pause for all tenants, Unix nanoseconds; 0 is none
	own   []ownLimit // the pauses for single tenants
}

// ownLimit is the pause of one tenant.
type ownLimit struct {
	tenant uint64
	until  int64 // Unix nanoseconds
}

// A 429 pauses all tenants, and not only its own tenant, if three conditions hold: at least manyLimited tenants are in
// a pause, the first of these pauses began at least limitedAlike ago, and the holder has served no request since then.
// With a smaller manyLimited, one client could pause all other clients: a client can invent tenants.
const (
	manyLimited  = 8
	limitedAlike = int64(time.Second)
	// mostOwn is how many tenants' own pauses are kept. For a further tenant, the pause that ends first is dropped. If
	// the tenant of the dropped pause still sends too much, its next 429 sets the pause again.
	mostOwn = 16
)

// until returns the end of a tenant's pause. If the returned time is not after now, the tenant has no pause.
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

// last returns the time at which the last of the pauses ends.
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

// Limit pauses h: h gets no requests of the tenant before the given time, in Unix nanoseconds. The pause is for all
// tenants if tenant is "", or if many tenants are in a pause and h serves no request. After a pause for all tenants, h
// starts slowly.
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

// add adds a tenant's pause. If there are mostOwn pauses already, it replaces the pause that ends first.
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

// LimitedUntil returns the end of the pause in which h gets no requests of a tenant; 0 if there is no such pause.
func (s *Snapshot) LimitedUntil(h Holder, tenant string, now int64) int64 {
	if st := s.state(h); st != nil {
		if until := st.limit.Load().until(tenant); until > now {
			return until
		}
	}
	return 0
}

// briefSuspicion is the length from which a suspicion is taken for a freeze. A shorter one comes from a machine that is
// so busy that an answer was late: a burst of requests can do that to most workers at once. If each of them then
// started slowly, the few others would get nearly the whole burst.
const briefSuspicion = time.Second

// Suspect starts or ends the suspicion that a worker is frozen. While the worker is suspected, its holders get only
// requests that no other worker can take. If the suspicion lasted for at least briefSuspicion, the holders then start
// slowly. changed is false if the worker already was in the wanted state, or if the fleet does not have it.
func (f *Fleet) Suspect(id WorkerID, suspect bool, now int64) (changed bool) {
	w := f.Snapshot().ByID(id)
	if w == nil {
		return false
	}
	for _, h := range w.Holders {
		s := f.Snapshot().state(h)
		since := s.suspect.Load()
		if (since != 0) == suspect {
			continue
		}
		changed = true
		if suspect {
			if now == 0 {
				now = 1 // 0 would mean that there is no suspicion
			}
			s.suspect.Store(now)
			continue
		}
		s.suspect.Store(0)
		if now-since >= int64(briefSuspicion) {
			s.ramp.begin(now)
		}
	}
	return changed
}

// Suspected reports whether h's worker seems to be frozen.
func (s *Snapshot) Suspected(h Holder) bool {
	st := s.state(h)
	return st != nil && st.suspect.Load() != 0
}

// Returned makes h start slowly and with an empty cache: its engine is a new process.
func (f *Fleet) Returned(h Holder) {
	if s := f.Snapshot().state(h); s != nil {
		s.returned()
		s.emptied()
	}
}

// returned makes the holder start slowly and with the pace of its kind. It does nothing if the holder never had a
// request.
func (s *holderState) returned() {
	if s.work.processed.Load() > 0 {
		s.ramp.begin(rampPending)
		s.work.restart()
	}
}

// Share returns the share of its usual requests that h gets at now because of slow start. 1 means that h is not in slow
// start. The share does not apply to the first N requests under way at h: N is one more than the answers since h
// returned, or 0 if a request failed since then. Share changes nothing, because a pending slow start must begin with a
// request and not with a reader.
func (s *Snapshot) Share(h Holder, now int64) float64 {
	st := s.state(h)
	if st == nil {
		return 1
	}
	return st.ramp.share(now)
}

// Silence returns the time of h's last sign of life, in Unix nanoseconds: a token, a served request, or the dispatch of
// a request to h while h was idle. It returns 0 if this router has no request at h. A long silence does not prove that
// h is frozen: an engine that computes a long prompt sends nothing either.
func (s *Snapshot) Silence(h Holder) (since int64) {
	st := s.state(h)
	if st == nil || st.work.own() == 0 {
		return 0
	}
	return st.work.heard.Load()
}
