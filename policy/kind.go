package policy

import (
	"fmt"
	"slices"
	"strings"
)

// Parameters are the settings of a kind of policy: a pointer to a struct whose fields have yaml keys, filled with the
// defaults.
type Parameters interface {
	// Validate returns all problems, joined. Each problem begins with its key and a colon.
	Validate() error
	// Spec returns the policy under that name. The parameters may change afterwards without an effect on the policy.
	Spec(name string) Spec
}

// Kind is a kind of policy: a name and its settings.
type Kind struct {
	Name     string
	Defaults func() Parameters // returns new parameters with the defaults at each call
	// Moved has settings that this kind does not have, but another kind has. The map's key is the setting's key, and the
	// value is the name of the other kind. An error about such a setting names the other kind.
	Moved map[string]string
}

// Kinds are kinds of policies, sorted by name.
type Kinds []Kind

// Own returns the kinds of this package. Package peers has the kinds of other projects.
func Own() Kinds {
	return Kinds{
		NewKind("direct", func() Direct { return Direct{} }),
		NewKind("kv_aware", DefaultKVAware),
		NewKind("least_load", DefaultLeastLoad).moved("throughput", "smg_least_load"),
		NewKind("marginal", DefaultMarginal),
		NewKind("power_of_two", func() PowerOfTwo { return PowerOfTwo{} }).moved("by", "smg_power_of_two"),
		NewKind("random", func() Random { return Random{} }),
		NewKind("round_robin", func() RoundRobin { return RoundRobin{} }),
	}
}

// NewKind makes a kind from the constructor of its parameters' defaults.
func NewKind[P any, T interface {
	*P
	Parameters
}](name string, defaults func() P) Kind {
	return Kind{Name: name, Defaults: func() Parameters { p := defaults(); return T(&p) }}
}

// moved returns k with an entry in Moved.
func (k Kind) moved(key, kind string) Kind {
	k.Moved = map[string]string{key: kind}
	return k
}

// Set sets one of p's parameters as [SetParameter] does. p is of this kind.
func (k Kind) Set(p Parameters, key, value string) error {
	if to := k.Moved[key]; to != "" {
		return fmt.Errorf("there is no %q: the policy %s has this setting", key, to)
	}
	return SetParameter(p, key, value)
}

// Join returns the kinds of all lists, sorted by name. It panics if two kinds have the same name.
func Join(lists ...Kinds) Kinds {
	all := slices.Concat(lists...)
	slices.SortFunc(all, func(a, b Kind) int { return strings.Compare(a.Name, b.Name) })
	for i := range all[1:] {
		if all[i].Name == all[i+1].Name {
			panic("bug: two kinds of policies are called " + all[i].Name)
		}
	}
	return all
}

// Find returns the kind of that name.
func (k Kinds) Find(name string) (Kind, bool) {
	i := slices.IndexFunc(k, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return Kind{}, false
	}
	return k[i], true
}

// Names returns the names of all kinds.
func (k Kinds) Names() []string {
	names := make([]string, len(k))
	for i := range k {
		names[i] = k[i].Name
	}
	return names
}

// BuiltIn returns a policy of each kind with its defaults. It leaves out kinds whose defaults are not valid.
func (k Kinds) BuiltIn() []Spec {
	var specs []Spec
	for _, kind := range k {
		if p := kind.Defaults(); p.Validate() == nil {
			specs = append(specs, p.Spec(kind.Name))
		}
	}
	return specs
}

// Parse returns the policy that text describes. text is KIND, or KIND:KEY=VALUE,KEY=VALUE with parameters that differ
// from the defaults. The name of the policy is text.
func (k Kinds) Parse(text string) (Spec, error) {
	name, settings, set := strings.Cut(text, ":")
	kind, ok := k.Find(name)
	if !ok {
		return Spec{}, fmt.Errorf("no policy is called %q (known: %s)", name, strings.Join(k.Names(), ", "))
	}
	p := kind.Defaults()
	if set {
		for _, setting := range strings.Split(settings, ",") {
			key, value, ok := strings.Cut(setting, "=")
			if !ok {
				return Spec{}, fmt.Errorf("policy %q: %q is not KEY=VALUE (known: %s)", name, setting, strings.Join(ParameterKeys(p), ", "))
			}
			if err := kind.Set(p, key, value); err != nil {
				return Spec{}, fmt.Errorf("policy %q: %w", name, err)
			}
		}
	}
	if err := p.Validate(); err != nil {
		return Spec{}, fmt.Errorf("policy %q: %w", name, err)
	}
	return p.Spec(text), nil
}
