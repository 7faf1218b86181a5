package replica

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestARequestForMoreTokensThanAMessageHoldsIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		one, two := b.join(t, DefaultConfig(), 2, nil), b.join(t, DefaultConfig(), 2, nil)
		testenv.Pass(time.Second)
		most := 1 << 30
		most *= 8 // more than 32 bits, where int has 64
		req := warmpath.Request{Model: "llama", Now: time.Now().UnixNano(), MaxTokens: max(most, 1<<31-1)}
		for i := range 64 {
			req.Tokens = append(req.Tokens, uint32(i))
		}
		d, err := one.router.Route(context.Background(), &req)
		if err != nil {
			t.Fatal(err)
		}
		testenv.Pass(time.Second)
		sameView(t, []*member{one, two}, 1)
		done(d)
	})
}

func TestARecordThatCannotBeReadCostsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		one, two := b.join(t, DefaultConfig(), 2, nil), b.join(t, DefaultConfig(), 2, nil)
		testenv.Pass(time.Second)
		bad := uint64(0)
		b.set(func() {
			b.change = func(packet []byte) []byte {
				out := append([]byte(nil), packet[:headerBytes]...)
				for records := packet[headerBytes:]; len(records) > 0; {
					kind, body, rest, err := nextRecord(records)
					if err != nil {
						t.Fatal(err)
					}
					c := content{data: body}
					if id := c.uvarint(); kind == recordAdd && (bad == 0 || bad == id) {
						bad = id
						body = body[:len(body)-6] // as a newer router might write it
					}
					out = appendRecord(out, kind, func(to []byte) []byte { return append(to, body...) })
					records = rest
				}
				return out
			}
		})
		first, second := one.route(1, 64, ""), one.route(2, 64, "")
		testenv.Pass(5 * time.Second)
		s := two.sync.Status()
		if two.requests() != 1 || s.Counts.Dropped[string(dropMalformed)] == 0 {
			t.Errorf("%d of 2 requests are known, and one could not be read: %v", two.requests(), s.Counts.Dropped)
		}
		if s.Counts.Asks > 4 {
			t.Errorf("%d asks for what cannot be read", s.Counts.Asks)
		}
		done(first)
		done(second)
		testenv.Pass(time.Second)
		sameView(t, []*member{one, two}, 0)
	})
}

func TestALostEndIsRepairedOverASlowConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		one, two := b.join(t, DefaultConfig(), 2, nil), b.join(t, DefaultConfig(), 2, nil)
		b.set(func() { b.fixed = 200 * time.Millisecond })
		testenv.Pass(2 * time.Second)
		before := two.sync.Status().Counts.Asks
		d := one.route(1, 64, "")
		testenv.Pass(time.Second)
		b.set(func() { one.link.off = true })
		done(d)
		testenv.Pass(300 * time.Millisecond)
		b.set(func() { one.link.off = false })
		testenv.Pass(5 * time.Second)
		if two.requests() != 0 {
			t.Error("the load of a request that has ended stays")
		}
		if n := two.sync.Status().Counts.Asks - before; n == 0 || n > 8 {
			t.Errorf("%d asks", n)
		}
	})
}

func TestAnswersToOneRouterAreBounded(t *testing.T) {
	w := sender{answered: map[uint64]time.Time{}}
	now := time.Unix(1000, 0)
	given := 0
	for i := range 1000 {
		if w.mayAnswer(7, now.Add(time.Duration(i)*10*time.Millisecond)) {
			given++
		}
	}
	if most := int(10*time.Second/answerInterval) + answers; given < most/2 || given > most || !w.mayAnswer(8, now) {
		t.Errorf("%d answers in 10 s", given)
	}
}

func TestWhatATenantUsedWithoutALimitIsNotCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		var registries []*tenant.Registry
		for range 2 {
			r := tenant.NewRegistry()
			r.Use([]tenant.Config{{Name: "a"}}, nil)
			registries = append(registries, r)
			b.join(t, DefaultConfig(), 2, r)
		}
		testenv.Pass(time.Second)
		use := func(n int) {
			for range n {
				registries[0].ByName("a").Enter(time.Now().UnixNano())
				registries[0].ByName("a").Leave()
			}
		}
		use(10_000)
		for _, r := range registries {
			r.Use([]tenant.Config{{Name: "a", RequestsPerSecond: 10}}, nil)
		}
		use(1)
		testenv.Pass(time.Second)
		if l := registries[1].ByName("a").Enter(time.Now().UnixNano()); l != nil {
			t.Errorf("the second request under the new limit is refused: %+v", l)
		}
	})
}

func TestManyTenantsMakeNoPacketTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		var list []tenant.Config
		for i := range 4096 {
			list = append(list, tenant.Config{Name: fmt.Sprintf("%0120d", i), RequestsPerSecond: 1000})
		}
		one, two := tenant.NewRegistry(), tenant.NewRegistry()
		one.Use(list, nil)
		two.Use(list, nil)
		for _, x := range list {
			one.ByName(x.Name).Enter(time.Now().UnixNano())
			one.ByName(x.Name).Leave()
		}
		b.join(t, DefaultConfig(), 2, one)
		m := b.join(t, DefaultConfig(), 2, two)
		testenv.Pass(3 * time.Second)
		if c := m.sync.Status().Counts; c.Repairs == 0 || c.Dropped[string(dropMalformed)] != 0 {
			t.Errorf("%+v", c)
		}
	})
}

func TestManyRequestsOfUnknownWorkersCountOnceTheWorkersAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		const requests = 3000
		one := b.join(t, DefaultConfig(), 2, nil)
		for i := range requests {
			one.route(i, 64, "")
		}
		two := b.join(t, DefaultConfig(), 0, nil)
		two.sync.mu.Lock()
		two.sync.receiver.budget.peer = 64 << 10
		two.sync.mu.Unlock()
		testenv.Pass(20 * time.Second)
		s := two.sync.Status()
		if n := s.Peers[0].Refused; n == 0 || n > 64<<10/waitingOverhead {
			t.Errorf("%d requests wait for their workers", n)
		}
		if s.Counts.Dropped[string(dropMemory)] == 0 || s.Counts.Asks > 4 {
			t.Errorf("before the workers are known: %+v", s.Counts)
		}
		two.worker(0)
		two.worker(1)
		testenv.Pass(3 * time.Second)
		sameView(t, []*member{one, two}, requests)
	})
}

// Workers without events: only the routers' memory says what they have.
func TestAPromptOfLongAgoIsNotExpectedByARouterThatJoins(t *testing.T) {
	for age, expected := range map[time.Duration]bool{time.Second: true, 50 * time.Minute: false} {
		synctest.Test(t, func(t *testing.T) {
			b := newBus(1)
			b.approximate = 2 * time.Minute // set before a router joins: it may learn prompts at once
			one := b.join(t, DefaultConfig(), 2, nil)
			done(one.route(1, 640, ""))
			testenv.Pass(age)
			two := b.join(t, DefaultConfig(), 2, nil)
			testenv.Pass(3 * time.Second)
			d := two.route(1, 640, "")
			if got := d.PredictedTokens > 0; got != expected {
				t.Errorf("a prompt that was sent %v ago is expected: %v", age, got)
			}
			done(d)
		})
	}
}

// What is told again is as old as at the router that tells it. A router that joins, and one that learns late of a
// worker, expect a prompt until the same moment: 5 minutes after it was sent.
func TestWhatIsToldAgainKeepsItsAge(t *testing.T) {
	for _, name := range []string{"ended", "under way", "an unknown worker"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBus(1)
				b.approximate = 5 * time.Minute
				join := func(workers int) *member { return b.join(t, DefaultConfig(), workers, nil) }
				one := join(1)
				began := time.Now()
				d := one.route(1, 640, "")
				testenv.Pass(time.Second)
				if name == "ended" {
					d.FirstToken(time.Now().UnixNano())
					done(d)
				}
				var two *member
				if name == "an unknown worker" {
					two = join(0)
					testenv.Pass(100 * time.Second)
					two.worker(0)
				} else {
					testenv.Pass(100 * time.Second)
					two = join(1)
				}
				testenv.Pass(3 * time.Second)
				expected := func(m *member) int {
					again := m.route(1, 640, "")
					defer done(again)
					again.Unsent()
					return again.PredictedTokens
				}
				if n := expected(two); n == 0 {
					t.Error("the prompt is not expected")
				}
				testenv.Pass(5*time.Minute + 10*time.Second - time.Since(began))
				a := expected(one)
				testenv.Pass(time.Second) // until the other router knows that this request was not sent
				if b := expected(two); a != 0 || b != 0 {
					t.Errorf("after its time %d tokens are expected at the router that sent the prompt, and %d at the other", a, b)
				}
				if name != "ended" {
					done(d)
				}
			})
		})
	}
}

// A router of an older version tells of a request without its age, and skips the age that is told.
func TestAPlacementWithoutAnAgeIsUnderstood(t *testing.T) {
	p := samplePlacement()
	old, _ := appendPlacement(nil, &p, wholePrompt)
	c := content{data: old}
	var got warmpath.Placement
	if c.placement(&got); c.err != nil || got.Age != 0 || got.ID != p.ID {
		t.Errorf("%v %+v", c.err, got)
	}
	c = content{data: append(appendAge(old, 90*time.Second), "of a newer version"...)}
	if c.placement(&got); c.err != nil || got.Age != 90*time.Second || string(c.data) != "of a newer version" {
		t.Errorf("%v %+v %q", c.err, got.Age, c.data)
	}
	c = content{data: binary.AppendUvarint(old, 1<<63)}
	if c.placement(&got); c.err != nil || got.Age != warmpath.MaxPlacementAge {
		t.Errorf("%v %v", c.err, got.Age)
	}
}

// A router of an older version does not say whether it has an index of its own.
func TestTheHeartbeatOfAnOlderRouterIsUnderstood(t *testing.T) {
	h := heartbeat{name: "a router", requests: 5, hello: true}
	old := h.append(nil)
	c := content{data: old[:len(old)-1]}
	if got := c.heartbeat(); c.err != nil || got != h {
		t.Errorf("%v %+v", c.err, got)
	}
}

func TestNamesOfOtherRoutersAreText(t *testing.T) {
	h := heartbeat{name: "a\xff" + strings.Repeat("ä", 400), version: "\xf0", machine: strings.Repeat("m", 1000)}
	c := content{data: h.append(nil)}
	got := c.heartbeat()
	for _, s := range []string{got.name, got.version, got.machine} {
		if !utf8.ValidString(s) || len(s) > 2*maxName || c.err != nil {
			t.Errorf("%q %v", s, c.err)
		}
	}
	if !strings.HasPrefix(got.name, "aä") {
		t.Errorf("the name is %q", got.name)
	}
}

func TestAnOpenAddressIsRefused(t *testing.T) {
	for text, change := range map[string]func(c *Config){
		"listen: ":        func(c *Config) { c.Listen = "0.0.0.0:4248" },
		"client_listen: ": func(c *Config) { c.ClientListen = ":4222" },
	} {
		cfg := DefaultConfig()
		cfg.Embedded = true
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.HasPrefix(err.Error(), text) {
			t.Errorf("%s%v", text, err)
		}
		cfg.User, cfg.Password = "u", "a password"
		if err := cfg.Validate(); err != nil {
			t.Error(err)
		}
	}
}
