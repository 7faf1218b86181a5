package kvindextest

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/kvindex"
)

// Effort says how long a model test runs.
type Effort struct {
	Runs  int    // the number of histories
	Steps int    // the number of operations in each history
	Seed  uint64 // the seed of all histories; 0: a new seed each time, which the message of a failure contains
	// Progress is called after each hundredth of the histories, with the number of finished histories. Several
	// goroutines call it. It may be nil.
	Progress func(done int)
}

// Model checks that an index gives the same answers as the naive reference after every operation of random histories.
// In a history, blocks are stored and removed several times, in parts, in several sizes, on several tiers and in
// several groups. Parents are announced after their children, or removed before their children. There are holes and
// wrong hashes, and holders are cleared and forgotten. The message of a failure contains the shortest history that was
// found to fail.
func Model(t *testing.T, make Maker, effort Effort) {
	t.Helper()
	seed := effort.Seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	if err := runModel(make, seed, effort); err != nil {
		t.Fatal(err)
	}
}

// runModel checks histories on all processors. It returns the failure of the first history that fails.
func runModel(make Maker, seed uint64, effort Effort) error {
	return effort.inParallel(func(i int) error {
		m := newModel(&seeded{rand.New(rand.NewPCG(seed, uint64(i)))})
		var history []op
		for range effort.Steps {
			o, _ := m.next()
			history = append(history, o)
		}
		if bad := m.check(make, history); bad != nil {
			return fmt.Errorf("seed %d, history %d: %w", seed, i, m.explain(make, history[:bad.step+1]))
		}
		return nil
	})
}

// inParallel calls f for the number of each history, and waits until all calls have ended. After a failure it begins no
// further call. It returns the error of the lowest number that failed.
func (e *Effort) inParallel(f func(i int) error) error {
	var next, done atomic.Int64
	var failed sync.Map
	var workers sync.WaitGroup
	n, hundredth := e.Runs, max(e.Runs/100, 1)
	for range min(n, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := f(i); err != nil {
					failed.Store(i, err)
					next.Store(int64(n))
				}
				if d := int(done.Add(1)); e.Progress != nil && d%hundredth == 0 {
					e.Progress(d)
				}
			}
		})
	}
	workers.Wait()
	first, err := n, error(nil)
	failed.Range(func(i, e any) bool {
		if i.(int) < first {
			first, err = i.(int), e.(error)
		}
		return true
	})
	return err
}

type seeded struct{ *rand.Rand }

func (s *seeded) choose(n int) (int, bool) { return s.IntN(n), true }

// Fuzz checks the history whose choices are a fuzzer's bytes.
func Fuzz(t *testing.T, make Maker, data []byte) {
	t.Helper()
	m := newModel(&stream{data})
	var history []op
	for len(history) < 300 {
		o, ok := m.next()
		if !ok {
			break
		}
		history = append(history, o)
	}
	if bad := m.check(make, history); bad != nil {
		t.Fatal(m.explain(make, history[:bad.step+1]))
	}
}

// stream is a source that takes each choice from one byte.
type stream struct{ data []byte }

func (s *stream) choose(n int) (int, bool) {
	if len(s.data) == 0 {
		return 0, false
	}
	c := int(s.data[0]) % n
	s.data = s.data[1:]
	return c, true
}

// difference describes the first answer in which an index differs from the reference.
type difference struct {
	step int
	what string
}

// check runs a history and returns the first difference, or nil if there is none.
func (m *model) check(make Maker, history []op) (bad *difference) {
	step := -1
	defer func() {
		if r := recover(); r != nil {
			bad = &difference{step, fmt.Sprint("panic: ", r)}
		}
	}()
	want := Reference(m.hasher, kvindex.Config{})
	got := make(m.hasher, kvindex.Config{})
	for i := range history {
		step = i
		history[i].apply(want)
		history[i].apply(got)
		if d := m.compare(got, want, i%3 == 0); d != "" {
			return &difference{i, d}
		}
	}
	return nil
}

// compare compares the answers of an index and of the reference for every text, or for the first half of every text,
// and their numbers of engine hashes and of waiting blocks. It returns "" if they are equal.
func (m *model) compare(got, want *Door, half bool) string {
	for i := range m.texts {
		keys := m.texts[i].keys
		if half {
			keys = keys[:(len(keys)+1)/2]
		}
		w, g := want.Match(keys, nil), got.Match(keys, nil)
		if !slices.Equal(w, g) {
			return fmt.Sprintf("match of %d blocks of text %d (- reference, + index):\n%s", len(keys), i, cmp.Diff(w, g))
		}
	}
	if got.Stats == nil {
		return ""
	}
	w, g := want.Stats(), got.Stats()
	if w.Hashes != g.Hashes || w.Waiting != g.Waiting {
		return fmt.Sprintf("hashes %d, waiting %d; the reference has %d, %d", g.Hashes, g.Waiting, w.Hashes, w.Waiting)
	}
	return ""
}

// explain shrinks a history that fails and describes it.
func (m *model) explain(make Maker, history []op) error {
	history = shrink(history, func(h []op) bool { return m.check(make, h) != nil })
	bad := m.check(make, history)
	var b strings.Builder
	fmt.Fprintf(&b, "blocks of %d tokens; after\n", m.hasher.Size())
	for i := range history {
		fmt.Fprintf(&b, "  %v\n", &history[i])
	}
	fmt.Fprintf(&b, "%s", bad.what)
	return fmt.Errorf("%s", b.String())
}

// shrink removes operations from a history as long as the history still fails: first halves, then quarters, and at last
// single operations. Then it removes single hashes from the ends of the remaining operations.
func shrink(history []op, fails func([]op) bool) []op {
	for size := (len(history) + 1) / 2; size > 0; {
		shorter := false
		for from := 0; from < len(history); {
			to := min(from+size, len(history))
			without := append(append([]op(nil), history[:from]...), history[to:]...)
			if fails(without) {
				history, shorter = without, true
				continue
			}
			from += size
		}
		if !shorter || size > 1 {
			size /= 2
		}
	}
	for i := range history {
		for o := trim(history[i]); o != nil; o = trim(history[i]) {
			trimmed := append([]op(nil), history...)
			trimmed[i] = *o
			if !fails(trimmed) {
				break
			}
			history = trimmed
		}
	}
	return history
}

// trim returns an operation without its last block. It returns nil if the operation has only one block, or none that
// can be removed alone.
func trim(o op) *op {
	s := &o.stored
	switch {
	case o.kind == opRemove && len(o.hashes) > 1:
		o.hashes = o.hashes[:len(o.hashes)-1]
	case o.kind == opStore && len(s.Hashes) > 1 && len(s.Tokens) == len(s.Hashes)*s.BlockSize:
		s.Hashes = s.Hashes[:len(s.Hashes)-1]
		s.Tokens = s.Tokens[:len(s.Hashes)*s.BlockSize]
	default:
		return nil
	}
	return &o
}
