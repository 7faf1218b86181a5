package replica

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/test/testenv"
)

// A tenant has spent its burst at one router. A router that starts then does not charge it a second time.
func TestWhatATenantSpentBeforeARouterHearsOfItIsNotCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const burst = 100
		b := newBus(1)
		registry := func() *tenant.Registry {
			r := tenant.NewRegistry()
			r.Use([]tenant.Config{{Name: "a", RequestsPerSecond: 1, Burst: burst}}, nil)
			return r
		}
		let := func(r *tenant.Registry) (n int) {
			for range burst {
				if r.ByName("a").Enter(time.Now().UnixNano()) == nil {
					r.ByName("a").Leave()
					n++
				}
			}
			return n
		}
		one, two := registry(), registry()
		b.join(t, DefaultConfig(), 1, one)
		testenv.Pass(time.Second)
		if n := let(one); n != burst {
			t.Fatalf("%d requests are let through", n)
		}
		testenv.Pass(time.Second)
		b.join(t, DefaultConfig(), 1, two)
		testenv.Pass(time.Second)
		if n := let(two); n != burst {
			t.Errorf("the router that starts lets %d of %d requests through", n, burst)
		}
	})
}

// Workers without events: only the routers' memory says what they have. A worker never saw the prompt of a request that
// was not sent to it.
func TestAPromptThatWasNotSentIsNotTold(t *testing.T) {
	for _, sent := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := newBus(1)
			b.approximate = 5 * time.Minute
			one := b.join(t, DefaultConfig(), 1, nil)
			testenv.Pass(time.Second)
			d := one.route(1, 640, "")
			if !sent {
				d.Unsent()
			}
			done(d)
			testenv.Pass(time.Second)
			two := b.join(t, DefaultConfig(), 1, nil)
			testenv.Pass(time.Second)
			if n := two.expected(); n > 0 != sent {
				t.Errorf("sent %v: a router that joins expects %d tokens", sent, n)
			}
		})
	}
}

// A router heard of a request, and then that the worker restarted. The router that sent the request was cut off, and
// does not know of the restart. What it tells of the request again is old.
func TestRequestsFromBeforeASilenceAreNotLearnedAgain(t *testing.T) {
	for _, restarted := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := newBus(1)
			b.approximate = 5 * time.Minute
			one, two := b.join(t, DefaultConfig(), 1, nil), b.join(t, DefaultConfig(), 1, nil)
			testenv.Pass(time.Second)
			done(one.route(1, 640, ""))
			testenv.Pass(time.Second)
			b.set(func() { one.link.off = true })
			testenv.Pass(3 * time.Second)
			if restarted {
				two.restart()
			}
			one.link.cut(false)
			testenv.Pass(3 * time.Second)
			if s := two.sync.Status(); len(s.Peers) != 1 || s.Counts.Repairs < 2 {
				t.Fatalf("the router is not back: %+v", s)
			}
			if n := two.expected(); n > 0 == restarted {
				t.Errorf("restarted %v: %d tokens are expected", restarted, n)
			}
		})
	}
}

func TestAPrefillThatEndsWhileTheRequestWaitsForItsWorkerIsNoLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		one, two := b.join(t, DefaultConfig(), 1, nil), b.join(t, DefaultConfig(), 0, nil)
		testenv.Pass(time.Second)
		d := one.route(1, 640, "")
		testenv.Pass(time.Second)
		d.FirstToken(time.Now().UnixNano())
		testenv.Pass(time.Second)
		if n := two.sync.Status().Peers[0].Refused; n != 1 {
			t.Fatalf("%d requests wait for their worker", n)
		}
		two.worker(0)
		testenv.Pass(2 * lookInterval)
		sameView(t, []*member{one, two}, 1)
		if l := two.loads()[0]; l.Waiting != 0 || l.PrefillTokens != 0 {
			t.Errorf("the prompt counts as not computed yet: %+v", l)
		}
		done(d)
	})
}

// The prompt of a request that has ended is told for two minutes, and waits for its worker for two minutes. The routers
// would expect it for five.
func TestAPromptIsToldAndWaitsForTwoMinutes(t *testing.T) {
	for age, expected := range map[time.Duration]bool{110 * time.Second: true, 130 * time.Second: false} {
		for _, waits := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				b := newBus(1)
				b.approximate = 5 * time.Minute
				one := b.join(t, DefaultConfig(), 1, nil)
				testenv.Pass(time.Second)
				done(one.route(1, 640, ""))
				var two *member
				if waits {
					two = b.join(t, DefaultConfig(), 0, nil)
					testenv.Pass(age)
					two.worker(0)
				} else {
					testenv.Pass(age)
					two = b.join(t, DefaultConfig(), 1, nil)
				}
				testenv.Pass(time.Second)
				if n := two.expected(); n > 0 != expected {
					t.Errorf("%v after the end %d tokens are expected (the request waits for its worker: %v)", age, n, waits)
				}
			})
		}
	}
}

// A router of an older version tells how long ago a request has ended, and not when it was placed.
func TestARequestThatHasEndedIsAsOldAsItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		b.approximate = 5 * time.Minute
		one := b.join(t, DefaultConfig(), 1, nil)
		d := one.route(1, 640, "")
		var placement warmpath.Placement
		d.Placement(&placement)
		done(d)
		one.stop()
		two := b.join(t, DefaultConfig(), 1, nil)
		testenv.Pass(time.Second)
		older := &speaker{s: two.sync, id: 7}
		older.tell(time.Now(), recordRecent, func(to []byte) []byte {
			to, _ = appendPlacement(appendAge(to, 4*time.Minute), &placement, wholePrompt)
			return to
		})
		for _, expected := range []bool{true, false} {
			if n := two.expected(); n > 0 != expected {
				t.Errorf("%d tokens are expected", n)
			}
			testenv.Pass(70 * time.Second)
		}
	})
}

// Keys that were dropped after the last look at a peer are counted when it goes.
func TestKeysDroppedBeforeAPeerGoesAreCounted(t *testing.T) {
	if testenv.Race() {
		t.Skip("it takes long with the race detector, and has one goroutine")
	}
	s, workers := listener(t, defaultWaiting)
	(&member{fleet: workers}).worker(0)
	now := time.Unix(1000, 0)
	p := &speaker{s: s, id: 1}
	for range 200 { // 2^21 keys fit
		p.begin(now, recordAdd, "http://w0", warmpath.MaxPlacementKeys)
	}
	p.tell(now, recordGoodbye, func(to []byte) []byte { return to })
	if n := s.Status().Counts.Dropped[string(dropMemory)]; n != 200-1<<21/warmpath.MaxPlacementKeys {
		t.Errorf("%d requests are counted", n)
	}
}

func TestPeersAndTheirRequestsAreBounded(t *testing.T) {
	s, _ := listener(t, defaultWaiting)
	now := time.Unix(1000, 0)
	for i := range 257 {
		(&speaker{s: s, id: uint64(i + 1)}).begin(now, recordAdd, fmt.Sprint("http://w", i), 1)
	}
	if n, dropped := len(s.peers), s.Status().Counts.Dropped[string(dropTooMany)]; n != 256 || dropped != 1 {
		t.Errorf("%d routers are followed, and %d packets were dropped", n, dropped)
	}
	p := newPeer(header{from: 1}, s.parts.NewPeer(), &s.receiver.underWay)
	for id := range uint64(8193) { // 8192 endings are remembered
		p.free(ending{id: id + 1}, now)
	}
	for id, want := range map[uint64]bool{1: true, 2: false, 8193: false} {
		if isNew, _ := p.follow(&warmpath.Placement{ID: id}, 1, now); isNew != want {
			t.Errorf("a request that has ended begins again: %v, the number %d of 8193", isNew, id)
		}
	}
	for id := range uint64(1<<16 - 1) { // and request 1
		if _, room := p.follow(&warmpath.Placement{ID: 10_000 + id}, 1, now); !room {
			t.Fatalf("there is no room for request %d", id)
		}
	}
	if isNew, room := p.follow(&warmpath.Placement{ID: 5_000_000}, 1, now); isNew || room {
		t.Error("more than 65,536 requests of a router are followed")
	}
}

// What waits for workers takes 16 MiB for each router, and 128 MiB for all.
func TestAPeersRequestsWaitIn16MiB(t *testing.T) {
	s := New(DefaultConfig(), Parts{Log: discard})
	budget := s.receiver.budget
	if budget != (waitingBudget{16 << 20, 128 << 20}) {
		t.Errorf("the bounds are %+v", budget)
	}
	s, _ = listener(t, budget)
	now := time.Unix(1000, 0)
	p := &speaker{s: s, id: 1}
	for range 200 {
		p.begin(now, recordRecent, "http://w0", warmpath.MaxPlacementKeys)
	}
	if n := waits(t, s); n > 16<<20 || n < 15<<20 {
		t.Errorf("%d bytes wait", n)
	}
}
