package policy

import "github.com/warmpath/warmpath/fleet"

// Reach says which holders of a large fleet a policy is offered as candidates. In a small fleet these are all holders.
type Reach uint8

const (
	// ReachUnset: the reach follows from the other fields of the [Spec]. [Policy.Reach] never returns it.
	ReachUnset Reach = iota
	// ReachFew: the holders with the longest matches, some holders with little load, and the holders that a [Nominator]
	// names.
	ReachFew
	// ReachAll: all holders. The time of a decision then grows with the fleet.
	ReachAll
	// ReachTurn: some consecutive holders, beginning with the holder whose turn it is.
	ReachTurn
	// ReachAny: some holders at random.
	ReachAny
)

// reachOf returns the reach of s. If s has none, it returns the reach that follows from the chooser and the picker. A
// chooser that neither reads matches nor names holders may choose any holder, so it is offered all.
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

// Nominate appends to dst the holders that the policy wants as candidates, in addition to the holders with matches and
// the holders with little load.
func (p *Policy) Nominate(q *Query, dst []fleet.Holder) []fleet.Holder {
	if p.nominator == nil {
		return dst
	}
	return p.nominator.Nominate(q, dst)
}

// Reach returns which holders of a large fleet the policy must be offered.
func (p *Policy) Reach() Reach { return p.reach }
