package fleet

import (
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLoadIsGivenBackOnceOnEveryPath(t *testing.T) {
	work := Work{UncachedTokens: 100, ContextBlocks: 7}
	afterToken := Load{Requests: 1, ContextBlocks: 7, Processed: 1, Turns: 1000}
	gone := Load{Processed: 1, Turns: 1000}
	for name, steps := range map[string]struct {
		do   []func(*Reservation, int64)
		want []Load
	}{
		"answered":                  {do: []func(*Reservation, int64){(*Reservation).FirstToken, (*Reservation).Release}, want: []Load{afterToken, gone}},
		"failed before first token": {do: []func(*Reservation, int64){(*Reservation).Release}, want: []Load{gone}},
		"everything twice": {
			do:   []func(*Reservation, int64){(*Reservation).FirstToken, (*Reservation).FirstToken, (*Reservation).Release, (*Reservation).Release},
			want: []Load{afterToken, afterToken, gone, gone},
		},
		"first token after the end": {do: []func(*Reservation, int64){(*Reservation).Release, (*Reservation).FirstToken}, want: []Load{gone, gone}},
	} {
		t.Run(name, func(t *testing.T) {
			f := New(Config{})
			f.Put("http://a", serving("m", 1))
			s := f.Snapshot()
			var r Reservation
			r.Release(0) // the reservation holds no load yet
			f.Reserve(&r, 0, work, 0)
			if diff := cmp.Diff(Load{Requests: 1, Waiting: 1, PrefillTokens: 100, PendingTokens: 100, ContextBlocks: 7, Processed: 1, Turns: 1000}, s.Load(0)); diff != "" {
				t.Fatalf("reserved: %s", diff)
			}
			for i, do := range steps.do {
				do(&r, int64(i))
				if diff := cmp.Diff(steps.want[i], s.Load(0)); diff != "" {
					t.Fatalf("step %d: %s", i+1, diff)
				}
			}
			if r.Held() {
				t.Error("still held")
			}
		})
	}
}

func TestLoadIsGivenBackWhereItWasTaken(t *testing.T) {
	f := New(Config{})
	id := f.Put("http://a", serving("m", 1))
	var r Reservation
	f.Reserve(&r, 0, Work{UncachedTokens: 10, ContextBlocks: 1}, 0)
	f.Remove(id)
	r.Release(0)
	f.Put("http://a", serving("m", 1))
	if diff := cmp.Diff(Load{Processed: 1, Turns: 1000}, f.Snapshot().Load(0)); diff != "" {
		t.Error(diff)
	}
}

func TestConcurrentReleasesLeaveNothing(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", serving("m", 1))
	var all sync.WaitGroup
	for range 200 {
		var r Reservation
		f.Reserve(&r, 0, Work{UncachedTokens: 10, ContextBlocks: 2}, 0)
		for range 3 {
			all.Go(func() { r.FirstToken(1) })
			all.Go(func() { r.Release(2) })
		}
	}
	all.Wait()
	if diff := cmp.Diff(Load{Processed: 200, Turns: 200000}, f.Snapshot().Load(0)); diff != "" {
		t.Error(diff)
	}
}

func TestReserveTwiceIsABug(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", serving("m", 1))
	var r Reservation
	f.Reserve(&r, 0, Work{}, 0)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	f.Reserve(&r, 0, Work{}, 0)
}

func TestTheHotPathDoesNotAllocate(t *testing.T) {
	f := New(Config{})
	f.Put("http://a", serving("m", 1))
	var r Reservation
	allocs := testing.AllocsPerRun(1000, func() {
		s := f.Snapshot()
		p, _ := s.Pool("m")
		h := p.Holders[0]
		s.Available(h, 0)
		s.Trust(h)
		s.Load(h)
		f.Reserve(&r, h, Work{UncachedTokens: 10, ContextBlocks: 1}, 0)
		r.FirstToken(0)
		r.Release(0)
		f.Observe(h, OutcomeServed, 0)
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func BenchmarkReserveRelease(b *testing.B) {
	f := New(Config{})
	f.Put("http://a", serving("m", 1))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		var r Reservation
		for pb.Next() {
			f.Reserve(&r, 0, Work{UncachedTokens: 10, ContextBlocks: 1}, 0)
			r.FirstToken(0)
			r.Release(0)
		}
	})
}
