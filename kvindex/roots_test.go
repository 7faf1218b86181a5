package kvindex

import (
	"math/rand/v2"
	"testing"

	"github.com/warmpath/warmpath/block"
)

func TestRootsAreTheFirstKeysThatAreThere(t *testing.T) {
	var b blocks
	b.init()
	want := map[block.Key]uint32{}
	r := rand.New(rand.NewPCG(1, 2))
	for range 200_000 {
		key := block.Key(r.IntN(3000)) << 20
		if r.IntN(2) == 0 {
			strand := uint32(r.IntN(1<<20) + 1)
			b.addRoot(key, strand)
			want[key] = strand
		} else {
			b.dropRoot(key)
			delete(want, key)
		}
	}
	for k := range 3000 {
		key := block.Key(k) << 20
		if got := b.roots.get(key); got != want[key] || got != 0 && !b.mayBegin(key) {
			t.Fatalf("key %x: strand %d, want %d", key, got, want[key])
		}
	}
	if b.roots.n != len(want) {
		t.Fatalf("%d roots, want %d", b.roots.n, len(want))
	}
	b.sweepRoots() // none of the strands is there
	for k := range 3000 {
		key := block.Key(k) << 20
		if got := b.roots.get(key); got != 0 || b.mayBegin(key) {
			t.Fatalf("after the sweep key %x has strand %d", key, got)
		}
	}
}

func TestMilestonesTellWhereARequestLeavesAStrand(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		keys := make([]block.Key, 1+r.IntN(1+r.IntN(maxStrand)))
		for i := range keys {
			keys[i] = block.Key(r.Uint64())
		}
		var m milestones
		m[0] = ^uint64(0)
		m.reset()
		for from := 0; from < len(keys); {
			to := min(len(keys), from+1+r.IntN(300))
			m.note(uint32(from), keys[from:to])
			from = to
		}
		step := 1
		for (len(keys)-1)/step > lastMilestone {
			step *= 2
		}
		for j := 1; j*step < len(keys); j++ {
			if !m.agrees(uint(j), keys[j*step]) {
				t.Fatalf("of %d keys the %dth milestone is not that of the key", len(keys), j)
			}
		}
		left := 1 + r.IntN(len(keys))
		for i := left; i < len(keys); i++ {
			keys[i]++
		}
		on, off, got := m.leave(keys, uint32(len(keys)))
		if got != step || on%step != 0 && on != left-1 || off > on+step || off < left && off != len(keys) {
			t.Fatalf("%d of %d keys are the strand's: it is left between %d and %d, in steps of %d", left, len(keys), on, off, step)
		}
		// A milestone is right by chance now and then; eight in a row are not.
		if on >= left+8*step {
			t.Fatalf("%d of %d keys are the strand's, and the %dth seemed to be", left, len(keys), on)
		}
	}
}
