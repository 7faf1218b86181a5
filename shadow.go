package warmpath

import (
	"maps"
	"slices"

	"github.com/warmpath/warmpath/policy"
)

// A shadow policy is asked beside the policy that decides, and its answer is only compared: see Explain. It must
// remember what happened, not what it would have done. So it is told of every routed request and of its end, as if it
// had decided the request itself.

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
