package policy

// Direct sends a request to the worker that the client names, and refuses requests that name no worker.
type Direct struct{}

// Validate finds nothing: there are no parameters.
func (Direct) Validate() error { return nil }

// Spec returns the policy.
func (Direct) Spec(name string) Spec { return Spec{Name: name, NeedsTarget: true} }
