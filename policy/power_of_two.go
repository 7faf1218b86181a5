package policy

// PowerOfTwo takes two holders at random, and of them the one with less work; the first if both have the same.
type PowerOfTwo struct{}

// Validate finds nothing: there are no parameters.
func (PowerOfTwo) Validate() error { return nil }

// Spec returns the policy.
func (PowerOfTwo) Spec(name string) Spec {
	return Spec{Name: name, Scorers: []Weighted{{"load", 1}}, Picker: "power_of_two"}
}
