package replica

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/test/testenv"
)

// oneAtATime returns the tenants "t 0" to "t n-1", which may each have one request under way.
func oneAtATime(n int) *tenant.Registry {
	var all []tenant.Config
	for i := range n {
		all = append(all, tenant.Config{Name: fmt.Sprint("t ", i), MaxConcurrent: 1})
	}
	r := tenant.NewRegistry()
	r.Use(all, nil)
	return r
}

// Messages about tenants are lost for a second, and no router counts as dead. A second later the routers agree.
func TestALostMessageAboutATenantIsRepaired(t *testing.T) {
	for name, cut := range map[string]func(b *bus, one *member, off bool){
		"the connection of the router is cut": func(b *bus, one *member, off bool) {
			one.link.cut(off)
		},
		"packets are lost": func(b *bus, one *member, off bool) {
			b.set(func() {
				b.loss = 0
				if off {
					b.loss = 1
				}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBus(1)
				at := []*tenant.Registry{oneAtATime(2), oneAtATime(2)}
				one := b.join(t, DefaultConfig(), 1, at[0])
				two := b.join(t, DefaultConfig(), 1, at[1])
				testenv.Pass(time.Second)
				enter := func(router, of int) *tenant.Limited {
					return at[router].ByName(fmt.Sprint("t ", of)).Enter(time.Now().UnixNano())
				}
				if l := enter(0, 0); l != nil {
					t.Fatalf("the first request: %+v", l)
				}
				testenv.Pass(2 * lookInterval)
				if l := enter(1, 0); l == nil {
					t.Fatal("the other router does not know of the request")
				}
				testenv.Pass(time.Minute) // the request is told often enough
				cut(b, one, true)
				at[0].ByName("t 0").Leave()
				if l := enter(0, 1); l != nil {
					t.Fatalf("a request of the second tenant: %+v", l)
				}
				testenv.Pass(time.Second)
				cut(b, one, false)
				testenv.Pass(repeatInterval + 2*lookInterval)
				if l := enter(1, 0); l != nil {
					t.Errorf("the request has ended, and the next one at the other router is limited: %+v", l)
				}
				if l := enter(1, 1); l == nil {
					t.Error("the other router does not know of the second tenant's request")
				}
				if n := two.sync.Status().Counts.Connects; n != 1 || len(two.sync.gone) != 0 {
					t.Errorf("the test shows nothing: the other router connected %d times, and %d routers were gone", n, len(two.sync.gone))
				}
			})
		})
	}
}

// What a tenant has spent is repeated for some seconds, or until its request ends, and no longer.
func TestWhatTenantsSpentIsNotRepeatedForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		tenants := oneAtATime(3)
		one := b.join(t, DefaultConfig(), 1, tenants)
		b.join(t, DefaultConfig(), 1, oneAtATime(3))
		told := 0
		b.set(func() {
			open := newSigner("", "")
			b.change = func(packet []byte) []byte {
				h, records, err := open.open(packet)
				for err == nil && len(records) > 0 {
					var kind byte
					if kind, _, records, err = nextRecord(records); kind == recordSpent && h.from == one.sync.id {
						told++
					}
				}
				return packet
			}
		})
		testenv.Pass(time.Second)
		in := func(d time.Duration) (n int) {
			b.set(func() { told = 0 })
			testenv.Pass(d)
			b.set(func() { n = told })
			return n
		}
		for i := range 3 {
			of := tenants.ByName(fmt.Sprint("t ", i))
			of.Enter(time.Now().UnixNano())
			if i < 2 {
				of.Leave()
			}
		}
		if n := in(repeatFor + 2*repeatInterval); n < 9 || n > 21 {
			t.Errorf("what three tenants have spent was told %d times", n)
		}
		if n := in(10 * repeatInterval); n < 8 || n > 12 {
			t.Errorf("what one tenant has under way was told %d times", n)
		}
		tenants.ByName("t 2").Leave()
		in(repeatFor + 2*repeatInterval)
		if n := in(time.Minute); n != 0 {
			t.Errorf("what tenants spent long ago was told %d times", n)
		}
	})
}
