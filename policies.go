package warmpath

import (
	"errors"
	"fmt"

	"github.com/warmpath/warmpath/policy"
)

// policyTable says which policy decides which request. It is replaced as a whole.
type policyTable struct {
	standard *policy.Policy            // for requests that name none, to models that have none of their own
	byModel  map[string]*policy.Policy // by model name as requested, or base model
}

// buildPolicies builds the built-in policies and those of o; a later one replaces an earlier one of that name.
func buildPolicies(o *Options) (map[string]*policy.Policy, error) {
	byName := map[string]*policy.Policy{}
	specs := append(policy.BuiltIn(), o.Policies...)
	for _, s := range append(specs, o.Policy) {
		p, err := policy.Build(s)
		if err != nil {
			return nil, err
		}
		byName[s.Name] = p
	}
	return byName, nil
}

// UsePolicies changes at once which policy decides: standard for requests that name none, byModel for those to the models
// it names, as requested or as base model. All are names of policies that the router was made with; what they remember is
// kept. The error names every one that is not known, and nothing has changed then.
func (r *Router) UsePolicies(standard string, byModel map[string]string) error {
	var errs []error
	named := func(name string) *policy.Policy {
		p, ok := r.policies[name]
		if !ok {
			errs = append(errs, fmt.Errorf("use policy %q: %w", name, ErrUnknownPolicy))
		}
		return p
	}
	t := &policyTable{standard: named(standard), byModel: map[string]*policy.Policy{}}
	for model, name := range byModel {
		t.byModel[model] = named(name)
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	r.table.Store(t)
	return nil
}

// Policy returns the policy that decides a request for model that asks for the policy of that name; "" asks for none.
// Callers look at it before they make tokens or text that it may not need.
func (r *Router) Policy(name, model string) (*policy.Policy, error) {
	base := model
	if pool, ok := r.fleet.Snapshot().Pool(model); ok {
		base = pool.Model
	}
	return r.policyFor(name, model, base)
}

func (r *Router) policyFor(name, model, base string) (*policy.Policy, error) {
	if name != "" {
		p, ok := r.policies[name]
		if !ok {
			return nil, fmt.Errorf("route by policy %q: %w", name, ErrUnknownPolicy)
		}
		return p, nil
	}
	t := r.table.Load()
	if p, ok := t.byModel[model]; ok {
		return p, nil
	}
	if p, ok := t.byModel[base]; ok {
		return p, nil
	}
	return t.standard, nil
}
