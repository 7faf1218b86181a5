package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/policy"
)

// Policy is a policy with a name, a kind (type in the file), and parameters.
type Policy struct {
	// Name is the name that policy, model_policies and requests use. "" means the type.
	Name       string            `yaml:"name"`
	Type       string            `yaml:"type"`
	Parameters policy.Parameters `yaml:"-"` // the values of all other keys
}

// defaults returns the default parameters of a kind. The section routing sets the defaults of some parameters.
func (r *Routing) defaults(k policy.Kind) policy.Parameters {
	p := k.Defaults()
	if weights := reflect.ValueOf(p).Elem().FieldByName("TierWeights"); weights.IsValid() {
		weights.Set(reflect.ValueOf(r.TierWeights))
	}
	if p, ok := p.(*policy.KVAware); ok {
		p.ImbalanceTokens = r.ImbalanceTokens
	}
	return p
}

func kindNames() []string {
	var names []string
	for _, k := range warmpath.PolicyKinds() {
		names = append(names, k.Name)
	}
	return names
}

// Parameters returns the parameters of all policies by name. These are each kind whose defaults are valid, the policies
// of the file, and the policies in use whose name contains parameters.
func (c *Config) Parameters() map[string]policy.Parameters {
	all := map[string]policy.Parameters{}
	for _, k := range warmpath.PolicyKinds() {
		if p := c.Routing.defaults(k); p.Validate() == nil {
			all[k.Name] = p
		}
	}
	for _, p := range c.Policies {
		all[p.Name] = p.Parameters
	}
	for _, name := range c.Used() {
		if _, described := all[name]; described || !strings.Contains(name, ":") {
			continue
		}
		if p, err := c.parsePolicy(name); err == nil {
			all[name] = p
		}
	}
	return all
}

// describe adds the policies in use whose name contains parameters to the list of policies. So their parameters, and
// the file of a script, are read once, as those of the list are: a reload compares what was read then with what is read
// now. A name with a mistake is left to Validate.
func (c *Config) describe() {
	all := c.Parameters()
	for _, name := range c.Used() {
		p, valid := all[name]
		if !valid || !strings.Contains(name, ":") || slices.ContainsFunc(c.Policies, func(p Policy) bool { return p.Name == name }) {
			continue
		}
		kind, _, _ := strings.Cut(name, ":")
		c.Policies = append(c.Policies, Policy{Name: name, Type: kind, Parameters: p})
	}
}

// specs returns the specs of all Parameters.
func (c *Config) specs() []policy.Spec {
	var specs []policy.Spec
	all := c.Parameters()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		specs = append(specs, all[name].Spec(name))
	}
	return specs
}

// Used returns the names of the policies in use: the policy of the fleet, the shadow, the policies of models, the
// policies that requests may name, and those of prefill and decode.
func (c *Config) Used() []string {
	used := slices.Concat([]string{c.Policy}, slices.Sorted(maps.Values(c.ModelPolicies)), c.RequestPolicies)
	if c.Shadow != "" {
		used = append(used, c.Shadow)
	}
	used = append(used, slices.Sorted(maps.Values(c.Disaggregation.policies()))...)
	return used
}

// PolicyChange returns the change from old to c in the form that a router takes: new policies, policies whose
// parameters changed, policies that are gone, and which policy decides.
func (c *Config) PolicyChange(old *Config) warmpath.PolicyChange {
	change := warmpath.PolicyChange{Standard: c.Policy, ByModel: c.ModelPolicies, Shadow: c.Shadow, Legs: c.Disaggregation.legs()}
	before, after := old.Parameters(), c.Parameters()
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if was, known := before[name]; !known || !reflect.DeepEqual(was, after[name]) {
			change.Specs = append(change.Specs, after[name].Spec(name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, stays := after[name]; !stays {
			change.Gone = append(change.Gone, name)
		}
	}
	return change
}

// parsePolicy parses TYPE:KEY=VALUE,KEY=VALUE. Parameters without a key have the defaults of the type.
func (c *Config) parsePolicy(name string) (policy.Parameters, error) {
	kind, settings, _ := strings.Cut(name, ":")
	k, ok := warmpath.PolicyKinds().Find(kind)
	if !ok {
		return nil, fmt.Errorf("%q is none of %s%s", kind, strings.Join(kindNames(), ", "), Meant(kind, kindNames()))
	}
	p := c.Routing.defaults(k)
	for _, setting := range strings.Split(settings, ",") {
		key, value, ok := strings.Cut(setting, "=")
		if !ok {
			return nil, fmt.Errorf("%q is not NAME=VALUE (known: %s)", setting, strings.Join(policy.ParameterKeys(p), ", "))
		}
		if strings.HasSuffix(key, "_bytes") {
			n, err := parseBytes(value)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
			value = strconv.FormatInt(n, 10)
		}
		if err := k.Set(p, key, value); err != nil {
			if known := policy.ParameterKeys(p); !slices.Contains(known, key) {
				err = fmt.Errorf("%w%s", err, Meant(key, known))
			}
			return nil, err
		}
		if isSecret.MatchString(key) || Redact(value) != value {
			return nil, fmt.Errorf("%s cannot be a part of a policy's name, which logs, metrics and answers show: describe the policy under policies", key)
		}
	}
	return p, p.Validate()
}

// Spec returns the spec of the fleet's policy. Validate checks its name.
func (c *Config) Spec() policy.Spec {
	if p, ok := c.Parameters()[c.Policy]; ok {
		return p.Spec(c.Policy)
	}
	return policy.Spec{Name: c.Policy}
}

// choices returns what the name of a policy can be: the given names, and the kinds that need parameters.
func choices(names []string) []string {
	can := slices.Clone(names)
	for _, kind := range kindNames() {
		switch {
		case slices.Contains(names, kind):
		case kind == "script":
			can = append(can, "script:file=FILE")
		default:
			can = append(can, kind)
		}
	}
	slices.Sort(can)
	return can
}

// PolicyNames returns the names of all policies, each once.
func (c *Config) PolicyNames() []string {
	return slices.Sorted(maps.Keys(c.Parameters()))
}

func (c *Config) validatePolicies(found *problems) {
	names := c.PolicyNames()
	exists := func(path, name string) {
		if strings.Contains(name, ":") && !slices.Contains(names, name) {
			_, err := c.parsePolicy(name)
			found.add(path, err)
			return
		}
		if k, is := warmpath.PolicyKinds().Find(name); is && !slices.Contains(names, name) {
			// If the defaults of the kind are valid, a parameter in routing is wrong, and is reported there.
			if err := k.Defaults().Validate(); err != nil {
				example := ""
				switch name {
				case "mix":
					example = "; in the file, for example: policy: {type: mix, scorers: [{scorer: match, weight: 3}, {scorer: queue, weight: 2}], picker: max_score}"
				case "script":
					example = "; write script:file=choose.star"
				}
				found.add(path, fmt.Errorf("%s needs parameters (docs/policies/%s.md): %w%s", name, name, err, example))
			}
			return
		}
		if !slices.Contains(names, name) {
			can := choices(names)
			found.add(path, fmt.Errorf("%q is none of %s%s", name, strings.Join(can, ", "), Meant(name, can)))
		}
	}
	exists("policy", c.Policy)
	if c.Shadow != "" {
		exists("shadow", c.Shadow)
	}
	if !(c.ShadowSample >= 0 && c.ShadowSample <= 1) {
		found.add("shadow_sample", fmt.Errorf("%v is outside 0..1", c.ShadowSample))
	}
	for model, name := range c.ModelPolicies {
		exists("model_policies."+model, name)
	}
	for i, name := range c.RequestPolicies {
		exists(fmt.Sprintf("request_policies[%d]", i), name)
	}
	for key, name := range c.Disaggregation.policies() {
		exists("disaggregation."+key, name)
	}
	seen := map[string]int{}
	for i, p := range c.Policies {
		at := fmt.Sprintf("policies[%d]", i)
		if first, twice := seen[p.Name]; twice {
			found.add(at, fmt.Errorf("%s is there twice, first as policies[%d]: give one a name", p.Name, first))
		}
		seen[p.Name] = i
		if err := p.Parameters.Validate(); err != nil {
			found.section(at, err)
			continue
		}
		if _, err := policy.Build(p.Parameters.Spec(p.Name)); err != nil {
			found.add(at, err)
		}
	}
}
