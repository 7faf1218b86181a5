package sim

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/workload"
)

// cursor is a position in a request's content, which consists of runs of tokens: run is the index of a run, and offset
// is an index in this run.
type cursor struct {
	run, offset int
	blocks      int // number of full blocks before the position
}

// identity returns the hash function of the modelled engines. As in a real engine, a hash stands for a block and all
// blocks before the block. The function computes hashes from the content's runs, not from tokens, so the tokens need
// not exist.
func identity(size int) engine.HashFunc {
	return func(dst []engine.Hash, r *engine.Request, tokens []block.Token) []engine.Hash {
		f := r.Owner.(*flight)
		if f.hashed.blocks != len(dst) {
			f.hashed = cursor{}
			dst = dst[:0]
		}
		h := uint64(len(r.Scope.LoRA))<<32 ^ 0x77a9
		for _, c := range []byte(r.Scope.LoRA) {
			h = fold(h, uint64(c))
		}
		if len(dst) > 0 {
			h = uint64(dst[len(dst)-1])
		}
		for n := len(dst) + 1; n*size <= len(tokens); n++ {
			for left := size; left > 0; {
				run := f.req.Run(f.hashed.run)
				take := min(left, run.Tokens-f.hashed.offset)
				h = fold(fold(h, run.ID), uint64(f.hashed.offset)<<32|uint64(take))
				left -= take
				if f.hashed.offset += take; f.hashed.offset == run.Tokens {
					f.hashed.run, f.hashed.offset = f.hashed.run+1, 0
				}
			}
			dst = append(dst, engine.Hash(h))
			f.hashed.blocks = n
		}
		return dst
	}
}

// fold mixes v into the hash h.
func fold(h, v uint64) uint64 { return block.Mix64(h + v*block.Golden + 0x632be59bd9b4e019) }

// hasRunsOnly reports whether the requests have no recorded token ids. In this case equal content always has equal run
// ids.
func hasRunsOnly(requests []workload.Request) bool {
	for i := range requests {
		if t := requests[i].Text; t != nil && len(t.Tokens) > 0 {
			return false
		}
	}
	return true
}
