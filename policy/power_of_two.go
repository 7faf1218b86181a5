package policy

// PowerOfTwo takes two holders at random, and of them the one with less load; the first if both have the same.
type PowerOfTwo struct {
	// By is what load means: work (prompt tokens to compute and a share of the context), or requests (SMG: the used
	// share of the KV cache where both report it, else requests).
	By string `yaml:"by"`
}

// DefaultPowerOfTwo returns our measure of load.
func DefaultPowerOfTwo() PowerOfTwo { return PowerOfTwo{By: "work"} }

// Validate returns all problems.
func (p PowerOfTwo) Validate() error {
	var wrong Problems
	wrong.OneOf("by", p.By, "work", "requests")
	return wrong.Join()
}

// Spec returns the policy.
func (p PowerOfTwo) Spec(name string) Spec {
	if p.By == "requests" {
		return Spec{Name: name, Scorers: []Weighted{{"requests", 1}}, Picker: "power_of_two_requests"}
	}
	return Spec{Name: name, Scorers: []Weighted{{"load", 1}}, Picker: "power_of_two"}
}
