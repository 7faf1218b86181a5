package warmpath

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/policy/peers"
	"github.com/warmpath/warmpath/policy/script"
)

var kinds = policy.Join(policy.Own(), peers.Kinds(), script.Kinds())

// PolicyKinds returns all kinds of policies, sorted by name: the kinds of package policy, the kinds of other projects
// in package policy/peers, and scripts.
func PolicyKinds() policy.Kinds { return slices.Clone(kinds) }

// policyTable has all policies, and says which policy decides a request. It is immutable: a change makes a new table.
type policyTable struct {
	all      map[string]*policy.Policy // all policies by name
	standard *policy.Policy            // decides if neither the request nor the configuration of its model names a policy
	byModel  map[string]*policy.Policy // the policies of models, by the model name in requests or by the base model
	shadow   *policy.Policy            // the shadow policy; nil is none
	legs     Legs
	prefill  *policy.Policy // decides prefill legs; nil: the policy of the request
	decode   *policy.Policy // the same for decode legs
}

// PolicyChange is an argument of [Router.ChangePolicies].
type PolicyChange struct {
	// Specs are new policies. If a spec has the name of an existing policy, it replaces this policy. The new policy
	// starts with an empty memory.
	Specs []policy.Spec
	// Gone names policies that are removed.
	Gone []string
	// Standard names the policy for requests that name none. ByModel names the policies of single models, by the model
	// name in requests or by the base model.
	Standard string
	ByModel  map[string]string
	// Shadow names the shadow policy, see [Options.Shadow]; "" is none.
	Shadow string
	// Legs says which requests are divided, see [Options.Legs].
	Legs Legs
}

// buildPolicies builds the built-in policies and the policies of o. A policy of o replaces a built-in policy of the
// same name.
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

// choose sets the policies that decide, and the shadow policy, by their names. The error lists every unknown name.
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
	t.prefill, t.decode = nil, nil
	if t.legs.PrefillPolicy != "" {
		t.prefill = named("prefill policy", t.legs.PrefillPolicy)
	}
	if t.legs.DecodePolicy != "" {
		t.decode = named("decode policy", t.legs.DecodePolicy)
	}
	return errors.Join(errs...)
}

// ChangePolicies adds, replaces and removes policies, and sets which policy decides, in one step. A policy that c does
// not name stays and keeps what it remembers. The end of a request under way is reported to the policy that decided the
// request, even if this policy was replaced. If ChangePolicies returns an error, nothing has changed.
//
// The block size of a new policy has no effect: it only counts when the router is made.
func (r *Router) ChangePolicies(c PolicyChange) error {
	r.choosing.Lock()
	defer r.choosing.Unlock()
	next := policyTable{all: maps.Clone(r.table.Load().all), legs: c.Legs}
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

// Legs says which requests are divided at present.
func (r *Router) Legs() Legs { return r.table.Load().legs }

// Policy returns the policy that decides a request. model is the request's model, and name is the policy that the
// request asks for; "" asks for none. Callers use it to find out whether the policy needs the prompt's tokens or text.
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
