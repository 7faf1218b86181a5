package synth

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/warmpath/warmpath/block"
)

// rng is the random number generator splitmix64 (Steele, Lea, Flood 2014). A trace is made from the numbers of one rng.
type rng struct{ state uint64 }

func (r *rng) next() uint64 {
	r.state += block.Golden
	return block.Mix64(r.state)
}

// n returns a random number in [0, k). The modulo has a small bias, which stays, because it determines the bytes of the
// traces.
func (r *rng) n(k int) int { return int(r.next() % uint64(k)) }

// chainSeed is the seed of Dynamo's and SMG's hashes.
const chainSeed = 1337

// NextKey computes the key of a block as the peers do: XXH3-64 of the parent's key and the block's local hash. The key
// of a chain's first block is its local hash.
func NextKey(parent, local uint64) uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], parent)
	binary.LittleEndian.PutUint64(b[8:], local)
	return xxh3.HashSeed(b[:], chainSeed)
}

// node is one distinct block.
type node struct{ local, key uint64 }

// forest has all blocks of a trace. A chain is a list of indexes in nodes.
type forest struct {
	rng   rng
	nodes []node
}

// extend appends new blocks to chain until it has n blocks.
func (f *forest) extend(chain []int32, n int) []int32 {
	for len(chain) < n {
		b := node{local: f.rng.next()}
		b.key = b.local
		if k := len(chain); k > 0 {
			b.key = NextKey(f.nodes[chain[k-1]].key, b.local)
		}
		f.nodes = append(f.nodes, b)
		chain = append(chain, int32(len(f.nodes)-1))
	}
	return chain
}

// remember adds a chain to the history of a conversation. A history has at most four chains; a further chain replaces a
// random one.
func (f *forest) remember(history [][]int32, chain []int32) [][]int32 {
	if len(history) < 4 {
		return append(history, chain)
	}
	history[f.rng.n(4)] = chain
	return history
}
