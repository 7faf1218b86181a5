package policy

// Reach says which holders of a large fleet a policy is offered. Of a small fleet it is offered all.
type Reach uint8

const (
	// ReachFew: the holders of the longest matches and some with little load.
	ReachFew Reach = iota
	// ReachAll: all, whatever their number. A decision then costs in proportion to the fleet.
	ReachAll
	// ReachTurn: some in a row, from the one whose turn it is.
	ReachTurn
	// ReachAny: some at random.
	ReachAny
)

// reach follows from what p is made of. A chooser that does not look at matches may mean any holder.
func (p *Policy) reachOf(s *Spec) Reach {
	switch {
	case s.Everyone, p.chooser != nil && !s.NeedsMatches:
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

// Reach says which holders of a large fleet the policy is to be offered.
func (p *Policy) Reach() Reach { return p.reach }
