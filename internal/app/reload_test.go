package app_test

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/queue"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/policy/peers"
	"github.com/warmpath/warmpath/test/testenv"
)

// reloading is a router whose file changes when the test calls reload.
func reloading(t *testing.T) (r *router, log *testenv.Buffer, reload func(change func(*config.Config)) []string) {
	t.Helper()
	e := engine(t, nil)
	var next *config.Config
	log = &testenv.Buffer{}
	r = startWith(t, settings(e), app.Options{
		Log: slog.New(slog.NewTextHandler(log, nil)), Load: func() (*config.Config, error) { return next, nil },
	})
	r.exact(1)
	return r, log, func(change func(*config.Config)) []string {
		t.Helper()
		next = settings(e)
		change(next)
		if err := next.Validate(); err != nil {
			t.Fatal(err)
		}
		changes, err := r.Reload()
		if err != nil {
			t.Fatal(err)
		}
		return changes
	}
}

func TestAReloadThatSaysNoWorkersIsRefused(t *testing.T) {
	e := engine(t, nil)
	next := settings(e)
	r := startWith(t, settings(e), app.Options{
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Load: func() (*config.Config, error) { return next, nil },
		File: "warmpath.yaml",
	})
	r.exact(1)
	next.Workers = nil // as in a file that is empty, or cut short
	if changes, err := r.Reload(); err == nil || err.Error() != "warmpath.yaml: no list under workers; the file may be cut short. To remove all workers write workers: []" {
		t.Errorf("a file without workers is applied: %v, %v", changes, err)
	}
	if n := len(r.Router().Fleet().Snapshot().Workers()); n != 1 {
		t.Errorf("%d workers are left", n)
	}
	next.Workers = []discovery.Target{}
	changes, err := r.Reload()
	if err != nil || len(changes) != 1 || !strings.HasPrefix(changes[0], "worker removed: ") {
		t.Errorf("an empty list: %q, %v", changes, err)
	}
	next.Workers = nil
	if _, err := r.Reload(); err != nil {
		t.Errorf("there is nothing to lose any more: %v", err)
	}
}

// An operator corrects the file and reloads while a reload of its older content is under way. The corrected file must
// be in force at the end.
func TestOfTwoReloadsTheLaterOneHasTheNewerFile(t *testing.T) {
	e := engine(t, nil)
	var calls atomic.Int64
	var r *router
	ended := make(chan error, 1)
	r = startWith(t, settings(e), app.Options{Log: slog.New(slog.DiscardHandler), Load: func() (*config.Config, error) {
		c := settings(e)
		c.Policy = "least_load"
		if calls.Add(1) == 1 {
			c.Policy = "round_robin"
			go func() {
				_, err := r.Reload()
				ended <- err
			}()
			select {
			case err := <-ended:
				ended <- err
			case <-time.After(50 * time.Millisecond): // the second reload waits for the first one
			}
		}
		return c, nil
	}})
	r.exact(1)
	if _, err := r.Reload(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if p, err := r.Router().Policy("", "mock"); err != nil || p.Name() != "least_load" {
		t.Errorf("the file says least_load, in force is %v, %v", p, err)
	}
}

// A reload reads a file on a disk that does not answer.
func TestAReloadThatHangsDoesNotKeepTheRouterAlive(t *testing.T) {
	e := engine(t, nil)
	reading, answer := make(chan struct{}), make(chan struct{})
	cfg := settings(e)
	cfg.Gateway.DrainTimeout = time.Minute
	r := startWith(t, cfg, app.Options{Log: slog.New(slog.DiscardHandler), Load: func() (*config.Config, error) {
		close(reading)
		<-answer
		return nil, errors.New("the disk does not answer")
	}})
	var reload sync.WaitGroup
	reload.Go(func() { _, _ = r.Reload() })
	<-reading
	start := time.Now()
	if err := r.stop(); err != nil || time.Since(start) > 30*time.Second {
		t.Errorf("the router stopped after %v: %v", time.Since(start), err)
	}
	close(answer)
	reload.Wait()
}

func TestReloadChangesThePoliciesInUse(t *testing.T) {
	r, log, reload := reloading(t)
	if changes := reload(func(*config.Config) {}); len(changes) > 0 {
		t.Errorf("nothing changed, and changes are reported: %q", changes)
	}
	if !strings.Contains(log.String(), "changes=none") {
		t.Errorf("the log does not say that nothing changed: %s", log)
	}
	mine := func(c *config.Config) {
		kv := peers.DefaultKV()
		c.Policies = []config.Policy{{Name: "mine", Type: "kv", Parameters: &kv}}
		c.Policy, c.Shadow, c.ShadowSample = "mine", "kv_aware:imbalance_tokens=7", 0.5
		c.RequestPolicies = []string{"lmetric"}
		c.Disaggregation = config.Disaggregation{Mode: "never", UncachedTokenThreshold: 9, DecodePolicy: "round_robin"}
	}
	changes := strings.Join(reload(mine), "\n")
	for _, want := range []string{"know nothing yet: kv_aware:imbalance_tokens=7, mine", "policy: mine, was marginal", `shadow: "kv_aware:imbalance_tokens=7", was ""`, "shadow_sample: 0.5", "request_policies: [lmetric], was []",
		"disaggregation.mode: never, was auto", "disaggregation.pd_uncached_token_threshold: 9, was 256", "disaggregation.decode_policy: round_robin, was "} {
		if !strings.Contains(changes, want) {
			t.Errorf("reload says %q, nothing of %q", changes, want)
		}
	}
	if resp, text := r.chat("hello"); resp.Header.Get("X-Warmpath-Policy") != "mine" {
		t.Errorf("%v %s", resp.Header, text)
	}
	if s := r.Router().Shadow(); s == nil || s.Name() != "kv_aware:imbalance_tokens=7" {
		t.Errorf("the shadow is %v", s)
	}
	changes = strings.Join(reload(func(c *config.Config) { mine(c); c.Policies[0].Parameters.(*peers.KV).PrefillLoadScale = 16 }), "\n")
	if changes != "policies that are new or changed, and know nothing yet: mine" {
		t.Errorf("a parameter: %q", changes)
	}
	changes = strings.Join(reload(func(c *config.Config) { c.Routing.TierWeights.CPU = 0.5 }), "\n")
	for _, want := range []string{"know nothing yet: kv_aware, marginal, ", "policies that are gone: kv_aware:imbalance_tokens=7, mine", `shadow: "", was`} {
		if !strings.Contains(changes, want) {
			t.Errorf("reload says %q, nothing of %q", changes, want)
		}
	}
	if strings.Contains(changes, "restart") || strings.Contains(log.String(), "restart") {
		t.Errorf("all of it is applied, and yet: %s\n%s", changes, log)
	}
	if slices.Contains(r.Router().PolicyNames(), "mine") || r.Router().Shadow() != nil {
		t.Error("what is not in the file any more is still there")
	}
}

func TestReloadNamesEachSettingThatNeedsARestart(t *testing.T) {
	_, log, reload := reloading(t)
	change := func(c *config.Config) {
		c.Body.MaxBytes++
		c.Gateway.Attempts++
		c.Routing.MaxRequests = 9
		c.Policies = []config.Policy{{Name: "coarse", Type: "kv_aware", Parameters: &policy.KVAware{
			TierWeights: policy.DefaultKVAware().TierWeights, BlockSize: 64}}}
		c.Policy = "coarse"
	}
	for range 2 { // a restart is needed at both reloads: the first reload must not have put the settings in force
		changes := reload(change)
		for _, want := range []string{"body.max_bytes: differs, a restart", "gateway.attempts: differs, a restart", "routing.max_requests: differs, a restart"} {
			if !slices.ContainsFunc(changes, func(c string) bool { return strings.Contains(c, want) }) {
				t.Errorf("reload says %q, nothing of %q", changes, want)
			}
		}
	}
	for _, setting := range []string{"body.max_bytes", "gateway.attempts", "routing.max_requests"} {
		if strings.Count(log.String(), "setting="+setting) != 2 {
			t.Errorf("not a line for %s at each reload: %s", setting, log)
		}
	}
	if !strings.Contains(log.String(), "block_size of 64 counts after a restart") {
		t.Errorf("nothing of the block size: %s", log)
	}
}

func TestReloadTurnsTheQueueOn(t *testing.T) {
	r, log, reload := reloading(t)
	if changes := reload(func(c *config.Config) { c.Queue.Order = queue.Fair }); !slices.Equal(changes, []string{"queue: order fair, was off"}) {
		t.Errorf("reload says %q", changes)
	}
	resp, err := r.client.Get("http://" + r.AdminAddr().String() + "/admin/queue")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if text, _ := io.ReadAll(resp.Body); !strings.Contains(string(text), `"fair"`) {
		t.Errorf("the queue is %s", text)
	}
	changes := reload(func(c *config.Config) { c.Queue.Order, c.Queue.MaxRequests = queue.Fair, 7 })
	if !slices.Equal(changes, []string{"queue: order fair with other limits"}) || strings.Contains(log.String(), "restart") {
		t.Errorf("reload says %q", changes)
	}
}

func TestReloadChangesTheHold(t *testing.T) {
	r, log, reload := reloading(t)
	changes := reload(func(c *config.Config) { c.Workers, c.Gateway.Hold.MaxWait = []discovery.Target{}, 0 })
	if !slices.ContainsFunc(changes, func(c string) bool { return strings.HasPrefix(c, "gateway.hold: {MaxWait:0s ") }) || strings.Contains(log.String(), "restart") {
		t.Errorf("reload says %q", changes)
	}
	r.wait("the worker has left", func() bool { return len(r.Router().Fleet().Snapshot().Workers()) == 0 })
	resp, err := r.client.Post("http://"+r.Addr().String()+"/v1/completions", "application/json", strings.NewReader(`{"prompt":"a"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%s with the hold off and no worker", resp.Status)
	}
}

func TestReloadChangesTheDefaultsOfWorkers(t *testing.T) {
	_, log, reload := reloading(t)
	changes := reload(func(c *config.Config) { c.WorkerDefaults.Protocol = "http1" })
	if !slices.Equal(changes, []string{"worker_defaults changed"}) || strings.Contains(log.String(), "restart") {
		t.Errorf("reload says %q", changes)
	}
}

func TestReloadAsksControllersForPoliciesThatAreNew(t *testing.T) {
	r, _, reload := reloading(t)
	var polls, closed atomic.Int64
	controller := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		polls.Add(1)
		_, _ = w.Write([]byte(`{"workers":[]}`))
	}))
	controller.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			closed.Add(1)
		}
	}
	controller.Start()
	t.Cleanup(controller.Close)
	useController := func(c *config.Config) {
		p := peers.DefaultLMCacheAware()
		p.ControllerURL, p.PollIntervalSecs = controller.URL, 1
		c.Policies = []config.Policy{{Name: "warm", Type: "lmcache_aware", Parameters: &p}}
		c.Policy = "warm"
	}
	reload(useController)
	r.wait("the controller is asked", func() bool { return polls.Load() > 0 })
	if resp, _ := r.chat("hello"); resp.Header.Get("X-Warmpath-Policy") != "warm" {
		t.Errorf("headers %v", resp.Header)
	}
	reload(func(c *config.Config) { useController(c); c.RequestPolicies = []string{"kv"} })
	seen := polls.Load()
	r.wait("the same client goes on", func() bool { return polls.Load() > seen })
	if closed.Load() > 0 {
		t.Error("it is another client")
	}
	reload(func(*config.Config) {})
	r.wait("the client is stopped, and gives up its connection", func() bool { return closed.Load() > 0 })
}

func TestReloadAppliesAliasesAndFallbacksOfModels(t *testing.T) {
	_, _, reload := reloading(t)
	for _, c := range []struct {
		change func(*config.Config)
		want   []string
	}{
		{func(c *config.Config) {
			c.ModelAliases = map[string]string{"gpt": "mock"}
			c.ModelFallbacks = map[string][]string{"other": {"mock"}}
			c.Adapters, c.AdapterSlots = []gateway.Adapter{{Name: "sql", Base: "mock", Path: "/sql"}}, 2
		}, []string{"model_aliases: {gpt: mock}, was {}", "model_fallbacks: {other: [mock]}, was {}", "adapters: [{sql mock /sql}], was []", "adapter_slots: 2, was 0"}},
		{func(*config.Config) {}, []string{"model_aliases: {}, was {gpt: mock}", "model_fallbacks: {}, was {other: [mock]}", "adapters: [], was [{sql mock /sql}]", "adapter_slots: 0, was 2"}},
	} {
		if got := reload(c.change); !slices.Equal(got, c.want) {
			t.Errorf("reload says %q, want %q", got, c.want)
		}
	}
}
