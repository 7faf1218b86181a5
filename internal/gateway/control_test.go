package gateway_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/test/testenv"
)

// obeyer is an engine that does what it is told.
type obeyer struct {
	url  string
	mu   sync.Mutex
	told []string
	body string // of the last request
	says string // what it answers to orders
	code int    // 0 is 200

	sleeps string        // what it answers to /is_sleeping
	hold   chan struct{} // if it is not nil, chats wait for it
}

func obeys(t *testing.T) *obeyer {
	o := &obeyer{says: "ok"}
	o.url = worker(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if o.hold != nil && r.URL.Path == "/v1/chat/completions" {
			select {
			case <-o.hold:
			case <-r.Context().Done():
			}
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		if r.URL.Path == "/is_sleeping" {
			_, _ = io.WriteString(w, o.sleeps)
			return
		}
		o.told, o.body = append(o.told, r.Method+" "+r.RequestURI), string(body)
		switch r.URL.Path {
		case "/v1/chat/completions":
			_, _ = io.WriteString(w, whole)
		case "/generate":
			_, _ = io.WriteString(w, `{"text":"a","meta_info":{"finish_reason":{"type":"stop"},"prompt_tokens":40,"completion_tokens":1,"cached_tokens":0}}`)
		default:
			if o.code != 0 {
				w.WriteHeader(o.code)
			}
			_, _ = io.WriteString(w, o.says)
		}
	})
	return o
}

func (o *obeyer) last() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.told) == 0 {
		return ""
	}
	return o.told[len(o.told)-1]
}

// told is the answer to an order.
type told struct {
	status  int
	Success bool
	Error   struct{ Code, Message string }
	Workers []struct {
		Worker, Answer string
		OK             bool
		Status         int
	}
}

// order gives an order as the admin listener does.
func (f *fixture) order(t *testing.T, path string) (a told) {
	t.Helper()
	w := httptest.NewRecorder()
	f.Order(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil))
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
		t.Fatalf("%s: %v in %s", path, err, w.Body)
	}
	a.status = w.Code
	return a
}

func TestOrdersBelongToTheAdminListener(t *testing.T) {
	for _, allowed := range []bool{false, true} {
		o := obeys(t)
		f := serve(t, func(s *settings) { s.gateway.WorkerOrders = allowed }, o.url)
		for _, path := range []string{"/flush_cache", "/sleep", "/wake_up"} {
			status, text := f.call(t, "POST", path, "")
			if allowed && status != 200 || !allowed && (status != 403 || !strings.Contains(text, "admin listener") || o.last() != "") {
				t.Errorf("%s, allowed %v: %d %s", path, allowed, status, text)
			}
			if status, _ := f.call(t, "GET", path, ""); status != 405 {
				t.Errorf("GET %s: %d", path, status)
			}
		}
	}
}

func TestAFlushReachesAllWorkersAndEmptiesTheirView(t *testing.T) {
	vllm, sglang := obeys(t), obeys(t)
	f := serve(t, nil, vllm.url)
	f.fleet.Put(sglang.url, fleet.Facts{Engine: fleet.EngineSGLang, Models: []fleet.Model{{ID: "m", MaxModelLen: 4096}}, BlockSize: 16})
	generate := golden{path: "/generate", header: http.Header{}, body: []byte(`{"input_ids":[` + strings.Repeat("7,", 40) + `7]}`)}
	predicted := func(n int) int {
		t.Helper()
		if resp, text, err := generate.send(t, f); err != nil || resp.StatusCode != 200 {
			t.Fatalf("%v %s", err, text)
		}
		return f.last(t, n).PredictedTokens
	}
	if first, second := predicted(1), predicted(2); first != 0 || second == 0 {
		t.Fatalf("%d tokens predicted, then %d", first, second)
	}
	a := f.order(t, "/flush_cache?timeout=5")
	if a.status != 200 || !a.Success || len(a.Workers) != 2 || !a.Workers[0].OK || a.Workers[0].Answer != "ok" || !a.Workers[1].OK {
		t.Errorf("%+v", a)
	}
	if vllm.last() != "POST /reset_prefix_cache?timeout=5" || sglang.last() != "POST /flush_cache?timeout=5" {
		t.Errorf("told %q and %q", vllm.last(), sglang.last())
	}
	if n := predicted(3); n != 0 {
		t.Errorf("%d tokens predicted after the flush", n)
	}
	// An engine that is busy keeps its cache, and says so with a 200.
	before := predicted(4)
	vllm.says, sglang.says = `{"success": false}`, `{"success": false}`
	if a = f.order(t, "/flush_cache"); a.status != 502 || a.Success || a.Error.Code != "worker_failed" || a.Workers[0].OK {
		t.Errorf("%+v", a)
	}
	if n := predicted(5); n != before || n == 0 {
		t.Errorf("%d tokens predicted after a refused flush, %d before", n, before)
	}
}

func TestASleepingWorkerGetsNoRequestsUntilItWakes(t *testing.T) {
	a, b := obeys(t), obeys(t)
	f := serve(t, nil, a.url, b.url)
	takes := func(w *obeyer, want int) {
		t.Helper()
		if resp, text := f.post(t, chat, "X-Warmpath-Target", w.url); resp.StatusCode != want {
			t.Errorf("%d %s, want %d", resp.StatusCode, text, want)
		}
	}
	asleep := func(want string) {
		t.Helper()
		if _, text := f.call(t, "GET", "/is_sleeping", ""); strings.TrimSpace(text) != want {
			t.Errorf("%s, want %s", text, want)
		}
	}
	lines := func(all, first, second string) string {
		return `{"is_sleeping":` + all + `,"workers":[{"worker":"` + a.url + `","is_sleeping":` + first + `},{"worker":"` + b.url + `","is_sleeping":` + second + `}]}`
	}
	asleep(lines("false", "false", "false"))
	one := url.Values{"worker": {a.url}, "level": {"1"}}.Encode()
	if s := f.order(t, "/sleep?"+one); s.status != 200 || len(s.Workers) != 1 || a.last() != "POST /sleep?level=1" || b.last() != "" {
		t.Errorf("%+v; told %q and %q", s, a.last(), b.last())
	}
	asleep(lines("false", "true", "false"))
	for range 12 {
		if resp, _ := f.post(t, chat); resp.Header.Get("X-Warmpath-Worker") != b.url {
			t.Error("a request went to the worker that is asleep")
		}
	}
	takes(a, 503)
	f.order(t, "/sleep")
	asleep(lines("true", "true", "true"))
	if resp, text := f.post(t, chat); resp.StatusCode != 503 {
		t.Errorf("all sleep: %d %s", resp.StatusCode, text)
	}
	if s := f.order(t, "/wake_up"); s.status != 200 || a.last() != "POST /wake_up" {
		t.Errorf("%+v", s)
	}
	asleep(lines("false", "false", "false"))
	takes(a, 200)
	takes(b, 200)
}

// sglang is the facts of an SGLang engine that serves m.
var sglang = fleet.Facts{Engine: fleet.EngineSGLang, Models: []fleet.Model{{ID: "m", MaxModelLen: 4096}}, BlockSize: 16}

func TestASleepEmptiesTheViewOfTheWorker(t *testing.T) {
	for _, facts := range []fleet.Facts{sglang, {Engine: fleet.EngineVLLM, Models: sglang.Models, BlockSize: 16}} {
		o := obeys(t)
		f := serve(t, func(s *settings) { s.facts = facts }, o.url)
		generate := golden{path: "/generate", header: http.Header{}, body: []byte(`{"input_ids":[` + strings.Repeat("7,", 40) + `7]}`)}
		for i, asleep := range []bool{false, false, true} {
			if asleep {
				f.order(t, "/sleep")
				f.order(t, "/wake_up")
			}
			if resp, text, err := generate.send(t, f); err != nil || resp.StatusCode != 200 {
				t.Fatalf("%v %s", err, text)
			}
			if n := f.last(t, i+1).PredictedTokens; (n > 0) != (i == 1) {
				t.Errorf("%v, request %d: %d tokens predicted", facts.Engine, i, n)
			}
		}
	}
}

// An engine that is woken in parts gets requests when it is awake as a whole.
func TestAWorkerThatIsAwakeInPartGetsNoRequests(t *testing.T) {
	for name, c := range map[string]struct {
		facts                fleet.Facts
		weights, cache, body string // the orders as the engine gets them
	}{
		"vllm":   {fleet.Facts{Engine: fleet.EngineVLLM, Models: sglang.Models, BlockSize: 16}, "POST /wake_up?tags=weights", "POST /wake_up?tags=kv_cache", ""},
		"sglang": {sglang, "POST /resume_memory_occupation?tags=weights", "POST /resume_memory_occupation?tags=kv_cache", `{"tags":["weights"]}`},
	} {
		o := obeys(t)
		o.sleeps = `{"is_sleeping":true}`
		f := serve(t, func(s *settings) { s.facts = c.facts }, o.url)
		f.order(t, "/sleep")
		if a := f.order(t, "/wake_up?tags=weights"); a.status != 200 || o.last() != c.weights || o.body != c.body {
			t.Errorf("%s: %+v; told %q with %q", name, a, o.last(), o.body)
		}
		if resp, _ := f.post(t, chat); resp.StatusCode != 503 {
			t.Errorf("%s: awake in part, it answers %d", name, resp.StatusCode)
		}
		o.mu.Lock()
		o.sleeps = `{"is_sleeping":false}`
		o.mu.Unlock()
		if a := f.order(t, "/wake_up?tags=kv_cache"); a.status != 200 || o.last() != c.cache {
			t.Errorf("%s: %+v; told %q", name, a, o.last())
		}
		if resp, _ := f.post(t, chat); resp.StatusCode != 200 {
			t.Errorf("%s: awake, it answers %d", name, resp.StatusCode)
		}
	}
}

// SGLang ends if it is sent to sleep with requests under way, and if it is woken while it is awake.
func TestSGLangIsToldOnlyWhatItSurvives(t *testing.T) {
	o := obeys(t)
	o.hold = make(chan struct{})
	f := serve(t, func(s *settings) { s.facts = sglang }, o.url)
	if a := f.order(t, "/wake_up"); a.status != 200 || o.last() != "" || !strings.Contains(a.Workers[0].Answer, "?worker=URL") {
		t.Errorf("%+v; told %q", a, o.last())
	}
	if f.order(t, "/wake_up?worker="+o.url); o.last() != "POST /resume_memory_occupation" {
		t.Errorf("named, it was told %q", o.last())
	}
	answered, slept := make(chan int, 1), make(chan told, 1)
	go func() {
		resp, _, err := f.try(t.Context(), chat)
		if err != nil {
			answered <- 0
			return
		}
		answered <- resp.StatusCode
	}()
	testenv.Until(t, "the request is under way", func() bool { return f.fleet.Snapshot().Load(0).Requests == 1 })
	go func() { slept <- f.order(t, "/sleep") }()
	testenv.Until(t, "no further request goes to the worker", func() bool { return f.fleet.Snapshot().Workers()[0].Asleep })
	close(o.hold)
	if status := <-answered; status != 200 {
		t.Errorf("the request under way: %d", status)
	}
	if a := <-slept; a.status != 200 {
		t.Errorf("%+v", a)
	}
	if want := []string{"POST /resume_memory_occupation", "POST /v1/chat/completions", "POST /release_memory_occupation"}; !slices.Equal(o.told, want) {
		t.Errorf("told %q, want %q", o.told, want)
	}
}

// SGLang ends also if it is told twice to sleep or to wake up. So an order does not begin while another one is under
// way, and a worker that sleeps is not sent to sleep.
func TestSGLangIsToldEachOrderOnce(t *testing.T) {
	o := obeys(t)
	o.hold = make(chan struct{})
	f := serve(t, func(s *settings) { s.facts = sglang }, o.url)
	slept := make(chan told, 1)
	go func() { _, _, _ = f.try(t.Context(), chat) }()
	testenv.Until(t, "the request is under way", func() bool { return f.fleet.Snapshot().Load(0).Requests == 1 })
	go func() { slept <- f.order(t, "/sleep") }()
	testenv.Until(t, "the order waits", func() bool { return f.fleet.Snapshot().Workers()[0].Asleep })
	for _, path := range []string{"/wake_up", "/sleep", "/wake_up?worker=" + o.url} {
		if a := f.order(t, path); a.status != 502 || !strings.Contains(a.Workers[0].Answer, "the order /sleep is under way") || !f.fleet.Snapshot().Workers()[0].Asleep {
			t.Errorf("%s while an order waits: %+v", path, a)
		}
	}
	close(o.hold)
	if a := <-slept; a.status != 200 || o.last() != "POST /release_memory_occupation" {
		t.Errorf("%+v; told %q", a, o.last())
	}
	n := len(o.told)
	if a := f.order(t, "/sleep"); a.status != 200 || len(o.told) != n || !strings.Contains(a.Workers[0].Answer, "?worker=URL") {
		t.Errorf("sent to sleep twice: %+v; told %q", a, o.told)
	}
	if f.order(t, "/sleep?tags=weights"); len(o.told) != n+1 {
		t.Errorf("sent to sleep in parts, it was told %q", o.told)
	}
	// A refusal changes nothing: the worker sleeps still.
	o.code = 400
	if a := f.order(t, "/sleep?worker="+o.url); a.status != 502 || len(o.told) != n+2 || !f.fleet.Snapshot().Workers()[0].Asleep {
		t.Errorf("%+v; told %q", a, o.told)
	}
}

// SGLang computes a request for some seconds after its client has left.
func TestSGLangSleepsAfterTheLastAbandonedRequest(t *testing.T) {
	o := obeys(t)
	f := serve(t, func(s *settings) { s.facts = sglang }, o.url)
	gateway.Settle(f.Gateway, time.Hour)
	slept := make(chan told, 1)
	go func() { slept <- f.order(t, "/sleep") }()
	testenv.Until(t, "no further request goes to the worker", func() bool { return f.fleet.Snapshot().Workers()[0].Asleep })
	report := func(running int64, at time.Time) {
		f.fleet.Report(0, fleet.Reported{At: at.UnixNano(), Running: running})
	}
	report(0, time.Now().Add(-time.Minute)) // from before the order
	report(1, time.Now().Add(time.Minute))
	if o.last() != "" {
		t.Errorf("told %q while it has a request", o.last())
	}
	testenv.Until(t, "the worker is told after a report without requests", func() bool {
		report(0, time.Now().Add(time.Minute))
		return o.last() == "POST /release_memory_occupation"
	})
	if a := <-slept; a.status != 200 {
		t.Errorf("%+v", a)
	}
}

func TestAnOrderThatFailsSaysWhichWorkerAndWhy(t *testing.T) {
	refuses, lacks, gone := obeys(t), obeys(t), dead(t)
	refuses.code, refuses.says, lacks.code = 400, "busy", 404
	f := serve(t, nil, refuses.url, lacks.url, gone)
	a := f.order(t, "/sleep")
	if a.status != 502 || len(a.Workers) != 3 || !strings.Contains(a.Error.Message, "3 of 3") {
		t.Fatalf("%+v", a)
	}
	for i, want := range []string{"busy", "VLLM_SERVER_DEV_MODE", "refused"} {
		if a.Workers[i].OK || !strings.Contains(a.Workers[i].Answer, want) {
			t.Errorf("%+v, want %s", a.Workers[i], want)
		}
	}
	snapshot := f.fleet.Snapshot()
	for i, asleep := range []bool{false, false, true} { // it is not known whether the third one fell asleep before it died
		if w := snapshot.Workers()[i]; w.Asleep != asleep {
			t.Errorf("%s is asleep: %v", w.URL, w.Asleep)
		}
	}
	if a := f.order(t, "/sleep?worker=http://nobody:1"); a.status != 400 || a.Error.Code != "invalid_request" {
		t.Errorf("%+v", a)
	}
	if a := serve(t, nil).order(t, "/flush_cache"); a.status != 503 {
		t.Errorf("no workers: %+v", a)
	}
}
