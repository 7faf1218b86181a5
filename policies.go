package warmpath

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/policy/peers"
)

// kinds are all kinds of policies.
var kinds = policy.Join(policy.Own(), peers.Kinds())

// PolicyKinds returns all kinds of policies, sorted by name: our own of package policy, and those of other projects of
// package policy/peers.
func PolicyKinds() policy.Kinds { return slices.Clone(kinds) }

// policyTable is the policies that exist, and which one decides which request. It is replaced as a whole.
type policyTable struct {
	all      map[string]*policy.Policy // by name
	standard *policy.Policy            // for requests that name none, to models that have none of their own
	byModel  map[string]*policy.Policy // by model name as requested, or base model
	shadow   *policy.Policy            // nil is none
}

// PolicyChange is an argument of [Router.ChangePolicies].
type PolicyChange struct {
	// Specs are new policies. One with the name of an existing policy replaces it; what the old one remembered is
	// lost.
	Specs []policy.Spec
	// Gone names policies that are removed.
	Gone []string
	// Standard names the policy for requests that name none. ByModel names the policies of single models, by the model
	// name in requests or by the base model.
	Standard string
	ByModel  map[string]string
	// Shadow names the shadow policy, see [Options.Shadow]; "" is none.
	Shadow string
}

// buildPolicies builds the built-in policies and those of o; a later one replaces an earlier one with its name.
func buildPolicies(o *Options) (map[string]*policy.Policy, error) {
	byName := map[string]*policy.Policy{}
	specs := append(kinds.BuiltIn(), o.Policies...)
	return byName, buildInto(byName, append(specs, o.Policy))
}

func buildInto(byName map[string]*policy.Policy, specs []policy.Spec) error {
	for _, s := range specs {
		p, err := policy.Build(s)
		if err != nil {
			return err
		}
		byName[s.Name] = p
	}
	return nil
}

// choose sets which policy decides. The error names every unknown policy.
func (t *policyTable) choose(standard string, byModel map[string]string, shadow string) error {
	var errs []error
	named := func(use, name string) *policy.Policy {
		p, ok := t.all[name]
		if !ok {
			errs = append(errs, fmt.Errorf("use %s %q: %w", use, name, ErrUnknownPolicy))
		}
		return p
	}
	t.standard, t.byModel, t.shadow = named("policy", standard), map[string]*policy.Policy{}, nil
	for model, name := range byModel {
		t.byModel[model] = named("policy", name)
	}
	if shadow != "" {
		t.shadow = named("shadow policy", shadow)
	}
	return errors.Join(errs...)
}

// SetPolicies changes which policy decides: standard for requests that name none, byModel for single models, by the
// model name in requests or by the base model. The policies must exist, and keep what they remember. On an error,
// which names every unknown policy, nothing has changed.
func (r *Router) SetPolicies(standard string, byModel map[string]string) error {
	shadow := ""
	if s := r.Shadow(); s != nil {
		shadow = s.Name()
	}
	return r.ChangePolicies(PolicyChange{Standard: standard, ByModel: byModel, Shadow: shadow})
}

// ChangePolicies adds, replaces and removes policies and sets which one decides, all at once. Policies that c does not
// name stay, with what they remember. A request under way ends with the policy that decided it. On an error nothing
// has changed.
//
// The block size of a policy only counts when the router is made.
func (r *Router) ChangePolicies(c PolicyChange) error {
	r.choosing.Lock()
	defer r.choosing.Unlock()
	next := policyTable{all: maps.Clone(r.table.Load().all)}
	if err := buildInto(next.all, c.Specs); err != nil {
		return fmt.Errorf("change policies: %w", err)
	}
	for _, name := range c.Gone {
		delete(next.all, name)
	}
	if err := next.choose(c.Standard, c.ByModel, c.Shadow); err != nil {
		return fmt.Errorf("change policies: %w", err)
	}
	r.table.Store(&next)
	r.dropPolicies(next.all)
	return nil
}

// Policy returns the policy that decides a request to model that asks for the policy of that name; "" asks for none.
// Callers use it to find out whether the policy needs tokens or text before they make them.
func (r *Router) Policy(name, model string) (*policy.Policy, error) {
	base := model
	if pool, ok := r.fleet.Snapshot().Pool(model); ok {
		base = pool.Model
	}
	return r.policyFor(name, model, base)
}

func (r *Router) policyFor(name, model, base string) (*policy.Policy, error) {
	t := r.table.Load()
	if name != "" {
		p, ok := t.all[name]
		if !ok {
			return nil, fmt.Errorf("route by policy %q: %w", name, ErrUnknownPolicy)
		}
		return p, nil
	}
	if p, ok := t.byModel[model]; ok {
		return p, nil
	}
	if p, ok := t.byModel[base]; ok {
		return p, nil
	}
	return t.standard, nil
}
