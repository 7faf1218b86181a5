package testenv_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// mock runs a mock engine until the test ends.
func mock(t *testing.T, change func(*mockengine.Config)) *mockengine.Server {
	t.Helper()
	cfg := mockengine.DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	server, err := mockengine.New(cfg)
	if err != nil {
		t.Fatalf("make a mock engine: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { // ends when ctx ends; the cleanup waits
		ended <- server.Run(ctx)
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the mock engine ended: %v", err)
		}
	})
	select {
	case <-server.Ready():
	case err := <-ended:
		t.Fatalf("the mock engine did not start: %v", err)
	}
	return server
}

// mockFleet is a gateway process in front of mock engines.
type mockFleet struct {
	*testenv.Gateway
	workers []*mockengine.Server
}

// patient is a configuration with which a request waits up to 10 s for its token ids, the longest time that can be
// configured. On a busy machine an engine may need longer than the default time, and without ids the router predicts
// nothing.
const patient = "tokens: {budget: 10s}\n"

func serve(t *testing.T, workers []*mockengine.Server, args ...string) *mockFleet {
	t.Helper()
	file := filepath.Join(t.TempDir(), "warmpath.yaml")
	if err := os.WriteFile(file, []byte(patient), 0o600); err != nil {
		t.Fatal(err)
	}
	return serveFile(t, file, workers, args...)
}

// serveFile is serve with a configuration file of the test.
func serveFile(t *testing.T, file string, workers []*mockengine.Server, args ...string) *mockFleet {
	t.Helper()
	args = append(args, "--config", file)
	for _, w := range workers {
		args = append(args, "--worker", w.URL())
	}
	f := &mockFleet{Gateway: testenv.Serve(t, args...), workers: workers}
	f.Ready(t)
	return f
}

// answer is the answer to one chat request.
type answer struct {
	status    int
	worker    string
	match     int
	trust     string
	text      string
	finish    string
	cached    int
	prompt    int
	truncated bool // the connection ended before the end of the body
	body      string
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// chat sends a chat request to the gateway. On an error it does not fail the test, because a test may expect the error.
func (f *mockFleet) chat(t *testing.T, history []message, extra string) answer {
	t.Helper()
	return f.chatWith(t, "mock", history, extra)
}

// chatWith is chat with another model.
func (f *mockFleet) chatWith(t *testing.T, model string, history []message, extra string) answer {
	t.Helper()
	messages, err := json.Marshal(history)
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf(`{"model":%q,"max_tokens":24,"messages":%s%s}`, model, messages, extra)
	return f.post(body, "")
}

// post sends the body of a chat request. id is its X-Request-Id; "" sends none.
func (f *mockFleet) post(body, id string) answer {
	req, err := http.NewRequest(http.MethodPost, f.URL+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return answer{truncated: true, body: err.Error()}
	}
	req.Header.Set("Content-Type", "application/json")
	if id != "" {
		req.Header.Set("X-Request-Id", id)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{truncated: true, body: err.Error()}
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	a := answer{status: resp.StatusCode, worker: resp.Header.Get("X-Warmpath-Worker"), trust: resp.Header.Get("X-Warmpath-Trust"),
		truncated: err != nil, body: string(data)}
	a.match, _ = strconv.Atoi(resp.Header.Get("X-Warmpath-Match")) // "" becomes 0, which means no match
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		a.readStream(data)
	} else {
		a.read(data)
	}
	return a
}

// response is a whole answer, or one event of a stream.
type response struct {
	Choices []struct {
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		Finish string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		Prompt  int `json:"prompt_tokens"`
		Details *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
}

func (a *answer) read(data []byte) {
	var r response
	if json.Unmarshal(data, &r) != nil {
		return
	}
	for _, c := range r.Choices {
		a.text += c.Message.Content + c.Delta.Content
		if c.Finish != "" {
			a.finish = c.Finish
		}
	}
	if r.Usage != nil {
		a.prompt = r.Usage.Prompt
		if r.Usage.Details != nil {
			a.cached = r.Usage.Details.Cached
		}
	}
}

func (a *answer) readStream(data []byte) {
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if event, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: ")); ok {
			a.read(event)
		}
	}
}

// state has the fields of /admin/workers that the tests read.
type state struct {
	Workers []struct {
		URL     string `json:"url"`
		Healthy bool   `json:"healthy"`
		Holders []struct {
			Rank         int    `json:"rank"`
			Trust        string `json:"trust"`
			Why          string `json:"trust_reason"`
			LastSequence uint64 `json:"last_sequence"`
			Gaps         uint64 `json:"gaps"`
			Replays      uint64 `json:"replays"`
			Restarts     uint64 `json:"restarts"`
			IndexBlocks  int    `json:"index_blocks"`
			Load         struct {
				Requests      int64 `json:"requests"`
				Processed     int64 `json:"processed"`
				PrefillTokens int64 `json:"prefill_tokens"`
				ContextBlocks int64 `json:"context_blocks"`
			} `json:"load"`
		} `json:"holders"`
	} `json:"workers"`
}

func (f *mockFleet) state(t *testing.T) state {
	t.Helper()
	var s state
	testenv.JSON(t, f.Admin+"/admin/workers", &s)
	return s
}

// asked returns how many requests the gateway has sent to the worker at url.
func (f *mockFleet) asked(t *testing.T, url string) (n int64) {
	t.Helper()
	for _, w := range f.state(t).Workers {
		for _, h := range w.Holders {
			if w.URL == url {
				n += h.Load.Processed
			}
		}
	}
	return n
}

// trusted waits until every holder has exact trust.
func (f *mockFleet) trusted(t *testing.T) {
	t.Helper()
	f.trustedWithin(t, 20*time.Second)
}

func (f *mockFleet) trustedWithin(t *testing.T, limit time.Duration) {
	t.Helper()
	testenv.WaitFor(t, limit, "every holder to be exact", func() error {
		s := f.state(t)
		if len(s.Workers) != len(f.workers) {
			return fmt.Errorf("%d of %d workers are known", len(s.Workers), len(f.workers))
		}
		for _, w := range s.Workers {
			if len(w.Holders) == 0 {
				return fmt.Errorf("%s has no holders", w.URL)
			}
			for _, h := range w.Holders {
				if h.Trust != "exact" {
					return fmt.Errorf("%s rank %d is %s: %s", w.URL, h.Rank, h.Trust, h.Why)
				}
			}
		}
		return nil
	})
}

// settle waits until the gateway has applied all events that the engines have published, and until the gateway's
// sequence numbers do not change for a moment. Both are needed: a restarted engine counts from 0 again, and the gateway
// notices the restart a little later.
func (f *mockFleet) settle(t *testing.T) {
	t.Helper()
	f.settleQuickly(t)
	last, since := "", time.Now()
	testenv.WaitFor(t, 20*time.Second, "the events to arrive", func() error {
		now := ""
		for _, w := range f.state(t).Workers {
			for _, h := range w.Holders {
				now += fmt.Sprintf("%s/%d:%d ", w.URL, h.Rank, h.LastSequence)
			}
		}
		if now != last {
			last, since = now, time.Now()
		}
		if time.Since(since) < 60*time.Millisecond {
			return fmt.Errorf("still moving: %s", now)
		}
		return nil
	})
}

// idle waits until no holder has load, that is, every reservation is released.
func (f *mockFleet) idle(t *testing.T) {
	t.Helper()
	testenv.WaitFor(t, 20*time.Second, "every reservation to be released", func() error {
		for _, w := range f.state(t).Workers {
			for _, h := range w.Holders {
				if l := h.Load; l.Requests != 0 || l.PrefillTokens != 0 || l.ContextBlocks != 0 {
					return fmt.Errorf("%s rank %d still carries %+v", w.URL, h.Rank, l)
				}
			}
		}
		return nil
	})
}

// metric returns the sum of a metric's series in the gateway's /metrics.
func (f *mockFleet) metric(t *testing.T, name string) float64 {
	t.Helper()
	resp, err := http.Get(f.Admin + "/metrics")
	if err != nil {
		t.Fatalf("get the metrics: %v", err)
	}
	defer resp.Body.Close()
	sum, found := 0.0, false
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		line := lines.Text()
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			t.Fatalf("read metric line %q: %v", line, err)
		}
		sum, found = sum+value, true
	}
	if !found {
		t.Fatalf("there is no metric %s", name)
	}
	return sum
}

// scrape returns the gateway's /metrics.
func (f *mockFleet) scrape(t *testing.T) string {
	t.Helper()
	resp, err := http.Get(f.Admin + "/metrics")
	if err != nil {
		t.Fatalf("get the metrics: %v", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read the metrics: %v", err)
	}
	return string(text)
}

// prose returns n words. The same topic gives the same words, and different topics give different words.
func prose(topic string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s%d ", topic, i)
	}
	return b.String()
}
