package fleet

import (
	"cmp"
	"slices"
)

// Useless is a scope in which a holder gets only trials, because its answers there were useless.
type Useless struct {
	Scope Scope
	Until int64 // the time from which a request may be the next trial, in Unix nanoseconds; it may be in the past
}

// Useless returns the scopes in which h gets no requests, at most mostScopes, EveryScope first.
func (s *Snapshot) Useless(h Holder) []Useless {
	st := s.state(h)
	if st == nil {
		return nil
	}
	all := st.scopes.all.Load()
	if all == nil {
		return nil
	}
	var out []Useless
	for scope, x := range *all {
		if until := x.until.Load(); until != 0 {
			out = append(out, Useless{scope, until})
		}
	}
	slices.SortFunc(out, func(a, b Useless) int { return cmp.Compare(b.Scope, a.Scope) }) // EveryScope first
	return out
}

// Limited returns the end of the last pause in which h gets no requests, of one tenant or of all tenants. It returns 0
// if there is no such pause at now.
func (s *Snapshot) Limited(h Holder, now int64) (until int64) {
	if st := s.state(h); st != nil {
		if until := st.limit.Load().last(); now < until {
			return until
		}
	}
	return 0
}

// ScopeChange is the change that an outcome makes for a holder in a scope.
type ScopeChange uint8

// The changes.
const (
	ScopeUnchanged  ScopeChange = iota
	ScopeLeftOut                // from now on the holder gets only trials in this scope
	ScopeReadmitted             // a trial request got a good answer
)
