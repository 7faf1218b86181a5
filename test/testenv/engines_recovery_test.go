package testenv_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/warmpath/warmpath/test/testenv"
)

// front is a proxy before an engine that cuts the connections of streams.
type front struct {
	http.Handler
	cut   atomic.Int64 // the next stream is cut behind this event; 0: none is cut
	wrote atomic.Int64 // number of pieces of streams that came
}

func newFront(t *testing.T, engine string) (f *front, address string) {
	target, err := url.Parse(engine)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = -1
	proxy.ErrorLog = nil
	f = &front{Handler: proxy}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return f, s.URL
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := &cutWriter{ResponseWriter: w, of: f}
	if strings.HasSuffix(r.URL.Path, "completions") && r.Method == http.MethodPost {
		c.left = f.cut.Swap(0)
		c.cuts = c.left > 0
	}
	f.Handler.ServeHTTP(c, r)
}

// cutWriter cuts the connection of an answer behind a number of events.
type cutWriter struct {
	http.ResponseWriter
	of   *front
	cuts bool
	left int64
}

func (c *cutWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }

func (c *cutWriter) Write(b []byte) (int, error) {
	c.of.wrote.Add(1)
	if !c.cuts {
		return c.ResponseWriter.Write(b)
	}
	for rest := b; ; {
		end := bytes.Index(rest, []byte("\n\n"))
		if end < 0 {
			return c.ResponseWriter.Write(b)
		}
		rest = rest[end+2:]
		if c.left--; c.left == 0 {
			_, _ = c.ResponseWriter.Write(b[:len(b)-len(rest)])
			_ = http.NewResponseController(c.ResponseWriter).Flush()
			panic(http.ErrAbortHandler)
		}
	}
}

// told is what a client is told by a stream.
type told struct {
	Text, Finish, Stop, Usage string
	Thoughts                  string
	Calls                     []toolCall
	Roles                     int
	ids                       map[string]bool
	done                      bool
	raw                       string
}

// toolCall is a tool call, joined from its deltas.
type toolCall struct{ Name, Arguments string }

// toolDelta is a part of a tool call.
type toolDelta struct {
	Index    int
	ID       string
	Function struct{ Name, Arguments string }
}

// call adds a part of a tool call. The first part has the id and the name, and no other part has one of them.
func (o *told) call(t *testing.T, d toolDelta) {
	if first := d.Index == len(o.Calls); first != (d.ID != "") || d.Index > len(o.Calls) || !first && d.Function.Name != "" {
		t.Errorf("a part of call %d of %d: %+v", d.Index, len(o.Calls), d)
		return
	} else if first {
		o.Calls = append(o.Calls, toolCall{})
	}
	c := &o.Calls[d.Index]
	c.Name, c.Arguments = c.Name+d.Function.Name, c.Arguments+d.Function.Arguments
}

func tell(t *testing.T, base, path, body string) told {
	t.Helper()
	out := told{ids: map[string]bool{}}
	resp, err := http.Post(base+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return out
	}
	defer func() { _ = resp.Body.Close() }()
	raw, _ := io.ReadAll(resp.Body) // a broken stream has no [DONE]
	out.raw = string(raw)
	for event := range strings.SplitSeq(out.raw, "\n\n") {
		payload, _ := strings.CutPrefix(event, "data: ")
		if payload == "[DONE]" {
			out.done = true
			continue
		}
		var e struct {
			ID      string
			Choices []struct {
				Text  string
				Delta struct {
					Role, Content, Reasoning string
					ToolCalls                []toolDelta `json:"tool_calls"`
				}
				FinishReason string `json:"finish_reason"`
				StopReason   any    `json:"stop_reason"`
			}
			Usage *struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
			}
		}
		if json.Unmarshal([]byte(payload), &e) != nil {
			continue
		}
		out.ids[e.ID] = true
		if e.Usage != nil {
			out.Usage = fmt.Sprint(*e.Usage)
		}
		for _, c := range e.Choices {
			out.Text += c.Text + c.Delta.Content
			out.Thoughts += c.Delta.Reasoning
			for _, d := range c.Delta.ToolCalls {
				out.call(t, d)
			}
			if c.Delta.Role != "" {
				out.Roles++
			}
			if c.FinishReason != "" {
				out.Finish, out.Stop = c.FinishReason, fmt.Sprint(c.StopReason)
			}
		}
	}
	return out
}

func (a *told) same(b *told) bool {
	return slices.Equal(a.Calls, b.Calls) && a.Thoughts == b.Thoughts && a.Text == b.Text && a.Finish == b.Finish && a.Stop == b.Stop && a.Usage == b.Usage && a.Roles == b.Roles && b.done && len(b.ids) == 1
}

// TestStreamsSurviveTheirEngines cuts streams of two real engines at random places. The client must see the text that
// an engine sends without a loss. With float32 a continuation of the same ids is exact.
func TestStreamsSurviveTheirEngines(t *testing.T) {
	exact := launch{kind: "vllm", env: []string{"MAXLEN=8192"}, args: []string{"--dtype", "float32"}}
	one, two := begin(t, "one", exact), begin(t, "two", exact)
	one.await(t)
	two.await(t)
	frontOne, urlOne := newFront(t, one.url)
	frontTwo, urlTwo := newFront(t, two.url)
	serve := func(t *testing.T) *testenv.Gateway {
		gateway := testenv.Serve(t, "--policy", "round_robin", "--worker", urlOne, "--worker", urlTwo)
		gateway.Ready(t)
		return gateway
	}
	random := rand.New(rand.NewPCG(3, 4))
	request := func(i int) (path, body string) {
		fields := fmt.Sprintf(`"model":"tiny","stream":true,"temperature":0,"max_tokens":%d,"stream_options":{"include_usage":true}`, 10+random.IntN(60))
		words := fmt.Sprintf("Tell me about number %d and the sea, %d times.", i, random.IntN(1000))
		if i%2 == 0 {
			return "/v1/completions", fmt.Sprintf(`{%s,"prompt":%q%s}`, fields, words, "")
		}
		return "/v1/chat/completions", fmt.Sprintf(`{%s,"messages":[{"role":"user","content":%q}]}`, fields, words)
	}
	t.Run("200 streams that are cut", func(t *testing.T) {
		gateway, bad := serve(t), 0
		for i := range 200 {
			path, body := request(i)
			want := tell(t, one.url, path, body)
			if i%3 == 0 && len([]rune(want.Text)) > 12 { // a stop string from the middle of the answer
				text := []rune(want.Text)
				from := len(text)/2 + random.IntN(4)
				stop, err := json.Marshal(string(text[from : from+2+random.IntN(4)]))
				if err != nil {
					t.Fatal(err)
				}
				body = strings.Replace(body, `"stream":true`, `"stream":true,"stop":`+string(stop), 1)
				want = tell(t, one.url, path, body)
			}
			events := int64(strings.Count(want.raw, "\n\n"))
			cut := 1 + random.Int64N(max(1, events-1))
			frontOne.cut.Store(cut)
			frontTwo.cut.Store(0)
			if i%4 == 0 { // the continuation is cut, too
				frontTwo.cut.Store(1 + random.Int64N(4))
				frontOne.cut.Store(cut)
			}
			got := tell(t, gateway.URL, path, body)
			if !want.same(&got) {
				if bad++; bad < 4 {
					t.Errorf("%d, cut behind event %d of %d: %s\ngot  %+v\nwant %+v\n%s", i, cut, events, body, got.Text+"|"+got.Finish+got.Stop+got.Usage, want.Text+"|"+want.Finish+want.Stop+want.Usage, got.raw)
				}
			}
		}
		t.Logf("%d of 200 streams differ", bad)
		if bad > 0 {
			t.Fail()
		}
	})
	flight := func(t *testing.T, lose func()) {
		gateway := serve(t) // the one before may leave out the engine that lost all its streams
		frontOne.cut.Store(0)
		frontTwo.cut.Store(0)
		_, body := request(1)
		body = strings.Replace(body, `"max_tokens":`, `"ignore_eos":true,"max_tokens":4`, 1) // 400 and more tokens
		want := tell(t, two.url, "/v1/chat/completions", body)
		var streams sync.WaitGroup
		var failed atomic.Int64
		for range 32 { // half of them are at the first engine
			streams.Go(func() {
				if got := tell(t, gateway.URL, "/v1/chat/completions", body); !want.same(&got) {
					failed.Add(1)
					t.Logf("got %.300s … %.300s", got.raw, got.raw[max(0, len(got.raw)-300):])
				}
			})
		}
		begun := frontOne.wrote.Load()
		testenv.Until(t, "the streams are under way", func() bool { return frontOne.wrote.Load() > begun+16*20 })
		lose()
		streams.Wait()
		if n := failed.Load(); n > 0 {
			t.Errorf("%d of 32 streams failed", n)
		}
	}
	t.Run("16 streams whose engine is stopped", func(t *testing.T) {
		flight(t, func() { _ = syscall.Kill(-one.pgid, syscall.SIGSTOP) })
		_ = syscall.Kill(-one.pgid, syscall.SIGCONT)
	})
	t.Run("16 streams whose engine is killed", func(t *testing.T) {
		flight(t, func() { _ = syscall.Kill(-one.pgid, syscall.SIGKILL) })
	})
}

// parrotModel writes a model that always gives the same answer, with two tool calls.
func parrotModel(t *testing.T) (folder string) {
	dir := root(t, "vllm")
	folder = t.TempDir()
	cmd := exec.Command(dir+"/venv/bin/python", "../engines/parrot.py", dir+"/tiny-llama", folder)
	cmd.Env = append(os.Environ(), "HF_HUB_OFFLINE=1", "TRANSFORMERS_OFFLINE=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("write the model: %v\n%s", err, out)
	}
	return folder
}

// TestToolCallsSurviveTheirEngines cuts an answer with tool calls behind every fourth of its events. The
// client must see the calls that an engine sends without a loss: each part once, one id for each call.
func TestToolCallsSurviveTheirEngines(t *testing.T) {
	parrot := launch{kind: "vllm", env: []string{"MODEL=" + parrotModel(t), "MAXLEN=8192"}, args: []string{"--dtype", "float32",
		"--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-scale-out"}}
	one, two := begin(t, "one", parrot), begin(t, "two", parrot)
	one.await(t)
	two.await(t)
	frontOne, urlOne := newFront(t, one.url)
	frontTwo, urlTwo := newFront(t, two.url)
	gateway := testenv.Serve(t, "--policy", "round_robin", "--worker", urlOne, "--worker", urlTwo)
	gateway.Ready(t)
	const tools = `,"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}}}}},` +
		`{"type":"function","function":{"name":"get_time","parameters":{"type":"object","properties":{"zone":{"type":"string"}}}}}]`
	for i, c := range []struct {
		name, fields string
		calls        int
	}{{"calls", tools, 2}, {"chosen", tools + `,"tool_choice":"auto"`, 2}, {"none", tools + `,"tool_choice":"none"`, 0}, {"without tools", "", 0}} {
		t.Run(c.name, func(t *testing.T) {
			body := `{"model":"tiny","stream":true,"temperature":0,"max_tokens":200,"stream_options":{"include_usage":true},` +
				`"messages":[{"role":"user","content":"How is the weather?"}]` + c.fields + `}`
			want := tell(t, one.url, "/v1/chat/completions", body)
			if len(want.Calls) != c.calls || !want.done || want.Text == "" {
				t.Fatalf("the engine said %+v", want)
			}
			withIDs := tell(t, one.url, "/v1/chat/completions", strings.Replace(body, `"stream"`, `"return_token_ids":true,"stream"`, 1))
			events := int64(strings.Count(withIDs.raw, "\n\n"))
			for cut := int64(1 + i); cut < events; cut += 4 { // a cut takes seconds on a busy machine
				frontOne.cut.Store(cut)
				frontTwo.cut.Store(cut) // the continuation is cut, too, if so much is left of it
				got := tell(t, gateway.URL, "/v1/chat/completions", body)
				if !want.same(&got) {
					t.Errorf("cut behind event %d of %d:\ngot  %+v\nwant %+v", cut, events, got, want)
				}
				if t.Failed() && cut > 8 {
					break
				}
			}
		})
	}
}
