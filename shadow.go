package warmpath

import (
	"maps"
	"slices"

	"github.com/warmpath/warmpath/policy"
)

// A shadow policy decides about the same request as the policy in use, and its decision is only compared: see Explain.
// It must remember what happened, not what it would have done. So every routed request and its end are reported to it,
// as if it had decided the request itself.

// Shadow returns the shadow policy, nil when there is none.
func (r *Router) Shadow() *policy.Policy { return r.table.Load().shadow }

// PolicyNames returns the names of all policies, sorted.
func (r *Router) PolicyNames() []string { return slices.Sorted(maps.Keys(r.table.Load().all)) }

// shadowOf returns the shadow policy for decisions of p, nil when there is none or p is the shadow itself.
func (r *Router) shadowOf(p *policy.Policy) *policy.Policy {
	if s := r.table.Load().shadow; s != p {
		return s
	}
	return nil
}
