package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/policy"
)

// policyNodes has the parts of the file that define policies. The reader reads these parts last, because other sections
// contain the defaults of policies.
type policyNodes struct {
	list   *entry          // value of the key policies; nil: the file does not have this key
	inline *entry          // the value of the key policy, if it has parameters; nil: its value is a name
	named  *token.Position // the key policy or routing.policy that was read first
	// Keys of the section routing that are names of kinds; vllm_cache_aware's design documents use this form.
	typed []entry
}

// config reads the root of the gateway's file.
func (r *reader) config(root ast.Node, cfg *Config) {
	var later policyNodes
	r.fields(root, reflect.ValueOf(cfg).Elem(), section{take: func(e entry) bool {
		switch e.key {
		case "policies":
			later.list = &e
			return true
		case "policy":
			r.namesPolicy(&later, e)
			if _, inline := r.resolve(e.value).(*ast.MappingNode); inline {
				later.inline = &e
				return true
			}
		case "routing":
			r.routing(e, cfg, &later)
			return true
		}
		return false
	}})
	r.policies(cfg, later)
}

// routing reads the section routing. It may also contain the key policy, and policies under the names of their kinds.
func (r *reader) routing(e entry, cfg *Config, later *policyNodes) {
	r.fields(e.value, reflect.ValueOf(&cfg.Routing).Elem(), section{take: func(e entry) bool {
		if e.key == "policy" {
			r.namesPolicy(later, e)
			r.value(e.value, reflect.ValueOf(&cfg.Policy).Elem())
			r.places["policy"] = r.places[r.path]
			return true
		}
		_, kind := warmpath.PolicyKinds().Find(e.key)
		if kind {
			later.typed = append(later.typed, e)
		}
		return kind
	}})
}

// namesPolicy notes a key that names the fleet's policy. A second such key is a mistake, because one of the two keys
// would have no effect.
func (r *reader) namesPolicy(nodes *policyNodes, e entry) {
	if first := nodes.named; first != nil {
		r.mistake(e.at, fmt.Sprintf("the policy is named twice, first in line %d: keep only one of policy and routing.policy", first.Line))
		return
	}
	nodes.named = e.at
}

// policies reads all policies. The key policy has either the name of a policy or a whole policy in place. The second
// form makes that policy the fleet's policy. Without a name of its own, the policy gets the name of its kind.
func (r *reader) policies(cfg *Config, nodes policyNodes) {
	if nodes.list != nil {
		r.under("policies", func() { r.policyList(cfg, nodes.list.value) })
	}
	for _, e := range nodes.typed {
		r.under("routing."+e.key, func() { r.policy(cfg, e.value, Policy{Type: e.key}) })
	}
	if nodes.inline != nil {
		r.under("policy", func() {
			if p, ok := r.policy(cfg, nodes.inline.value, Policy{}); ok {
				cfg.Policy = p.Name
			}
		})
	}
}

func (r *reader) policyList(cfg *Config, node ast.Node) {
	switch n := r.resolve(node).(type) {
	case nil, *ast.NullNode:
	case *ast.SequenceNode:
		for i, inner := range n.Values {
			r.under(fmt.Sprintf("[%d]", i), func() { r.policy(cfg, inner, Policy{}) })
		}
	default:
		r.list(n, reflect.ValueOf(&cfg.Policies).Elem())
	}
}

// policy reads a policy over p and adds it to cfg. The type of p may be set already. policy returns false if node is
// not a mapping or the type is unknown.
func (r *reader) policy(cfg *Config, node ast.Node, p Policy) (Policy, bool) {
	before := len(r.noted)
	m, ok := r.resolve(node).(*ast.MappingNode)
	if !ok {
		if node = r.resolve(node); node != nil {
			r.mistake(position(node), r.path+": a policy is written as type: NAME and its parameters")
		}
		return p, false
	}
	typed := position(m)
	for _, e := range r.entries(m) {
		switch e.key {
		case "type":
			r.under(".type", func() { r.value(e.value, reflect.ValueOf(&p.Type).Elem()) })
			typed = position(e.value)
		case "name":
			r.under(".name", func() { r.value(e.value, reflect.ValueOf(&p.Name).Elem()) })
		}
	}
	kind, ok := warmpath.PolicyKinds().Find(p.Type)
	switch {
	case !ok && p.Type == "":
		r.mistake(typed, fmt.Sprintf("%s has no type: write type: NAME beside its parameters. NAME is one of %s", r.path, strings.Join(kindNames(), ", ")))
		return p, false
	case !ok:
		r.mistake(typed, fmt.Sprintf("%s.type: %q is none of %s%s", r.path, p.Type, strings.Join(kindNames(), ", "), Meant(p.Type, kindNames())))
		return p, false
	}
	if p.Name == "" {
		p.Name = p.Type
	}
	p.Parameters = cfg.Routing.defaults(kind)
	r.parameters(m, p)
	r.placeAs(fmt.Sprintf("policies[%d]", len(cfg.Policies)), position(m), r.noted[before:])
	cfg.Policies = append(cfg.Policies, p)
	return p, true
}

// parameters reads the keys of a policy other than its type and name.
func (r *reader) parameters(m *ast.MappingNode, p Policy) {
	known := policy.ParameterKeys(p.Parameters)
	kind, _ := warmpath.PolicyKinds().Find(p.Type)
	r.fields(m, reflect.ValueOf(p.Parameters).Elem(), section{
		take: func(e entry) bool { return e.key == "type" || e.key == "name" },
		unknown: func(e entry) {
			in := strings.TrimSuffix(r.path, "."+e.key)
			if to := kind.Moved[e.key]; to != "" {
				r.mistake(e.at, fmt.Sprintf("%s: %s has no %q: the policy %s has this setting", in, p.Type, e.key, to))
				return
			}
			r.mistake(e.at, fmt.Sprintf("%s: %s has no %q (known: %s)%s", in, p.Type, e.key,
				strings.Join(slices.Concat([]string{"name", "type"}, known), ", "), Meant(e.key, known)))
		},
	})
}

// placeAs records the position of the present path under a second path, and so for the paths below it. It is needed
// because Validate names a policy by its index in policies, even if the policy is elsewhere in the file. read has the
// paths that may be below the present path.
func (r *reader) placeAs(path string, at *token.Position, read []string) {
	for _, old := range read {
		if rest, below := strings.CutPrefix(old, r.path+"."); below {
			r.places[path+"."+rest] = r.places[old]
		}
	}
	r.places[path] = at
}
