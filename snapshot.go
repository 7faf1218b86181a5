package warmpath

import (
	"fmt"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// BlockKeys says what the keys of an index's blocks depend on. Two routers can exchange the blocks of a holder only if
// their BlockKeys are equal.
type BlockKeys struct {
	Model     string `json:"model"`      // the base model; each key depends on it
	Algorithm string `json:"algorithm"`  // the hash function: see [Options.Algorithm]
	BlockSize int    `json:"block_size"` // in tokens
	// Probe is the key of a fixed block of the model. It differs if two versions of the router compute keys in
	// different ways.
	Probe block.Key `json:"probe"`
}

// BlockKeys returns what the keys of h's index depend on, and whether there is an index for h's events.
func (r *Router) BlockKeys(h fleet.Holder) (k BlockKeys, ok bool) {
	x := r.of(h)
	if x == nil {
		return k, false
	}
	tokens := make([]block.Token, x.hasher.Size())
	for i := range tokens {
		tokens[i] = block.Token(i)
	}
	scope := block.Scope{Model: x.model, LoRA: "lora", Salt: "salt", Extra: "extra"}
	keys := x.hasher.Append(nil, x.hasher.Root(scope), 0, tokens, []block.Feature{{ID: "feature", Offset: 0}})
	return BlockKeys{Model: x.model, Algorithm: r.options.Algorithm.String(), BlockSize: x.hasher.Size(), Probe: keys[0]}, true
}

// Dump calls emit with all runs of blocks that the index has of h: see [kvindex.Index.Dump]. It returns the generation
// of that index; see [Router.Generation].
func (r *Router) Dump(h fleet.Holder, emit func(*kvindex.Held) error) (generation uint64, err error) {
	x := r.of(h)
	if x == nil {
		return 0, fmt.Errorf("holder %d serves no known model", h)
	}
	return x.generation, x.index.Dump(h, emit)
}

// Load adds a run of h's blocks that another router dumped: see [kvindex.Index.Load]. The other router must have the
// same [BlockKeys]. Load returns the generation as Store does.
func (r *Router) Load(h fleet.Holder, run *kvindex.Held) (generation uint64, err error) {
	x := r.of(h)
	if x == nil {
		return 0, fmt.Errorf("holder %d serves no known model", h)
	}
	if err := x.index.Load(h, run); err != nil {
		return x.generation, err
	}
	if run.Tier == block.TierGPU && len(run.Hashes) > 0 {
		r.fleet.Cached(h, len(run.Hashes), 0)
	}
	return x.generation, nil
}
