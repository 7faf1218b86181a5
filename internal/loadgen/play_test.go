package loadgen

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/workload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a test in virtual time (a synctest bubble) with a network in memory. So the measured times are exact.
type bench struct {
	*testing.T
	network *network.Memory
	hosts   int
}

// inVirtualTime runs a test in a bubble of testing/synctest, where waiting costs no time. The test gets a new network.
func inVirtualTime(t *testing.T, test func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(&bench{T: t, network: network.NewMemory()}) })
}

// host returns a new host and its address.
func (b *bench) host() (*network.Host, string) {
	b.hosts++
	ip := fmt.Sprintf("10.0.0.%d", b.hosts)
	return b.network.Host(ip), ip
}

// mock starts a mock engine and returns its URL.
func (b *bench) mock(change func(*mockengine.Config)) string {
	b.Helper()
	host, ip := b.host()
	cfg := mockengine.DefaultConfig()
	cfg.Network, cfg.Listen, cfg.Events, cfg.Replay = host, ip+":8000", "", ""
	if change != nil {
		change(&cfg)
	}
	s, err := mockengine.New(cfg)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.Errorf("mock engine: %v", err)
		}
	})
	<-s.Ready()
	return "http://" + cfg.Listen
}

// serve starts a server that answers with handler, and returns its URL.
func (b *bench) serve(handler http.HandlerFunc) string {
	b.Helper()
	host, ip := b.host()
	l, err := host.Listen("tcp", ip+":8000")
	if err != nil {
		b.Fatal(err)
	}
	server := &http.Server{Handler: handler, Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }() // ends with Close; the cleanup waits
	b.Cleanup(func() {
		_ = server.Close()
		<-done
	})
	return "http://" + ip + ":8000"
}

// against returns a configuration that plays a workload against the server at the address url.
func (b *bench) against(url string) Config {
	cfg := DefaultConfig()
	cfg.Network, _ = b.host()
	cfg.Targets = []Target{{URL: url}}
	return cfg
}

// work takes the virtual time d, as the work of a server would.
func work(d time.Duration) { time.Sleep(d) }

func load(t testing.TB, spec string) *workload.Workload {
	t.Helper()
	w, err := workload.Load(spec, workload.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func run(t testing.TB, w *workload.Workload, cfg Config) *Outcome {
	t.Helper()
	o, err := Run(context.Background(), w, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestEveryFormOfPromptSharesItsPrefix(t *testing.T) {
	inVirtualTime(t, func(t *bench) {
		w := load(t, "gen:sglang-shared-prefix,groups=4,prompts=8,system=256,question=64,output=8,rate=inf")
		ideal := workload.Measure(w, workload.StatsOptions{Block: 16}).Infinite.All
		for _, form := range Prompts {
			for _, whole := range []bool{false, true} {
				cfg := t.against(t.mock(nil))
				cfg.Prompt, cfg.Concurrency, cfg.Whole = form, 1, whole
				r := run(t, w, cfg).Runs[0]
				if r.Requests.Answered != len(w.Requests) {
					t.Errorf("%s: %+v, want all %d answered", form, r.Requests, len(w.Requests))
				}
				if math.Abs(r.HitRate-ideal) > 0.05 {
					t.Errorf("%s: hit rate %.3f, an infinite cache has %.3f", form, r.HitRate, ideal)
				}
				if r.OutputTokens != int64(8*len(w.Requests)) {
					t.Errorf("%s: %d output tokens, want %d", form, r.OutputTokens, 8*len(w.Requests))
				}
			}
		}
	})
}

func TestHTTP2WithPriorKnowledge(t *testing.T) {
	inVirtualTime(t, func(t *bench) {
		s := t.serve(func(w http.ResponseWriter, r *http.Request) {
			if r.ProtoMajor != 2 {
				t.Errorf("the request came by %s", r.Proto)
			}
			w.Header().Set("X-Warmpath-Worker", "http://w1")
			w.Header().Set("X-Warmpath-Match", "12")
			w.Header().Set("X-Warmpath-Policy", "kv_aware")
			_, _ = io.WriteString(w, `data: {"choices":[{"delta":{"content":"x"}}]}

data: {"choices":[{"delta":{"content":"y"},"finish_reason":"length"}]}

data: {"choices":[],"usage":{"prompt_tokens":16,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":8}}}

data: [DONE]

`)
		})
		cfg := t.against(s)
		cfg.Model, cfg.HTTP2, cfg.Prompt = "m", true, Chat
		r := run(t, load(t, "gen:independent,requests=10,question=16,output=2,rate=inf"), cfg).Runs[0]
		if r.Requests.Answered != 10 || r.PredictedTokens != 120 || r.CachedTokens != 80 || r.Policy != "kv_aware" || r.Setup.Workers != 1 || r.ITL.Count != 10 {
			t.Errorf("%+v, %d predicted, %d cached, policy %q, %d workers, %d gaps", r.Requests, r.PredictedTokens, r.CachedTokens, r.Policy, r.Setup.Workers, r.ITL.Count)
		}
	})
}

func TestLaterTurnsRepeatTheEnginesText(t *testing.T) {
	inVirtualTime(t, func(t *bench) {
		w := load(t, "gen:conversations,sessions=3,context=64,turns=4,question=32,output=160,rate=inf")
		for _, form := range Prompts {
			cfg := t.against(t.mock(nil))
			cfg.Prompt = form
			r := run(t, w, cfg).Runs[0]
			// In each turn, the earlier messages and answers are cached, except a partly full last block.
			ideal := workload.Measure(w, workload.StatsOptions{Block: 16}).Infinite.All
			if r.Requests.Answered != 12 || math.Abs(r.HitRate-ideal) > 0.06 {
				t.Errorf("%s: %d answered with hit rate %.3f, want 12 with %.3f", form, r.Requests.Answered, r.HitRate, ideal)
			}
		}
	})
}

// A server answers one request at a time, and each takes 20 ms. The measured latency of a request must include the wait
// for the requests before it.
func TestOpenLoopCountsTheWaitForASlowServer(t *testing.T) {
	inVirtualTime(t, func(t *bench) {
		turn := make(chan struct{}, 1)
		s := t.serve(func(w http.ResponseWriter, _ *http.Request) {
			turn <- struct{}{}
			defer func() { <-turn }()
			work(20 * time.Millisecond)
			_, _ = w.Write([]byte("data: {\"choices\":[{\"text\":\"x\",\"finish_reason\":\"stop\"}]}\n\n"))
		})
		w := load(t, "gen:independent,requests=25,question=16,output=1,rate=1000")
		cfg := t.against(s)
		cfg.Model = "m"
		r := run(t, w, cfg).Runs[0]
		if r.Requests.Answered != 25 || r.TTFT.Max < 400 || r.TTFT.Mean < 200 {
			t.Errorf("%d answered, first tokens after %.0f ms on average and %.0f at most; want 25, 250 and 500", r.Requests.Answered, r.TTFT.Mean, r.TTFT.Max)
		}
	})
}

func TestRequestsBeyondTheBoundAreDroppedAndCounted(t *testing.T) {
	inVirtualTime(t, func(t *bench) {
		release := make(chan struct{})
		s := t.serve(func(http.ResponseWriter, *http.Request) { <-release })
		w := load(t, "gen:independent,requests=20,question=16,output=1,rate=inf")
		cfg := t.against(s)
		cfg.Model, cfg.MaxOpen = "m", 5
		time.AfterFunc(300*time.Millisecond, func() { close(release) })
		o := run(t, w, cfg)
		if c := o.Runs[0].Requests; c.Sent != 20 || c.Failed != 20 {
			t.Errorf("%+v, want 20 sent and failed: 15 dropped, 5 without an answer", c)
		}
		if all := strings.Join(o.Assumptions, "\n"); !strings.Contains(all, "15 requests were not sent") || !strings.Contains(all, "5 requests failed: answer cut short") {
			t.Errorf("the reader is told\n%s", all)
		}
	})
}

func TestAnInterruptedRunReportsItsFinishedPart(t *testing.T) {
	inVirtualTime(t, func(t *bench) {
		w := load(t, "gen:independent,requests=1000,question=16,output=1,rate=100")
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		cfg := t.against(t.mock(nil))
		cfg.Progress = func(p Progress) {
			if p.Answered > 10 {
				cancel()
			}
		}
		o, err := Run(ctx, w, cfg)
		if err != nil {
			t.Fatal(err)
		}
		if c := o.Runs[0].Requests; !o.Interrupted || c.Answered < 10 || c.Answered > 500 || c.Failed > 0 {
			t.Errorf("interrupted %t, %+v", o.Interrupted, c)
		}
	})
}

func TestStagesDrainAndSubAgentsAreAwaited(t *testing.T) {
	inVirtualTime(t, func(t *bench) {
		var open, most atomic.Int32
		s := t.serve(func(w http.ResponseWriter, _ *http.Request) {
			most.Store(max(most.Load(), open.Add(1)))
			work(30 * time.Millisecond)
			open.Add(-1)
			_, _ = w.Write([]byte("data: {\"choices\":[{\"text\":\"x\",\"finish_reason\":\"stop\"}]}\n\n"))
		})
		cfg := t.against(s)
		cfg.Model = "m"
		r := run(t, load(t, "gen:rl-rollouts,steps=3,groups=2,samples=3,question=16,output=1"), cfg).Runs[0]
		if most.Load() > 6 || r.Requests.Answered != 18 || len(r.Stages) != 3 {
			t.Errorf("%d open at once, want the 6 of one step; %d answered in %d stages", most.Load(), r.Requests.Answered, len(r.Stages))
		}
		path := filepath.Join(t.TempDir(), "workload.jsonl")
		if err := os.WriteFile(path, []byte(`{"id":"a","input":16,"output":1,"at":0}
{"id":"b","input":16,"output":1,"after":"a"}
{"id":"c","input":16,"output":1,"after":"a"}
{"id":"d","input":16,"output":1,"after":"b","join":["c"],"think":0.01}`), 0o600); err != nil {
			t.Fatal(err)
		}
		w := load(t, "warmpath:"+path)
		most.Store(0)
		r = run(t, w, cfg).Runs[0]
		if r.Requests.Answered != 4 || most.Load() != 2 || r.Seconds < 0.1 {
			t.Errorf("%d answered, %d at once, in %.3f s; want 4, 2, 0.1", r.Requests.Answered, most.Load(), r.Seconds)
		}
	})
}

func TestComparisonFindsTheAddedLatency(t *testing.T) {
	inVirtualTime(t, func(t *bench) {
		url := t.mock(nil)
		host, _ := t.host()
		client := &http.Client{Transport: &http.Transport{DialContext: host.Dial}}
		defer client.CloseIdleConnections()
		slow := t.serve(func(w http.ResponseWriter, r *http.Request) {
			work(15 * time.Millisecond)
			req, err := http.NewRequestWithContext(r.Context(), r.Method, url+r.URL.Path, r.Body)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := client.Do(req)
			if err != nil {
				return
			}
			defer resp.Body.Close()
			_, _ = io.Copy(w, resp.Body) // an error here shows as a failed request
		})
		cfg := t.against(url)
		cfg.Targets = []Target{{"direct", url}, {"through", slow}}
		o := run(t, load(t, "gen:independent,requests=40,question=32,output=2,rate=200"), cfg)
		c := o.Comparison[0]
		if c.Pairs != 40 || c.Of != "through" || c.TTFT.Median < 13 || c.TTFT.Low > c.TTFT.Median || c.TTFT.High < c.TTFT.Median {
			t.Errorf("%+v, want 15 ms added at least over 40 pairs", c)
		}
	})
}

func TestClimbingFindsTheTimingOfAnEngine(t *testing.T) {
	inVirtualTime(t, func(t *bench) {
		const speed = 4
		cfg := t.against(t.mock(func(c *mockengine.Config) { c.Speed = speed }))
		l := DefaultLadder()
		l.Prompts, l.Sequences, l.Contexts, l.Output, l.Repeats = []int{512, 4096, 8192}, []int{1, 8}, []int{128, 4096}, 8, 3
		points, err := l.Climb(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		got, overhead, q, err := FitPoints(points, 8192)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("overhead %.2f ms, quality %+v", overhead, q)
		want := engine.DefaultTiming
		if math.Abs(got.Base*speed/want.Base-1) > 0.001 || math.Abs(got.Token*speed/want.Token-1) > 0.001 {
			t.Errorf("fitted %+v at speed %d, the mock has %+v", got, speed, want)
		}
	})
}

// The rows that the load generator writes about an engine are enough to fit the engine's timing.
func TestRowsOfARunCalibrate(t *testing.T) {
	inVirtualTime(t, func(t *bench) {
		const speed = 4
		var rows bytes.Buffer
		cfg := t.against(t.mock(func(c *mockengine.Config) { c.Speed = speed }))
		cfg.Rows = &rows
		run(t, load(t, "gen:independent,requests=60,question=3000,output=40,rate=20"), cfg)
		measured, err := ReadMeasured(&rows)
		if err != nil {
			t.Fatal(err)
		}
		_, q, err := FitMeasured(measured, engine.Profiles()[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range q.Errors {
			t.Logf("%+v", e)
			if math.Abs(e.Bias) > 0.15 || e.Absolute > 0.3 {
				t.Errorf("%s: bias %.3f, mean error %.3f", e.What, e.Bias, e.Absolute)
			}
		}
	})
}
