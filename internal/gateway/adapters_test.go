package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// adapterEngine is an engine that serves m and the adapters that it was told to load. It fails the test if two orders
// reach it at the same time.
type adapterEngine struct {
	url string

	mu      sync.Mutex // guards the fields below
	loaded  map[string]string
	orders  []string // load NAME, unload NAME
	ordered bool     // an order is under way
	most    int      // the greatest number of adapters so far
	refuse  func(order string) (status int, body string)
	gate    chan struct{} // if not nil, loads wait until it is closed
	began   chan string   // receives the order when it begins, if there is room
	answers chan struct{} // if not nil, requests for adapters wait for a value
}

func startAdapterEngine(t *testing.T, prefix string) *adapterEngine {
	e := &adapterEngine{loaded: map[string]string{}, began: make(chan string, 64)}
	e.url = worker(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var fields struct {
			Model string
			Name  string `json:"lora_name"`
			Path  string `json:"lora_path"`
		}
		if err := json.Unmarshal(body, &fields); err != nil {
			t.Errorf("%s: %v", body, err)
		}
		switch r.URL.Path {
		case prefix + "/load_lora_adapter":
			e.order(t, w, "load "+fields.Name, func() { e.loaded[fields.Name] = fields.Path })
		case prefix + "/unload_lora_adapter":
			e.order(t, w, "unload "+fields.Name, func() { delete(e.loaded, fields.Name) })
		default:
			e.mu.Lock()
			has, answers := fields.Model == "m" || e.loaded[fields.Model] != "", e.answers
			e.mu.Unlock()
			if !has {
				w.WriteHeader(404)
				_, _ = io.WriteString(w, `{"error":{"message":"the model does not exist","code":404}}`)
				return
			}
			if answers != nil && fields.Model != "m" {
				<-answers
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, whole)
		}
	})
	return e
}

func (e *adapterEngine) order(t *testing.T, w http.ResponseWriter, order string, do func()) {
	e.mu.Lock()
	if e.ordered {
		t.Errorf("%s while another order is under way", order)
	}
	e.ordered = true
	e.orders = append(e.orders, order)
	gate, refuse := e.gate, e.refuse
	e.mu.Unlock()
	select {
	case e.began <- order:
	default:
	}
	if gate != nil {
		<-gate
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ordered = false
	if refuse != nil {
		if status, body := refuse(order); status != 0 {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
			return
		}
	}
	do()
	e.most = max(e.most, len(e.loaded))
	_, _ = io.WriteString(w, "Success")
}

func (e *adapterEngine) has(adapter string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.loaded[adapter] != ""
}

func (e *adapterEngine) told() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.orders, ", ")
}

// onDemand returns adapters of m by their names.
func onDemand(names ...string) (c gateway.AdapterConfig) {
	for _, n := range names {
		c.List = append(c.List, gateway.Adapter{Name: n, Base: "m", Path: "/adapters/" + n})
	}
	return c
}

func serveAdapters(t *testing.T, cfg gateway.AdapterConfig, change func(*settings), engines ...*adapterEngine) *fixture {
	t.Helper()
	var urls []string
	for _, e := range engines {
		urls = append(urls, e.url)
	}
	f := serve(t, change, urls...)
	f.UseAdapters(cfg)
	return f
}

func naming(model string) string { return strings.Replace(chat, `"m"`, `"`+model+`"`, 1) }

func TestAnAdapterIsLoadedWhenARequestNamesIt(t *testing.T) {
	for engine, prefix := range map[fleet.Engine]string{fleet.EngineVLLM: "/v1", fleet.EngineSGLang: "", fleet.EngineOther: "/v1"} {
		e := startAdapterEngine(t, prefix)
		f := serveAdapters(t, onDemand("sql", "law"), func(s *settings) { s.facts.Engine = engine }, e)
		for range 2 {
			if resp, text := f.post(t, naming("sql")); resp.StatusCode != 200 {
				t.Fatalf("%v: %d %s", engine, resp.StatusCode, text)
			}
		}
		if got := e.told(); got != "load sql" || e.loaded["sql"] != "/adapters/sql" {
			t.Errorf("%v was told: %s, has %v", engine, got, e.loaded)
		}
		if resp, text := f.post(t, naming("other")); resp.StatusCode != 404 {
			t.Errorf("%v: a model that is not configured: %d %s", engine, resp.StatusCode, text)
		}
		metrics := f.metrics(t)
		if !strings.Contains(metrics, `warmpath_adapter_orders_total{order="load",outcome="done"} 1`) ||
			!strings.Contains(metrics, `warmpath_adapter_wait_seconds_count{outcome="loaded"} 1`) {
			t.Error("the load is not counted")
		}
		f.idle(t)
	}
}

// TestAdaptersAreSpreadAndKeepTheSlots: each adapter goes to the worker with the fewest. When all slots are taken, the
// adapter that was not used for the longest time is unloaded.
func TestAdaptersAreSpreadAndKeepTheSlots(t *testing.T) {
	a, b := startAdapterEngine(t, "/v1"), startAdapterEngine(t, "/v1")
	cfg := onDemand("x0", "x1", "x2", "x3", "x4", "x5")
	cfg.Slots = 2
	f := serveAdapters(t, cfg, nil, a, b)
	ask := func(name string) {
		t.Helper()
		if resp, text := f.post(t, naming(name)); resp.StatusCode != 200 {
			t.Fatalf("%s: %d %s", name, resp.StatusCode, text)
		}
	}
	for _, name := range []string{"x0", "x1", "x2", "x3"} {
		ask(name)
	}
	if len(a.loaded) != 2 || len(b.loaded) != 2 {
		t.Errorf("loaded %v and %v, want two at each", a.loaded, b.loaded)
	}
	ask("x0") // now x1 was not used for the longest time
	testenv.Until(t, "the requests have ended", func() bool { return len(f.Telemetry.Last(0)) == 5 })
	ask("x4")
	if all := a.told() + ", " + b.told(); !strings.Contains(all, "unload x1, load x4") || strings.Count(all, "unload") != 1 {
		t.Errorf("told: %s", all)
	}
	if a.most > 2 || b.most > 2 {
		t.Errorf("up to %d and %d adapters at 2 slots", a.most, b.most)
	}
	ask("x1")
}

// The engine's hashes of blocks contain the adapter's path, and its events do not. So the blocks of the old path are
// forgotten, and a request for the adapter at the new path matches none of them.
func TestAnAdapterAtAnotherPathMatchesNoOldBlocks(t *testing.T) {
	e := startAdapterEngine(t, "/v1")
	cfg := onDemand("sql", "law")
	cfg.Slots = 1
	f := serveAdapters(t, cfg, func(s *settings) { s.local = fortyZeros{} }, e)
	requests := 0
	match := func(name string) int {
		t.Helper()
		if resp, text := f.post(t, naming(name)); resp.StatusCode != 200 {
			t.Fatalf("%s: %d %s", name, resp.StatusCode, text)
		}
		requests++
		return f.last(t, requests).MatchTokens
	}
	match("sql")
	stored := kvindex.Stored{Scope: block.Scope{LoRA: "sql"}, Hashes: []uint64{1, 2}, BlockSize: 16, Tokens: make([]block.Token, 32)}
	f.Router.Store(0, &stored)
	f.fleet.SetTrust(0, fleet.TrustExact, "")
	if n := match("sql"); n != 32 {
		t.Errorf("%d tokens match before", n)
	}
	match("law") // takes the slot
	if n := match("sql"); n != 32 {
		t.Errorf("%d tokens match after the adapter was loaded again", n)
	}
	match("law")
	cfg.List[0].Path = "/adapters/new"
	f.UseAdapters(cfg)
	if n := match("sql"); n != 0 || e.loaded["sql"] != "/adapters/new" {
		t.Errorf("%d tokens match at the new path; loaded: %v", n, e.loaded)
	}
}

func TestTheEnginesOwnNumberOfSlotsCounts(t *testing.T) {
	for reported, want := range map[int]int{0: 4, 1: 1, 3: 3} {
		e := startAdapterEngine(t, "/v1")
		f := serveAdapters(t, onDemand("x0", "x1", "x2", "x3", "x4", "x5"), func(s *settings) { s.facts.AdapterSlots = reported }, e)
		for i := range 6 {
			if resp, text := f.post(t, naming(fmt.Sprint("x", i))); resp.StatusCode != 200 {
				t.Fatalf("%d %s", resp.StatusCode, text)
			}
		}
		if e.most != want {
			t.Errorf("the engine reports %d slots: up to %d adapters, want %d", reported, e.most, want)
		}
	}
}

// TestAnAdapterWithRequestsIsNotUnloaded: the only slot is in use, so a request for another adapter waits for it.
func TestAnAdapterWithRequestsIsNotUnloaded(t *testing.T) {
	e := startAdapterEngine(t, "/v1")
	e.answers = make(chan struct{}, 8)
	cfg := onDemand("sql", "law")
	cfg.Slots = 1
	f := serveAdapters(t, cfg, nil, e)
	status := make(chan int, 2)
	post := func(name string) {
		go func() { // its status is received below
			resp, _, err := f.try(context.Background(), naming(name))
			if err != nil {
				status <- 0
				return
			}
			status <- resp.StatusCode
		}()
	}
	post("sql")
	<-e.began
	testenv.Until(t, "the first request is at the worker", func() bool { return f.fleet.Snapshot().Load(0).Requests == 1 })
	resp, text := f.post(t, naming("law"), "X-Warmpath-Max-Wait", "50ms")
	if resp.StatusCode != 503 || !strings.Contains(text, "adapter_not_loaded") || !strings.Contains(text, "slots") || resp.Header.Get("Retry-After") == "" {
		t.Errorf("while the slot is in use: %d %s", resp.StatusCode, text)
	}
	post("law")
	testenv.Until(t, "the second request waits", func() bool { return strings.Contains(f.metrics(t), "warmpath_held_requests 1") })
	if got := e.told(); got != "load sql" {
		t.Errorf("told %s while the slot was in use", got)
	}
	e.answers <- struct{}{}
	e.answers <- struct{}{}
	if a, b := <-status, <-status; a != 200 || b != 200 {
		t.Errorf("%d %d", a, b)
	}
	if got := e.told(); got != "load sql, unload sql, load law" {
		t.Errorf("told %s", got)
	}
}

func TestRequestsForOneAdapterShareItsLoad(t *testing.T) {
	a, b := startAdapterEngine(t, "/v1"), startAdapterEngine(t, "/v1")
	gate := make(chan struct{})
	a.gate, b.gate = gate, gate
	f := serveAdapters(t, onDemand("sql"), nil, a, b)
	status := make(chan int, 16)
	for range cap(status) {
		go func() { // its status is received below
			resp, _, err := f.try(context.Background(), naming("sql"))
			if err != nil {
				status <- 0
				return
			}
			status <- resp.StatusCode
		}()
	}
	testenv.Until(t, "all wait", func() bool { return strings.Contains(f.metrics(t), "warmpath_held_requests 16") })
	close(gate)
	for range cap(status) {
		if got := <-status; got != 200 {
			t.Errorf("status %d", got)
		}
	}
	if got := a.told() + b.told(); got != "load sql" {
		t.Errorf("told %s", got)
	}
	if rec := f.last(t, 16); rec.HeldMS <= 0 {
		t.Error("the record does not show the wait")
	}
}

// The places in which requests wait for adapters are shared as those of the hold: the newest requests of the tenant
// that has the greater part make room for another tenant.
func TestATenantCannotKeepOthersFromWaitingForAdapters(t *testing.T) {
	e := startAdapterEngine(t, "/v1")
	e.gate = make(chan struct{})
	_, change := withTenants(tenant.Config{Name: "flood", KeysSHA256: hashed("f")}, tenant.Config{Name: "light", KeysSHA256: hashed("l")})
	f := serveAdapters(t, onDemand("sql", "law"), func(s *settings) {
		change(s)
		s.gateway.Hold = gateway.HoldConfig{MaxWait: time.Minute, MaxRequests: 4, MaxBytes: 10_000}
	}, e)
	type answered struct {
		status int
		text   string
	}
	send := func(model, key string) <-chan answered {
		out := make(chan answered, 1)
		go func() { // its answer is received below
			resp, text, err := f.try(context.Background(), naming(model), "X-Api-Key", key)
			if err != nil {
				out <- answered{text: err.Error()}
				return
			}
			out <- answered{resp.StatusCode, text}
		}()
		return out
	}
	var floods []<-chan answered
	for i := range 4 {
		floods = append(floods, send("sql", "f"))
		testenv.Until(t, "the request waits", func() bool { return strings.Contains(f.metrics(t), fmt.Sprint("warmpath_held_requests ", i+1)) })
	}
	refused := func(of <-chan answered) {
		t.Helper()
		if a := <-of; a.status != 503 || !strings.Contains(a.text, "hold_full") {
			t.Errorf("%+v, want hold_full", a)
		}
	}
	refused(send("law", "f")) // no more for the flood
	lights := []<-chan answered{send("law", "l")}
	refused(floods[3])
	lights = append(lights, send("sql", "l"))
	refused(floods[2])
	refused(send("law", "l")) // beyond the tenant's share
	close(e.gate)
	for _, kept := range append(floods[:2], lights...) {
		if a := <-kept; a.status != 200 {
			t.Errorf("a request that kept its place: %+v", a)
		}
	}
	if !strings.Contains(f.metrics(t), "warmpath_held_requests 0\n") || !strings.Contains(f.metrics(t), "warmpath_held_bytes 0\n") {
		t.Error("the metrics still count held requests")
	}
}

// Somebody unloaded an adapter at its engine. The first request that shows it asks for a probe.
func TestAnAdapterThatIsGoneAsksForAProbe(t *testing.T) {
	e := startAdapterEngine(t, "/v1")
	outdated := make(chan string, 8)
	f := serveAdapters(t, gateway.AdapterConfig{}, func(s *settings) {
		s.facts.Models = append(s.facts.Models, fleet.Model{ID: "sql", Parent: "m"}, fleet.Model{ID: "base"})
		s.parts = func(p *gateway.Parts) { p.Outdated = func(url string) { outdated <- url } }
	}, e)
	for model, asks := range map[string]int{"sql": 1, "base": 0, "m": 0} { // the engine serves only m
		if resp, text := f.post(t, naming(model)); (resp.StatusCode == 404) != (model != "m") {
			t.Errorf("%s: %d %s", model, resp.StatusCode, text)
		}
		f.idle(t)
		if len(outdated) != asks {
			t.Errorf("%s: %d probes were asked for", model, len(outdated))
		}
		for range len(outdated) {
			if url := <-outdated; url != e.url {
				t.Errorf("asked for a probe of %s", url)
			}
		}
	}
}

func TestALoadThatFailsGoesToTheNextWorker(t *testing.T) {
	bad := func(e *adapterEngine) *adapterEngine {
		e.refuse = func(string) (int, string) { return 500, `{"error":{"message":"out of memory"}}` }
		return e
	}
	one, two := bad(startAdapterEngine(t, "/v1")), startAdapterEngine(t, "/v1")
	f := serveAdapters(t, onDemand("sql"), nil, one, two)
	if resp, text := f.post(t, naming("sql")); resp.StatusCode != 200 || one.told() != "load sql" || two.told() != "load sql" {
		t.Errorf("%d %s; told %s and %s", resp.StatusCode, text, one.told(), two.told())
	}

	var all []*adapterEngine
	for range 4 {
		all = append(all, bad(startAdapterEngine(t, "/v1")))
	}
	f = serveAdapters(t, onDemand("sql"), nil, all...)
	for range 3 {
		resp, text := f.post(t, naming("sql"))
		if resp.StatusCode != 503 || !strings.Contains(text, `"adapter_not_loaded"`) || !strings.Contains(text, "out of memory") || resp.Header.Get("Retry-After") == "" {
			t.Errorf("%d %s", resp.StatusCode, text)
		}
	}
	told := 0
	for _, e := range all {
		told += len(e.orders)
	}
	if told != 3 {
		t.Errorf("%d orders, want 3 for the first request and none in the pause after it", told)
	}
}

// Engines that do not know the orders cost no attempt of a load, and are told last afterwards.
func TestEnginesThatCannotLoadAdaptersAreToldLast(t *testing.T) {
	var all []*adapterEngine
	for range 5 {
		e := startAdapterEngine(t, "/v1")
		e.refuse = func(string) (int, string) { return 404, `{"detail":"Not Found"}` }
		all = append(all, e)
	}
	able := startAdapterEngine(t, "/v1")
	names := []string{"sql", "law", "tax", "art"}
	f := serveAdapters(t, onDemand(names...), nil, append(all, able)...)
	for i, name := range names {
		if resp, text := f.post(t, naming(name)); resp.StatusCode != 200 || !able.has(name) {
			t.Errorf("%s: %d %s", name, resp.StatusCode, text)
		}
		for _, e := range all {
			if told := e.told(); i > 0 && told != "" && told != "load sql" {
				t.Errorf("an engine that cannot load adapters was told: %s", told)
			}
		}
	}
}

func TestWordsOfEnginesAboutAdapters(t *testing.T) {
	for name, c := range map[string]struct {
		status int
		body   string
		want   int
		words  string
	}{
		"vLLM has it":              {400, `{"error":{"message":"The lora adapter 'sql' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True.","type":"InvalidUserInput"}}`, 200, ""},
		"SGLang has it":            {400, `{"success":false,"error_message":"LoRA with name sql already exists. Loaded LoRAs: x"}`, 200, ""},
		"vLLM may not":             {404, `{"detail":"Not Found"}`, 503, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"},
		"vLLM does not find it":    {404, `{"error":{"message":"Loading lora sql failed: No adapter found for /adapters/sql"}}`, 503, "No adapter found for /adapters/sql"},
		"SGLang has no LoRA":       {400, `{"success":false,"error_message":"LoRA is not enabled. Please set the flag"}`, 503, "LoRA is not enabled"},
		"an answer without a word": {500, ``, 503, "refused without a word"},
		"an answer of garbage":     {500, "\xff\xfe" + strings.Repeat("x", 1<<20), 503, "adapter_not_loaded"},
	} {
		t.Run(name, func(t *testing.T) {
			e := startAdapterEngine(t, "/v1")
			f := serveAdapters(t, onDemand("sql"), nil, e)
			e.refuse = func(string) (int, string) {
				if c.want == 200 {
					e.loaded["sql"] = "/adapters/sql"
				}
				return c.status, c.body
			}
			resp, text := f.post(t, naming("sql"))
			if resp.StatusCode != c.want || !strings.Contains(text, c.words) || len(text) > 4096 {
				t.Errorf("%d %.400s", resp.StatusCode, text)
			}
		})
	}
}

// TestNothingIsLoadedForAClientThatHasLeft: the load under way ends, but no next worker is told to load.
func TestNothingIsLoadedForAClientThatHasLeft(t *testing.T) {
	one, two := startAdapterEngine(t, "/v1"), startAdapterEngine(t, "/v1")
	gate := make(chan struct{})
	for _, e := range []*adapterEngine{one, two} {
		e.gate = gate
		e.refuse = func(string) (int, string) { return 500, "" }
	}
	f := serveAdapters(t, onDemand("sql"), nil, one, two)
	ctx, leave := context.WithCancel(context.Background())
	gone := make(chan struct{})
	go func() { // ends when the client leaves
		defer close(gone)
		_, _, _ = f.try(ctx, naming("sql"))
	}()
	testenv.Until(t, "the load begins", func() bool { return one.told()+two.told() != "" })
	leave()
	<-gone
	testenv.Until(t, "the client is gone", func() bool {
		return strings.Contains(f.metrics(t), `warmpath_adapter_wait_seconds_count{outcome="client_gone"} 1`)
	})
	close(gate)
	testenv.Until(t, "the load ends", func() bool { return strings.Contains(f.metrics(t), `order="load",outcome="failed"} 1`) })
	if err := f.stop(); err != nil {
		t.Error(err)
	}
	if told := one.told() + two.told(); told != "load sql" {
		t.Errorf("told %s", told)
	}
}

func TestALoadHasATimeLimit(t *testing.T) {
	e := startAdapterEngine(t, "/v1")
	e.gate = make(chan struct{})
	defer close(e.gate)
	cfg := onDemand("sql")
	cfg.Timeout = 20 * time.Millisecond
	f := serveAdapters(t, cfg, func(s *settings) { s.gateway.Hold.MaxWait = 10 * time.Second }, e)
	if resp, text := f.post(t, naming("sql")); resp.StatusCode != 503 || !strings.Contains(text, "did not answer in time (adapter_timeout)") {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
}

func TestAProcessThatEndsWaitsForNoLoad(t *testing.T) {
	e := startAdapterEngine(t, "/v1")
	e.gate = make(chan struct{})
	defer close(e.gate)
	f := serveAdapters(t, onDemand("sql"), nil, e)
	if resp, text := f.post(t, naming("sql"), "X-Warmpath-Max-Wait", "20ms"); resp.StatusCode != 503 || !strings.Contains(text, "still loading") {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	if err := f.stop(); err != nil { // within the test's time, not adapter_timeout
		t.Error(err)
	}
}

// TestAnAdapterMovesWhenItsWorkerFails: the request that found its worker down is answered by another worker.
func TestAnAdapterMovesWhenItsWorkerFails(t *testing.T) {
	one, two := startAdapterEngine(t, "/v1"), startAdapterEngine(t, "/v1")
	f := serveAdapters(t, onDemand("sql"), func(s *settings) { s.gateway.Hold.MaxWait = 10 * time.Second }, one, two)
	resp, _ := f.post(t, naming("sql"))
	home, other := one, two
	if resp.Header.Get("X-Warmpath-Worker") == two.url {
		home, other = two, one
	}
	for _, w := range f.fleet.Snapshot().Workers() {
		if w.URL == home.url { // its address refuses connections, and nobody has noticed
			facts := w.Facts
			f.fleet.Remove(w.ID)
			f.fleet.Put(dead(t), facts)
		}
	}
	if resp, text := f.post(t, naming("sql")); resp.StatusCode != 200 || resp.Header.Get("X-Warmpath-Worker") != other.url {
		t.Fatalf("%d %s", resp.StatusCode, text)
	}
	if rec := f.last(t, 2); rec.Attempts != 2 {
		t.Errorf("%d attempts, want one at the worker that is down, and one at the other", rec.Attempts)
	}
	f.idle(t)
}

func TestARequestForAnAdapterIsHeldWhileItsWorkersAreDown(t *testing.T) {
	e := startAdapterEngine(t, "/v1")
	f := serveAdapters(t, onDemand("sql"), func(s *settings) { s.gateway.Hold.MaxWait = 30 * time.Second }, e)
	f.fleet.SetHealth(0, false, "gone")
	status := make(chan int, 1)
	go func() { // its status is received below
		resp, _, err := f.try(context.Background(), naming("sql"))
		if err != nil {
			status <- 0
			return
		}
		status <- resp.StatusCode
	}()
	testenv.Until(t, "the request is held", func() bool { return strings.Contains(f.metrics(t), "warmpath_held_requests 1") })
	f.fleet.SetHealth(0, true, "")
	if got := <-status; got != 200 {
		t.Errorf("status %d", got)
	}
}

func TestAdaptersThatCanBeLoadedAreAvailable(t *testing.T) {
	e := startAdapterEngine(t, "/v1")
	_, change := withTenants(tenant.Config{Name: "a", KeysSHA256: hashed("all")}, tenant.Config{Name: "b", KeysSHA256: hashed("few"), Models: []string{"m", "law"}})
	f := serveAdapters(t, onDemand("sql", "law"), change, e)
	f.UseModelNames(gateway.ModelNames{Aliases: map[string]string{"database": "sql"}, Fallbacks: map[string][]string{"sql": {"m"}}})
	list := func(key string) string {
		two := twoModels{fixture: f}
		return strings.Join(two.listed(t, "Authorization", "Bearer "+key), " ")
	}
	if all, few := list("all"), list("few"); all != "m law sql database" || few != "m law" {
		t.Errorf("/v1/models: %q and %q", all, few)
	}
	if status, text := f.call(t, http.MethodGet, "/v1/models/law", "", "Authorization", "Bearer few"); status != 200 || !strings.Contains(text, `"parent":"m"`) {
		t.Errorf("/v1/models/law: %d %s", status, text)
	}
	if resp, _ := f.post(t, naming("sql"), "Authorization", "Bearer few"); resp.StatusCode != 404 || e.told() != "" {
		t.Errorf("an adapter that the tenant may not use: %d, told %s", resp.StatusCode, e.told())
	}
	resp, text := f.post(t, naming("database"), "Authorization", "Bearer all")
	if resp.StatusCode != 200 || resp.Header.Get("X-Warmpath-Model") != "sql" || e.told() != "load sql" {
		t.Errorf("%d %v %s, told %s", resp.StatusCode, resp.Header, text, e.told())
	}
	f.fleet.SetHealth(0, false, "gone")
	if all := list("all"); all != "" {
		t.Errorf("without a worker: %q", all)
	}
}

func TestAFallbackTakesTheRequestsOfAnAdapterThatCannotBeLoaded(t *testing.T) {
	e := startAdapterEngine(t, "/v1")
	e.refuse = func(string) (int, string) { return 404, `{"detail":"Not Found"}` }
	f := serveAdapters(t, onDemand("sql"), nil, e)
	f.UseModelNames(gateway.ModelNames{Fallbacks: map[string][]string{"sql": {"m"}}})
	for i := range 2 {
		resp, text := f.post(t, naming("sql"))
		if resp.StatusCode != 200 || resp.Header.Get("X-Warmpath-Model") != "m" {
			t.Errorf("%d %v %s", resp.StatusCode, resp.Header, text)
		}
		if want := fmt.Sprintf(`warmpath_model_fallbacks_total{fallback="m",model="sql",reason="unavailable"} %d`, i+1); !strings.Contains(f.metrics(t), want) {
			t.Errorf("no %s", want)
		}
	}
	if e.told() != "load sql" {
		t.Errorf("told %s", e.told())
	}
}

func TestExplainSaysThatAnAdapterWouldBeLoaded(t *testing.T) {
	e := startAdapterEngine(t, "/v1")
	cfg := onDemand("sql", "law")
	cfg.Slots = 1
	f := serveAdapters(t, cfg, nil, e)
	explain := func(model string) *gateway.Explanation {
		t.Helper()
		all, err := f.Explain(t.Context(), &gateway.Question{Dialect: api.OpenAIChat, Body: []byte(naming(model)), Header: http.Header{}})
		if err != nil {
			t.Fatal(err)
		}
		return all[0]
	}
	x := explain("sql")
	if x.Err == nil || !strings.Contains(x.Err.Error(), "would first load it at "+e.url) || x.Record.LoRA != "sql" || x.Record.Base != "m" || x.Record.Worker != nil {
		t.Errorf("%+v", x)
	}
	if e.told() != "" {
		t.Errorf("told %s", e.told())
	}
	f.post(t, naming("sql"))
	if x := explain("sql"); x.Err != nil || x.Record.Worker == nil {
		t.Errorf("once loaded: %+v", x)
	}
	testenv.Until(t, "the request has ended", func() bool { return strings.Contains(fmt.Sprint(explain("law").Err), "first unload sql at "+e.url) })
}

func TestARequestForAWorkerLoadsNothing(t *testing.T) {
	e := startAdapterEngine(t, "/v1")
	f := serveAdapters(t, onDemand("sql"), nil, e)
	for _, header := range [][]string{{"X-Warmpath-Target", e.url}, {"X-Data-Parallel-Rank", "0"}} {
		if resp, _ := f.post(t, naming("sql"), header...); resp.StatusCode < 400 || e.told() != "" {
			t.Errorf("%v: %d, told %s", header, resp.StatusCode, e.told())
		}
	}
}

// TestAdaptersUnderLoadAndSlots: many clients ask for more adapters than there are slots. No request fails, and no
// engine has more adapters than slots.
func TestAdaptersUnderLoadAndSlots(t *testing.T) {
	engines := []*adapterEngine{startAdapterEngine(t, "/v1"), startAdapterEngine(t, "/v1")}
	names := []string{"x0", "x1", "x2", "x3", "x4", "x5"}
	cfg := onDemand(names...)
	cfg.Slots = 2
	f := serveAdapters(t, cfg, func(s *settings) { s.gateway.Hold.MaxWait = time.Minute }, engines...)
	var clients sync.WaitGroup
	for c := range 8 {
		clients.Go(func() { // ends after its requests
			for i := range 20 {
				name := names[(c+i*(c+1))%len(names)]
				if resp, text, err := f.try(context.Background(), naming(name)); err != nil || resp.StatusCode != 200 {
					t.Errorf("%s: %v %s", name, err, text)
					return
				}
			}
		})
	}
	clients.Wait()
	for _, e := range engines {
		if e.most > 2 {
			t.Errorf("up to %d adapters at 2 slots", e.most)
		}
		if !slices.ContainsFunc(e.orders, func(o string) bool { return strings.HasPrefix(o, "unload") }) {
			t.Errorf("no adapter was unloaded: %v", e.orders)
		}
	}
	f.idle(t)
}
