package fleet

import (
	"sync"
	"testing"
	"time"
)

// levelled is whole with service levels.
func levelled(tokens int) Work {
	w := whole(tokens)
	w.Levels = DefaultServiceLevels()
	return w
}

// at returns what is under way on holder 0 at a time.
func at(f *Fleet, now int64) []Underway {
	list, _ := f.Snapshot().AppendUnderway(nil, 0, now, 100)
	return list
}

func TestWaitingRequestsGetTheirFirstTokensOneAfterTheOther(t *testing.T) {
	f := one(t)
	var first, second Reservation
	f.Reserve(&first, 0, levelled(1000), 0)
	f.Reserve(&second, 0, levelled(2000), 10*ms)
	f.Reserve(&Reservation{}, 0, whole(500), 20*ms) // no levels: it is left out
	got := at(f, 40*ms)
	if len(got) != 2 || !got[0].Waiting || !got[1].Waiting {
		t.Fatalf("%+v, want two waiting requests", got)
	}
	prompt := func(n int) int64 { timing := f.Snapshot().Timing(0); return int64(timing.Prompt(n, n) * 1e6) }
	if want := prompt(1000); got[0].First != want || got[0].Arrived != 0 {
		t.Errorf("the first request arrived at %d and begins its answer at %d; want 0 and %d", got[0].Arrived, got[0].First, want)
	}
	if want := prompt(1000) + prompt(2000); got[1].First != want || got[1].Arrived != 10*ms {
		t.Errorf("the second request arrived at %d and begins its answer at %d; want %d and %d", got[1].Arrived, got[1].First, 10*ms, want)
	}
	first.FirstToken(150 * ms)
	first.Tokens(3, 200*ms)
	got = at(f, 200*ms)
	if len(got) != 2 || got[1].Waiting || got[1].First != 150*ms || got[1].Output != 3 {
		t.Errorf("%+v: the first request has 3 tokens since 150 ms", got)
	}
	if want := 150*ms + prompt(2000); got[0].First != want {
		t.Errorf("the second prompt is computed since 150 ms, so its first token comes at %d, not at %d", want, got[0].First)
	}
	// A first prompt that is late is expected now: it does not come in the past.
	if got = at(f, 10_000*ms); got[0].First < 10_000*ms {
		t.Errorf("at 10 s, a waiting request has its first token at %d", got[0].First)
	}
	first.Release(10_000 * ms)
	second.Release(10_000 * ms)
	if got = at(f, 10_000*ms); len(got) != 0 {
		t.Errorf("%+v is left after the end of both", got)
	}
}

func TestARequestThatWaitedInTheRouterArrivedEarlier(t *testing.T) {
	f := one(t)
	w := levelled(10)
	w.Arrived, w.MostTokens, w.Choices = 5*ms, 100, 2
	var r Reservation
	f.Reserve(&r, 0, w, 30*ms)
	r.FirstToken(40 * ms)
	r.Tokens(9, 50*ms)
	if got := at(f, 60*ms)[0]; got.Arrived != 5*ms || got.MostTokens != 100 || got.Output != 4 {
		t.Errorf("%+v: it arrived at 5 ms, may have 100 tokens, and has 9 tokens in two answers", got)
	}
	w.Arrived = 90 * ms // a clock that was set back must not make a request arrive in its own future
	f.Reserve(&Reservation{}, 0, w, 70*ms)
	if got := at(f, 70*ms)[0]; got.Arrived != 70*ms {
		t.Errorf("a request that was dispatched at 70 ms arrived at %d", got.Arrived)
	}
}

func TestAnAnswerInOnePieceIsEstimated(t *testing.T) {
	f := one(t)
	w := levelled(1000)
	w.Whole, w.MostTokens = true, 30
	var r Reservation
	f.Reserve(&r, 0, w, 0)
	if got := at(f, 50*ms)[0]; !got.Waiting || got.Output != 0 || got.First < 100*ms {
		t.Errorf("%+v: its prompt is computed after about 100 ms", got)
	}
	if got := at(f, 310*ms)[0]; got.Waiting || got.Output < 8 || got.Output > 11 {
		t.Errorf("%+v: some 200 ms after its prompt it has about 10 tokens, 20 ms each", got)
	}
	if got := at(f, 60_000*ms)[0]; got.Output != 30 {
		t.Errorf("%+v: it has no more tokens than the client allows", got)
	}
}

func TestOnlySomeLevelsOfARequestCount(t *testing.T) {
	f := one(t)
	w := whole(10)
	for i := range 9 {
		w.Levels = append(w.Levels, ServiceLevel{FirstToken: time.Duration(i+1) * time.Second})
	}
	f.Reserve(&Reservation{}, 0, w, 0)
	if got := at(f, 0)[0]; len(got.Levels) != MaxServiceLevels {
		t.Errorf("%d levels count", len(got.Levels))
	}
}

func TestTheShareOfTheCacheThatIsFilled(t *testing.T) {
	f := one(t)
	f.SetTrust(0, TrustExact, "")
	var r Reservation
	f.Reserve(&r, 0, whole(16), 0) // the size of the cache counts from the first request on
	f.Cached(0, 600, 0)
	f.Cached(0, 0, 100)
	filled := func() float64 { return f.Snapshot().LoadAt(0, 0).Filled }
	if got := filled(); got != 0.5 {
		t.Errorf("500 of 1,000 blocks: filled is %v", got)
	}
	f.Cached(0, 5000, 0)
	if got := filled(); got != 1 {
		t.Errorf("more blocks than the cache has: filled is %v", got)
	}
	f.Emptied(0)
	if got := filled(); got != 0 {
		t.Errorf("after a reset filled is %v", got)
	}
}

func TestOfManyRequestsEveryNthIsListed(t *testing.T) {
	f := one(t)
	for i := range 10 {
		f.Reserve(&Reservation{}, 0, levelled(10+i), int64(i))
	}
	got, every := f.Snapshot().AppendUnderway(nil, 0, 0, 4)
	if len(got) != 4 || every != 3 || got[0].Arrived != 0 || got[3].Arrived != 9 {
		t.Errorf("every %d of %+v", every, got)
	}
	if got, every = f.Snapshot().AppendUnderway(nil, 0, 0, 10); len(got) != 10 || every != 1 {
		t.Errorf("%d of 10, every %d", len(got), every)
	}
	if got, every = f.Snapshot().AppendUnderway(nil, 77, 0, 10); len(got) != 0 || every != 1 {
		t.Errorf("a holder that does not exist has %+v, every %d", got, every)
	}
}

func TestRequestsUnderWayMayBeReadWhileTheyChange(t *testing.T) {
	f := one(t)
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() {
			for n := range int64(200) {
				var r Reservation
				w := levelled(100 + i)
				w.Whole = i == 3
				f.Reserve(&r, 0, w, n*ms)
				r.FirstToken((n + 1) * ms)
				r.Tokens(5, (n+2)*ms)
				r.Release((n + 3) * ms)
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	var dst []Underway
	for n := int64(0); ; n++ {
		select {
		case <-done:
			if got := at(f, 1000*ms); len(got) != 0 {
				t.Errorf("%+v is left", got)
			}
			return
		default:
		}
		dst, _ = f.Snapshot().AppendUnderway(dst[:0], 0, n%200*ms, 100)
		for _, u := range dst {
			if len(u.Levels) != 2 || u.Output < 0 || u.Output > 5 && u.MostTokens != 0 {
				t.Fatalf("%+v", u)
			}
		}
	}
}

func BenchmarkAppendUnderway(b *testing.B) {
	f := New(Config{})
	f.Put("http://a", serving("m", 1))
	for i := range 8 {
		r := &Reservation{}
		f.Reserve(r, 0, levelled(1000+i), 0)
		if i > 1 {
			r.FirstToken(ms)
		}
	}
	s := f.Snapshot()
	var dst []Underway
	b.ReportAllocs()
	for b.Loop() {
		dst, _ = s.AppendUnderway(dst[:0], 0, 2*ms, 64)
	}
	if len(dst) != 8 {
		b.Fatal(len(dst))
	}
}
