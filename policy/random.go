package policy

// Random takes any holder, each with the same probability.
type Random struct{}

// Validate finds nothing: there are no parameters.
func (Random) Validate() error { return nil }

// Spec returns the policy.
func (Random) Spec(name string) Spec { return Spec{Name: name, Picker: "random"} }
