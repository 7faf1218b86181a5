package gateway_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/policy"
)

// errorBody is OpenAI's error shape.
type errorBody struct {
	Error struct{ Message, Type, Code string } `json:"error"`
}

func checkShape(t *testing.T, resp *http.Response, text string) {
	t.Helper()
	var e errorBody
	if err := json.Unmarshal([]byte(text), &e); err != nil || e.Error.Message == "" || e.Error.Type == "" {
		t.Errorf("the error is not in the dialect's shape: %s", text)
	}
	if got := resp.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %q", got)
	}
}

func TestBadBodiesAreRefusedInTheDialectsShape(t *testing.T) {
	var asked atomic.Int32
	f := serve(t, func(s *settings) { s.body.MaxBytes = 2048 }, worker(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		plain(w, r)
	}))
	for _, c := range []struct {
		name, body string
		status     int
	}{
		{"malformed", `{"model":"m",`, 400},
		{"empty", ``, 400},
		{"array", `[{"model":"m"}]`, 400},
		{"text", `"hello"`, 400},
		{"trailing data", chat + `{}`, 400},
		{"invalid UTF-8", "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\"}]}", 400},
		{"repeated key", `{"model":"m","model":"n","messages":[]}`, 400},
		{"model of another type", `{"model":7,"messages":[]}`, 400},
		{"too deep", `{"model":"m","messages":` + strings.Repeat("[", 900) + strings.Repeat("]", 900) + `}`, 400},
		{"unknown model", `{"model":"other","messages":[]}`, 404},
		{"model in other case", `{"model":"M","messages":[]}`, 404},
		{"too large", `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 3000) + `"}]}`, 413},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, text := f.post(t, c.body)
			if resp.StatusCode != c.status {
				t.Errorf("status %d, want %d: %s", resp.StatusCode, c.status, text)
			}
			checkShape(t, resp, text)
		})
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("the worker was asked %d times", n)
	}
	if resp, text := f.post(t, `{"messages":[]}`); resp.StatusCode != 200 {
		t.Errorf("no model in front of a fleet with one: %d %s", resp.StatusCode, text)
	}
}

// An error names the request, so that a client can ask about it.
func TestErrorsNameTheRequest(t *testing.T) {
	answering := func(status int) string {
		return worker(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	}
	for _, c := range []struct {
		name, worker, body string
		status             int
	}{
		{"malformed", answering(200), `{"model":"m",`, 400},
		{"unknown model", answering(200), `{"model":"other","messages":[]}`, 404},
		{"the engine refuses", answering(400), chat, 400},
		{"the engine fails", answering(500), chat, 500},
		{"nobody answers", dead(t), chat, 502},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := serve(t, nil, c.worker)
			resp, text := f.post(t, c.body, "X-Request-Id", "abc")
			if got := resp.Header.Values("X-Request-Id"); resp.StatusCode != c.status || len(got) != 1 || got[0] != "abc" {
				t.Errorf("status %d, want %d; X-Request-Id %q, want abc: %s", resp.StatusCode, c.status, got, text)
			}
			if resp, _ := f.post(t, c.body); resp.Header.Get("X-Request-Id") == "" {
				t.Error("none was made")
			}
		})
	}
}

// Clients give up after a 404, and retry after a 503. So a model that a worker may still report must get a 503.
func TestAModelThatMayYetComeIsNotSaidToBeUnknown(t *testing.T) {
	f := serve(t, nil)
	refused := func(status int, says string) {
		t.Helper()
		resp, text := f.post(t, `{"model":"other","messages":[]}`)
		if resp.StatusCode != status || !strings.Contains(text, says) || (resp.Header.Get("Retry-After") != "") != (status == 503) {
			t.Errorf("%d, Retry-After %q, %s; want %d, %q", resp.StatusCode, resp.Header.Get("Retry-After"), text, status, says)
		}
		checkShape(t, resp, text)
	}
	refused(503, "there are no workers: none is listed, and no file, DNS name or operator names one now")
	f.fleet.Put("http://a:1", fleet.Facts{})
	f.fleet.Put("http://b:1", fleet.Facts{Models: []fleet.Model{{ID: "m"}}})
	refused(503, "1 of 2 have not")
	f.fleet.Put("http://a:1", fleet.Facts{Models: []fleet.Model{{ID: "m"}}})
	refused(404, "served by no worker")
}

func TestOtherPathsAndMethods(t *testing.T) {
	f := serve(t, nil, worker(t, plain))
	for _, c := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"GET", "/v1/chat/completions", 405, "POST"},
		{"PUT", "/v1/completions", 405, "POST"},
		{"POST", "/v1/models", 405, "GET, HEAD"},
		{"POST", "/health", 405, "GET, HEAD"},
		{"GET", "/", 404, ""},
		{"POST", "/v1/chat/completions/", 404, ""},
		{"POST", "/v1/moderations", 404, ""},
		{"GET", "/metrics", 404, ""},
		{"GET", "/admin/workers", 404, ""},
	} {
		req, err := http.NewRequest(c.method, f.url+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := f.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != c.status || resp.Header.Get("Allow") != c.allow {
			t.Errorf("%s %s: %d, allow %q", c.method, c.path, resp.StatusCode, resp.Header.Get("Allow"))
		}
		checkShape(t, resp, string(text))
	}
}

// raw sends bytes unchanged and returns the status line, or "" when the connection is closed without an answer.
func raw(t *testing.T, f *fixture, request string) string {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(f.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, request); err != nil {
		return ""
	}
	line, _ := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line)
}

func TestHostileHeads(t *testing.T) {
	f := serve(t, nil, worker(t, plain))
	head := "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
	body := fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(chat), chat)
	many := ""
	for i := range 1000 {
		many += fmt.Sprintf("X-Header-%d: y\r\n", i)
	}
	for _, c := range []struct{ name, request, want string }{
		{"fine", head + body, "200"},
		{"1,000 headers", head + many + body, "431"},
		{"a header of 1 MB", head + "X-Big: " + strings.Repeat("x", 1<<20) + "\r\n" + body, "431"},
		{"two lengths", head + "Content-Length: 3\r\n" + body, "400"},
		{"no host", "POST /v1/chat/completions HTTP/1.1\r\n" + body, "400"},
	} {
		if got := raw(t, f, c.request); !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestHalfAHeadIsClosed(t *testing.T) {
	f := serve(t, func(s *settings) { s.gateway.ReadHeaderTimeout = 50 * time.Millisecond }, worker(t, plain))
	if got := raw(t, f, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"); got != "" && !strings.Contains(got, "408") {
		t.Errorf("%q, want nothing", got)
	}
}

func TestStalledBodyIsClosed(t *testing.T) {
	f := serve(t, func(s *settings) { s.body.StallTimeout = 50 * time.Millisecond }, worker(t, plain))
	got := raw(t, f, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	if !strings.Contains(got, "408") {
		t.Errorf("a stalled body gets %q", got)
	}
}

func TestTheErrorWithoutAWorkerSaysWhatToDo(t *testing.T) {
	f := serve(t, nil, worker(t, plain))
	for _, w := range f.fleet.Snapshot().Workers() {
		f.fleet.SetHealth(w.ID, false, "connection refused")
	}
	resp, text := f.post(t, chat)
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("status %d, retry after %q", resp.StatusCode, resp.Header.Get("Retry-After"))
	}
	checkShape(t, resp, text)
}

// breaking is a source of token ids that panics while now is true.
type breaking struct{ now *atomic.Bool }

func (b breaking) Find(context.Context, *tokens.Prompt) (tokens.Found, bool) {
	if b.now.Load() {
		panic("a broken tokenizer")
	}
	return tokens.Found{}, false
}

func (breaking) Text(string, []block.Token) string { return "" }

func TestPanicEndsOneRequest(t *testing.T) {
	var panicking atomic.Bool
	panicking.Store(true)
	f := serve(t, func(s *settings) {
		s.local = breaking{&panicking}
	}, worker(t, plain))
	if resp, _, err := f.try(t.Context(), chat); err == nil && resp.StatusCode == 200 {
		t.Error("the panicking request was answered")
	}
	panicking.Store(false)
	if resp, text := f.post(t, chat); resp.StatusCode != 200 {
		t.Errorf("the next request: %d %s", resp.StatusCode, text)
	}
	f.idle(t)
}

// routedPanics is a policy that panics in Routed, when its choice is carried out.
type routedPanics struct{}

func (*routedPanics) Choose(*policy.Query, []policy.Candidate) policy.Pick { return policy.Pick{} }
func (*routedPanics) Routed(*policy.Query, *policy.Candidate)              { panic("a bug of the policy") }
func (*routedPanics) Finished(*policy.Finished)                            {}
func (*routedPanics) Forget(fleet.Holder)                                  {}

// A decision that panics must count as ended: otherwise /readiness would say forever that decisions make no progress.
func TestAPanicInADecisionIsNoStall(t *testing.T) {
	var all *telemetry.Telemetry
	f := serve(t, func(s *settings) {
		s.specs = []policy.Spec{{Name: "faulty", Chooser: func() policy.Chooser { return &routedPanics{} }}}
		s.allowed = []string{"faulty"}
		s.parts = func(p *gateway.Parts) { all = p.Telemetry }
	}, worker(t, plain))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+"/v1/chat/completions", strings.NewReader(chat))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Warmpath-Policy", "faulty")
	if response, err := f.client.Do(request); err == nil {
		response.Body.Close()
		t.Errorf("the panicking request was answered: %d", response.StatusCode)
	}
	if resp, text := f.post(t, chat); resp.StatusCode != 200 {
		t.Errorf("the next request: %d %s", resp.StatusCode, text)
	}
	if age := all.Deciding.Oldest(time.Now()); age > 0 {
		t.Errorf("a decision counts as running for %v", age)
	}
}

// An error must not keep, quote and escape a long model name as a whole: for a name of 60 MB, that takes 496 MB.
func TestAnErrorRepeatsLittleOfTheClientsRequest(t *testing.T) {
	f := serve(t, nil, worker(t, plain))
	long := strings.Repeat("x", 16<<20)
	const most = 1024
	// reading is the number of bytes that this process allocates for the first request, whose body is only read. The
	// client's allocations are included.
	reading := 0.0
	for _, c := range []struct {
		name, body string
		headers    []string
		status     int
	}{
		{"text that is not read", `{"model":"other","unread":"` + long + `","messages":[]}`, nil, 404},
		{"a name of 16 MiB", `{"model":"` + long + `","messages":[]}`, nil, 400},
		{"a name of 4 KiB", `{"model":"` + long[:4096] + `","messages":[]}`, nil, 404},
		{"a policy", chat, []string{"X-Warmpath-Policy", long[:32<<10]}, 400},
		{"a patience", chat, []string{"X-Warmpath-Max-Wait", long[:32<<10]}, 400},
		{"a rank", chat, []string{"X-Data-Parallel-Rank", long[:32<<10]}, 400},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		resp, text := f.post(t, c.body, c.headers...)
		runtime.ReadMemStats(&after)
		if resp.StatusCode != c.status || len(text) > most {
			t.Errorf("%s: %d with %d bytes: %.200s", c.name, resp.StatusCode, len(text), text)
		}
		checkShape(t, resp, text)
		cost := float64(after.TotalAlloc - before.TotalAlloc)
		if reading == 0 {
			reading = cost
		}
		t.Logf("%s: %.2f times what reading the body costs", c.name, cost/reading)
		if cost > 1.2*reading {
			t.Errorf("%s: %.1f MB are allocated, %.1f to read the body", c.name, cost/1e6, reading/1e6)
		}
	}
	for _, path := range []string{"/v1/" + long[:32<<10], "/v1/models?x=" + long[:32<<10]} {
		for _, method := range []string{"GET", "POST", "X" + long[:8<<10]} {
			req, err := http.NewRequest(method, f.url+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := f.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if len(text) > most {
				t.Errorf("%.10s %.20s: %d bytes", method, path, len(text))
			}
		}
	}
	f.post(t, chat, "X-Request-Id", long[:32<<10], "X-Session-Id", long[:16<<10])
	record, err := json.Marshal(f.last(t, 1))
	if err != nil || len(record) > 2*most {
		t.Errorf("a decision's record has %d bytes, %v", len(record), err)
	}
	if page := f.metrics(t); strings.Contains(page, long[:1000]) {
		t.Error("a metric has what a client sent")
	}
}

func TestEveryHeaderFieldCounts(t *testing.T) {
	f := serve(t, func(s *settings) { s.gateway.MaxHeaders = 32 }, worker(t, plain))
	for n, status := range map[int]int{20: 200, 40: 431} {
		for _, name := range []string{"X-Same", "X-Other-%d"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+"/v1/chat/completions", strings.NewReader(chat))
			if err != nil {
				t.Fatal(err)
			}
			for i := range n {
				req.Header.Add(strings.Replace(name, "%d", fmt.Sprint(i), 1), "v")
			}
			resp, err := f.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != status {
				t.Errorf("%d fields %s: %d, want %d", n, name, resp.StatusCode, status)
			}
		}
	}
}

func TestAnInvalidRankIsRefused(t *testing.T) {
	f := serve(t, nil, worker(t, plain))
	for value, message := range map[string]string{
		"abc": "whole number", "-1": "whole number", "18446744073709551616": "whole number", "1.0": "whole number", "0x0": "whole number", "+0": "whole number",
		"32768": "whole number", "7": "no worker of this model has the data-parallel rank 7; there are ranks 0 to 0",
	} {
		resp, text := f.post(t, chat, "X-Data-Parallel-Rank", value)
		if resp.StatusCode != 400 || !strings.Contains(text, message) {
			t.Errorf("%s: %d %s", value, resp.StatusCode, text)
		}
	}
	for _, value := range []string{"0", ""} {
		if resp, text := f.post(t, chat, "X-Data-Parallel-Rank", value); resp.StatusCode != 200 {
			t.Errorf("%q: %d %s", value, resp.StatusCode, text)
		}
	}
}
