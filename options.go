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

// Options is what a [Router] is made of. Fleet is required; a zero field means its default.
type Options struct {
	Fleet *fleet.Fleet

	// Policy is used for requests that name none. Default: marginal.
	Policy policy.Spec
	// Policies may be asked for by name, with the built-in ones and Policy. One with a built-in's name replaces it.
	Policies []policy.Spec
	// ModelPolicies are the policies of models that have another than Policy: the name of one by the model's, as requested or
	// as base model.
	ModelPolicies map[string]string

	// Shadow is the name of a policy that is asked beside the one that decides, with [Router.Explain]: it learns from every request
	// that is routed, whoever decided. "" is none.
	Shadow string

	// Index sizes the index of each base model.
	Index kvindex.Config
	// Algorithm chains our block keys.
	Algorithm block.Algorithm
	// BlockSize is the tokens of our own blocks. Default, 0: for each base model the smallest engine block among its
	// workers, at least 16. Smaller finds shorter matches and costs memory; engines' blocks are cut to it. One above the
	// default gives way to the default: it would hide blocks that an engine has. Policy may say it where this does not.
	BlockSize int

	// SpeculativeTTL is how long a dispatched prompt counts as cached without its events. Default 2 s: well above the
	// time from dispatch to event, and soon over when the request failed. Negative turns speculation off.
	SpeculativeTTL time.Duration
	// ApproximateTTL is the same for holders that publish no events, and for prompts matched by their text. Default
	// 120 s: about how long a prefix survives on a busy engine. Negative turns learning from requests off.
	ApproximateTTL time.Duration

	// MaxRequests is how many requests a holder may have at once before it counts as saturated. Default 0: no limit,
	// engines queue by themselves.
	MaxRequests int
}

// minBlockSize: below 16 tokens a block costs more to hash, keep and match than a finer match saves.
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
