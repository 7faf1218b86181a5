package virtual

import (
	"math/rand/v2"
	"testing"
)

// A message that is dropped is noticed by the number of the next one. A calm request must therefore cause one.
func TestACalmPromptHasABlockOfItsOwn(t *testing.T) {
	w := &world{prompts: map[string][]uint32{}}
	for _, size := range []int{16, 32, 64} {
		for seed := range uint64(2000) {
			seed *= 2503 // also far from 0: the seed's upper bits say how much is shared
			_, ids := w.prompt(seed, 2*size)
			family, shared := rand.New(rand.NewPCG(seed%7, 1)), 0
			for shared < len(ids) && ids[shared] == 1000+family.Uint32N(50000) {
				shared++
			}
			if shared >= len(ids)/size*size {
				t.Fatalf("seed %d: %d of the %d tokens are the family's: all blocks of %d", seed, shared, len(ids), size)
			}
		}
	}
}
