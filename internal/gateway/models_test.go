package gateway_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/test/testenv"
)

// twoModels is a gateway in front of a worker of the model m and a worker of the model small. m answers by the handler;
// small answers well.
type twoModels struct {
	*fixture
	m, small string       // URLs
	bodies   atomic.Value // the last body that small got, a string
}

func serveTwo(t *testing.T, m http.HandlerFunc, names gateway.ModelNames, change func(*settings)) *twoModels {
	t.Helper()
	f := &twoModels{m: worker(t, m)}
	f.small = worker(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		f.bodies.Store(string(body))
		plain(w, r)
	})
	f.fixture = serve(t, change, f.m)
	f.fleet.Put(f.small, fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "small", Root: "org/small", MaxModelLen: 2048}}, BlockSize: 16})
	f.UseModelNames(names)
	return f
}

func (f *twoModels) listed(t *testing.T, headers ...string) (ids []string) {
	t.Helper()
	_, text := f.call(t, http.MethodGet, "/v1/models", "", headers...)
	var list struct{ Data []struct{ ID, Root string } }
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	for _, m := range list.Data {
		ids = append(ids, m.ID)
	}
	return ids
}

func TestAnAliasReachesItsModelWithNoOtherByteChanged(t *testing.T) {
	f := serveTwo(t, plain, gateway.ModelNames{Aliases: map[string]string{"gpt-4o": "small", "lost": "nowhere"}}, nil)
	resp, text := f.post(t, `{"temperature": 1.50, "model" : "gpt-4o" ,"messages":[{"role":"user","content":"hi"}]}`)
	if resp.StatusCode != 200 || resp.Header.Get("X-Warmpath-Worker") != f.small || resp.Header.Get("X-Warmpath-Model") != "small" {
		t.Fatalf("%d %v %s", resp.StatusCode, resp.Header, text)
	}
	if got, want := f.bodies.Load(), `{"temperature": 1.50, "model" : "small" ,"messages":[{"role":"user","content":"hi"}]}`; got != want {
		t.Errorf("the worker got\n%s, want\n%s", got, want)
	}
	if rec := f.last(t, 1); rec.Model != "small" || rec.AskedModel != "gpt-4o" {
		t.Errorf("recorded: model %q, asked %q", rec.Model, rec.AskedModel)
	}
	if resp, _ := f.post(t, chat); resp.Header.Get("X-Warmpath-Model") != "" || resp.Header.Get("X-Warmpath-Worker") != f.m {
		t.Errorf("a request for a model by its own name: %v", resp.Header)
	}
	if resp, text := f.post(t, strings.Replace(chat, `"m"`, `"lost"`, 1)); resp.StatusCode != 404 || !strings.Contains(text, "nowhere") {
		t.Errorf("an alias of a model that no worker serves: %d %s", resp.StatusCode, text)
	}
	if ids := strings.Join(f.listed(t), " "); ids != "m small gpt-4o" {
		t.Errorf("/v1/models has %s", ids)
	}
	if status, text := f.call(t, http.MethodGet, "/v1/models/gpt-4o", ""); status != 200 || !strings.Contains(text, "org/small") {
		t.Errorf("/v1/models/gpt-4o: %d %s", status, text)
	}
	f.UseModelNames(gateway.ModelNames{}) // as a reload does
	if resp, _ := f.post(t, strings.Replace(chat, `"m"`, `"gpt-4o"`, 1)); resp.StatusCode != 404 {
		t.Errorf("after the alias was removed: %d", resp.StatusCode)
	}
}

func TestAFallbackTakesTheRequestsThatItsModelCannot(t *testing.T) {
	names := gateway.ModelNames{Aliases: map[string]string{"big": "m"}, Fallbacks: map[string][]string{"m": {"absent", "small"}}}
	for name, c := range map[string]struct {
		m      http.HandlerFunc
		change func(*twoModels)
		reason string
		tries  int // attempts in the record
	}{
		"no worker is ready":  {plain, func(f *twoModels) { f.fleet.SetHealth(0, false, "gone") }, "unavailable", 1},
		"no worker is there":  {plain, func(f *twoModels) { f.fleet.Remove(0) }, "unavailable", 1},
		"its worker fails":    {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, func(*twoModels) {}, "failed", 2},
		"its worker is full":  {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }, func(*twoModels) {}, "failed", 2},
		"its worker cuts off": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, func(*twoModels) {}, "failed", 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := serveTwo(t, c.m, names, nil)
			c.change(f)
			for i, asked := range []string{"m", "big"} {
				f.fleet.SetHealth(0, name != "no worker is ready", "gone")
				resp, text := f.post(t, strings.Replace(chatStreamed, `"m"`, `"`+asked+`"`, 1))
				if resp.StatusCode != 200 || resp.Header.Get("X-Warmpath-Model") != "small" || !strings.Contains(text, "hello") {
					t.Fatalf("%s: %d %v %s", asked, resp.StatusCode, resp.Header, text)
				}
				rec := f.last(t, i+1)
				if rec.Model != "small" || rec.AskedModel != asked || i == 0 && rec.Attempts != c.tries {
					t.Errorf("recorded: model %q, asked %q, %d attempts", rec.Model, rec.AskedModel, rec.Attempts)
				}
				if i == 0 && !strings.Contains(f.metrics(t), `warmpath_model_fallbacks_total{fallback="small",model="m",reason="`+c.reason+`"} 1`) {
					t.Errorf("not counted as %s", c.reason)
				}
			}
			f.idle(t)
		})
	}
}

func TestAFallbackIsNoWayAroundARefusal(t *testing.T) {
	names := gateway.ModelNames{Fallbacks: map[string][]string{"m": {"small"}}}
	f := serveTwo(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(400)
		_, _ = io.WriteString(w, `{"error":{"message":"max_tokens is too large"}}`)
	}, names, nil)
	if resp, text := f.post(t, chat); resp.StatusCode != 400 || !strings.Contains(text, "max_tokens") {
		t.Errorf("the client's own fault: %d %s", resp.StatusCode, text)
	}
	f.fleet.SetHealth(0, false, "gone")
	for name, headers := range map[string][]string{"a worker": {"X-Warmpath-Target", f.m}, "a rank": {"X-Data-Parallel-Rank", "0"}} {
		if resp, text := f.post(t, chat, headers...); resp.StatusCode < 400 {
			t.Errorf("a request for %s fell back: %d %s", name, resp.StatusCode, text)
		}
	}
}

func TestTheClientGetsTheFirstModelsErrorIfNoFallbackCanTakeItsRequest(t *testing.T) {
	names := gateway.ModelNames{Fallbacks: map[string][]string{"m": {"small"}}}
	f := serveTwo(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) }, names, nil)
	f.fleet.SetHealth(1, false, "gone")
	resp, text := f.post(t, chat)
	if resp.StatusCode < 500 || resp.Header.Get("X-Warmpath-Worker") != f.m {
		t.Errorf("%d %v %s", resp.StatusCode, resp.Header, text)
	}
	f.idle(t)
}

func TestATenantUsesOnlyItsOwnFallbacks(t *testing.T) {
	names := gateway.ModelNames{Aliases: map[string]string{"gpt": "m"}, Fallbacks: map[string][]string{"m": {"small"}}}
	_, change := withTenants(
		tenant.Config{Name: "a", KeysSHA256: hashed("all")},
		tenant.Config{Name: "b", KeysSHA256: hashed("alias"), Models: []string{"gpt"}},
		tenant.Config{Name: "c", KeysSHA256: hashed("other"), Models: []string{"small"}})
	f := serveTwo(t, plain, names, change)
	ask := func(model, key string) int {
		resp, _ := f.post(t, strings.Replace(chat, `"m"`, `"`+model+`"`, 1), "Authorization", "Bearer "+key)
		return resp.StatusCode
	}
	for _, c := range []struct {
		model, key string
		up, down   int // status while m has a worker, and while it has none
	}{
		{"m", "all", 200, 200}, {"gpt", "all", 200, 200},
		{"gpt", "alias", 200, 503}, {"m", "alias", 404, 404},
		{"gpt", "other", 404, 404}, {"small", "other", 200, 200},
	} {
		f.fleet.SetHealth(0, true, "")
		if got := ask(c.model, c.key); got != c.up {
			t.Errorf("%s of %s: %d, want %d", c.model, c.key, got, c.up)
		}
		f.fleet.SetHealth(0, false, "gone")
		if got := ask(c.model, c.key); got != c.down {
			t.Errorf("%s of %s without a worker: %d, want %d", c.model, c.key, got, c.down)
		}
	}
	for key, want := range map[string]string{"all": "small gpt m", "alias": "", "other": "small"} {
		if ids := strings.Join(f.listed(t, "Authorization", "Bearer "+key), " "); ids != want {
			t.Errorf("/v1/models of %s: %q, want %q", key, ids, want)
		}
	}
}

func TestAFormThatNamesAnAliasGetsAClearError(t *testing.T) {
	f := serveTwo(t, plain, gateway.ModelNames{Aliases: map[string]string{"whisper-1": "small"}}, nil)
	form := "--x\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper-1\r\n--x--\r\n"
	status, text := f.call(t, http.MethodPost, "/v1/audio/transcriptions", form, "Content-Type", "multipart/form-data; boundary=x")
	if status != 400 || !strings.Contains(text, `name \"small\" in the form`) {
		t.Errorf("%d %s", status, text)
	}
}

func TestExplainSaysWhichModelTakesTheRequest(t *testing.T) {
	names := gateway.ModelNames{Fallbacks: map[string][]string{"m": {"small"}}}
	f := serveTwo(t, plain, names, nil)
	f.fleet.SetHealth(0, false, "gone")
	all, err := f.Explain(t.Context(), &gateway.Question{Dialect: api.OpenAIChat, Body: []byte(chat), Header: http.Header{}})
	if err != nil {
		t.Fatal(err)
	}
	if e := all[0]; e.AskedModel != "m" || e.Record.Model != "small" || e.Record.Worker == nil || e.Record.Worker.URL != f.small {
		t.Errorf("asked %q, model %q", e.AskedModel, e.Record.Model)
	}
}

// TestAHeldRequestFallsBackWhenAFallbackReturns: all workers are away. The first that comes back serves the fall-back.
func TestAHeldRequestFallsBackWhenAFallbackReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := holding(t, 2, gateway.HoldConfig{MaxWait: 30 * time.Second, MaxRequests: 10, MaxBytes: 1 << 20}, nil)
		snap := o.fleet.Snapshot()
		second := snap.Workers()[1]
		facts := second.Facts
		facts.Models = []fleet.Model{{ID: "small", MaxModelLen: 4096}}
		o.fleet.Put(second.URL, facts)
		for _, w := range snap.Workers() {
			o.fleet.SetHealth(w.ID, false, "gone")
		}
		o.UseModelNames(gateway.ModelNames{Fallbacks: map[string][]string{"m": {"small"}}})
		s := o.send("a")
		testenv.Pass(5 * time.Second)
		select {
		case <-s.done:
			t.Fatalf("not held: %d %s", s.Code, s.Body)
		default:
		}
		o.fleet.SetHealth(second.ID, true, "")
		testenv.Pass(2 * time.Second)
		<-s.done
		if s.Code != 200 || s.took > 7*time.Second || s.Header().Get("X-Warmpath-Model") != "small" || s.Header().Get("X-Warmpath-Held") == "" {
			t.Errorf("%d %v %s", s.Code, s.Header(), s.Body)
		}
	})
}
