package replica

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// peerOf returns what m knows of another router.
func (m *member) peerOf(other *member, see func(p *peer)) {
	m.sync.mu.Lock()
	defer m.sync.mu.Unlock()
	see(m.sync.peers[other.sync.id])
}

func TestALongRequestOfAPeerNeverExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		one, two := b.join(t, DefaultConfig(), 1, nil), b.join(t, DefaultConfig(), 1, nil)
		testenv.Pass(time.Second)
		d := one.route(1, 100, "")
		for range 20 {
			testenv.Pass(30 * time.Second)
			two.fleet.Expire(time.Now().UnixNano())
		}
		if two.requests() != 1 {
			t.Error("a request that takes ten minutes does not count any more")
		}
		done(d)
		testenv.Pass(40 * time.Millisecond)
		if two.requests() != 0 {
			t.Error("its end was not heard")
		}
	})
}

func TestLoadThatIsGoneThoughTheRequestIsNotComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		one, two := b.join(t, DefaultConfig(), 1, nil), b.join(t, DefaultConfig(), 1, nil)
		testenv.Pass(time.Second)
		d := one.route(1, 100, "")
		testenv.Pass(10 * time.Millisecond)
		two.fleet.Expire(time.Now().Add(fleet.DefaultExpiry + time.Second).UnixNano())
		if two.requests() != 0 {
			t.Fatal("the test took no load away")
		}
		testenv.Pass(retainInterval + time.Second)
		sameView(t, []*member{one, two}, 1)
		done(d)
	})
}

// A machine that swaps, or a virtual machine that moves, stops a process for a while. The others are not dead then.
func TestAStallOfThisProcessIsNoSilenceOfItsPeers(t *testing.T) {
	for _, readFirst := range []bool{true, false} {
		for _, stall := range []time.Duration{time.Second, 1500 * time.Millisecond, 20 * time.Second} {
			t.Run(fmt.Sprint(stall, " read first ", readFirst), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBus(1)
					one, two := b.join(t, DefaultConfig(), 1, nil), b.join(t, DefaultConfig(), 1, nil)
					testenv.Pass(time.Second)
					d := one.route(1, 100, "")
					testenv.Pass(100 * time.Millisecond)
					var before *peer
					two.peerOf(one, func(p *peer) { before = p })
					for range 3 { // one stall after another
						thaw := two.link.freeze()
						testenv.Pass(stall)
						thaw(readFirst)
						for range 20 {
							testenv.Pass(100 * time.Millisecond)
							if two.peerOf(one, func(p *peer) {
								if p != before {
									t.Fatal("a peer that lives was taken for dead")
								}
							}); two.requests() != 1 {
								t.Fatal("the load of a peer that lives is gone")
							}
						}
					}
					done(d)
					// Now the peer dies while this process stands still, and after what it read.
					thaw := two.link.freeze()
					testenv.Pass(stall / 2)
					b.set(func() { one.link.off = true })
					testenv.Pass(stall / 2)
					thaw(readFirst)
					testenv.Pass(2 * time.Second)
					if n := len(two.sync.Status().Peers); n != 0 {
						t.Errorf("2 s after the stall the dead peer counts as alive")
					}
				})
			})
		}
	}
}

func TestRoutersNumberThemselvesAlike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		var all []*member
		for range 4 {
			all = append(all, b.join(t, DefaultConfig(), 1, nil))
		}
		testenv.Pass(time.Second)
		check := func(live []*member) {
			t.Helper()
			slices.SortFunc(live, func(x, y *member) int {
				if x.sync.id < y.sync.id {
					return -1
				}
				return 1
			})
			for i, m := range live {
				if want := [2]int{i, len(live)}; m.place() != want {
					t.Errorf("a router has the place %v, want %v", m.place(), want)
				}
			}
		}
		check(slices.Clone(all))
		all[0].stop()
		testenv.Pass(10 * time.Millisecond)
		check(slices.Clone(all[1:]))
		b.set(func() { all[1].link.off = true })
		testenv.Pass(2 * time.Second)
		check(slices.Clone(all[2:]))
		if want := [2]int{0, 1}; all[1].place() != want {
			t.Errorf("a router that is cut off has the place %v", all[1].place())
		}
	})
}

// The clocks of two machines differ, and jump. What counts is how long a heartbeat and its echo take.
func TestTheDelayOfMessagesIsMeasuredByRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		one, two := b.join(t, DefaultConfig(), 1, nil), b.join(t, DefaultConfig(), 1, nil)
		b.set(func() { b.late = 80 * time.Millisecond }) // 40 ms in the mean
		testenv.Pass(20 * time.Second)
		for _, m := range [][2]*member{{one, two}, {two, one}} {
			m[0].peerOf(m[1], func(p *peer) {
				if p.delay < 20*time.Millisecond || p.delay > 60*time.Millisecond {
					t.Errorf("messages take 40 ms, and the delay is %v", p.delay)
				}
			})
		}
		b.set(func() { b.late = 0 })
		testenv.Pass(20 * time.Second)
		one.peerOf(two, func(p *peer) {
			if p.delay > 5*time.Millisecond {
				t.Errorf("messages take no time any more, and the delay is %v", p.delay)
			}
			// A peer that lies about what it held does no harm.
			for _, held := range []int64{0, 1 << 40, 1 << 62} {
				e := echo{to: one.sync.id, clock: 1, held: held}
				c := content{data: e.append(nil)}
				one.sync.receiver.echoes(p, &c, time.Now())
			}
			if p.delay > mostDelay {
				t.Errorf("the delay is %v", p.delay)
			}
		})
	})
}

// expects returns the number of other routers' requests that the router expects at its workers, and has not heard of.
func (m *member) expects() (n int64) {
	m.t.Helper()
	d, err := m.router.Explain(context.Background(), &warmpath.Request{Model: "llama", Tokens: []uint32{1, 2, 3}, Now: time.Now().UnixNano()})
	if err != nil {
		m.t.Fatal(err)
	}
	for i := range d.Candidates {
		n += d.Candidates[i].Load.Others.Requests
	}
	return n
}

// A router whose messages are late expects requests of the others, as often as these place some. When a router leaves
// without a request under way, nothing is expected of it.
func TestRequestsOfARouterThatLeavesIdleAreNotExpected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		b.fixed = 50 * time.Millisecond
		one, two := b.join(t, DefaultConfig(), 4, nil), b.join(t, DefaultConfig(), 4, nil)
		b.join(t, DefaultConfig(), 4, nil) // without a third router, no router would avoid the workers of others
		testenv.Pass(2 * time.Second)
		for i := range 100 {
			done(one.route(i, 320, ""))
			testenv.Pass(10 * time.Millisecond)
		}
		testenv.Pass(200 * time.Millisecond)
		if n := two.requests(); n != 0 {
			t.Fatalf("%d requests are under way", n)
		}
		if two.expects() == 0 {
			t.Error("no requests are expected of a router that places many")
		}
		one.stop()
		testenv.Pass(time.Second)
		if n := two.place(); n[1] != 2 {
			t.Fatalf("%d routers are left", n[1])
		}
		if n := two.expects(); n != 0 {
			t.Errorf("%d requests are expected of a router that has left", n)
		}
	})
}

func TestAPanicOfAPolicyEndsNoProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		one, two := b.join(t, DefaultConfig(), 0, nil), b.join(t, DefaultConfig(), 0, nil)
		one.worker(0)
		testenv.Pass(time.Second)
		for i := range 3 {
			one.route(i, 100, "")
		}
		testenv.Pass(10 * time.Millisecond)
		two.peerOf(one, func(p *peer) { p.placements = nil }) // any call for the peer's requests panics
		two.worker(0)                                         // so that they are added again
		testenv.Pass(3 * time.Second)
		two.peerOf(one, func(p *peer) { p.placements = two.router.NewPeer() })
		if two.sync.Status().Counts.Dropped[string(dropMalformed)] == 0 {
			t.Error("nothing panicked, so the test shows nothing")
		}
		one.stop()
		testenv.Pass(3 * time.Second)
		if s := two.sync.Status(); len(s.Peers) != 0 || two.requests() != 0 {
			t.Errorf("after the peer stopped: %+v", s)
		}
	})
}

func TestOnlyAddressesThatCanBeReachedAreAsked(t *testing.T) {
	s := New(DefaultConfig(), Parts{NewPeer: func() *warmpath.Peer { return nil }, Log: discard})
	s.machine = "this"
	for text, want := range map[string][2]bool{ // from this machine, and from another one
		"http://10.0.0.7:9090":      {true, true},
		"http://[fd00::7]:9090":     {true, true},
		"http://127.0.0.1:9090":     {true, false},
		"http://[::1]:9090":         {true, false},
		"http://0.0.0.0:9090":       {false, false},
		"http://[::]:9090":          {false, false},
		"https://10.0.0.7:9090":     {false, false},
		"http://10.0.0.7:9090/a?b=": {false, false},
		"http://router-2:9090":      {false, false},
		"":                          {false, false},
	} {
		for i, machine := range []string{"this", "another"} {
			if got := s.usable(&heartbeat{admin: text, machine: machine}); got != want[i] {
				t.Errorf("%q of the machine %s can be asked: %v", text, machine, got)
			}
			if s.usable(&heartbeat{admin: text, machine: machine, noIndex: true}) {
				t.Errorf("%q can be asked, and the router there has no index of its own", text)
			}
		}
	}
}

// Routers listen for their operators on all interfaces. Each tells the address by which it reaches NATS.
func TestAnAddressOnAllInterfacesIsToldAsOneThatPeersReach(t *testing.T) {
	server := natsServer(t, 0, nil)
	for name, change := range map[string]func(cfg *Config, i int, ports []int){
		"nats": func(cfg *Config, _ int, _ []int) { cfg.NATS = server.ClientURL() },
		"embedded": func(cfg *Config, i int, ports []int) {
			cfg.Embedded, cfg.Listen = true, netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(ports[i])).String()
			if i == 1 {
				cfg.Routes = []string{"nats-route://" + netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(ports[0])).String()}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			ports := []int{testenv.FreePort(t), testenv.FreePort(t)}
			var all []*member
			for i := range 2 {
				cfg := DefaultConfig()
				cfg.Key = strings.Repeat("k", 32)
				change(&cfg, i, ports)
				m := connectWith(t, cfg, func(s *Sync) { s.SetAdmin([]string{"[::]:9191", "0.0.0.0:9292"}[i], false) })
				all = append(all, m)
			}
			for i, m := range all {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				for range m.sync.FirstAdmins(ctx) {
					break
				}
				cancel()
				want := []string{"127.0.0.1:9292", "127.0.0.1:9191"}[i]
				testenv.Until(t, "the other router's address is known", func() bool {
					got := m.sync.Admins()
					return len(got) == 1 && strings.HasSuffix(got[0], want)
				})
			}
		})
	}
}

// A router that starts hears of each peer, and not only of the first one: the first one may be cold. It waits for a
// bounded time. A peer of which it hears while it asks another one is not missed.
func TestARouterThatStartsHearsOfEachPeer(t *testing.T) {
	key := strings.Repeat("k", 32)
	for name, c := range map[string]struct {
		key  string
		asks time.Duration // how long the first peer is asked
		want []string
	}{
		"the first peer answers at once": {key, 0, []string{"http://10.0.0.1:9090", "http://10.0.0.2:9090"}},
		"the first peer is slow":         {key, 2 * time.Second, []string{"http://10.0.0.1:9090", "http://10.0.0.2:9090"}},
		"there is no key":                {"", 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, cfg := newBus(1), DefaultConfig()
				cfg.Key = c.key
				peer := func(admin string) {
					m := b.join(t, cfg, 1, nil)
					m.sync.SetAdmin(admin, false)
					wake(m.sync.changes)
				}
				peer("10.0.0.1:9090")
				testenv.Pass(time.Second)
				joined := b.join(t, cfg, 1, nil)
				began := time.Now()
				var got []string
				var late sync.WaitGroup
				for address := range joined.sync.FirstAdmins(t.Context()) {
					if got = append(got, address); len(got) == 1 {
						late.Go(func() {
							testenv.Pass(firstAnswer / 4)
							peer("10.0.0.2:9090")
						})
						testenv.Pass(c.asks)
					}
				}
				took := time.Since(began)
				late.Wait()
				if !slices.Equal(got, c.want) || took > c.asks+firstAnswer {
					t.Errorf("a router that starts hears of %q in %v, want %q", got, took, c.want)
				}
			})
		})
	}
}

// A router whose first peer gives it the index waits for no other one.
func TestARouterThatStartsStopsToListenWhenItWants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, cfg := newBus(1), DefaultConfig()
		cfg.Key = strings.Repeat("k", 32)
		one := b.join(t, cfg, 1, nil)
		one.sync.SetAdmin("10.0.0.1:9090", false)
		wake(one.sync.changes)
		testenv.Pass(time.Second)
		two := b.join(t, cfg, 1, nil)
		began := time.Now()
		for range two.sync.FirstAdmins(t.Context()) {
			break
		}
		if took := time.Since(began); took > greetGap {
			t.Errorf("the first address takes %v", took)
		}
	})
}
