package policy

// PowerOfTwo draws two holders at random and takes the one with less work. If both have the same work, it
// takes the one that was drawn first.
type PowerOfTwo struct{}

// Validate finds nothing: there are no parameters.
func (PowerOfTwo) Validate() error { return nil }

// Spec returns the policy.
func (PowerOfTwo) Spec(name string) Spec {
	return Spec{Name: name, Scorers: []Weighted{{"load", 1}}, Picker: "power_of_two"}
}
