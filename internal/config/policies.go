package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/policy/peers"
)

// Policy is a policy with parameters: a kind, what it is told other than its defaults, and a name.
type Policy struct {
	Name       string            `yaml:"name"` // what policy, model_policies and requests call it; "" is its type
	Type       string            `yaml:"type"`
	Parameters policy.Parameters `yaml:"-"` // the keys beside name and type
}

// defaults returns the parameters of a kind as routing says them where it says something.
func (r *Routing) defaults(k policy.Kind) policy.Parameters {
	p := k.Defaults()
	switch p := p.(type) {
	case *policy.LongestMatch:
		p.TierWeights, p.ImbalanceTokens = r.TierWeights, r.ImbalanceTokens
	case *policy.Mix:
		p.TierWeights = r.TierWeights
	case *policy.Marginal:
		p.TierWeights = r.TierWeights
	case *peers.PredictedTTFT:
		p.TierWeights = r.TierWeights
	case *peers.PrecisePrefixCache:
		p.TierWeights = r.TierWeights
	}
	return p
}

// taken is what the file says of policies. It is read last: defaults are in other sections.
type taken struct {
	list   []ast.Node              // under policies
	inline *ast.MappingNode        // under policy, where that is a policy with its parameters, not a name
	named  *ast.MappingValueNode   // routing.policy
	typed  []*ast.MappingValueNode // under routing, by the names of types
}

// takePolicies takes what is said of policies out of the file's root: policies, policy where it is not a name, and in
// routing policy and the types of policies, as the design of vllm_cache_aware writes them (seed 000 §9.2).
func takePolicies(root *ast.MappingNode) taken {
	var t taken
	root.Values = slices.DeleteFunc(root.Values, func(v *ast.MappingValueNode) bool {
		switch value := v.Value.(type) {
		case *ast.SequenceNode:
			if keyOf(v) == "policies" {
				t.list = value.Values
				return true
			}
		case *ast.MappingNode:
			switch keyOf(v) {
			case "policy":
				t.inline = value
				return true
			case "routing":
				t.fromRouting(value)
				return len(value.Values) == 0 // decoding nothing would set all of it to zero
			}
		}
		return false
	})
	return t
}

func (t *taken) fromRouting(routing *ast.MappingNode) {
	routing.Values = slices.DeleteFunc(routing.Values, func(v *ast.MappingValueNode) bool {
		if keyOf(v) == "policy" {
			t.named = v
			return true
		}
		if _, ok := warmpath.PolicyKinds().Find(keyOf(v)); ok {
			t.typed = append(t.typed, v)
			return true
		}
		return false
	})
}

func keyOf(v *ast.MappingValueNode) string { return v.Key.GetToken().Value }

// decodePolicies reads what takePolicies took. A policy with its parameters is the fleet's, under the name of its type
// unless it has its own.
func (c *Config) decodePolicies(t taken) error {
	for i, node := range t.list {
		mapping, ok := node.(*ast.MappingNode)
		if !ok {
			return &nodeError{fmt.Sprintf("policies[%d]: a policy is written as type: NAME and its parameters", i), node}
		}
		p, err := c.decodePolicy(fmt.Sprintf("policies[%d]", i), "", mapping)
		if err != nil {
			return err
		}
		c.Policies = append(c.Policies, p)
	}
	for _, v := range t.typed {
		mapping, ok := v.Value.(*ast.MappingNode)
		if !ok {
			return &nodeError{fmt.Sprintf("routing.%s: the parameters of a policy are expected", keyOf(v)), v.Value}
		}
		p, err := c.decodePolicy("routing."+keyOf(v), keyOf(v), mapping)
		if err != nil {
			return err
		}
		c.Policies = append(c.Policies, p)
	}
	if t.named != nil {
		c.Policy = plain([]byte(t.named.Value.String()))
	}
	if t.inline == nil {
		return nil
	}
	p, err := c.decodePolicy("policy", "", t.inline)
	if err != nil {
		return err
	}
	c.Policies = append(c.Policies, p)
	c.Policy = p.Name
	return nil
}

// missedPolicies returns an error when the decoder found policies, of which it reads no parameters, where
// takePolicies did not look: in a list with a tag or an anchor, or one that is merged in.
func (c *Config) missedPolicies(root ast.Node) error {
	if !slices.ContainsFunc(c.Policies, func(p Policy) bool { return p.Parameters == nil }) {
		return nil
	}
	if mapping, ok := root.(*ast.MappingNode); ok {
		for _, v := range mapping.Values {
			if keyOf(v) == "policies" {
				root = v.Value
			}
		}
	}
	return &nodeError{"policies: the list is written in its place, without a tag (!…), an anchor (&…) or a merge key (<<)", root}
}

// decodePolicy reads a policy of that type, or of the type that it names.
func (c *Config) decodePolicy(path, kind string, node *ast.MappingNode) (Policy, error) {
	p := Policy{Type: kind}
	var rest []*ast.MappingValueNode
	var typed ast.Node = node
	for _, v := range node.Values {
		switch keyOf(v) {
		case "type":
			p.Type, typed = plain([]byte(v.Value.String())), v.Value
		case "name":
			p.Name = plain([]byte(v.Value.String()))
		default:
			rest = append(rest, v)
		}
	}
	k, ok := warmpath.PolicyKinds().Find(p.Type)
	if !ok {
		return p, &nodeError{fmt.Sprintf("%s.type: %q is none of %s%s", path, p.Type, strings.Join(kindNames(), ", "), Meant(p.Type, kindNames())), typed}
	}
	if p.Name == "" {
		p.Name = p.Type
	}
	p.Parameters = c.Routing.defaults(k)
	known := policy.ParameterKeys(p.Parameters)
	for _, v := range rest {
		key := keyOf(v)
		if !slices.ContainsFunc(known, func(k string) bool { return k == key || strings.HasPrefix(k, key+".") }) {
			return p, &nodeError{fmt.Sprintf("%s: %s has no %q (known: %s)%s", path, p.Type, key,
				strings.Join(append([]string{"name", "type"}, known...), ", "), Meant(key, known)), v.Key}
		}
	}
	if len(rest) == 0 {
		return p, nil
	}
	told := *node
	told.Values = rest
	return p, decoder().DecodeFromNode(&told, p.Parameters)
}

// Meant asks whether a known word was meant, where one is nearly the unknown one: it returns "; did you mean WORD?", to
// follow an error, or nothing.
func Meant(unknown string, known []string) string {
	best, least := "", slips(unknown)+1
	for _, k := range known {
		if d := distance(unknown, k); d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// nodeError is a problem with the place it is at.
type nodeError struct {
	problem string
	node    ast.Node
}

func (e *nodeError) Error() string { return e.problem }

func kindNames() []string {
	var names []string
	for _, k := range warmpath.PolicyKinds() {
		names = append(names, k.Name)
	}
	return names
}

// Parameters are the policies that requests may be decided by, by name, with what they are told: each kind with its
// defaults, those that the file describes, and those that are named with their parameters where they are used.
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
		if !strings.Contains(name, ":") {
			continue
		}
		if p, err := c.parsePolicy(name); err == nil {
			all[name] = p
		}
	}
	return all
}

// specs are those of all Parameters.
func (c *Config) specs() []policy.Spec {
	var specs []policy.Spec
	all := c.Parameters()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		specs = append(specs, all[name].Spec(name))
	}
	return specs
}

// Used are the names of the policies in use: the fleet's, the shadow, models' and those that requests may ask for.
func (c *Config) Used() []string {
	used := slices.Concat([]string{c.Policy}, slices.Sorted(maps.Values(c.ModelPolicies)), c.RequestPolicies)
	if c.Shadow != "" {
		used = append(used, c.Shadow)
	}
	return used
}

// PolicyChange returns what makes a router that was made by old one that is made by c: the policies that are new or
// are told otherwise, those that are no more, and who decides.
func (c *Config) PolicyChange(old *Config) warmpath.PolicyChange {
	change := warmpath.PolicyChange{Standard: c.Policy, ByModel: c.ModelPolicies, Shadow: c.Shadow}
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

// parsePolicy reads TYPE:KEY=VALUE,KEY=VALUE over the defaults of that type.
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
			return nil, fmt.Errorf("%q is not NAME=VALUE", setting)
		}
		if err := policy.SetParameter(p, key, value); err != nil {
			return nil, err
		}
		if isSecret.MatchString(key) {
			return nil, fmt.Errorf("%s cannot stand in the name of a policy, which logs, metrics and answers show: describe the policy under policies", key)
		}
	}
	return p, p.Validate()
}

// Spec returns the policy that c asks for, with its parameters. Validate checks the name.
func (c *Config) Spec() policy.Spec {
	if p, ok := c.Parameters()[c.Policy]; ok {
		return p.Spec(c.Policy)
	}
	return policy.Spec{Name: c.Policy}
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
			if err := k.Defaults().Validate(); err != nil { // else what routing says of its parameters is wrong, and told there
				found.add(path, fmt.Errorf("%s does nothing until it is told what (docs/policies/%s.md): %w", name, name, err))
			}
			return
		}
		if !slices.Contains(names, name) {
			found.add(path, fmt.Errorf("%q is none of %s%s", name, strings.Join(names, ", "), Meant(name, names)))
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

// asNodeError returns the place that err names, or nil.
func asNodeError(err error) *nodeError {
	var e *nodeError
	if errors.As(err, &e) {
		return e
	}
	return nil
}
