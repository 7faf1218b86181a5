package policy

// LeastLoad takes the holder with the least load.
type LeastLoad struct {
	// By is the measure of load: work (waiting prompt tokens and a quarter of the context) or requests.
	By string `yaml:"by"`
}

// DefaultLeastLoad returns the default measure of load: work.
func DefaultLeastLoad() LeastLoad { return LeastLoad{By: "work"} }

// Validate returns all problems.
func (p LeastLoad) Validate() error {
	var wrong Problems
	if p.By == "seconds" {
		wrong.Add("by", "seconds is the policy smg_least_load")
		return wrong.Join()
	}
	wrong.OneOf("by", p.By, "work", "requests")
	return wrong.Join()
}

// Spec returns the policy.
func (p LeastLoad) Spec(name string) Spec {
	if p.By == "requests" {
		return Spec{Name: name, Scorers: []Weighted{{"requests", 1}}}
	}
	return Spec{Name: name, Scorers: []Weighted{{"load", 1}}}
}
