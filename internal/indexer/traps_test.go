package indexer

import (
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestAMisspelledFieldOfARegistrationIsRefused(t *testing.T) {
	w := serve(t, Config{}, nil)
	body := func(more string) string {
		return `{"instance_id":"a","model_name":"m","endpoint":"tcp://h:1",` + more + `}`
	}
	for field, meant := range map[string]string{"lease_second": "lease_seconds", "lease": "lease_seconds", "blocksize": "block_size", "block-size": "block_size",
		"replay_endpiont": "replay_endpoint", "tenantid": "tenant_id"} {
		if status, text := w.ask("POST", "/register", body(`"`+field+`":1`)); status != http.StatusBadRequest || !strings.Contains(text, "did you mean "+meant+"?") {
			t.Errorf("%s: %d %s", field, status, text)
		}
	}
	if status, text := w.ask("POST", "/register", body(`"sources":[{"dp_rank":0,"endpoint":"tcp://h:1","replayendpoint":"tcp://h:2"}]`)); status != http.StatusBadRequest ||
		!strings.Contains(text, "did you mean replay_endpoint?") {
		t.Errorf("in a source: %d %s", status, text)
	}
	// Clients of other services send more.
	for _, more := range []string{`"additionalsalt":"x"`, `"worker_id":7`, `"lifecycle":"ready"`, `"Block_Size":16`} {
		if status, text := w.ask("POST", "/register", body(more)); status != http.StatusCreated {
			t.Errorf("%s: %d %s", more, status, text)
		}
	}
}

// A field that does not count would make the figures those of another question.
func TestAMisspelledFieldOfAQuestionIsRefused(t *testing.T) {
	w := serve(t, Config{}, nil)
	w.worker("http://a", nil)
	for fields, meant := range map[string]string{
		`"token_ids":[1],"cache_slat":"s"`: "cache_salt", `"token_ids":[1],"lora_nam":"x"`: "lora_name", `"token_ids":[1],"worker":["http://a"]`: "workers",
		`"token_ids":[1],"Cache_Salt":"s"`: "cache_salt", `"token_ids":[1],"groups":"s"`: "group", `"tokenids":[1]`: "token_ids", `"message":[]`: "messages",
		`"prompt":"x","cachesalt":"s"`: "cache_salt", `"tenant":"t","messages":[]`: "tenant_id",
	} {
		if status, text := w.ask("POST", "/query", `{`+fields+`}`); status != http.StatusBadRequest || !strings.Contains(text, "did you mean "+meant+"?") {
			t.Errorf("%s: %d %s", fields, status, text)
		}
	}
	// Clients of other services send more, and a chat has the fields of its API.
	for fields, want := range map[string]int{`"token_ids":[1],"additionalsalt":"x","router_config":{"a":1},"worker_id":7,"Modell":null`: 200,
		`"prompt":"x","models":["m"],"groups":1,"tool_choice":"auto","metadata":{},"return_token_ids":true`: 422,
		`"messages":[{"role":"user","content":"x"}],"cache":{"no-cache":true},"extra":1`:                    422, `"prompt":"x","extra":1,"block":1,"routing":1`: 422} {
		if status, text := w.ask("POST", "/query", `{`+fields+`}`); status != want {
			t.Errorf("%s: %d %s", fields, status, text)
		}
	}
	if status, text := w.ask("POST", "/unregister", `{"instance_id":"http://a","dprank":1}`); status != http.StatusBadRequest || !strings.Contains(text, "did you mean dp_rank?") {
		t.Errorf("/unregister: %d %s", status, text)
	}
	for _, more := range []string{`"models":[{"id":"m"}]`, `"model":"m","replay_endpoint":"tcp://h:2","type":"vLLM","lease_seconds":60`} { // as it was registered
		body := `{"instance_id":"http://c","endpoint":"tcp://h:1",` + more + `}`
		if status, text := w.ask("POST", "/register", body); status != http.StatusCreated {
			t.Errorf("/register: %s: %d %s", more, status, text)
		}
		if status, text := w.ask("POST", "/unregister", body); status != http.StatusOK {
			t.Errorf("/unregister: %s: %d %s", more, status, text)
		}
	}
	for _, path := range []string{"/dump?model=m", "/changes?tenant=t", "/changes?instance_id=a"} {
		if status, text := w.ask("GET", path, ""); status != http.StatusBadRequest || !strings.Contains(text, "use model_name, tenant_id, routing_group") {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

// In a question and a registration an empty group is the group default; here none means all.
func TestAnEmptyGroupOfADumpIsRefused(t *testing.T) {
	w := serve(t, Config{}, nil)
	for _, path := range []string{"/dump?tenant_id=", "/changes?routing_group=&model_name=m"} {
		if status, text := w.ask("GET", path, ""); status != http.StatusBadRequest || !strings.Contains(text, "is empty: give a group, such as default") {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

func TestASharedEndpointIsSaid(t *testing.T) {
	w := serve(t, Config{}, nil)
	register := func(worker, group, endpoint string) string {
		t.Helper()
		status, text := w.ask("POST", "/register", `{"instance_id":"`+worker+`","routing_group":"`+group+`","model_name":"m","endpoint":"`+endpoint+`"}`)
		if status != http.StatusCreated {
			t.Fatalf("%d %s", status, text)
		}
		return text
	}
	register("a", "", "tcp://h:1")
	if text := register("a", "other", "tcp://h:1"); strings.Contains(text, "warning") {
		t.Errorf("the same worker in another group: %s", text)
	}
	if text := register("b", "", "tcp://h:1"); !strings.Contains(text, `"warning":"the worker \"a\" has the endpoint`) {
		t.Errorf("another worker: %s", text)
	}
	if text := register("b", "", "tcp://h:2"); strings.Contains(text, "warning") {
		t.Errorf("the endpoint is correct now: %s", text)
	}
	register("a", "", "tcp://h:3")
	w.ask("POST", "/unregister", `{"instance_id":"a","routing_group":"other"}`)
	if text := register("c", "", "tcp://h:1"); strings.Contains(text, "warning") {
		t.Errorf("nobody has the endpoint any more: %s", text)
	}
}

// One engine with two names counts twice, whether it is registered before or after its namesake is found.
func TestAnEndpointOfAListedWorkerIsSaid(t *testing.T) {
	log := new(testenv.Buffer)
	w := serve(t, Config{}, func(p *Parts) {
		p.Log = slog.New(slog.NewTextHandler(log, nil))
		p.Listed = func(string) string { return "" }
		p.ListedAll = func() map[string]string {
			return map[string]string{"http://127.0.0.1:1": "list", "http://127.0.0.1:2": "list"}
		}
	})
	listed := func(url, endpoint string) {
		w.worker(url, func(f *fleet.Facts) { f.Events = []fleet.EventSource{{Endpoint: endpoint}} })
		w.service.registry.expire(time.Now()) // each second
	}
	register := func(worker, endpoint string) string {
		t.Helper()
		status, text := w.ask("POST", "/register", `{"instance_id":"`+worker+`","model_name":"m","endpoint":"`+endpoint+`"}`)
		if status != http.StatusCreated {
			t.Fatalf("%d %s", status, text)
		}
		return text
	}
	const says = "two workers have the same endpoint of events"
	listed("http://127.0.0.1:1", "tcp://127.0.0.1:5557")
	if text := register("http://localhost:1", "tcp://localhost:5557"); !strings.Contains(text, `"warning":"the worker \"http://127.0.0.1:1\" has the endpoint`) {
		t.Errorf("a listed worker has the endpoint: %s", text)
	}
	testenv.Until(t, "the log says it", func() bool { return strings.Count(log.String(), says) == 1 })
	if text := register("http://localhost:2", "tcp://localhost:5558"); strings.Contains(text, "warning") {
		t.Errorf("nobody has the endpoint: %s", text)
	}
	listed("http://127.0.0.1:2", "tcp://[::1]:5558")
	testenv.Until(t, "the log says it of the later worker", func() bool { return strings.Count(log.String(), says) == 2 })
	if text := register("http://other", "tcp://other:5558"); strings.Contains(text, "warning") {
		t.Errorf("the port of another host: %s", text)
	}
	listed("http://127.0.0.1:2", "tcp://127.0.0.1:5559")
	if n := strings.Count(log.String(), says); n != 2 {
		t.Errorf("%d lines of two workers:\n%s", n, log)
	}
	if text := register("http://other", "tcp://localhost:5560"); strings.Contains(text, "warning") {
		t.Errorf("nobody has the endpoint: %s", text)
	}
}

func TestAQuestionWithoutAModelHearsTheModels(t *testing.T) {
	w := serve(t, Config{}, nil)
	w.worker("http://a", func(f *fleet.Facts) { f.Models[0].ID = "llama" })
	w.worker("http://b", func(f *fleet.Facts) { f.Models = []fleet.Model{{ID: "mock"}, {ID: "sql", Parent: "mock"}} })
	if status, text := w.ask("POST", "/query", `{"token_ids":[1]}`); status != http.StatusBadRequest || !strings.Contains(text, "in model_name: llama, mock\"") {
		t.Errorf("%d %s", status, text)
	}
	for _, path := range []string{"/dump", "/changes"} {
		if status, text := w.ask("GET", path+"?model_name=sql", ""); status != http.StatusBadRequest || !strings.Contains(text, `the model \"mock\"`) {
			t.Errorf("%s of an adapter: %d %s", path, status, text)
		}
		if status, text := w.ask("GET", path+"?model_name=lama", ""); status != http.StatusNotFound || !strings.Contains(text, "no worker serves the model") {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
}

func TestAnAnswerNamesTheWorkersThatItDoesNotKnow(t *testing.T) {
	w := serve(t, Config{}, nil)
	w.worker("http://a", nil)
	q := question{model: "m", tokens: []uint32{1}, workers: []string{"http://a", "http://b", "http://c/", "http://b"}}
	_, text := w.ask("POST", "/query", `{"model":"m","token_ids":[1],"workers":["http://a","http://b","http://c/","http://b"]}`)
	if !strings.Contains(text, `"unknown":["http://b","http://c/"]}`) || !strings.Contains(text, `"http://a"`) {
		t.Error(text)
	}
	_, text = w.ask("POST", "/query", string(q.appendTo(nil)), "Content-Type", protobuf)
	var a answer
	if err := a.decode([]byte(text)); err != nil || len(a.unknown) != 2 || len(a.scores) != 1 {
		t.Errorf("%+v: %v", a, err)
	}
	if _, text = w.ask("POST", "/query", `{"model":"m","token_ids":[1],"workers":["http://a"]}`); strings.Contains(text, "unknown") {
		t.Error(text)
	}
}

func TestARouterSaysOnceThatTheServiceDoesNotKnowItsWorker(t *testing.T) {
	w := serve(t, Config{}, nil)
	log := new(testenv.Buffer)
	a := newAsker(t, w.url, func(c *ClientConfig, _ *warmpath.Options) { c.Register = false }, log)
	a.fleet.Put("http://a", fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16})
	const says = "the index service does not know a worker"
	testenv.Until(t, "the log says it", func() bool { return strings.Contains(log.String(), says) })
	a.fleet.Put("http://b", fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, BlockSize: 16}) // makes the client look again
	testenv.Until(t, "the log says it of the other", func() bool { return strings.Contains(log.String(), "worker=http://b") })
	if n := strings.Count(log.String(), says); n != 2 {
		t.Errorf("%d lines about two workers:\n%s", n, log)
	}
}

// A web page that is open on this machine must not register workers, which the service would connect to.
func TestAWebPageRegistersNoWorker(t *testing.T) {
	w := serve(t, Config{}, nil)
	const worker = `{"instance_id":"a","model_name":"m","endpoint":"tcp://h:1"}`
	if status, text := w.ask("POST", "/register", worker, "Sec-Fetch-Site", "cross-site", "Origin", "http://page", "Content-Type", "text/plain"); status != http.StatusForbidden {
		t.Errorf("%d %s", status, text)
	}
	if n := len(w.fleet.Snapshot().Workers()); n != 0 {
		t.Errorf("%d workers are registered", n)
	}
	if status, text := w.ask("POST", "/register", worker); status != http.StatusCreated {
		t.Errorf("a program: %d %s", status, text)
	}
}

// The feed of the service must hear of the cache salts and extra keys with which routers send requests, whichever way
// the router asks.
func TestTheFeedHearsOfTheKeysOfRouters(t *testing.T) {
	w := serve(t, Config{}, nil)
	a, req := fleetOf(t, w, nil)
	hears := func(extra string) {
		t.Helper()
		req.Salt, req.Extra = "s", extra
		if _, err := a.match(t, req); err != nil {
			t.Error(err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if !slices.Contains(w.scoped, "http://a s/"+extra) {
			t.Errorf("the feed heard of %q, not of %s", w.scoped, extra)
		}
	}
	testenv.Until(t, "the stream is open", func() bool { return a.asks() > 0 })
	hears("over gRPC")
	w.service.grpcPort.Store(0) // there will be no other stream
	a.client.stream.Load().stop(nil)
	testenv.Until(t, "the stream has ended", func() bool { return a.asks() < 0 })
	hears("over HTTP")
}
