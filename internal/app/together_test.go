package app_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/replica"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/test/testenv"
)

// together starts two routers that share their requests, over two engines.
func together(t *testing.T, change func(*config.Config)) (one, two *router) {
	t.Helper()
	first, second := engine(t, nil), engine(t, nil)
	at := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	var both []*router
	for i := range 2 {
		cfg := settings(first, second)
		cfg.Sync.Embedded, cfg.Sync.Listen = true, at
		if i == 1 {
			cfg.Sync.Listen, cfg.Sync.Routes = "127.0.0.1:0", []string{"nats-route://" + at}
		}
		change(cfg)
		r := startWith(t, cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
		r.exact(2)
		both = append(both, r)
	}
	return both[0], both[1]
}

// place places a request that no engine gets. The caller ends it.
func (r *router) place(text int) *warmpath.Decision {
	r.t.Helper()
	req := warmpath.Request{Model: "mock", Now: time.Now().UnixNano()}
	for i := range 64 {
		req.Tokens = append(req.Tokens, uint32(100*text+i))
	}
	d, err := r.Router().Route(r.t.Context(), &req)
	if err != nil {
		r.t.Fatal(err)
	}
	return d
}

// A shared index, also one whose server is away, hears of requests in addition to the other routers.
func TestRoutersShareRequestsWithAndWithoutASharedIndex(t *testing.T) {
	for name, change := range map[string]func(*config.Config){
		"memory": func(*config.Config) {},
		"valkey": func(c *config.Config) {
			c.Index.Backend, c.Index.Valkey.URL, c.Index.Valkey.Write = config.BackendValkey, "valkey://127.0.0.1:1", true
		},
	} {
		t.Run(name, func(t *testing.T) {
			one, two := together(t, change)
			d := one.place(1)
			heard := func(want int64) func() bool {
				return func() bool {
					snap := two.Router().Fleet().Snapshot()
					return snap.Load(0).Peers.Requests+snap.Load(1).Peers.Requests == want
				}
			}
			two.wait("the other router hears of the request", heard(1))
			d.Done(0, time.Now().UnixNano())
			two.wait("the other router hears of its end", heard(0))
		})
	}
}

// Routers that hear late of each other avoid each other's workers: see warmpath.Router.SetReplicas.
func TestRoutersKnowTheirNumbers(t *testing.T) {
	one, two := together(t, func(*config.Config) {})
	random, text := uint64(0), 0
	two.wait("a worker of the other router looks busier", func() bool {
		for range 50 {
			text++
			one.place(text).Done(0, time.Now().UnixNano())
		}
		for range 20 {
			random++
			d, err := two.Router().Explain(t.Context(), &warmpath.Request{Model: "mock", Tokens: make([]uint32, 64), Random: random, Now: time.Now().UnixNano()})
			if err != nil {
				t.Fatal(err)
			}
			for i := range d.Candidates {
				if d.Candidates[i].Load.Others.Requests > 0 {
					return true
				}
			}
		}
		return false
	})
}

func TestRoutersShareTheLimitsOfTenants(t *testing.T) {
	acme := []tenant.Config{{Name: "acme", KeysSHA256: []string{tenant.KeySHA256("test")}, RequestsPerSecond: 0.001, Burst: 100_000}}
	one, two := together(t, func(c *config.Config) { c.Tenants, c.AllTenants = acme, acme })
	two.wait("what one router let through is taken from the limit of the other", func() bool {
		body := strings.NewReader(`{"model":"mock","max_tokens":1,"messages":[{"role":"user","content":"hello"}]}`)
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, one.url+"/v1/chat/completions", body)
		req.Header.Set("Authorization", "Bearer test")
		req.Header.Set("Content-Type", "application/json")
		resp, err := one.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Fatalf("a request is answered with %s", resp.Status)
		}
		if resp, err = two.client.Get("http://" + two.AdminAddr().String() + "/admin/tenants?name=acme"); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		var list struct {
			Tenants []struct {
				Remaining *int `json:"remaining_requests"`
			} `json:"tenants"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&list); err != nil || len(list.Tenants) != 1 || list.Tenants[0].Remaining == nil {
			t.Fatalf("/admin/tenants: %+v, %v", list, err)
		}
		return *list.Tenants[0].Remaining < acme[0].Burst
	})
}

// A router that asks an index service, or reads the shared index, has no index for others. They see its admin listener,
// and do not ask there for a snapshot.
func TestARouterWithoutAnIndexIsNotAskedForOne(t *testing.T) {
	var sync replica.Config
	one, two := together(t, func(c *config.Config) {
		c.Sync.Key = "a key that all routers have"
		sync = c.Sync
	})
	cfg := settings()
	sync.Listen = "127.0.0.1:0"
	cfg.Sync, cfg.Index.Backend, cfg.Index.Valkey.URL = sync, config.BackendValkey, "valkey://127.0.0.1:1"
	reader := startWith(t, cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
	one.wait("both other routers say where their operators are served", func() bool {
		var s replica.Status
		testenv.JSON(t, "http://"+one.AdminAddr().String()+"/admin/replicas", &s)
		return len(s.Peers) == 2 && s.Peers[0].Admin != "" && s.Peers[1].Admin != ""
	})
	if got, want := one.OtherAdmins(), "http://"+two.AdminAddr().String(); len(got) != 1 || got[0] != want {
		t.Errorf("%q are asked for snapshots, and only %s has an index", got, want)
	}
	resp, err := reader.client.Get("http://" + reader.AdminAddr().String() + "/admin/index/snapshot")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusNotFound {
		t.Errorf("a router without an index answers a question for it with %s", resp.Status)
	}
}

// Most routers of a group are cold, so a router that joins often hears of a cold one first. On a busy machine it may
// hear of the warm one too late: then another one joins. So this test holds only that the parts are connected; those of
// replica and snapshot hold that each peer is asked.
func TestARouterThatJoinsFindsTheWarmOne(t *testing.T) {
	e := engine(t, nil)
	at := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	join := func(cfg *config.Config, log *slog.Logger) *router {
		cfg.Sync.Embedded, cfg.Sync.Key = true, "a key that all routers have"
		cfg.Sync.Listen, cfg.Sync.Routes = "127.0.0.1:0", []string{"nats-route://" + at}
		return startWith(t, cfg, app.Options{Log: log})
	}
	warm := settings(e)
	warm.Sync.Embedded, warm.Sync.Key, warm.Sync.Listen = true, "a key that all routers have", at
	first := startWith(t, warm, app.Options{Log: slog.New(slog.DiscardHandler)})
	first.exact(1)
	body := strings.NewReader(`{"model":"mock","max_tokens":1,"prompt":"` + strings.Repeat("hello ", 100) + `"}`)
	resp, err := first.client.Post(first.url+"/v1/completions", "application/json", body)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	for range 3 {
		join(settings(), slog.New(slog.DiscardHandler)) // without workers
	}
	testenv.Until(t, "a router that joins begins with the index of the warm one", func() bool {
		text := new(testenv.Buffer)
		r := join(settings(e), slog.New(slog.NewTextHandler(text, nil)))
		r.exact(1)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(text.String(), "holders=1 skipped=0")
	})
}
