package policy

// Direct obeys the worker that the client names, and refuses requests that name none.
type Direct struct{}

// Validate finds nothing: there are no parameters.
func (Direct) Validate() error { return nil }

// Spec returns the policy.
func (Direct) Spec(name string) Spec { return Spec{Name: name, NeedsTarget: true} }

// LeastLoad takes the holder with the least work.
type LeastLoad struct{}

// Validate finds nothing: there are no parameters.
func (LeastLoad) Validate() error { return nil }

// Spec returns the policy.
func (LeastLoad) Spec(name string) Spec { return Spec{Name: name, Scorers: []Weighted{{"load", 1}}} }

// PowerOfTwo takes two holders at random and of them the one with less work.
type PowerOfTwo struct{}

// Validate finds nothing: there are no parameters.
func (PowerOfTwo) Validate() error { return nil }

// Spec returns the policy.
func (PowerOfTwo) Spec(name string) Spec {
	return Spec{Name: name, Scorers: []Weighted{{"load", 1}}, Picker: "power_of_two"}
}

// Random takes any holder with the same probability.
type Random struct{}

// Validate finds nothing: there are no parameters.
func (Random) Validate() error { return nil }

// Spec returns the policy.
func (Random) Spec(name string) Spec { return Spec{Name: name, Picker: "random"} }

// RoundRobin takes the holders in turn.
type RoundRobin struct{}

// Validate finds nothing: there are no parameters.
func (RoundRobin) Validate() error { return nil }

// Spec returns the policy.
func (RoundRobin) Spec(name string) Spec { return Spec{Name: name, Picker: "round_robin"} }
