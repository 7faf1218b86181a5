package warmpath

import (
	"errors"
	"fmt"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

// Options configures a [Router]. Fleet is required. A zero field means its default.
type Options struct {
	Fleet *fleet.Fleet

	// Policy decides the requests that name no policy. Default: marginal.
	Policy policy.Spec
	// Policies are further policies that requests may name, in addition to the built-in ones and Policy. A policy with
	// the name of a built-in one replaces it.
	Policies []policy.Spec
	// ModelPolicies names the policy of each model that has another one than Policy, by the model name in requests or
	// by the base model.
	ModelPolicies map[string]string

	// Shadow names a policy that is shown every routed request, so that it learns as if it had decided, and that the
	// caller may ask with [Router.Explain]. It never decides. "" is none.
	Shadow string

	// Index sizes the index of each base model.
	Index kvindex.Config
	// Algorithm chains our block keys.
	Algorithm block.Algorithm
	// BlockSize is the tokens of our own blocks. Default, 0: Policy's BlockSize if it has one, else, for each base
	// model, the smallest engine block among its workers, at least 16. Smaller blocks find shorter matches and cost
	// memory; an engine's blocks are cut to ours. A size above the engines' smallest has no effect: it would hide
	// blocks that an engine has.
	BlockSize int

	// SpeculativeTTL is how long a dispatched prompt counts as cached without events that confirm it. Default 2 s:
	// well above the time from dispatch to event, and short enough when the request failed. Negative: not at all.
	SpeculativeTTL time.Duration
	// ApproximateTTL is the same for holders that publish no events and for prompts that are matched by their text.
	// Default 120 s: about as long as a prefix survives on a busy engine. Negative: not at all.
	ApproximateTTL time.Duration

	// MaxRequests is how many requests a holder may have at once; with more it counts as saturated. Default 0: no
	// limit, because engines queue by themselves.
	MaxRequests int
}

// minBlockSize: below 16 tokens a block costs more to hash, keep and match than the finer match saves.
const minBlockSize = 16

func (o Options) withDefaults() Options {
	if o.Policy.Name == "" {
		o.Policy = policy.DefaultMarginal().Spec("marginal")
	}
	if o.BlockSize == 0 {
		o.BlockSize = o.Policy.BlockSize
	}
	if o.SpeculativeTTL == 0 {
		o.SpeculativeTTL = 2 * time.Second
	}
	if o.ApproximateTTL == 0 {
		o.ApproximateTTL = 120 * time.Second
	}
	return o
}

func (o *Options) validate() error {
	var errs []error
	if o.Fleet == nil {
		errs = append(errs, errors.New("fleet is missing"))
	}
	if o.BlockSize < 0 || o.BlockSize > block.MaxSize {
		errs = append(errs, fmt.Errorf("block size %d is not within 0..%d", o.BlockSize, block.MaxSize))
	}
	if o.MaxRequests < 0 {
		errs = append(errs, fmt.Errorf("limit of %d requests is negative", o.MaxRequests))
	}
	return errors.Join(errs...)
}
