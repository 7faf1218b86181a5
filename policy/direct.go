package policy

// Direct obeys the worker that the client names, and refuses requests that name none.
type Direct struct{}

// Validate finds nothing: there are no parameters.
func (Direct) Validate() error { return nil }

// Spec returns the policy.
func (Direct) Spec(name string) Spec { return Spec{Name: name, NeedsTarget: true} }
