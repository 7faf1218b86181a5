package gateway_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/test/testenv"
)

// collector is a server to which a gateway sends spans. It keeps the bodies: in them, names and ids stand as they are.
type collector struct {
	mu   sync.Mutex
	text []byte
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c.mu.Lock()
	c.text = append(c.text, body...)
	c.mu.Unlock()
	w.WriteHeader(http.StatusOK)
}

func (c *collector) has(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Contains(c.text, []byte(text))
}

func (c *collector) count(text string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Count(c.text, []byte(text))
}

// traced makes a gateway record traces until end is called. It returns end, which waits until the collector has the
// spans.
func traced(t *testing.T, collector http.Handler, sample float64) (change func(*settings), end func()) {
	t.Helper()
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
	server := httptest.NewServer(collector)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	change = func(s *settings) {
		s.parts = func(p *gateway.Parts) {
			on := make(chan struct{})
			log := slog.New(&firstLine{Handler: slog.DiscardHandler, came: on})
			tracer, err := p.Telemetry.NewTracer(telemetry.TracesConfig{Endpoint: server.URL, Sample: sample}, "v", log)
			if err != nil {
				t.Fatal(err)
			}
			p.Tracer = tracer
			go func() { ended <- tracer.Run(ctx) }() // end waits for this goroutine
			<-on
		}
	}
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		server.CloseClientConnections()
		server.Close()
	})
	t.Cleanup(end)
	return change, end
}

// firstLine is a handler that closes came when the first line is logged: the tracer records from then on.
type firstLine struct {
	slog.Handler
	once sync.Once
	came chan struct{}
}

func (f *firstLine) Enabled(context.Context, slog.Level) bool { return true }
func (f *firstLine) Handle(context.Context, slog.Record) error {
	f.once.Do(func() { close(f.came) })
	return nil
}

const (
	traceID  = "4bf92f3577b34da6a3ce929d0e0e4736"
	callerID = "00f067aa0ba902b7"
)

var traceParent = regexp.MustCompile(`^00-([0-9a-f]{32})-([0-9a-f]{16})-(0[01])$`)

func TestTheTraceOfTheCallerGoesOnAtTheWorker(t *testing.T) {
	for _, c := range []struct {
		name           string
		headers        []string
		sample         float64
		trace          string // "": a new one
		flags          string
		state, baggage string
	}{
		{"recorded", []string{"traceparent", "00-" + traceID + "-" + callerID + "-01", "tracestate", "vendor=x", "baggage", "k=v"}, 0, traceID, "01", "vendor=x", "k=v"},
		{"several tracestate", []string{"traceparent", "00-" + traceID + "-" + callerID + "-01", "tracestate", "vendor=x", "tracestate", "other=y,third=z"}, 0, traceID, "01", "vendor=x,other=y,third=z", ""},
		{"not recorded", []string{"traceparent", "00-" + traceID + "-" + callerID + "-00", "tracestate", "vendor=x"}, 1, traceID, "00", "vendor=x", ""},
		{"no trace", nil, 1, "", "01", "", ""},
		{"no trace, not in the sample", nil, 0, "", "00", "", ""},
		{"not valid", []string{"traceparent", "00-" + strings.Repeat("0", 32) + "-" + callerID + "-01", "tracestate", "vendor=x", "baggage", "k=v"}, 1, "", "01", "", "k=v"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got http.Header
			var spans collector
			change, end := traced(t, &spans, c.sample)
			f := serve(t, change, worker(t, func(w http.ResponseWriter, r *http.Request) { got = r.Header.Clone(); plain(w, r) }))
			f.post(t, chat, c.headers...)
			rec := f.last(t, 1)
			if err := f.stop(); err != nil {
				t.Fatal(err)
			}
			end()
			fields := traceParent.FindStringSubmatch(got.Get("traceparent"))
			if len(got["Traceparent"]) != 1 || fields == nil {
				t.Fatalf("traceparent %q", got["Traceparent"])
			}
			if c.trace != "" && fields[1] != c.trace || c.trace == "" && fields[1] == traceID || fields[2] == callerID || fields[3] != c.flags ||
				got.Get("tracestate") != c.state || got.Get("baggage") != c.baggage {
				t.Errorf("traceparent %v, tracestate %q, baggage %q", fields, got.Get("tracestate"), got.Get("baggage"))
			}
			id, _ := hex.DecodeString(fields[1])
			if recorded := c.flags == "01"; spans.has(string(id)) != recorded || (rec.TraceID == fields[1]) != recorded || (rec.TraceID == "") == recorded {
				t.Errorf("recorded: %v, the record has the trace %q", spans.has(string(id)), rec.TraceID)
			}
		})
	}
}

func TestWithoutTracesTheFieldsOfTheCallerPassThrough(t *testing.T) {
	var got http.Header
	f := serve(t, nil, worker(t, func(w http.ResponseWriter, r *http.Request) { got = r.Header.Clone(); plain(w, r) }))
	parent := "00-" + traceID + "-" + callerID + "-01"
	f.post(t, chat, "traceparent", parent, "tracestate", "vendor=x", "baggage", "k=v")
	if got.Get("traceparent") != parent || got.Get("tracestate") != "vendor=x" || got.Get("baggage") != "k=v" {
		t.Errorf("%v", got)
	}
}

func TestAFailedAttemptHasASpan(t *testing.T) {
	var spans collector
	change, end := traced(t, &spans, 1)
	f := serve(t, change, dead(t), worker(t, plain))
	for range 4 { // some go to the dead worker first
		f.post(t, chat)
	}
	f.post(t, `{"model":"other","messages":[]}`)
	f.last(t, 4)
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	end()
	for _, text := range []string{"POST /v1/chat/completions", "decide", "chat m", "error.type", "refused", "warmpath.term.", "gen_ai.usage.output_tokens", "warmpath.reason"} {
		if !spans.has(text) {
			t.Errorf("the spans lack %q", text)
		}
	}
}

// Some clients put their key into the query.
func TestNoSpanHasTheQuery(t *testing.T) {
	var spans collector
	change, end := traced(t, &spans, 1)
	f := serve(t, change, worker(t, plain))
	resp, err := f.client.Post(f.url+"/v1/chat/completions?api_key=key-of-a-client", "application/json", strings.NewReader(chat))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	end()
	if !spans.has("/v1/chat/completions") || spans.has("key-of-a-client") {
		t.Errorf("status %d; the spans have the query: %v", resp.StatusCode, spans.has("key-of-a-client"))
	}
}

// OpenTelemetry's conventions require url.scheme, and write the version of HTTP/2 as 2.
func TestTheRequestsSpanHasItsProtocol(t *testing.T) {
	var spans collector
	change, end := traced(t, &spans, 1)
	f := serve(t, func(s *settings) { s.gateway.HTTP2 = true; change(s) }, worker(t, plain))
	f.post(t, chat)
	client := clear2()
	resp, err := client.Post(f.url+"/v1/chat/completions", "application/json", strings.NewReader(chat))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	client.CloseIdleConnections()
	f.last(t, 2)
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	end()
	for key, values := range map[string][]string{"url.scheme": {"http"}, "network.protocol.version": {"1.1", "2"}} {
		for _, v := range values {
			if n := byte(len(v)); !spans.has(key + "\x12" + string([]byte{n + 2, '\n', n}) + v) { // a text in OTLP
				t.Errorf("no span has %s %s", key, v)
			}
		}
	}
}

// A collector that does not answer delays no request, and the end of the process by two seconds.
func TestACollectorThatHangsDelaysNoRequest(t *testing.T) {
	release := make(chan struct{})
	change, end := traced(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}), 1)
	f := serve(t, change, worker(t, plain))
	began := time.Now()
	for range 3000 { // more spans than the tracer keeps
		if resp, _ := f.post(t, chat); resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("3,000 requests took %v", took)
	}
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	close(release)
	end()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the end took %v", took)
	}
	if text := f.metrics(t); !strings.Contains(text, `warmpath_trace_spans_total{result="ended"} 12000`) {
		t.Errorf("spans: %s", regexp.MustCompile(`warmpath_trace_spans_total.*`).FindAllString(text, -1))
	}
}

func TestLatenciesHaveTheTraceAsExemplar(t *testing.T) {
	scrape := func(f *fixture) string {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
		f.Telemetry.Handler(telemetry.Sources{}).ServeHTTP(w, r)
		return w.Body.String()
	}
	change, _ := traced(t, &collector{}, 0)
	f := serve(t, change, worker(t, streaming))
	f.post(t, chatStreamed)
	f.last(t, 1)
	if text := scrape(f); strings.Contains(text, "trace_id") {
		t.Error("a trace that is not recorded is an exemplar")
	}
	f.post(t, chatStreamed, "traceparent", "00-"+traceID+"-"+callerID+"-01")
	f.last(t, 2)
	text := scrape(f)
	for _, name := range []string{"first_token_seconds", "request_seconds", "routing_seconds", "token_wait_seconds"} {
		if !regexp.MustCompile(`(?m)^warmpath_` + name + `_bucket\{.*\} \d+ # \{trace_id="` + traceID + `"\} `).MatchString(text) {
			t.Errorf("warmpath_%s has no exemplar", name)
		}
	}
	if strings.Contains(f.metrics(t), "trace_id") {
		t.Error("the text format has exemplars")
	}
	testenv.Until(t, "the request ends", func() bool { return len(f.Telemetry.Last(0)) == 2 })
}
