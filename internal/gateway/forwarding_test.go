package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/tokens"
)

func TestBodyArrivesByteForByte(t *testing.T) {
	bodies, heads := make(chan string, 1), make(chan http.Header, 1)
	f := serve(t, nil, worker(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		bodies <- string(body)
		heads <- r.Header
		plain(w, r)
	}))
	body := "{ \"zeta\": 1e400,\n\"messages\":[{\"role\":\"user\",\"content\":\"\\u00e9\\ud83d\\ude00\"}] ,\"model\" : \"m\", \"unknown\":{\"a\":[1,2,{}]}}"
	resp, text := f.post(t, body, "Authorization", "Bearer k", "X-Request-Id", "abc", "X-Custom", "1")
	head := <-heads
	if got := <-bodies; got != body {
		t.Errorf("the worker got %q", got)
	}
	if resp.StatusCode != 200 || text != whole {
		t.Errorf("the client got %d %q", resp.StatusCode, text)
	}
	for name, want := range map[string]string{"Authorization": "Bearer k", "X-Request-Id": "abc", "X-Custom": "1"} {
		if head.Get(name) != want {
			t.Errorf("%s arrives as %q", name, head.Get(name))
		}
	}
}

func TestAnswerSaysWhereItWent(t *testing.T) {
	url := worker(t, streaming)
	f := serve(t, nil, url)
	resp, text := f.post(t, chatStreamed)
	if !strings.HasSuffix(text, doneChunk) {
		t.Errorf("the stream ends %q", text)
	}
	for name, want := range map[string]string{"X-Warmpath-Worker": url, "X-Warmpath-Match": "0", "X-Warmpath-Policy": "kv_aware", "X-Warmpath-Trust": "approximate"} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	quiet := serve(t, func(s *settings) { s.gateway.Headers = false }, url)
	resp, _ = quiet.post(t, chatStreamed)
	for name := range resp.Header {
		if strings.HasPrefix(name, "X-Warmpath") {
			t.Errorf("%s is shown though headers are off", name)
		}
	}
}

func TestOneRequestIDInAnswerAndLog(t *testing.T) {
	var status atomic.Int64
	heads := make(chan string, 1)
	f := serve(t, nil, worker(t, func(w http.ResponseWriter, r *http.Request) {
		heads <- r.Header.Get("X-Request-Id")
		w.Header().Set("X-Request-Id", "theirs")
		if s := int(status.Load()); s != 200 {
			http.Error(w, `{"error":{}}`, s)
			return
		}
		plain(w, r)
	}))
	for i, s := range []int64{200, 400, 503} {
		status.Store(s)
		for j, id := range []string{"", "ours"} {
			resp, _ := f.post(t, chat, "X-Request-Id", id)
			logged, sent, shown := f.last(t, 2*i+j+1).RequestID, <-heads, resp.Header.Values("X-Request-Id")
			if len(shown) != 1 || shown[0] != logged || sent != logged || id != "" && logged != id {
				t.Errorf("%d: the client said %q, the worker got %q, the log has %q, the answer %q", s, id, sent, logged, shown)
			}
		}
	}
}

func TestRankIsSetUnlessTheClientChose(t *testing.T) {
	ranked := make(chan string, 1)
	url := worker(t, func(w http.ResponseWriter, r *http.Request) {
		ranked <- r.Header.Get("X-Data-Parallel-Rank")
		plain(w, r)
	})
	ranks := func(n int) func(*settings) { return func(s *settings) { s.facts.Ranks = n } }
	one := serve(t, ranks(1), url)
	one.post(t, chat)
	if rank := <-ranked; rank != "" {
		t.Errorf("one rank: header %q", rank)
	}
	four := serve(t, ranks(4), url)
	seen := map[string]bool{}
	for range 16 {
		four.post(t, chat)
		seen[<-ranked] = true
	}
	for want := range 4 {
		if !seen[fmt.Sprint(want)] {
			t.Errorf("rank %d never came; seen %v", want, seen)
		}
	}
	four.post(t, chat, "X-Data-Parallel-Rank", "2")
	if rank := <-ranked; rank != "2" {
		t.Errorf("the client's rank 2 became %q", rank)
	}
	if last := four.last(t, 17); last.Rank != 2 {
		t.Errorf("the decision is for rank %d", last.Rank)
	}
	if resp, _ := four.post(t, chat, "X-Data-Parallel-Rank", "9"); resp.StatusCode != 400 {
		t.Errorf("a rank that nobody has: %d", resp.StatusCode)
	}
}

func TestDirectGoesWhereTheClientSays(t *testing.T) {
	urls := []string{worker(t, plain), worker(t, plain), worker(t, plain)}
	f := serve(t, func(s *settings) { s.policy = "direct" }, urls...)
	for range 3 {
		resp, _ := f.post(t, chat, "X-Warmpath-Target", urls[1])
		if got := resp.Header.Get("X-Warmpath-Worker"); got != urls[1] {
			t.Errorf("went to %s", got)
		}
	}
	if resp, text := f.post(t, chat); resp.StatusCode != 400 || !strings.Contains(text, "X-Warmpath-Target") {
		t.Errorf("without a target: %d %s", resp.StatusCode, text)
	}
}

func TestAnyPolicyObeysANamedWorker(t *testing.T) {
	urls := []string{worker(t, plain), worker(t, plain), worker(t, plain)}
	f := serve(t, func(s *settings) { s.policy = "random" }, urls...)
	for i := range 12 {
		for _, name := range []string{urls[i%3], urls[i%3] + "/", strings.TrimPrefix(urls[i%3], "http://")} {
			if resp, _ := f.post(t, chat, "X-Warmpath-Target", name); resp.Header.Get("X-Warmpath-Worker") != urls[i%3] {
				t.Errorf("%s went to %s", name, resp.Header.Get("X-Warmpath-Worker"))
			}
		}
	}
	if resp, text := f.post(t, chat, "X-Warmpath-Target", "http://stranger:1"); resp.StatusCode != 400 || !strings.Contains(text, "X-Warmpath-Target") {
		t.Errorf("a worker that is none: %d %s", resp.StatusCode, text)
	}
}

// The API document names every X-Warmpath header in exchange.go, and no other X-Warmpath header.
func TestTheAPIPageNamesTheHeaders(t *testing.T) {
	page, err := os.ReadFile("../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("exchange.go")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`X-Warmpath-[A-Za-z]+(?:-[A-Za-z]+)*`)
	inCode, inDocs := map[string]bool{}, map[string]bool{}
	for _, name := range names.FindAllString(string(source), -1) {
		inCode[name] = true
	}
	for _, name := range names.FindAllString(string(page), -1) {
		inDocs[name] = true
	}
	if diff := cmp.Diff(inCode, inDocs); diff != "" || len(inCode) < 6 {
		t.Error(diff)
	}
}

func TestStreamsThatAskForNoUsageAreCountedApart(t *testing.T) {
	// The worker reports its usage only if the request asks for it, as engines do.
	w := worker(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		usage := ""
		if strings.Contains(string(body), `"include_usage":true`) {
			usage = fmt.Sprintf(usageChunk, 0)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, firstChunk+lastChunk+usage+doneChunk)
	})
	f := serve(t, func(s *settings) { s.local = fortyZeros{} }, w)
	stream := strings.TrimSuffix(chat, "}") + `,"stream":true`
	f.post(t, stream+`,"stream_options":{"include_usage":true}}`)
	f.post(t, stream+"}")
	f.post(t, stream+`,"stream_options":{"include_usage":false}}`)
	f.last(t, 3)
	page := f.metrics(t)
	for _, want := range []string{`outcome="unasked",worker="` + w + `"} 2`, `outcome="unreported",worker="` + w + `"} 0`} {
		if !strings.Contains(page, "warmpath_predictions_total{"+want) {
			t.Errorf("no %s in\n%s", want, page)
		}
	}
}

// fortyZeros is a token source that returns forty ids 0 for every prompt.
type fortyZeros struct{}

func (fortyZeros) Find(context.Context, *tokens.Prompt) (tokens.Found, bool) {
	return tokens.Found{Tokens: make([]block.Token, 40), Outcome: tokens.InProcess}, true
}

func (fortyZeros) Text(string, []block.Token) string { return "" }

func TestProvenIDsGoInPlaceOfTheTextWhereThatIsAllowed(t *testing.T) {
	const ask, ids = `{"model":"m","prompt":"hello","max_tokens": 1}`, `{"model":"m","prompt":[0,0],"max_tokens": 1}`
	for _, forward := range []string{tokens.ForwardOff, tokens.ForwardAuto} {
		var got atomic.Value
		url := worker(t, func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "render") {
				_, _ = io.WriteString(w, `{"token_ids":[0,0]}`)
				return
			}
			body, _ := io.ReadAll(r.Body)
			got.Store(string(body))
			_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"x","finish_reason":"stop"}]}`)
		})
		f := serve(t, func(s *settings) { s.local, s.tokens.Forward = twoZeros{}, forward }, url)
		post := func(body string) string {
			t.Helper()
			resp, err := f.client.Post(f.url+"/v1/completions", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = resp.Body.Close() }()
			if resp.StatusCode != 200 || resp.Header.Get("X-Warmpath-Worker") != url || resp.Header.Get("X-Warmpath-Match") != "0" {
				t.Errorf("status %d, headers %v", resp.StatusCode, resp.Header)
			}
			return got.Load().(string)
		}
		if sent := post(ask); sent != ask {
			t.Errorf("%s: before any comparison the engine got %s", forward, sent)
		}
		want := ask
		if forward == tokens.ForwardAuto {
			want = ids
		}
		for end := time.Now().Add(time.Minute); f.source.Stats().Checked < 20 && time.Now().Before(end); {
			post(ask)
		}
		if sent := post(ask); sent != want {
			t.Errorf("%s: the engine got %s, want %s", forward, sent, want)
		}
		const echo = `{"model":"m","prompt":"hello","echo":true}`
		if sent := post(echo); sent != echo {
			t.Errorf("%s: the engine got %s for %s", forward, sent, echo)
		}
	}
}

// twoZeros is a token source that returns two ids 0 for every prompt.
type twoZeros struct{ fortyZeros }

func (twoZeros) Find(context.Context, *tokens.Prompt) (tokens.Found, bool) {
	return tokens.Found{Tokens: make([]block.Token, 2), Outcome: tokens.InProcess}, true
}

func TestPredictionIsBookedAgainstTheReport(t *testing.T) {
	var silent atomic.Bool
	url := worker(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		usage := fmt.Sprintf(usageChunk, 32)
		if silent.Load() {
			usage = `data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":1}}` + "\n\n"
		}
		_, _ = io.WriteString(w, firstChunk+lastChunk+usage+doneChunk)
	})
	f := serve(t, func(s *settings) {
		s.local = fortyZeros{}
	}, url)
	f.fleet.SetTrust(f.fleet.Snapshot().Workers()[0].Holders[0], fleet.TrustExact, "test")
	f.post(t, chatStreamed)
	last := f.last(t, 1)
	if last.ReportedTokens == nil || *last.ReportedTokens != 32 || *last.Difference != -32 || *last.OutputTokens != 1 {
		t.Errorf("record %+v", last)
	}
	if last.PromptTokens != 40 || last.TokenSource != "local" || last.FirstTokenMS <= 0 || last.Status != 200 {
		t.Errorf("record %+v", last)
	}
	// From now on the worker does not report a count of zero, as some engines do. It reported cached tokens before, so
	// a missing count means zero.
	silent.Store(true)
	f.post(t, chatStreamed)
	if last := f.last(t, 2); last.ReportedTokens == nil || *last.ReportedTokens != 0 {
		t.Errorf("silence of a reporting worker is %v, want 0", last.ReportedTokens)
	}
}

func TestScopedRequestsAreReported(t *testing.T) {
	f := serve(t, nil, worker(t, plain))
	f.post(t, chat)
	f.post(t, `{"model":"m","messages":[],"cache_salt":"s","extra_key":"e"}`)
	if got := <-f.scoped; got != "s/e" || len(f.scoped) != 0 {
		t.Errorf("told of %s and %d more", got, len(f.scoped))
	}
}

func TestModelsAreMerged(t *testing.T) {
	f := serve(t, nil, worker(t, plain))
	f.fleet.Put("http://other:1", fleet.Facts{Models: []fleet.Model{{ID: "m"}, {ID: "adapter", Parent: "m"}}})
	gone := f.fleet.Put("http://gone:1", fleet.Facts{Models: []fleet.Model{{ID: "lost"}}})
	f.fleet.SetHealth(gone, false, "away")
	resp, err := f.client.Get(f.url + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body)
	want := `{"object":"list","data":[{"id":"m","object":"model","created":0,"owned_by":"warmpath","parent":null,"max_model_len":4096},` +
		`{"id":"adapter","object":"model","created":0,"owned_by":"warmpath","parent":"m"}]}` + "\n"
	if string(text) != want {
		t.Errorf("got  %swant %s", text, want)
	}
}

func TestReadinessSaysWhy(t *testing.T) {
	f := serve(t, nil, worker(t, plain))
	get := func(path string) (int, string) {
		resp, err := f.client.Get(f.url + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	expect := func(path string, status int, word string) {
		t.Helper()
		if got, text := get(path); got != status || !strings.Contains(text, word) {
			t.Errorf("%s: %d %s, want %d with %q", path, got, text, status, word)
		}
	}
	expect("/health", 200, `"ready":1`)
	expect("/readiness", 200, `"ready"`)
	id := f.fleet.Snapshot().Workers()[0].ID
	facts := f.fleet.Snapshot().Workers()[0].Facts
	facts.Role = fleet.RolePrefill
	f.fleet.Put(f.fleet.Snapshot().Workers()[0].URL, facts)
	expect("/readiness", 503, "all of them have the role prefill; add a worker with the role decode or both")
	facts.Role = fleet.RoleDecode
	f.fleet.Put(f.fleet.Snapshot().Workers()[0].URL, facts)
	expect("/readiness", 200, `"ready"`)
	f.fleet.SetHealth(id, false, "connection refused")
	expect("/readiness", 503, "connection refused")
	expect("/health", 200, `"ok"`)
	expect("/liveness", 200, `"ok"`)
	f.fleet.Remove(id)
	expect("/readiness", 503, "there are no workers: none is listed, and no file, DNS name or operator names one now")
	f.Drain()
	expect("/readiness", 503, "draining")
}

func TestRequestTimeout(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	url := worker(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.Header.Get("X-Begin") != "" {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, firstChunk)
			w.(http.Flusher).Flush()
		}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	f := serve(t, func(s *settings) { s.gateway.RequestTimeout = 100 * time.Millisecond }, url)
	resp, text := f.post(t, chat)
	if resp.StatusCode != http.StatusGatewayTimeout {
		t.Errorf("before the first byte: %d %s", resp.StatusCode, text)
	}
	if _, text, err := f.try(t.Context(), chat, "X-Begin", "1"); err == nil && !strings.Contains(text, `"error"`) {
		t.Errorf("after the first byte the client sees a whole answer: %q", text)
	}
	f.idle(t)
}

// late is a client that reads slowly: the field after is the time that each write to it takes.
type late struct {
	*httptest.ResponseRecorder
	after time.Duration
}

func (l *late) Write(b []byte) (int, error) {
	<-time.After(l.after)
	return l.ResponseRecorder.Write(b)
}

func TestAnAnswerThatIsWholeInTimeIsNotCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := gateway.DefaultConfig()
		cfg.RequestTimeout = 2 * time.Second
		x := askEnginesAs(t, rig{gateway: cfg}, 1, time.Millisecond, time.Millisecond)
		w := &late{httptest.NewRecorder(), cfg.RequestTimeout}
		defer func() {
			if cause := recover(); cause != nil {
				t.Errorf("the answer was cut: %v", cause)
			}
		}()
		x.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/completions", strings.NewReader(`{"model":"m","prompt":[1,2]}`)))
		if rec := x.Telemetry.Last(1)[0]; w.Body.String() != whole || rec.Status != http.StatusOK || rec.Error != "" {
			t.Errorf("%+v: %s", rec, w.Body)
		}
	})
}
