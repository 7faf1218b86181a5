package discovery

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// These are the relevant parts of engines' answers: of vLLM 0.32.0 with two ranks, of vLLM before 0.9.2, and of SGLang
// 0.5.23 with --enable-metrics and tensor parallelism of two.
const (
	vllmMetricsText = `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="a } strange \"name\""} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 1.5e-01 1760000000000
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="m"} 0.0
`
	oldVLLMMetricsText = `vllm:num_requests_running{model_name="m"} 2.0
vllm:num_requests_waiting{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
`
	sglangMetricsText = `sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 4.0
sglang:num_running_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="1"} 4.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 2.0
sglang:token_usage{engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"} 0.31
`
	sglangLoads = `{"timestamp":"2026-11-01T00:00:00Z","loads":[
{"dp_rank":0,"num_running_reqs":5,"num_waiting_reqs":2,"num_waiting_uncached_tokens":900,"num_used_tokens":10,"token_usage":0.4},
{"dp_rank":1,"num_running_reqs":0,"num_waiting_reqs":0,"token_usage":0}]}`
	sglangOldLoad = `[{"dp_rank":0,"num_reqs":5,"num_waiting_reqs":2,"num_tokens":77}]`
)

func TestLoadIsReadInEachEnginesForm(t *testing.T) {
	for _, test := range []struct {
		name   string
		engine fleet.Engine
		paths  map[string]string
		want   ranks
	}{
		{"vllm", fleet.EngineVLLM, map[string]string{"/metrics": vllmMetricsText},
			ranks{0: {Running: 3, Waiting: 7, KVUsed: 0.25}, 1: {Running: 1, KVUsed: 0.15}}},
		{"old vllm", fleet.EngineVLLM, map[string]string{"/metrics": oldVLLMMetricsText}, ranks{noRank: {Running: 2, Waiting: 1, KVUsed: 0.5}}},
		{"sglang", fleet.EngineSGLang, map[string]string{"/v1/loads": sglangLoads},
			ranks{0: {Running: 5, Waiting: 2, QueuedTokens: 900, QueueReported: true, KVUsed: 0.4}, 1: {}}},
		{"sglang before 0.5.8", fleet.EngineSGLang, map[string]string{"/get_load": sglangOldLoad}, ranks{0: {Running: 3, Waiting: 2}}},
		{"sglang with metrics alone", fleet.EngineSGLang, map[string]string{"/metrics": sglangMetricsText}, ranks{noRank: {Running: 4, Waiting: 2, KVUsed: 0.31}}},
		{"silly numbers", fleet.EngineVLLM, map[string]string{"/metrics": "vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\nvllm:kv_cache_usage_perc 1e300\nvllm:num_requests_running{engine=\"x\"} 1e300\n"},
			ranks{noRank: {Running: 1 << 40, KVUsed: 1}}},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			text, ok := test.paths[r.URL.Path]
			if !ok {
				http.NotFound(w, r)
				return
			}
			_, _ = io.WriteString(w, text)
		}))
		a := asker{client: s.Client(), target: Target{URL: s.URL}, timeout: 5 * time.Second}
		got, _, err := a.loadOf(t.Context(), test.engine)
		s.Close()
		if diff := cmp.Diff(test.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", test.name, err, diff)
		}
	}
}

func TestAnAnswerWithoutLoadIsAnError(t *testing.T) {
	endless := func(w http.ResponseWriter, _ *http.Request) {
		line := []byte(strings.Repeat("x", 1000) + "\n")
		for {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	}
	for name, answer := range map[string]http.HandlerFunc{
		"nothing":  func(w http.ResponseWriter, _ *http.Request) {},
		"not JSON": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "vllm:other 1\n") },
		"refused":  func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
		"no loads": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"loads":[]}`) },
		"a line without end": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.Copy(w, io.LimitReader(zeros{}, 1<<20))
		},
		"a text without end": endless,
	} {
		s := httptest.NewServer(answer)
		a := asker{client: s.Client(), target: Target{URL: s.URL}, timeout: 20 * time.Second}
		for _, engine := range []fleet.Engine{fleet.EngineVLLM, fleet.EngineSGLang} {
			if got, _, err := a.loadOf(t.Context(), engine); err == nil {
				t.Errorf("%s from %s: %v", name, engine, got)
			}
		}
		s.CloseClientConnections()
		s.Close()
	}
}

// zeros is a reader that returns zeros without end.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// engineFleet returns a fleet of one worker, as if it was found at url.
func engineFleet(url string, engine fleet.Engine, ranks int) (*fleet.Fleet, []fleet.Holder) {
	f := fleet.New(fleet.Config{})
	f.Put(url, fleet.Facts{Engine: engine, Models: []fleet.Model{{ID: "m"}}, Ranks: ranks, BlockSize: 16, BlocksPerRank: 100})
	return f, f.Snapshot().Workers()[0].Holders
}

// answering is an http.RoundTripper that answers without a network.
type answering func(*http.Request) (int, string)

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	status, text := a(r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader(text)), Header: http.Header{}, Request: r}, nil
}

func TestTheFleetHearsEachRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, holders := engineFleet("http://w:1", fleet.EngineVLLM, 2)
		var asked atomic.Int64
		client := &http.Client{Transport: answering(func(r *http.Request) (int, string) {
			asked.Add(1)
			if got := r.Header.Get("Authorization"); got != "Bearer k" {
				t.Errorf("asked with %q", got)
			}
			return http.StatusOK, vllmMetricsText
		})}
		targets := func(url string) Target { return Target{URL: url, APIKey: "k"} }
		r := NewReporter(f, DefaultReportsConfig(), targets, client, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		testenv.Pass(10*time.Second + 500*time.Millisecond)
		now := time.Now().UnixNano()
		snap := f.Snapshot()
		a, b := snap.LoadAt(holders[0], now).Reported, snap.LoadAt(holders[1], now).Reported
		if a.Running != 3 || a.Waiting != 7 || a.KVUsed != 0.25 || b.Running != 1 || b.KVUsed != 0.15 {
			t.Errorf("reported %+v and %+v", a, b)
		}
		if age := time.Duration(now - a.At); age > 1200*time.Millisecond {
			t.Errorf("the report is %v old", age)
		}
		if n := asked.Load(); n < 9 || n > 12 {
			t.Errorf("asked %d times in 10.5 s, want about once a second", n)
		}
		if c := r.Counts("http://w:1"); c == nil || c.Answered.Load() != uint64(asked.Load()) || c.failing.Load() {
			t.Errorf("counts %+v", c)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestAnEngineThatDoesNotAnswerIsAskedLessAndStillGetsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, holders := engineFleet("http://w:1", fleet.EngineSGLang, 1)
		var asked atomic.Int64
		var answers atomic.Bool
		client := &http.Client{Transport: answering(func(r *http.Request) (int, string) {
			if r.URL.Path != "/v1/loads" {
				t.Errorf("asked %s", r.URL.Path)
			}
			asked.Add(1)
			if answers.Load() {
				return http.StatusOK, sglangLoads
			}
			<-r.Context().Done() // wait until the timeout of the question
			return 0, ""
		})}
		var lines bytes.Buffer
		log := slog.New(slog.NewTextHandler(&lockedWriter{w: &lines}, nil))
		r := NewReporter(f, DefaultReportsConfig(), nil, client, log)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		testenv.Pass(5 * time.Minute)
		if n := asked.Load(); n < 8 || n > 20 {
			t.Errorf("asked %d times in 5 min, want some a minute", n)
		}
		now := time.Now().UnixNano()
		if !f.Snapshot().Available(holders[0], now) {
			t.Error("a worker that reports no load is not used")
		}
		answers.Store(true)
		testenv.Pass(time.Minute)
		cancel()
		<-done
		c := r.Counts("http://w:1")
		if c.Failed.Load() == 0 || c.Answered.Load() < 20 || c.failing.Load() {
			t.Errorf("%d failed, %d answered, failing: %t", c.Failed.Load(), c.Answered.Load(), c.failing.Load())
		}
		if n := strings.Count(lines.String(), "does not report its load"); n != 1 {
			t.Errorf("%d warnings, want one:\n%s", n, lines.String())
		}
	})
}

// TestAnotherProcessIsAskedAtOnce: an engine that reported no load is replaced. After the failures the old process was
// asked at a long interval. The new process must be asked without this delay.
func TestAnotherProcessIsAskedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := engineFleet("http://w:1", fleet.EngineSGLang, 1)
		var asked, reported atomic.Int64
		client := &http.Client{Transport: answering(func(r *http.Request) (int, string) {
			asked.Add(1)
			if r.URL.Path == "/metrics" {
				reported.Add(1)
				return http.StatusOK, oldVLLMMetricsText
			}
			return http.StatusOK, "{}"
		})}
		r := NewReporter(f, DefaultReportsConfig(), nil, client, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		testenv.Pass(5 * time.Minute)
		for n := asked.Load(); asked.Load() == n; { // after this loop, the reporter has just begun its long wait
			testenv.Pass(100 * time.Millisecond)
		}
		reported.Store(0)
		id := f.Put("http://w:1", fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}})
		f.Refused(id)
		f.Answered(id, fleet.Signs{})
		testenv.Pass(100 * time.Millisecond)
		if n := reported.Load(); n != 1 {
			t.Errorf("the new process was asked %d times within 0.1 s, want once", n)
		}
		testenv.Pass(30 * time.Second)
		if n := reported.Load(); n < 5 {
			t.Errorf("the new process was asked %d times in 30 s", n)
		}
		cancel()
		<-done
	})
}

func TestTheLogDoesNotSayThatASuspectIsRoutedTo(t *testing.T) {
	f := fleet.New(fleet.Config{})
	id := f.Put("http://w:1", fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}})
	var lines bytes.Buffer
	log := slog.New(slog.NewTextHandler(&lines, nil))
	r := NewReporter(f, DefaultReportsConfig(), nil, http.DefaultClient, log)
	var c ReportCounts
	f.Suspect(id, true, 1)
	c.fail(errNoLoad, log, "http://w:1", r.suspected(id))
	if lines.Len() > 0 || c.Failed.Load() != 1 {
		t.Errorf("while it is a suspect: %d failed, %s", c.Failed.Load(), &lines)
	}
	f.Suspect(id, false, 2)
	c.fail(errNoLoad, log, "http://w:1", r.suspected(id))
	if !strings.Contains(lines.String(), "does not report its load") {
		t.Error("afterwards nothing is logged")
	}
}

func TestWorkersThatComeAndGoAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fleet.New(fleet.Config{})
		var mu sync.Mutex
		asked := map[string]int{}
		client := &http.Client{Transport: answering(func(r *http.Request) (int, string) {
			mu.Lock()
			defer mu.Unlock()
			asked[r.URL.Host]++
			return http.StatusOK, oldVLLMMetricsText
		})}
		take := func() map[string]int {
			mu.Lock()
			defer mu.Unlock()
			got := asked
			asked = map[string]int{}
			return got
		}
		r := NewReporter(f, DefaultReportsConfig(), nil, client, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		facts := fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}}
		a := f.Put("http://a", facts)
		f.Put("http://b", facts)
		f.Put("http://c", fleet.Facts{Engine: fleet.EngineOther, Models: []fleet.Model{{ID: "m"}}})
		testenv.Pass(5 * time.Second)
		if got := take(); got["a"] < 3 || got["b"] < 3 || got["c"] != 0 {
			t.Errorf("asked %v", got)
		}
		f.Remove(a)
		testenv.Pass(5 * time.Second)
		if got := take(); got["a"] > 1 || got["b"] < 3 {
			t.Errorf("asked %v after a left", got)
		}
		if r.Counts("http://a") != nil {
			t.Error("a worker that left is still counted")
		}
		f.Put("http://a", facts)
		testenv.Pass(5 * time.Second)
		if got := take(); got["a"] < 3 {
			t.Errorf("asked %v after a came back", got)
		}
		cancel()
		<-done
	})
}

// TestAWorkerIsAskedAsItIsNow: a worker is in the fleet before its first probe reports its ranks, and a reload may
// change its key. The reporter must use the present ranks and key.
func TestAWorkerIsAskedAsItIsNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fleet.New(fleet.Config{})
		f.Put("http://w:1", fleet.Facts{})
		var key atomic.Value
		key.Store("old")
		var last atomic.Value
		client := &http.Client{Transport: answering(func(r *http.Request) (int, string) {
			last.Store(r.Header.Get("Authorization"))
			return http.StatusOK, "vllm:num_requests_running{engine=\"4\"} 3\n"
		})}
		targets := func(url string) Target { return Target{URL: url, APIKey: key.Load().(string)} }
		r := NewReporter(f, ReportsConfig{Interval: time.Second, Timeout: time.Second}, targets, client, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		testenv.Pass(3 * time.Second)
		f.Put("http://w:1", fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}, FirstRank: 4})
		testenv.Pass(5 * time.Second)
		snap := f.Snapshot()
		if l := snap.LoadAt(snap.Workers()[0].Holders[0], time.Now().UnixNano()); l.Reported.Running != 3 {
			t.Errorf("rank 4 has %+v", l.Reported)
		}
		key.Store("new")
		testenv.Pass(5 * time.Second)
		if got, _ := last.Load().(string); got != "Bearer new" {
			t.Errorf("asked with %q", got)
		}
		cancel()
		<-done
	})
}

func TestNoWorkerIsAskedIfReportsAreOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := engineFleet("http://w:1", fleet.EngineVLLM, 1)
		client := &http.Client{Transport: answering(func(*http.Request) (int, string) {
			t.Error("asked")
			return http.StatusOK, ""
		})}
		r := NewReporter(f, ReportsConfig{Timeout: time.Second}, nil, client, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if err := r.Run(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestMockEnginesReportTheirLoadAsRealOnes(t *testing.T) {
	for _, kind := range []mockengine.Kind{mockengine.VLLM, mockengine.SGLang} {
		c := mockengine.DefaultConfig()
		c.Kind, c.Ranks = kind, 2
		s, stop := mock(t, c)
		engine := map[mockengine.Kind]fleet.Engine{mockengine.VLLM: fleet.EngineVLLM, mockengine.SGLang: fleet.EngineSGLang}[kind]
		client := NewClient(nil, nil)
		got, _, err := asker{client: client, target: Target{URL: s.URL()}, timeout: 5 * time.Second}.loadOf(t.Context(), engine)
		client.CloseIdleConnections()
		if diff := cmp.Diff(ranks{0: {}, 1: {}}, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", kind, err, diff)
		}
		stop()
	}
}

func FuzzMetrics(f *testing.F) {
	for _, text := range []string{vllmMetricsText, oldVLLMMetricsText, sglangMetricsText, "vllm:num_requests_running{", "vllm:num_requests_running{a=\"\\", "vllm:token_usage 1 # {} 1"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, label := range []string{"engine", "dp_rank"} {
			found := ranks{}
			_ = metricLines(bytes.NewReader(text), func(line []byte) {
				if rest, ours := bytes.CutPrefix(line, []byte("vllm:")); ours {
					found.read(rest, label)
				}
			})
			for rank, l := range found {
				if l.Running < 0 || l.Waiting < 0 || !(l.KVUsed >= 0 && l.KVUsed <= 1) {
					t.Errorf("rank %d: %+v", rank, l)
				}
			}
		}
		_, _ = metricLabels(bytes.NewReader(text), "vllm:cache_config_info{")
	})
}

// BenchmarkMetrics reads the /metrics of a busy engine: thousands of lines, of which the router uses six.
func BenchmarkMetrics(b *testing.B) {
	var text strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&text, "vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=\"%d\",model_name=\"m\"} 0.0\n", i)
	}
	text.WriteString(vllmMetricsText)
	b.SetBytes(int64(text.Len()))
	b.ReportAllocs()
	for b.Loop() {
		found := ranks{}
		if err := metricLines(strings.NewReader(text.String()), func(line []byte) {
			if rest, ours := bytes.CutPrefix(line, []byte("vllm:")); ours {
				found.read(rest, "engine")
			}
		}); err != nil || len(found) != 2 {
			b.Fatal(err, found)
		}
	}
}

func TestLostRequestsAreFoundAndLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, holders := engineFleet("http://w:1", fleet.EngineVLLM, 1)
		var lines bytes.Buffer
		r := NewReporter(f, ReportsConfig{Timeout: time.Second}, nil, nil, slog.New(slog.NewTextHandler(&lockedWriter{w: &lines}, nil)))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		var lost fleet.Reservation
		f.Reserve(&lost, holders[0], fleet.Work{UncachedTokens: 10, PromptTokens: 10, ContextBlocks: 1}, time.Now().UnixNano())
		testenv.Pass(10 * time.Minute)
		cancel()
		<-done
		if n := f.Snapshot().Leaked(holders[0]); n != 1 || f.Snapshot().Load(holders[0]).Requests != 0 {
			t.Errorf("%d leaks, load %+v", n, f.Snapshot().Load(holders[0]))
		}
		if text := lines.String(); strings.Count(text, "requests were lost") != 1 {
			t.Errorf("log: %q", text)
		}
	})
}
