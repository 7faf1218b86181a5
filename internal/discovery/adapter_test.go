package discovery

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// TestAProbeDoesNotUndoAnOrder: the gateway loads an adapter while a probe has read the list of models already. The
// next probe shows that a restarted engine lost the adapter.
func TestAProbeDoesNotUndoAnOrder(t *testing.T) {
	law := fleet.Model{ID: "law", Root: "/adapters/law", Parent: "tiny"}
	has := func(w *fleet.Worker) bool { return strings.Contains(names(w), "law") }
	synctest.Test(t, func(t *testing.T) {
		w := watchingOne(t)
		defer w.stop()
		testenv.Pass(time.Second)
		before := names(w.worker(t, "http://a"))
		id := w.worker(t, "http://a").ID
		during := vllm032().with("GET /v1/models", strings.ReplaceAll(vllmModels, `"sql"`, `"other"`))
		var loading atomic.Bool
		// The engine lists its models; then the order ends, and the probe's next question comes.
		w.set("a", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if during.ServeHTTP(rw, r); r.URL.Path == "/v1/models" && !loading.Swap(true) {
				w.fleet.BeginModelOrder(id, "")
				w.fleet.EndModelOrder(id, law)
			}
		}))
		for !loading.Load() {
			testenv.Pass(time.Second)
		}
		if got := w.worker(t, "http://a"); !has(got) {
			t.Errorf("a probe from before the load ended has removed the adapter: %s", names(got))
		}
		testenv.Pass(6 * time.Second) // the next check probes again: the engine still does not list the adapter
		if got := w.worker(t, "http://a"); has(got) || names(got) == before {
			t.Errorf("the adapter that the engine does not have stays: %s", names(got))
		}

		w.fleet.BeginModelOrder(id, "") // an order that does not end: all lists may be outdated
		w.set("a", vllm032().with("GET /v1/models", strings.ReplaceAll(vllmModels, `"sql"`, `"third"`)))
		testenv.Pass(3 * time.Minute)
		if got := names(w.worker(t, "http://a")); strings.Contains(got, "third") {
			t.Errorf("during an order: %s", got)
		}
		w.fleet.EndModelOrder(id, fleet.Model{})
		testenv.Pass(6 * time.Second)
		if got := names(w.worker(t, "http://a")); !strings.Contains(got, "third") {
			t.Errorf("after the order: %s", got)
		}
	})
}

func names(w *fleet.Worker) string {
	var all []string
	for _, m := range w.Facts.Models {
		all = append(all, m.ID)
	}
	return strings.Join(all, " ")
}

// TestAnAdapterThatTheRouterAddedGoesWithItsProcess: the fleet has the adapter, and no probe has ever listed it.
func TestAnAdapterThatTheRouterAddedGoesWithItsProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchingOne(t)
		defer w.stop()
		testenv.Pass(time.Second)
		id := w.worker(t, "http://a").ID
		w.fleet.BeginModelOrder(id, "")
		w.fleet.EndModelOrder(id, fleet.Model{ID: "law", Parent: "tiny"})
		testenv.Pass(70 * time.Second)
		if got := names(w.worker(t, "http://a")); strings.Contains(got, "law") {
			t.Errorf("models %s", got)
		}
	})
}

// A request has shown that an adapter is gone: the list of models is asked for at once, but not more often than the
// worker is checked.
func TestAWorkerIsProbedAgainWhenItsListIsOutdated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchingOne(t)
		defer w.stop()
		testenv.Pass(12 * time.Second) // checks at 0, 5 and 10 s, the probe at 0 s
		var probes atomic.Int64
		engine := vllm032().with("GET /v1/models", strings.ReplaceAll(vllmModels, `"sql"`, `"other"`))
		w.set("a", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/models" {
				probes.Add(1)
			}
			engine.ServeHTTP(rw, r)
		}))
		w.ProbeAgain("http://unknown")
		w.ProbeAgain("http://a")
		testenv.Pass(100 * time.Millisecond)
		if got := names(w.worker(t, "http://a")); !strings.Contains(got, "other") {
			t.Errorf("models %s", got)
		}
		one := probes.Load()
		for range 200 {
			w.ProbeAgain("http://a")
			testenv.Pass(100 * time.Millisecond)
		}
		if n := probes.Load(); one == 0 || n < 2*one || n > 5*one {
			t.Errorf("%d questions of one probe, %d after 20 s more", one, n)
		}
	})
}

func TestAProbeReadsTheSlotsForAdapters(t *testing.T) {
	for name, c := range map[string]struct {
		engine answers
		want   int
	}{
		"vLLM":                      {vllm032().with("GET /metrics", vllmMetrics+`vllm:lora_requests_info{max_lora="3",running_lora_adapters="a",waiting_lora_adapters=""} 1.7e+09`+"\n"), 3},
		"vLLM without a request":    {vllm032(), 0},
		"vLLM with garbage":         {vllm032().with("GET /metrics", vllmMetrics+`vllm:lora_requests_info{max_lora="-3"} 1`+"\n"), 0},
		"SGLang with its own limit": {sglang0523().with("GET /server_info", `{"page_size":32,"model_path":"m","max_loras_per_batch":8,"max_loaded_loras":12}`), 12},
		"SGLang":                    {sglang0523().with("GET /server_info", `{"page_size":32,"model_path":"m","max_loras_per_batch":8,"max_loaded_loras":null}`), 8},
		"SGLang with garbage":       {sglang0523().with("GET /server_info", `{"page_size":32,"model_path":"m","max_loras_per_batch":-8}`), 0},
	} {
		if got := probeOf(t, Target{URL: serve(t, c.engine)}).Facts.AdapterSlots; got != c.want {
			t.Errorf("%s: %d slots, want %d", name, got, c.want)
		}
	}
}
