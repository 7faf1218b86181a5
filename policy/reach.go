package policy

import "github.com/warmpath/warmpath/fleet"

// Reach says which holders of a large fleet a policy is offered. In a small fleet it is offered all.
type Reach uint8

const (
	// ReachUnset: the reach follows from the other fields of the [Spec]. [Policy.Reach] never returns it.
	ReachUnset Reach = iota
	// ReachFew: the holders of the longest matches, some with little load, and the nominees of a [Nominator].
	ReachFew
	// ReachAll: all. The time of a decision then grows with the fleet.
	ReachAll
	// ReachTurn: consecutive holders, from the holder whose turn it is.
	ReachTurn
	// ReachAny: some at random.
	ReachAny
)

// reachOf returns the reach of s; if s has none, the reach that follows from the chooser and the picker. A chooser that
// does not read matches may choose any holder.
func (p *Policy) reachOf(s *Spec) Reach {
	switch {
	case s.Reach != ReachUnset:
		return s.Reach
	case p.chooser != nil && !s.NeedsMatches && p.nominator == nil:
		return ReachAll
	case p.chooser != nil, p.matches:
		return ReachFew
	case s.Picker == "round_robin":
		return ReachTurn
	case s.Picker == "random", s.Picker == "power_of_two":
		return ReachAny
	}
	return ReachFew
}

// Nominate appends the holders that the policy wants to be offered in addition to the holders of matches and of little
// load.
func (p *Policy) Nominate(q *Query, dst []fleet.Holder) []fleet.Holder {
	if p.nominator == nil {
		return dst
	}
	return p.nominator.Nominate(q, dst)
}

// Reach returns which holders of a large fleet the policy is to be offered.
func (p *Policy) Reach() Reach { return p.reach }
