package warmpath

import (
	"maps"
	"slices"

	"github.com/warmpath/warmpath/policy"
)

// A shadow is a policy that is asked beside the one that decides, by Explain under its name, and never heeded. What it
// remembers must be what happened and not what it would have done: it is told of every request that is routed, and how it
// ended, as if it had decided so itself.

// Shadow returns the shadow policy, nil when there is none.
func (r *Router) Shadow() *policy.Policy { return r.table.Load().shadow }

// PolicyNames returns the names of all policies that requests may be decided by, sorted.
func (r *Router) PolicyNames() []string { return slices.Sorted(maps.Keys(r.table.Load().all)) }

// shadowOf returns the policy that learns from what p decides beside it, nil when there is none.
func (r *Router) shadowOf(p *policy.Policy) *policy.Policy {
	if s := r.table.Load().shadow; s != p {
		return s
	}
	return nil
}
