package policy

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

func TestLengthsRememberTheLastAnswersInOrder(t *testing.T) {
	var l lengths
	rnd := rand.New(rand.NewPCG(1, 2))
	var all []int32
	for range 3 * lengthsKept {
		n := rnd.IntN(40) // many are equal
		l.learn("m", 0, n)
		all = append(all, int32(n))
		want := slices.Sorted(slices.Values(all[max(len(all)-lengthsKept, 0):]))
		if got := l.append(nil, "m", 0); !slices.Equal(got, want) {
			t.Fatalf("after %d answers: %v\nwant %v", len(all), got, want)
		}
	}
	if got := l.append(nil, "another", 0); len(got) != 0 {
		t.Errorf("a model without answers has the lengths %v", got)
	}
}

func TestQuantilesAreOfLongerAnswers(t *testing.T) {
	sorted := []int32{10, 20, 30, 40, 50, 60, 70, 80}
	f := func(so, most int, want ...float64) {
		t.Helper()
		if got := quantiles(sorted, so, most); !slices.Equal(got[:], want) {
			t.Errorf("%d tokens so far, at most %d: %v, want %v", so, most, got, want)
		}
	}
	f(0, 0, 20, 40, 60, 80)
	f(40, 0, 50, 60, 70, 80)
	f(39, 0, 40, 50, 70, 80) // of 40, 50, 60, 70, 80
	f(70, 0, 80, 80, 80, 80)
	f(79, 0, 80, 80, 80, 80)
	f(0, 45, 20, 40, 45, 45)     // no answer is longer than the client allows
	f(60, 45, 61, 61, 61, 61)    // the count is beyond the limit: the next token is expected to be the last
	f(80, 0, 211, 211, 211, 211) // longer than all: at least the assumed mean
	f(1000, 0, 1250, 1250, 1250, 1250)
}

func TestLengthsAreSafeForConcurrentUse(t *testing.T) {
	var l lengths
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			var dst []int32
			for n := range 1000 {
				l.learn("m", uint64(n%3), n*i)
				if dst = l.append(dst[:0], "m", uint64(n%3)); !slices.IsSorted(dst) {
					t.Errorf("%v", dst)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestAClassHasLengthsOfItsOwn(t *testing.T) {
	var l lengths
	for range leastLengths - 1 {
		l.learn("m", 7, 10)
	}
	l.learn("m", 0, 500)
	if got := l.append(nil, "m", 7); !slices.Equal(got, []int32{10, 10, 10, 500}) {
		t.Errorf("three answers are too few: the model's lengths count, not %v", got)
	}
	l.learn("m", 7, 20)
	if got := l.append(nil, "m", 7); !slices.Equal(got, []int32{10, 10, 10, 20}) {
		t.Errorf("the class has the lengths %v", got)
	}
	if got := l.append(nil, "m", 8); len(got) != 5 {
		t.Errorf("a class without answers has the model's lengths, not %v", got)
	}
	if got := l.append(nil, "n", 7); len(got) != 0 {
		t.Errorf("the class of another model has the lengths %v", got)
	}
}

// TestRareClassesDoNotDisplaceABusyOne: prompts that all begin differently must not make a busy application's lengths
// unknown.
func TestRareClassesDoNotDisplaceABusyOne(t *testing.T) {
	var l lengths
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		l.learn("m", 7, 10)
	}
	for i := range 50_000 {
		l.learn("m", rnd.Uint64(), 500)
		if i%10 == 0 {
			l.learn("m", 7, 10)
		}
		if got := l.append(nil, "m", 7); len(got) != lengthsKept || got[0] != 10 {
			t.Fatalf("after %d other requests the class has the lengths %v", i, got)
		}
	}
	for range 100 * classSlots * mostVotes {
		l.learn("m", rnd.Uint64(), 500)
		if got := l.append(nil, "m", 7); got[0] != 10 {
			return // a class that is used no more gives way
		}
	}
	t.Error("a class that is used no more keeps its slot for ever")
}
