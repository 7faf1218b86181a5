package kvindex_test

import (
	"math/rand/v2"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// chain is a prompt in blocks of 16 tokens. The keys of its blocks serve as the engine's hashes, too.
type chain struct {
	tokens []block.Token
	keys   []block.Key
}

func newChain(tokens []block.Token) chain {
	h, _ := block.NewHasher(block.XXH3, 16)
	return chain{tokens, h.Append(nil, h.Root(block.Scope{}), 0, tokens, nil)}
}

func randomChain(r *rand.Rand, blocks int) chain { return newChain(random(r, 16*blocks)) }

// store announces new copies of the blocks whose numbers are in [from, to).
func (c chain) store(x *kvindex.Index, id fleet.Holder, tier block.Tier, from, to int) {
	s := kvindex.Stored{
		Tier: tier, Hashes: asHashes(c.keys[from:to]), Tokens: c.tokens[16*from : 16*to], BlockSize: 16, Origin: kvindex.OriginNew,
	}
	if from > 0 {
		s.Parent, s.HasParent = uint64(c.keys[from-1]), true
	}
	x.Store(id, &s)
}

// learn announces the whole chain for a holder, on the tier GPU.
func (c chain) learn(x *kvindex.Index, id fleet.Holder) {
	c.store(x, id, block.TierGPU, 0, len(c.keys))
}

func asHashes(keys []block.Key) []uint64 {
	out := make([]uint64, len(keys))
	for i, k := range keys {
		out[i] = uint64(k)
	}
	return out
}
