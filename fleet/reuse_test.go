package fleet

import (
	"fmt"
	"slices"
	"testing"
)

func TestIDsOfHoldersThatLeftAreUsedAgain(t *testing.T) {
	f := New(Config{})
	facts := Facts{Models: []Model{{ID: "m"}}, Ranks: 2}
	old := f.Put("http://old", facts)
	f.Put("http://stays", facts)
	hour := int64(keepIDs)
	retire := func(now int64, want ...Holder) {
		t.Helper()
		if got := f.Retire(now); !slices.Equal(got, want) {
			t.Errorf("at %d h: retired %v, want %v", now/hour, got, want)
		}
	}
	retire(0)
	f.Remove(old)
	retire(1 * hour) // the hour until the ids are retired begins with this first call after the removal
	retire(2*hour - 1)

	var busy Reservation
	f.Reserve(&busy, 1, Work{}, 2*hour)
	retire(2*hour, 0)
	f.Expire(5 * hour)
	retire(5 * hour) // the owner of the request may still refer to holder 1
	busy.Release(6 * hour)
	busy.Release(9 * hour)
	retire(7*hour - 1)
	retire(7*hour, 1)
	f.Observe(1, OutcomeFailed, 7*hour) // an outcome that comes after the id was retired has no effect
	f.Expire(7 * hour)
	if f.Snapshot().Rank(1) != 0 || f.Snapshot().Worker(1) != nil || f.Snapshot().Available(1, 0) {
		t.Error("a retired id still belongs to a holder")
	}

	if again := f.Put("http://old", facts); !slices.Equal(f.Snapshot().ByID(again).Holders, []Holder{4, 5}) {
		t.Errorf("before Reuse, holders %v", f.Snapshot().ByID(again).Holders)
	}
	f.Reuse([]Holder{0, 1})
	id := f.Put("http://next", facts)
	next := f.Snapshot().ByID(id)
	if got := slices.Sorted(slices.Values(next.Holders)); !slices.Equal(got, []Holder{0, 1}) {
		t.Errorf("after Reuse, holders %v", got)
	}
	for _, h := range next.Holders {
		s := f.Snapshot()
		if s.Worker(h) != next || next.Facts.FirstRank+slices.Index(next.Holders, h) != s.Rank(h) || s.Load(h).Requests != 0 || !s.Available(h, 0) {
			t.Errorf("holder %d begins as %+v of rank %d", h, s.Load(h), s.Rank(h))
		}
	}
	if n := f.Snapshot().Holders(); n != 6 {
		t.Errorf("%d ids", n)
	}
}

// A platform gives an address that is free to another machine. What the fleet learned of the earlier one is not true of
// the later one.
func TestAReusedAddressIsANewWorker(t *testing.T) {
	f := New(Config{})
	facts := Facts{Engine: EngineVLLM, Models: []Model{{ID: "m"}}, Ranks: 2}
	old := f.Put("http://a", facts)
	was := f.Snapshot().ByID(old)
	var r, second Reservation
	f.Reserve(&r, was.Holders[0], Work{PromptTokens: 500, UncachedTokens: 500}, 1)
	for range 5 {
		f.Observe(was.Holders[0], OutcomeFailed, 2)
	}
	f.SetDraining(old, true)
	f.SetTrust(was.Holders[0], TrustExact, "")
	f.Remove(old)
	next := f.Put("http://a/", facts)
	is := f.Snapshot().ByID(next)
	if next == old || f.Snapshot().ByID(old) != nil || is.Incarnation != was.Incarnation+1 || is.Draining || !is.Ready {
		t.Fatalf("worker %d, was %d; incarnation %d, was %d: %+v", next, old, is.Incarnation, was.Incarnation, is)
	}
	h := is.Holders[0]
	s := f.Snapshot()
	if trust, _ := s.Trust(h); slices.Contains(was.Holders, h) || s.Load(h) != (Load{}) || !s.Available(h, 3) || trust != initialTrust.level {
		t.Errorf("holder %d of %v after %v begins with the load %+v, available: %t, trust %v", h, is.Holders, was.Holders, s.Load(h), s.Available(h, 3), trust)
	}
	// What comes late of the earlier worker counts for the earlier worker.
	f.Reserve(&second, h, Work{PromptTokens: 10, UncachedTokens: 10}, 4)
	for range 5 {
		f.Observe(was.Holders[0], OutcomeFailed, 5)
	}
	r.Release(5)
	if s := f.Snapshot(); s.Load(h).Requests != 1 || !s.Available(h, 6) || s.Load(was.Holders[0]).Requests != 0 {
		t.Errorf("load %+v, available: %t; the earlier holder has %+v", s.Load(h), s.Available(h, 6), s.Load(was.Holders[0]))
	}
	f.Remove(next)
	third := f.Put("http://a", facts)
	if third := f.Snapshot().ByID(third); third.Incarnation != is.Incarnation+1 {
		t.Errorf("incarnation %d after %d", third.Incarnation, is.Incarnation)
	}
}

// A worker may report one rank less for a while: the rank is the same when it returns.
func TestARankThatComesBackInTimeKeepsItsID(t *testing.T) {
	f := New(Config{})
	hour := int64(keepIDs)
	for i := range int64(5) { // the second rank is away for half an hour, five times
		id := f.Put("http://a", Facts{Models: []Model{{ID: "m"}}, Ranks: 2})
		if h := f.Snapshot().ByID(id).Holders[1]; h != 1 {
			t.Fatalf("holder %d", h)
		}
		f.Put("http://a", Facts{Models: []Model{{ID: "m"}}})
		for _, at := range []int64{0, hour / 2} {
			if got := f.Retire(i*2*hour + at); got != nil {
				t.Fatalf("retired %v", got)
			}
		}
	}
}

// An expired reservation holds no load, so the caller may use the reservation again without a release.
// The reservation must not keep the id of its former holder in use.
func TestAnExpiredReservationThatIsUsedAgainPinsNoID(t *testing.T) {
	f := New(Config{})
	facts := Facts{Models: []Model{{ID: "m"}}}
	a := f.Put("http://a", facts)
	f.Put("http://b", facts)
	hour := int64(keepIDs)
	var r Reservation
	f.Reserve(&r, 0, Work{}, 1)
	if n := f.Expire(hour); n != 1 {
		t.Fatalf("%d requests expired", n)
	}
	f.Reserve(&r, 1, Work{}, hour)
	r.Release(hour)
	f.Remove(a)
	f.Retire(2 * hour)
	if got := f.Retire(3 * hour); !slices.Equal(got, []Holder{0}) {
		t.Errorf("retired %v", got)
	}
}

// Workers may come and go for ever. The fleet remembers only a bounded number of workers that left.
func TestWorkersThatLeftLongAgoAreForgotten(t *testing.T) {
	f := New(Config{})
	facts := Facts{Models: []Model{{ID: "m"}}, Ranks: 2}
	hour := int64(keepIDs)
	stays := f.Put("http://stays", facts)
	var last WorkerID
	for i := range int64(2 * keepWorkers) {
		id := f.Put(fmt.Sprint("http://", i), facts)
		if id <= last || f.Snapshot().ByID(id).Incarnation != 0 {
			t.Fatalf("worker %d has id %d after %d, incarnation %d", i, id, last, f.Snapshot().ByID(id).Incarnation)
		}
		last = id
		f.Remove(id)
		f.Reuse(f.Retire(i * hour))
	}
	f.Reuse(f.Retire((2*keepWorkers + 1) * hour))
	if len(f.known) > keepWorkers+1 || len(f.byURL) != len(f.known) || len(f.former) > keepWorkers || len(f.byPlace) != 2 || len(f.gone) != 0 || f.Snapshot().Holders() > 8 {
		t.Errorf("%d workers, %d URLs, %d ranks, %d of them gone, %d ids", len(f.known), len(f.byURL), len(f.byPlace), len(f.gone), f.Snapshot().Holders())
	}
	lately, never := fmt.Sprint("http://", 2*keepWorkers-1), fmt.Sprint("http://", 2*keepWorkers)
	if !f.Known("http://stays") || !f.Known(lately) || f.Known("http://0") || f.Known(never) {
		t.Errorf("known: present %t, left lately %t, left long ago %t, never seen %t", f.Known("http://stays"), f.Known(lately), f.Known("http://0"), f.Known(never))
	}
	if again := f.Put("http://7", facts); again <= last || f.Snapshot().ByID(again) == nil || f.Snapshot().ByID(stays) == nil {
		t.Errorf("a forgotten worker comes back with the id %d", again)
	}
	if again := f.Put("http://8000", facts); again <= last || f.Snapshot().ByID(again).Incarnation != 1 {
		t.Errorf("a worker that left lately comes back with the id %d, incarnation %d", again, f.Snapshot().ByID(again).Incarnation)
	}
	if id := f.Put("http://stays", facts); id != stays {
		t.Errorf("a present worker gets another id: %d", id)
	}
}

// A worker decides how many model names it reports, and may report others at each probe.
func TestModelNamesThatNoWorkerServesAreForgotten(t *testing.T) {
	f := New(Config{})
	for i := range 1000 {
		f.Put("http://a", Facts{Models: []Model{{ID: "m"}, {ID: fmt.Sprint("name ", i)}}})
	}
	pool, _ := f.Snapshot().Pool("m")
	pool.Turn(true)
	f.Retire(0)
	if n := len(f.turns); n != 2 {
		t.Errorf("turns of %d names are kept, and 2 names are served", n)
	}
	f.Put("http://b", Facts{Models: []Model{{ID: "m"}}})
	if pool, _ := f.Snapshot().Pool("m"); pool.Turn(false) != 1 {
		t.Error("the turn of a served model began anew")
	}
}

// The clock may jump between a decision and the reservation.
func TestNothingIsReservedOnARetiredID(t *testing.T) {
	f := New(Config{})
	f.Remove(f.Put("http://a", Facts{Models: []Model{{ID: "m"}}}))
	f.Retire(0)
	f.Retire(int64(2 * keepIDs))
	var r Reservation
	if f.Reserve(&r, 0, Work{}, int64(2*keepIDs)) {
		t.Error("a request was reserved on a holder that does not exist")
	}
	r.Release(int64(2 * keepIDs)) // releases nothing
}
