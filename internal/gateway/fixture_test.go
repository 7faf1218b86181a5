package gateway_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/queue"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a gateway in front of a test's workers.
type fixture struct {
	*gateway.Gateway
	url    string
	fleet  *fleet.Fleet
	source *tokens.Source
	client *http.Client
	stop   func() error // ends Serve and returns its error
	scoped chan string
}

// settings are the settings that a test may change.
type settings struct {
	gateway gateway.Config
	body    proxy.BodyConfig
	tokens  tokens.Config
	facts   fleet.Facts
	policy  string
	allowed []string // policies that a request may choose
	specs   []policy.Spec
	queue   queue.Config
	most    int // greatest number of requests that each holder may have
	shadow  string
	sample  float64

	parts func(*gateway.Parts)

	modelPolicies map[string]string
	local         tokens.Local
}

// serve runs a gateway in front of workers until the test ends.
func serve(t testing.TB, change func(*settings), workers ...string) *fixture {
	t.Helper()
	s := settings{policy: "kv_aware", gateway: gateway.DefaultConfig(), body: proxy.DefaultBodyConfig(), tokens: tokens.DefaultConfig(),
		facts: fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m", MaxModelLen: 4096}}, BlockSize: 16}}
	s.gateway.Hold.MaxWait = 0 // a request that no worker can take is answered immediately; the tests of the hold set it
	s.tokens.Budget = 0        // no time for token ids: requests are routed by load, unless a test sets a budget
	if change != nil {
		change(&s)
	}
	f := &fixture{fleet: fleet.New(fleet.Config{}), client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}, scoped: make(chan string, 16)}
	for _, w := range workers {
		f.fleet.Put(w, s.facts)
	}
	router, err := warmpath.New(warmpath.Options{Fleet: f.fleet, MaxRequests: s.most, Shadow: s.shadow, Policies: s.specs})
	if err != nil {
		t.Fatal(err)
	}
	if err := router.ChangePolicies(warmpath.PolicyChange{Standard: s.policy, ByModel: s.modelPolicies, Shadow: s.shadow}); err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	f.source = tokens.New(s.tokens, &http.Client{Transport: transport})
	f.source.Local = s.local
	upstream := proxy.New(proxy.DefaultConfig())
	parts := gateway.Parts{
		Router: router, Fleet: f.fleet, Tokens: f.source, Client: upstream, Bodies: proxy.NewBodies(s.body),
		Queue: s.queue, MaxRequests: s.most, ShadowSample: s.sample,
		Telemetry: telemetry.New(telemetry.DefaultConfig()), Log: slog.New(slog.DiscardHandler),
		Scoped: func(_ string, _ int, salt, extra string) { f.scoped <- salt + "/" + extra },
	}
	if s.parts != nil {
		s.parts(&parts)
	}
	f.Gateway = gateway.New(s.gateway, parts)
	gateway.Settle(f.Gateway, 0)
	// A test with this budget needs ids, also on a busy machine. The longer a token takes to compute, the longer a
	// request waits for ids.
	if s.tokens.Budget >= time.Second {
		f.source.Loads = func() func(tokens.Worker) tokens.Load {
			return func(tokens.Worker) tokens.Load { return tokens.Load{PerToken: time.Hour} }
		}
	}
	f.AllowPolicies(s.allowed)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.url = "http://" + l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var components sync.WaitGroup
	ended := make(chan error, 1)
	rest, stopRest := context.WithCancel(context.Background())
	components.Go(func() { _ = upstream.Run(rest) })
	go func() { ended <- f.Serve(ctx, l) }() // stop waits for this goroutine
	f.stop = sync.OnceValue(func() error {
		// If an idle connection that never had a request stays open, a drain waits five seconds for it.
		f.client.CloseIdleConnections()
		cancel()
		err := <-ended
		stopRest()
		components.Wait()
		f.source.Close()
		transport.CloseIdleConnections()
		f.client.CloseIdleConnections()
		return err
	})
	t.Cleanup(func() { _ = f.stop() })
	return f
}

// worker starts an engine with the given handler, and returns its URL. The engine stops when the test ends.
func worker(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	return s.URL
}

// dead returns the URL of a worker that refuses connections.
func dead(t *testing.T) string {
	t.Helper()
	return fmt.Sprintf("http://127.0.0.1:%d", testenv.FreePort(t))
}

const (
	firstChunk = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":"hello"},"finish_reason":null}]}` + "\n\n"
	lastChunk  = `data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}` + "\n\n"
	usageChunk = `data: {"choices":[],"usage":{"prompt_tokens":40,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":%d}}}` + "\n\n"
	doneChunk  = "data: [DONE]\n\n"
	whole      = `{"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],"usage":{"prompt_tokens":40,"completion_tokens":1}}`
)

// streaming answers with a short stream.
func streaming(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "text/event-stream")
	_, _ = io.WriteString(w, firstChunk+lastChunk+fmt.Sprintf(usageChunk, 0)+doneChunk)
}

func plain(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, whole)
}

// takes makes the answer to r take the time d. It returns earlier if the client leaves.
func takes(r *http.Request, d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.Context().Done():
	}
}

const chat = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`

// chatStreamed is the request chat with a streamed answer.
const chatStreamed = `{"stream":true,"model":"m","messages":[{"role":"user","content":"hi"}]}`

// post sends body to the chat endpoint and reads the whole answer.
func (f *fixture) post(t *testing.T, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	resp, text, err := f.try(t.Context(), body, headers...)
	if err != nil {
		t.Fatal(err)
	}
	return resp, text
}

func (f *fixture) try(ctx context.Context, body string, headers ...string) (*http.Response, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp, string(text), err
}

// last waits until n requests are recorded, and returns the newest record. A request is recorded after its last byte.
func (f *fixture) last(t *testing.T, n int) telemetry.Record {
	t.Helper()
	testenv.Until(t, "the requests are booked", func() bool { return len(f.Telemetry.Last(0)) >= n })
	return f.Telemetry.Last(1)[0]
}

// idle waits until no holder has a reservation.
func (f *fixture) idle(t *testing.T) {
	t.Helper()
	testenv.Until(t, "no reservation is left", func() bool {
		snapshot := f.fleet.Snapshot()
		for h := range snapshot.Holders() {
			l := snapshot.Load(fleet.Holder(h))
			if l.Requests != 0 || l.PrefillTokens != 0 || l.ContextBlocks != 0 {
				return false
			}
		}
		return true
	})
}

// metrics returns the result of a scrape.
func (f *fixture) metrics(t *testing.T) string {
	t.Helper()
	w := httptest.NewRecorder()
	f.Telemetry.Handler(telemetry.Sources{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}
