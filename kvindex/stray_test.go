package kvindex

import "testing"

func TestStrayNeverTellsLessThanTheFurthestAndForgetsItWithTheLast(t *testing.T) {
	const buckets = 1000
	for far := uint64(1); far < 400; far++ {
		s := stray(0).more(far)
		if got := s.reach(buckets); got < far {
			t.Fatalf("a key %d steps away: told to look %d steps far", far, got)
		}
		if got := s.more(1).less().reach(buckets); got < far {
			t.Fatalf("a key %d steps away and one that came and went: told to look %d steps far", far, got)
		}
		if got := s.less(); got != 0 {
			t.Fatalf("a key %d steps away has gone: %#x", far, got)
		}
	}
	s := stray(0)
	for range 100 {
		s = s.more(2)
	}
	for range 99 {
		s = s.less()
	}
	if s.reach(buckets) < 2 {
		t.Error("more than can be counted strayed and one is left: it is not looked for")
	}
}

// The way of what has no room comes by every bucket in as many steps as a search takes that does not know how far to
// go.
func TestWaysComeByAllBuckets(t *testing.T) {
	for _, n := range []uint64{1, 2, 3, 7, 64, 1000, 1366} {
		seen := make([]bool, n)
		b := n / 2
		seen[b] = true
		for step := uint64(1); step <= stray(unsure<<4).reach(n); step++ {
			b = nextBucket(b, step, n)
			seen[b] = true
		}
		for i := range seen {
			if !seen[i] {
				t.Fatalf("of %d buckets %d is never looked at", n, i)
			}
		}
	}
}
