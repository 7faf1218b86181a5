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

// policyNodes is what the file says of policies. It is read last: the defaults of a policy are in other sections.
type policyNodes struct {
	list   *entry  // policies
	inline *entry  // the value of the key policy, if it has parameters; nil: it is a name
	typed  []entry // under routing, by the names of kinds, as design documents of vllm_cache_aware write it
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

// routing reads the section routing, in which policy and the kinds of policies may stand, too.
func (r *reader) routing(e entry, cfg *Config, later *policyNodes) {
	r.fields(e.value, reflect.ValueOf(&cfg.Routing).Elem(), section{take: func(e entry) bool {
		if e.key == "policy" {
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

// policies reads all policies. A policy that is written in place under policy is the fleet's, under the name of its
// kind unless it has its own.
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

// policy reads a policy over p, whose type may be given, and adds it to cfg. It returns false if its type is unknown.
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
	if !ok {
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

// placeAs notes the places of the present path, and of the paths below it, under another path, too: Validate reports on
// a policy by its index, wherever the file has it. read has the paths that may lie below the present path.
func (r *reader) placeAs(path string, at *token.Position, read []string) {
	for _, old := range read {
		if rest, below := strings.CutPrefix(old, r.path+"."); below {
			r.places[path+"."+rest] = r.places[old]
		}
	}
	r.places[path] = at
}
