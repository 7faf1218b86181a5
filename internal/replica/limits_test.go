package replica

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/tenant"
)

// A report of a peer counts at most the tenant's limit as under way, and gives back nothing that others have spent.
func TestAReportOfAPeerIsBoundedByTheTenantsLimits(t *testing.T) {
	registry := tenant.NewRegistry()
	use := func(concurrent int) {
		registry.Use([]tenant.Config{{Name: "t", RequestsPerSecond: 0.001, Burst: 2, TokensPerMinute: 600, MaxConcurrent: concurrent}}, nil)
	}
	use(5)
	s := New(DefaultConfig(), Parts{Tenants: registry, Log: discard})
	liar := newPeer(header{from: 1}, nil, new(int))
	now := time.Now()
	report := func(requests, tokens int64, active int) {
		s.receiver.spent(liar, spent{"t", requests, tokens, active}, now)
	}
	of := registry.ByName("t")
	report(0, 0, 1<<31-1)
	if l := of.Enter(now.UnixNano()); l == nil || l.Limit != tenant.Concurrency {
		t.Fatalf("with five of five requests under way: %+v", l)
	}
	use(10)
	of = registry.ByName("t")
	if l := of.Enter(now.UnixNano()); l != nil {
		t.Fatalf("with five of ten requests under way: %+v", l)
	}
	if l := of.Spend(600, now.UnixNano()); l != nil {
		t.Fatalf("the first tokens: %+v", l)
	}
	of.Leave()
	report(0, 0, 0)
	if l := of.Enter(now.UnixNano()); l != nil {
		t.Fatalf("the second request: %+v", l)
	}
	of.Leave()
	report(-1000, -100000, 0)
	if l := of.Enter(now.UnixNano()); l == nil || l.Limit != tenant.Requests {
		t.Errorf("a report gave requests back: %+v", l)
	}
	if l := of.Spend(600, now.UnixNano()); l == nil {
		t.Error("a report gave tokens back that the peer had not taken")
	}
}

func TestTheLogWarnsOfLimitsWithoutAKey(t *testing.T) {
	for name, c := range map[string]struct {
		tenant tenant.Config
		key    string
		warns  bool
	}{
		"limits and no key": {tenant.Config{Name: "t", MaxConcurrent: 5}, "", true},
		"limits and a key":  {tenant.Config{Name: "t", MaxConcurrent: 5}, "a key of the routers", false},
		"no limits":         {tenant.Config{Name: "t"}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			registry := tenant.NewRegistry()
			registry.Use([]tenant.Config{c.tenant}, nil)
			cfg := DefaultConfig()
			cfg.NATS, cfg.Key = "nats://127.0.0.1:1", c.key
			book, log := logged(slog.LevelInfo)
			s := New(cfg, Parts{Tenants: registry, Log: discard})
			log(s)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := s.Run(ctx); err != nil {
				t.Fatal(err)
			}
			if lines := book.lines("sync.key_file"); len(lines) > 0 != c.warns {
				t.Errorf("the log:\n%s", strings.Join(lines, "\n"))
			}
		})
	}
}

// Two machines with the default address never meet.
func TestTheLogWarnsOfAnAddressThatOtherMachinesDoNotReach(t *testing.T) {
	for name, c := range map[string]struct {
		listen string
		routes []string
		warns  bool
	}{
		"a route to another machine":   {"127.0.0.1:0", []string{"nats-route://127.0.0.1:1", "nats-route://192.0.2.1:4248"}, true},
		"a name":                       {"localhost:0", []string{"nats-route://router-b.invalid:4248"}, true},
		"routes to this machine":       {"127.0.0.1:0", []string{"nats-route://127.0.0.1:1", "nats-route://localhost:1"}, false},
		"no routes":                    {"127.0.0.1:0", nil, false},
		"an address on all interfaces": {"0.0.0.0:0", []string{"nats-route://192.0.2.1:4248"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			cfg.Embedded, cfg.Listen, cfg.Routes, cfg.User, cfg.Password = true, c.listen, c.routes, "u", "a password"
			book, log := logged(slog.LevelInfo)
			s := New(cfg, Parts{Log: discard})
			log(s)
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := s.Run(ctx); err != nil {
				t.Fatal(err)
			}
			if lines := book.lines("level=WARN", "sync.listen", "0.0.0.0:4248"); len(lines) > 0 != c.warns {
				t.Errorf("the log: %q", lines)
			}
		})
	}
}
