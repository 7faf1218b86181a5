package warmpath

import (
	"fmt"
	"maps"
	"slices"

	"github.com/warmpath/warmpath/policy"
)

// A shadow is a policy that is asked beside the one that decides, by Explain under its name, and never heeded. What it
// remembers must be what happened and not what it would have done: it is told of every request that is routed, and how it
// ended, as if it had decided so itself.

// useShadow finds the shadow policy; none of that name is an error.
func (r *Router) useShadow(name string) error {
	if name == "" {
		return nil
	}
	p, ok := r.policies[name]
	if !ok {
		return fmt.Errorf("use shadow policy %q: %w", name, ErrUnknownPolicy)
	}
	r.shadow = p
	return nil
}

// Shadow returns the shadow policy, nil when there is none.
func (r *Router) Shadow() *policy.Policy { return r.shadow }

// PolicyNames returns the names of all policies that requests may be decided by, sorted.
func (r *Router) PolicyNames() []string { return slices.Sorted(maps.Keys(r.policies)) }

// shadows returns the policy that learns from d beside the one that decided, nil when there is none.
func (d *Decision) shadows() *policy.Policy {
	if s := d.router.shadow; s != d.policy {
		return s
	}
	return nil
}
