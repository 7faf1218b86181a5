package fleet

import (
	"cmp"
	"slices"
)

// Useless is a scope (a model name at an endpoint) in which a holder's answers were useless. In this scope the holder
// gets only trial requests.
type Useless struct {
	Scope Scope
	Until int64 // the time from which a request may be the next trial, Unix nanoseconds; may be in the past
}

// Useless returns the scopes in which h gets only trials, at most mostScopes, EveryScope first. It allocates.
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

// Limited returns the time at which the last pause of h ends. A pause is the time after a 429 in which h gets no
// requests of one tenant, or of all tenants. Limited returns 0 if there is no pause at now.
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

const (
	ScopeUnchanged  ScopeChange = iota // no change
	ScopeLeftOut                       // from now on the holder gets only trials in this scope
	ScopeReadmitted                    // a trial request got a good answer
)
