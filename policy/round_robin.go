package policy

// RoundRobin takes the holders in turn.
type RoundRobin struct{}

// Validate finds nothing: there are no parameters.
func (RoundRobin) Validate() error { return nil }

// Spec returns the policy.
func (RoundRobin) Spec(name string) Spec { return Spec{Name: name, Picker: "round_robin"} }
