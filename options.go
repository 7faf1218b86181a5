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

	// Policy decides the requests that name no policy, except requests for a model in ModelPolicies. Default: marginal.
	Policy policy.Spec
	// Policies are further policies that requests may name, in addition to Policy and the built-in policies. If a
	// policy has the name of a built-in one, it replaces the built-in one.
	Policies []policy.Spec
	// ModelPolicies has the policy names of the models that do not use Policy. A key is a model name as requests have
	// it, or a base model.
	ModelPolicies map[string]string

	// Shadow is the name of a policy that is only compared with the others. The router reports every routed request to the
	// shadow policy, so that it learns as if it had decided. To see the shadow policy's choice, call [Router.Explain] for
	// a request with its name. "" is none.
	Shadow string

	// Legs says which requests are divided into a prefill leg and a decode leg, at different workers. It counts only for
	// models whose workers have a KV connector.
	Legs Legs

	// Index sizes the index of each base model.
	Index kvindex.Config
	// RemoteIndex says that the router uses a remote index, and that no events are applied to this router. Before the
	// first decision about a request, the caller asks the remote index what [Prepared.Lookups] says, and tells the fleet
	// how far each holder's answers can be believed ([fleet.Fleet.SetTrust]). Prompts that were sent and are not
	// confirmed are still expected by this router.
	RemoteIndex bool
	// IndexChanged is called once for each index that the router makes, before the index has any block. It returns the
	// function that is told of each change of that index: see kvindex.Config.Changed. IndexChanged must not call the
	// router. Default nil: nobody is told.
	IndexChanged func(MadeIndex) func(*kvindex.Change)
	// MaxSpeculative is how many pairs of a holder and a block may be expected because a prompt was sent, for each base
	// model. Default: DefaultMaxSpeculative.
	MaxSpeculative int
	// Algorithm is the hash algorithm of the index's block keys.
	Algorithm block.Algorithm
	// BlockSize is the number of tokens in a block of the index. Default 0: the BlockSize of Policy if it is set,
	// otherwise the smallest engine block among the workers of the base model, at least 16. With a smaller size the index
	// also finds short matches, but takes more memory; larger blocks of engines are cut. A size above the smallest engine
	// block has no effect, because the index could not express that block.
	BlockSize int

	// SpeculativeTTL is how long a dispatched prompt counts as cached before events confirm it. A policy may set its
	// own value. Default 2 s: this is well above the time from dispatch to event, and the prompt of a failed request is
	// forgotten soon. Negative: not at all.
	SpeculativeTTL time.Duration
	// ApproximateTTL is how long a dispatched prompt counts as cached if the holder's trust is approximate, as without
	// events, or if the prompt is matched by its text. Default 120 s: about as long as a prefix stays in the cache of a
	// busy engine. Negative: not at all.
	ApproximateTTL time.Duration

	// Observer is told what happens to the requests that this router places. nil: nobody is told.
	Observer Observer

	// ServiceLevels are the service levels of requests without levels of their own. nil means
	// fleet.DefaultServiceLevels; an empty slice that is not nil means none.
	ServiceLevels []fleet.ServiceLevel

	// MaxRequests is how many requests a holder, that is one data-parallel rank of a worker, may have at the same time. A
	// holder with this number of requests counts as saturated. Default 0: no limit, because engines have queues of their
	// own.
	MaxRequests int
}

// DefaultMaxSpeculative is the default of [Options.MaxSpeculative]: two minutes of requests to holders without events,
// at 100 requests of 80 new blocks a second.
const DefaultMaxSpeculative = 1 << 20

// minBlockSize is the least default size of a block. Smaller blocks cost more hashing, memory and matching than a finer
// match saves.
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
	if o.MaxSpeculative <= 0 {
		o.MaxSpeculative = DefaultMaxSpeculative
	}
	if o.ApproximateTTL == 0 {
		o.ApproximateTTL = 120 * time.Second
	}
	if o.ServiceLevels == nil {
		o.ServiceLevels = fleet.DefaultServiceLevels()
	}
	return o
}

func (o *Options) validate() error {
	var errs []error
	if o.Fleet == nil {
		errs = append(errs, errors.New("fleet is missing"))
	}
	if _, err := block.NewHasher(o.Algorithm, minBlockSize); err != nil {
		errs = append(errs, err)
	}
	if o.BlockSize < 0 || o.BlockSize > block.MaxSize {
		errs = append(errs, fmt.Errorf("block size %d is not within 0..%d", o.BlockSize, block.MaxSize))
	}
	if err := fleet.ValidateServiceLevels(o.ServiceLevels); err != nil {
		errs = append(errs, err)
	}
	if o.Legs.Mode > policy.ModeNever {
		errs = append(errs, fmt.Errorf("mode %d of dividing requests is not known", o.Legs.Mode))
	}
	if o.MaxRequests < 0 {
		errs = append(errs, fmt.Errorf("limit of %d requests is negative", o.MaxRequests))
	}
	return errors.Join(errs...)
}
