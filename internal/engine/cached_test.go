package engine

import (
	"math/rand/v2"
	"testing"
)

// The test makes random operations on the table and on a Go map, and compares the results. It uses small hashes and
// hashes that differ only in their upper bits, because such hashes could collide often.
func TestTheTableOfHashesIsAMap(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var c cached
	want := map[Hash]int32{}
	for step := range 50_000 {
		h := Hash(random.Uint64N(300)) << (random.Uint64N(2) * 55)
		_, known := want[h]
		switch {
		case known && random.IntN(2) == 0:
			c.remove(h)
			delete(want, h)
		case step%2 == 0 || known:
			id := 1 + random.Int32N(1000)
			c.set(h, id)
			want[h] = id
		}
		if got := c.find(h); got != want[h] {
			t.Fatalf("step %d: %x is at %d, want %d", step, h, got, want[h])
		}
		if step%1000 > 0 {
			continue
		}
		for h, id := range want {
			if got := c.find(h); got != id {
				t.Fatalf("step %d: %x is at %d, want %d", step, h, got, id)
			}
		}
		if c.n != len(want) {
			t.Fatalf("step %d: %d hashes, want %d", step, c.n, len(want))
		}
	}
	c.clear()
	for h := range want {
		if got := c.find(h); got != nullBlock {
			t.Fatalf("%x is at %d after all were taken out", h, got)
		}
	}
}
