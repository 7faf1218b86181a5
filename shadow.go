package warmpath

import (
	"maps"
	"slices"

	"github.com/warmpath/warmpath/policy"
)

// A shadow policy decides about the same requests as the policy in use, but its decisions have no effect: they are only
// compared, see [Router.Explain]. Its memory must contain the requests as they were really sent, and not its own
// decisions. So the router reports every routed request, and its end, to the shadow policy, as if the shadow policy had
// decided the request.

// Shadow returns the shadow policy, nil when there is none.
func (r *Router) Shadow() *policy.Policy { return r.table.Load().shadow }

// PolicyNames returns the names of all policies, sorted.
func (r *Router) PolicyNames() []string { return slices.Sorted(maps.Keys(r.table.Load().all)) }

// shadowOf returns the shadow policy for decisions of p. It returns nil if there is none, or if p is the shadow policy.
func (r *Router) shadowOf(p *policy.Policy) *policy.Policy {
	if s := r.table.Load().shadow; s != p {
		return s
	}
	return nil
}
