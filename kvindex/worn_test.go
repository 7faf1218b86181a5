package kvindex

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/warmpath/warmpath/block"
)

func TestNamesTellWhatWasOfferedAndNotDropped(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var n names
	n.loose = true
	unmix := n.seed.unmixer()
	want := map[uint64]block.Key{}
	var known []uint64
	for op := range 600_000 {
		handle := r.Uint64()
		switch op % 5 {
		case 0:
			handle = r.Uint64N(1000) // small ones, and again and again
		case 1:
			handle = unmix(r.Uint64N(4000) << 40) // of one segment, and some buckets of it
		}
		if len(known) > 30_000 || op%3 == 0 && len(known) > 0 { // as much goes as comes
			i := r.IntN(len(known))
			gone := known[i]
			known[i] = known[len(known)-1]
			known = known[:len(known)-1]
			key, at := n.lookUp(gone)
			if key != want[gone] {
				t.Fatalf("operation %d: %x names %x, want %x", op, gone, key, want[gone])
			}
			n.drop(gone, at)
			delete(want, gone)
		}
		if key := n.get(handle); key != want[handle] {
			t.Fatalf("operation %d: %x names %x, want %x", op, handle, key, want[handle])
		}
		key := block.Key(r.Uint64() | 1)
		if want[handle] == 0 {
			want[handle] = key
			known = append(known, handle)
		}
		if got := n.offer(handle, key); got != want[handle] {
			t.Fatalf("operation %d: %x names %x, want %x", op, handle, got, want[handle])
		}
	}
	seen := 0
	for i := range nameSegments {
		n.each(i, func(handle uint64, key block.Key) {
			if seen++; want[handle] != key {
				t.Errorf("%x is said to name %x, want %x", handle, key, want[handle])
			}
		})
	}
	if seen != len(want) || n.n != len(want) {
		t.Errorf("%d names, %d counted, want %d", seen, n.n, len(want))
	}
}

// TestWhatIsWornStaysNearHome: where as much comes as goes, most names must still be in the line where they are
// looked for first, and segments must not be as full as they may be else.
func TestWhatIsWornStaysNearHome(t *testing.T) {
	const n = 60_000
	r := rand.New(rand.NewPCG(5, 6))
	w := wornNames(n, r)
	at := 0
	for i := range w.names.segments {
		g := &w.names.segments[i]
		for p := 0; p < len(g.words); p += 2 {
			if g.words[p+1] != 0 && g.home(uint64(i)<<56|g.words[p]>>8) == uint64(p/bucketWords) {
				at++
			}
		}
	}
	if at < n*3/4 {
		t.Errorf("%d of %d names are at home", at, n)
	}
	if load := float64(n) / float64(w.names.buckets*4); load < 0.5 || load > 0.8 {
		t.Errorf("names are full by %.2f", load)
	}
	if load := float64(n) / float64(w.slots.words/2); load < 0.5 || load > 0.8 {
		t.Errorf("slots are full by %.2f", load)
	}
}

// worn is names and slots of which as much came and went as they have, some times.
type worn struct {
	names   names
	slots   slots
	handles []uint64
	next    int
	r       *rand.Rand
}

func wornNames(n int, r *rand.Rand) *worn {
	w := &worn{handles: make([]uint64, n), r: r}
	w.names.loose, w.slots.loose = true, true
	for i := range w.handles {
		w.handles[i] = r.Uint64()
		w.add(w.handles[i])
	}
	for range 6 * n {
		w.turn()
	}
	return w
}

func (w *worn) add(handle uint64) {
	key := block.Key(handle ^ 0x5555)
	w.names.offer(handle, key)
	w.slots.insert(key, spotOf(1, uint32(w.next&0xffff)), nil)
}

// turn lets one go and another come.
func (w *worn) turn() {
	handle := &w.handles[w.next]
	key, at := w.names.lookUp(*handle)
	w.names.drop(*handle, at)
	w.slots.del(key, nil)
	*handle = w.r.Uint64()
	w.add(*handle)
	w.next = (w.next + 1) % len(w.handles)
}

// BenchmarkWorn: a name and a slot go, and others come, one by one in full tables. What worn segments have room for,
// and what makes room at home in names, must pay here.
func BenchmarkWorn(b *testing.B) {
	for _, n := range []int{180_000, 260_000, 380_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			w := wornNames(n, rand.New(rand.NewPCG(7, 8)))
			b.ReportAllocs()
			for b.Loop() {
				w.turn()
			}
		})
	}
}
