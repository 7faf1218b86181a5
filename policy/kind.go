package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/block"
)

// Parameters is what a kind of policy can be told: a pointer to a struct whose fields have yaml keys, with the defaults of
// its source.
type Parameters interface {
	// Validate returns all that is wrong, joined, each beginning with its key and a colon.
	Validate() error
	// Spec returns the policy under that name. Nothing in it refers to the parameters, which may be changed afterwards.
	Spec(name string) Spec
}

// Kind is a kind of policy: a name, and what it can be told.
type Kind struct {
	Name     string
	Defaults func() Parameters // new at each call
}

// kinds by name. A kind is one line.
var kinds = []Kind{
	kind("bucket", DefaultBucket),
	kind("cache_aware", DefaultCacheAware),
	kind("consistent_hash", DefaultConsistentHash),
	kind("direct", func() Direct { return Direct{} }),
	kind("estimated", DefaultEstimated),
	kind("kv", DefaultKV),
	kind("kv_aware", DefaultLongestMatch),
	kind("least_load", DefaultLeastLoad),
	kind("lmcache_aware", DefaultLMCacheAware),
	kind("lmetric", func() LMetric { return LMetric{} }),
	kind("manual", DefaultManual),
	kind("marginal", DefaultMarginal),
	kind("mix", DefaultMix),
	kind("power_of_two", DefaultPowerOfTwo),
	kind("precise_prefix_cache", DefaultPrecisePrefixCache),
	kind("predicted_ttft", DefaultPredictedTTFT),
	kind("prefix_cache_affinity", DefaultPrefixCacheAffinity),
	kind("prefix_hash", DefaultPrefixHash),
	kind("random", func() Random { return Random{} }),
	kind("rendezvous_hash", DefaultRendezvousHash),
	kind("round_robin", func() RoundRobin { return RoundRobin{} }),
	kind("session_affinity", DefaultSessionAffinity),
	kind("vllm_cache_aware", DefaultVLLMCacheAware),
}

// kind makes a Kind from the constructor of its parameters.
func kind[P any, T interface {
	*P
	Parameters
}](name string, defaults func() P) Kind {
	return Kind{name, func() Parameters { p := defaults(); return T(&p) }}
}

// Kinds returns all kinds of policies, by name.
func Kinds() []Kind { return slices.Clone(kinds) }

// KindOf returns the kind of that name.
func KindOf(name string) (Kind, bool) {
	i := slices.IndexFunc(kinds, func(k Kind) bool { return k.Name == name })
	if i < 0 {
		return Kind{}, false
	}
	return kinds[i], true
}

// BuiltIn returns the ready-made policies, by name: each kind with its defaults, but those that have to be told something.
func BuiltIn() []Spec {
	var specs []Spec
	for _, k := range kinds {
		if p := k.Defaults(); p.Validate() == nil {
			specs = append(specs, p.Spec(k.Name))
		}
	}
	return specs
}

// Parse returns the policy that text names: KIND, or KIND:KEY=VALUE,KEY=VALUE with parameters other than the defaults. The
// policy is then called text.
func Parse(text string) (Spec, error) {
	name, settings, set := strings.Cut(text, ":")
	k, ok := KindOf(name)
	if !ok {
		return Spec{}, fmt.Errorf("no policy is called %q (known: %s)", name, strings.Join(kindNames(), ", "))
	}
	p := k.Defaults()
	if set {
		for _, setting := range strings.Split(settings, ",") {
			key, value, ok := strings.Cut(setting, "=")
			if !ok {
				return Spec{}, fmt.Errorf("policy %q: %q is not KEY=VALUE", name, setting)
			}
			if err := SetParameter(p, key, value); err != nil {
				return Spec{}, fmt.Errorf("policy %q: %w", name, err)
			}
		}
	}
	if err := p.Validate(); err != nil {
		return Spec{}, fmt.Errorf("policy %q: %w", name, err)
	}
	return p.Spec(text), nil
}

func kindNames() []string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.Name)
	}
	return names
}

// TierWeights are the worth of a matched token by where its block lies, 0 to 1.
type TierWeights struct {
	GPU    float64 `yaml:"gpu"`
	CPU    float64 `yaml:"cpu"`
	Disk   float64 `yaml:"disk"`
	Remote float64 `yaml:"remote"`
}

// Validate returns all weights outside 0..1.
func (w TierWeights) Validate() error {
	var wrong check
	wrong.within("gpu", w.GPU, 0, 1)
	wrong.within("cpu", w.CPU, 0, 1)
	wrong.within("disk", w.Disk, 0, 1)
	wrong.within("remote", w.Remote, 0, 1)
	return wrong.join()
}

// ByTier returns the weights in the order of tiers.
func (w TierWeights) ByTier() [block.NumTiers]float64 {
	return [block.NumTiers]float64{block.TierGPU: w.GPU, block.TierCPU: w.CPU, block.TierDisk: w.Disk, block.TierRemote: w.Remote}
}

// check gathers what is wrong with parameters.
type check []error

func (c *check) join() error { return errors.Join(*c...) }

func (c *check) add(key, format string, args ...any) {
	*c = append(*c, fmt.Errorf("%s: "+format, append([]any{key}, args...)...))
}

// within reports a number outside [least, most], or none at all.
func (c *check) within(key string, v, least, most float64) {
	if !(v >= least && v <= most) {
		c.add(key, "%v is outside %v..%v", v, least, most)
	}
}

func (c *check) atLeast(key string, v, least float64) {
	if !(v >= least && v <= maxNumber) {
		c.add(key, "%v is not a number from %v", v, least)
	}
}

// maxNumber is where parameters stop: beyond it products with tokens lose their digits.
const maxNumber = 1e12

// section adds the problems of a group of keys.
func (c *check) section(key string, err error) {
	if err == nil {
		return
	}
	list := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		list = joined.Unwrap()
	}
	for _, e := range list {
		*c = append(*c, fmt.Errorf("%s.%w", key, e))
	}
}

// oneOf reports a word that is none of those.
func (c *check) oneOf(key, v string, words ...string) {
	if !slices.Contains(words, v) {
		c.add(key, "%q is none of %s", v, strings.Join(words, ", "))
	}
}
