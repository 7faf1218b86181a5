package app_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine runs a mock engine until the test ends.
func engine(t *testing.T, change func(*mockengine.Config)) *mockengine.Server {
	t.Helper()
	cfg := mockengine.DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	s, err := mockengine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	running(t, s.Run)
	<-s.Ready()
	return s
}

// running runs a component until the test ends.
func running(t *testing.T, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }() // ends with ctx; the cleanup waits for it
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
}

// router is a running App.
type router struct {
	*app.App
	t      *testing.T
	url    string
	client *http.Client
	stop   func() error
}

// start runs an App over engines until the test ends.
func start(t *testing.T, load func() (*config.Config, error), engines ...*mockengine.Server) *router {
	t.Helper()
	return startWith(t, settings(engines...), app.Options{Log: slog.New(slog.DiscardHandler), Load: load})
}

// startPatiently does the same with so long a budget that each request gets its token ids, also on a busy machine.
func startPatiently(t *testing.T, engines ...*mockengine.Server) *router {
	t.Helper()
	cfg := settings(engines...)
	cfg.Tokens.Budget = time.Hour
	return startWith(t, cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
}

func startWith(t *testing.T, cfg *config.Config, options app.Options) *router {
	t.Helper()
	r := build(t, cfg, options)
	r.run()
	return r
}

// build makes a router that does not run.
func build(t *testing.T, cfg *config.Config, options app.Options) *router {
	t.Helper()
	r := &router{t: t, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	var err error
	if r.App, err = app.New(cfg, options); err != nil {
		t.Fatal(err)
	}
	return r
}

// run lets the router run until the test ends.
func (r *router) run() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }() // stop waits
	r.stop = sync.OnceValue(func() error {
		r.client.CloseIdleConnections() // a drain waits five seconds for a connection that never had a request
		cancel()
		return <-ended
	})
	r.t.Cleanup(func() { _ = r.stop() })
	<-r.Listening()
	if at := r.Addr(); at != nil { // an index service has no gateway
		r.url = "http://" + at.String()
	}
}

func settings(engines ...*mockengine.Server) *config.Config {
	cfg := config.Default()
	cfg.Listen, cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.Health.Retry = 10 * time.Millisecond
	cfg.Tokens.Budget = 10 * time.Second // the longest that a file may set: a request waits for its token ids 0.2 s at least
	for _, e := range engines {
		cfg.Workers = append(cfg.Workers, discovery.Target{URL: e.URL()})
	}
	return &cfg
}

// exact waits until n holders have exact trust, which means that the router knows their caches from their events.
func (r *router) exact(n int) {
	r.t.Helper()
	r.wait(fmt.Sprintf("%d holders are exact", n), func() bool {
		s := r.Router().Fleet().Snapshot()
		exact := 0
		for _, w := range s.Workers() {
			for _, h := range w.Holders {
				if trust, _ := s.Trust(h); trust == fleet.TrustExact && w.Ready {
					exact++
				}
			}
		}
		return exact == n
	})
}

func (r *router) wait(what string, ok func() bool) {
	r.t.Helper()
	testenv.Until(r.t, what, ok)
}

// indexed waits until the index has the blocks that the engines have.
func (r *router) indexed(engines ...*mockengine.Server) {
	r.t.Helper()
	r.wait("the events are indexed", func() bool {
		cached := 0
		for _, e := range engines {
			cached += len(e.CachedHashes(0, block.TierGPU))
		}
		stats := r.Router().IndexStats()
		return cached > 0 && len(stats) == 1 && stats[0].Memberships == int64(cached)
	})
}

func (r *router) chat(text string) (*http.Response, string) {
	r.t.Helper()
	body := fmt.Sprintf(`{"model":"mock","max_tokens":8,"messages":[{"role":"user","content":%q}]}`, text)
	resp, err := r.client.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp, string(answer)
}

func TestPromptsGoHomeAndPredictionsAreRight(t *testing.T) {
	engines := []*mockengine.Server{engine(t, nil), engine(t, nil), engine(t, nil)}
	r := startPatiently(t, engines...)
	r.exact(3)
	homes := map[string]string{}
	prompts := []string{strings.Repeat("alpha beta ", 60), strings.Repeat("gamma delta ", 60), strings.Repeat("epsilon zeta ", 60)}
	for _, p := range prompts {
		resp, text := r.chat(p)
		if resp.StatusCode != 200 {
			t.Fatalf("%d %s", resp.StatusCode, text)
		}
		homes[p] = resp.Header.Get("X-Warmpath-Worker")
	}
	r.indexed(engines...)
	for range 3 {
		for _, p := range prompts {
			resp, _ := r.chat(p)
			if got := resp.Header.Get("X-Warmpath-Worker"); got != homes[p] {
				t.Errorf("a prompt went to %s, its home is %s", got, homes[p])
			}
			if resp.Header.Get("X-Warmpath-Match") == "0" || resp.Header.Get("X-Warmpath-Trust") != "exact" {
				t.Errorf("headers %v", resp.Header)
			}
		}
	}
	r.wait("all is booked", func() bool { return len(r.Telemetry().Last(0)) == 12 })
	for _, rec := range r.Telemetry().Last(9) {
		if rec.Difference == nil || *rec.Difference != 0 {
			t.Errorf("request %d: matched %d, reported %v", rec.ID, rec.MatchTokens, rec.ReportedTokens)
		}
	}
}

// The engine reports blocks of 16 tokens, and the configuration file names another size for its model.
func TestTheIndexOfAModelHasTheConfiguredBlockSize(t *testing.T) {
	for name, want := range map[string]int{"mock": 32, "another-model": 16} {
		file := filepath.Join(t.TempDir(), "warmpath.yaml")
		if err := os.WriteFile(file, fmt.Appendf(nil, "routing: {block_sizes: {%s: 32}}", name), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(file, func(c *config.Config) {
			s := settings(engine(t, nil))
			c.Listen, c.Admin.Listen, c.Health, c.Tokens, c.Workers = s.Listen, s.Admin.Listen, s.Health, s.Tokens, s.Workers
		})
		if err != nil {
			t.Fatal(err)
		}
		r := startWith(t, cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
		r.exact(1)
		if stats := r.Router().IndexStats(); len(stats) != 1 || stats[0].Model != "mock" || stats[0].BlockSize != want {
			t.Errorf("with a block size for %s: %+v, want blocks of %d tokens", name, stats, want)
		}
	}
}

func TestReloadAddsAndRemovesWorkersUnderRequests(t *testing.T) {
	one, two := engine(t, nil), engine(t, nil)
	next := settings(one, two)
	var failure error
	var mu sync.Mutex
	r := start(t, func() (*config.Config, error) {
		mu.Lock()
		defer mu.Unlock()
		return next, failure
	}, one)
	r.exact(1)
	ctx, cancel := context.WithCancel(context.Background())
	var traffic sync.WaitGroup
	for i := range 4 {
		traffic.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if resp, text := r.chat(fmt.Sprintf("request %d of client %d", n, i)); resp.StatusCode != 200 {
					t.Errorf("a request was dropped: %d %s", resp.StatusCode, text)
					return
				}
			}
		})
	}
	reload := func(want ...string) {
		t.Helper()
		resp, err := r.client.Post("http://"+r.AdminAddr().String()+"/admin/reload", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		text, _ := io.ReadAll(resp.Body)
		for _, w := range want {
			if !strings.Contains(string(text), w) {
				t.Errorf("reload says %s, want %q", text, w)
			}
		}
	}
	reload("worker added: " + two.URL())
	r.exact(2)
	mu.Lock()
	next = settings(two)
	next.Policy = "round_robin"
	next.Gateway.Attempts = 7
	mu.Unlock()
	reload("worker removed: "+one.URL(), "policy: round_robin, was marginal", "gateway.attempts: differs, a restart is needed")
	r.wait("the first worker is gone", func() bool { return len(r.Router().Fleet().Snapshot().Workers()) == 1 })
	mu.Lock()
	failure = errors.New("w.yaml:2:3: unknown field")
	mu.Unlock()
	reload("the old configuration stays", "w.yaml:2:3")
	cancel()
	traffic.Wait()
	if resp, _ := r.chat("after"); resp.Header.Get("X-Warmpath-Policy") != "round_robin" || resp.Header.Get("X-Warmpath-Worker") != two.URL() {
		t.Errorf("headers %v", resp.Header)
	}
}

func TestStopWaitsForStreams(t *testing.T) {
	r := start(t, nil, engine(t, func(c *mockengine.Config) { c.Faults.FirstToken = 300 * time.Millisecond }))
	r.exact(1)
	answered := make(chan string, 1)
	go func() { // its result is received below
		_, text := r.chat("slow")
		answered <- text
	}()
	r.wait("the request is under way", func() bool { return r.Router().Fleet().Snapshot().Load(0).Requests == 1 })
	if err := r.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
	if text := <-answered; !strings.Contains(text, "finish_reason") {
		t.Errorf("the request in flight got %s", text)
	}
}

func TestAddressInUseIsAnError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for _, change := range []func(*config.Config){
		func(c *config.Config) { c.Listen = l.Addr().String() },
		func(c *config.Config) { c.Admin.Listen = l.Addr().String() },
	} {
		cfg := settings()
		change(cfg)
		a, err := app.New(cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "address already in use") {
			t.Errorf("run: %v", err)
		}
	}
}

func TestALogThatCannotBeOpenedIsAnErrorBeforeClientsAreServed(t *testing.T) {
	var log strings.Builder
	cfg := settings()
	cfg.Telemetry.DecisionLog.File = t.TempDir() // no file
	a, err := app.New(cfg, app.Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "open the decision log") {
		t.Errorf("run: %v", err)
	}
	if a.Addr() != nil || strings.Contains(log.String(), "msg=serving") {
		t.Errorf("the router listened at %v: %s", a.Addr(), log.String())
	}
}

func TestMetricsCoverTheWholeRouter(t *testing.T) {
	r := start(t, nil, engine(t, nil))
	r.exact(1)
	r.chat(strings.Repeat("some words ", 40))
	r.wait("the request is booked", func() bool { return len(r.Telemetry().Last(0)) == 1 })
	resp, err := r.client.Get("http://" + r.AdminAddr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	for _, want := range []string{`warmpath_worker_up{`, `warmpath_holder_trust{rank="0",trust="exact"`, `warmpath_events_messages_total{`,
		`warmpath_index_blocks{model="mock"}`, `warmpath_requests_total{branch="miss",policy="marginal",status="200"`,
		`warmpath_token_requests_total{missing="",outcome="tokenize"} 1`, `warmpath_predictions_total{outcome="equal"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in the scrape", want)
		}
	}
}

func TestAnAddressInUseSaysHowToChooseAnother(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for flag, change := range map[string]func(*config.Config){
		"--listen":       func(c *config.Config) { c.Listen = taken.Addr().String() },
		"--admin-listen": func(c *config.Config) { c.Admin.Listen = taken.Addr().String() },
	} {
		cfg := config.Default()
		cfg.Listen, cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
		change(&cfg)
		a, err := app.New(&cfg, app.Options{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "; is another router running there? Choose another address with "+flag) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
