package testenv_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// A lease of the prefill engine ends after leaseSeconds, and the decode engine keeps the blocks of a request for the
// next turn for turnSeconds. Both are short, so that the tests can wait for their end.
const leaseSeconds, turnSeconds = 15, 25

// door is a proxy before an engine. A test sees the requests in it, and can do something to them.
type door struct {
	next    http.Handler
	url     string
	asked   atomic.Int64 // number of completions and chats
	divided atomic.Int64 // number of those that are one of two legs
	meets   atomic.Pointer[func(next http.Handler, w http.ResponseWriter, r *http.Request)]
}

func newDoor(t *testing.T, engine string) *door {
	target, err := url.Parse(engine)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.FlushInterval = -1
	proxy.ErrorHandler = func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) } // as the engine: no answer
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	d := &door{next: proxy}
	s := httptest.NewServer(d)
	s.Config.ErrorLog = nil
	t.Cleanup(s.CloseClientConnections)
	d.url = s.URL
	return d
}

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "completions") {
		d.next.ServeHTTP(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	d.asked.Add(1)
	var fields struct {
		Transfer map[string]any `json:"kv_transfer_params"`
	}
	if json.Unmarshal(body, &fields) == nil && fields.Transfer != nil {
		d.divided.Add(1)
		if meet := d.meets.Load(); meet != nil {
			(*meet)(d.next, w, r)
			return
		}
	}
	d.next.ServeHTTP(w, r)
}

// meet gives each leg that comes to the door to f, until the test ends or calls meet with nil.
func (d *door) meet(t *testing.T, f func(next http.Handler, w http.ResponseWriter, r *http.Request)) {
	d.meets.Store(&f)
	t.Cleanup(func() { d.meets.Store(nil) })
}

// pair is a prefill engine and a decode engine that reads its KV cache over NIXL, each behind a door.
type pair struct {
	prefill, decode     *realEngine
	atPrefill, atDecode *door
}

func newPair(t *testing.T) *pair {
	model := root(t, "vllm") + "/tiny-turns"
	engine := func(name, role string) *realEngine {
		transfer := fmt.Sprintf(`{"kv_connector":"NixlConnector","kv_role":%q,"kv_buffer_device":"cpu","kv_connector_extra_config":`+
			`{"bidirectional_kv_xfer":true,"kv_lease_duration":%d,"decoder_kv_blocks_ttl":%d}}`, role, leaseSeconds, turnSeconds)
		return begin(t, name, launch{kind: "vllm",
			env: []string{"MODEL=" + model, "MAXLEN=8192", "KVBYTES=512M", "VLLM_NIXL_SIDE_CHANNEL_HOST=127.0.0.1",
				fmt.Sprintf("VLLM_NIXL_SIDE_CHANNEL_PORT=%d", testenv.FreePort(t))},
			args: []string{"--dtype", "float32", "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--kv-transfer-config", transfer}})
	}
	p := &pair{prefill: engine("prefill", "kv_producer"), decode: engine("decode", "kv_consumer")}
	p.prefill.await(t)
	p.decode.await(t)
	p.warm(t)
	p.atPrefill, p.atDecode = newDoor(t, p.prefill.url), newDoor(t, p.decode.url)
	return p
}

// warm sends each engine a whole request. On a CPU, vLLM 0.32 dies if the first request of a decode engine is a leg.
func (p *pair) warm(t *testing.T) {
	t.Helper()
	for _, e := range []*realEngine{p.prefill, p.decode} {
		if s := hear(t, e.url, "/v1/completions", `{"model":"tiny","prompt":"warm","max_tokens":4}`); s.Status != http.StatusOK {
			t.Fatalf("the first request of %s: %d %s", e.name, s.Status, s.raw)
		}
	}
}

// serve starts a gateway before the pair. It gives up a transfer after a few seconds.
func (p *pair) serve(t *testing.T, connector string, flags ...string) *testenv.Gateway {
	t.Helper()
	options := ""
	if connector != "" {
		options = ",connector=" + connector
	}
	file := filepath.Join(t.TempDir(), "warmpath.yaml")
	if err := os.WriteFile(file, []byte("gateway: {transfer_timeout: 8s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	gateway := testenv.Serve(t, append([]string{"--config", file, "--worker", p.atPrefill.url + ",role=prefill" + options,
		"--worker", p.atDecode.url + ",role=decode" + options}, flags...)...)
	gateway.Ready(t)
	return gateway
}

// idle waits until no engine that lives has a request, and no block of their caches is pinned by a request or by a
// lease.
func (p *pair) idle(t *testing.T) {
	t.Helper()
	testenv.WaitFor(t, (leaseSeconds+turnSeconds+60)*time.Second, "all blocks to be free", func() error {
		for _, e := range []*realEngine{p.prefill, p.decode} {
			if e.gone() {
				continue
			}
			for _, name := range []string{"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"} {
				if value := e.metric(t, name); value != 0 {
					return fmt.Errorf("%s: %s is %v", e.name, name, value)
				}
			}
		}
		return nil
	})
}

// metric returns the sum of a metric's samples that have all the labels.
func (e *realEngine) metric(t *testing.T, name string, labels ...string) (sum float64) {
	t.Helper()
	resp, err := http.Get(e.url + "/metrics")
	if err != nil {
		t.Fatalf("get the metrics of %s: %v", e.name, err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	for line := range strings.Lines(string(text)) {
		sample, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		lacks := func(label string) bool { return !strings.Contains(sample, label) }
		if ok && strings.HasPrefix(sample, name+"{") && !slices.ContainsFunc(labels, lacks) {
			number, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatalf("%s: %q: %v", e.name, line, err)
			}
			sum += number
		}
	}
	return sum
}

// heard is what a client is told by an answer, in one piece or as a stream.
type heard struct {
	Status        int
	Text, Finish  string
	Calls         map[int]toolCall
	Prompt, IDs   []int  // with return_token_ids
	Usage         string // tokens of prompt and answer
	raw           string
	stream, ended bool
}

// hear sends a request and reads its whole answer.
func hear(t *testing.T, base, path, body string) *heard {
	t.Helper()
	s, err := hearUntil(context.Background(), base, path, body)
	if err != nil {
		t.Errorf("%s: %v", path, err)
	}
	return s
}

func hearUntil(ctx context.Context, base, path, body string) (*heard, error) {
	s := &heard{Calls: map[int]toolCall{}, stream: strings.Contains(body, `"stream":true`)}
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, strings.NewReader(body))
	if err != nil {
		return s, err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return s, err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	s.Status, s.raw = resp.StatusCode, string(raw)
	if !s.stream || s.Status != http.StatusOK {
		s.add(raw)
		return s, err
	}
	for event := range strings.SplitSeq(s.raw, "\n\n") {
		if payload, ok := strings.CutPrefix(event, "data: "); ok {
			s.ended = s.ended || payload == "[DONE]"
			s.add([]byte(payload))
		}
	}
	return s, err
}

// add adds an answer or an event of a stream.
func (s *heard) add(payload []byte) {
	type message struct {
		Content   string
		ToolCalls []toolDelta `json:"tool_calls"`
	}
	var e struct {
		Prompt  []int `json:"prompt_token_ids"`
		Choices []struct {
			Text           string
			Delta, Message message
			FinishReason   string `json:"finish_reason"`
			Prompt         []int  `json:"prompt_token_ids"`
			IDs            []int  `json:"token_ids"`
		}
		Usage *struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
		}
	}
	if json.Unmarshal(payload, &e) != nil {
		return
	}
	s.Prompt = append(s.Prompt, e.Prompt...)
	if e.Usage != nil {
		s.Usage = fmt.Sprint(*e.Usage)
	}
	for _, c := range e.Choices {
		s.Text += c.Text + c.Delta.Content + c.Message.Content
		s.Prompt, s.IDs = append(s.Prompt, c.Prompt...), append(s.IDs, c.IDs...)
		for _, d := range append(c.Delta.ToolCalls, c.Message.ToolCalls...) {
			call := s.Calls[d.Index]
			s.Calls[d.Index] = toolCall{call.Name + d.Function.Name, call.Arguments + d.Function.Arguments}
		}
		if c.FinishReason != "" {
			s.Finish = c.FinishReason
		}
	}
}

// says tests that the gateway's answer is the one of one engine, and that it has nothing of the transfer.
func (s *heard) says(t *testing.T, want *heard, what string) bool {
	t.Helper()
	got, model := *s, *want
	got.raw, model.raw = "", ""
	if !reflect.DeepEqual(got, model) {
		t.Errorf("%s:\ngot  %+v\nwant %+v\n%.600s", what, got, model, s.raw)
		return false
	}
	if strings.Contains(s.raw, "remote_") {
		t.Errorf("%s: the client is told of the transfer: %s", what, s.raw)
	}
	return true
}

// legRequest returns the i-th of many requests: completions and chats, in one piece and streamed, with and without ids.
func legRequest(i, words int) (path, body string) {
	fields := fmt.Sprintf(`"model":"tiny","temperature":0,"max_tokens":%d`, 4+i%20)
	if i&1 != 0 {
		fields += `,"stream":true,"stream_options":{"include_usage":true}`
	}
	if i&4 != 0 {
		fields += `,"return_token_ids":true`
	}
	prompt := sentences(fmt.Sprintf("leg%d", i), words)
	if i&2 != 0 {
		return "/v1/completions", fmt.Sprintf(`{%s,"prompt":%q}`, fields, prompt)
	}
	return "/v1/chat/completions", fmt.Sprintf(`{%s,"messages":[{"role":"user","content":%q}]}`, fields, prompt)
}

// TestPrefillAndDecodeOnTwoEngines starts two engines that give each other their KV cache over NIXL. The prompt of a
// request is computed by one, and its answer by the other. Clients must be told what one engine tells them.
func TestPrefillAndDecodeOnTwoEngines(t *testing.T) {
	p := newPair(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"the same tokens as one engine", p.sameTokens},
		{"tool calls", p.toolCalls},
		{"many turns, in both directions", p.manyTurns},
		{"requests that are better served by one engine", p.bypassed},
		{"1,000 requests whose clients may leave", p.departures},
		{"clients that leave in each phase", p.leavings},
		{"a request that an engine refuses", p.refusals},
		{"legs that fail", p.failures},
		{"three transfers that fail", p.leftAlone},
		{"a lease that ends between the legs", p.lateDecode},
		{"an engine that freezes between the legs", p.frozenPrefill},
		{"a prefill engine that dies", p.deadPrefill},
		{"a decode engine that dies in a stream and is cold afterwards", p.deadDecode},
		{"a prefill engine that dies during the transfer", p.deadSource}, // the last: it is not started again
	} {
		if !t.Run(test.name, func(t *testing.T) {
			start := time.Now()
			test.run(t)
			p.idle(t)
			t.Logf("%v", time.Since(start).Round(time.Second))
		}) && (p.prefill.gone() || p.decode.gone()) {
			t.Fatal("an engine is gone")
		}
	}
}

func (p *pair) sameTokens(t *testing.T) {
	gateway := p.serve(t, "", "--disaggregation", "always")
	const n = 100
	asked, transferred := p.atPrefill.divided.Load(), p.decode.metric(t, "vllm:nixl_bytes_transferred_sum")
	var next, wrong atomic.Int64
	var clients sync.WaitGroup
	for range 4 {
		clients.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				path, body := legRequest(i, 1+i*i%67)
				got := hear(t, gateway.URL, path, body)
				if want := hear(t, p.prefill.url, path, body); !got.says(t, want, body) && wrong.Add(1) > 5 {
					return
				}
			}
		})
	}
	clients.Wait()
	asked, transferred = p.atPrefill.divided.Load()-asked, p.decode.metric(t, "vllm:nixl_bytes_transferred_sum")-transferred
	t.Logf("%d of %d requests with two legs, %.1f MB read by the decode engine", asked, n, transferred/1e6)
	if asked < n || p.atDecode.divided.Load() < n || transferred == 0 {
		t.Errorf("%d of %d requests have a prefill leg, %d a decode leg, %v bytes were read", asked, n, p.atDecode.divided.Load(), transferred)
	}
}

func (p *pair) toolCalls(t *testing.T) {
	gateway := p.serve(t, "", "--disaggregation", "always")
	const tools = `"tools":[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"warm":{"type":"boolean"}},"required":["warm"]}}},` +
		`{"type":"function","function":{"name":"get_time","parameters":{"type":"object","properties":{"zone":{"type":"string"}}}}}]`
	const chosen = `"tool_choice":{"type":"function","function":{"name":"get_weather"}}`
	for i, choice := range []string{chosen, `"tool_choice":"auto"`, `"tool_choice":"none"`} {
		for _, stream := range []string{"", `,"stream":true,"stream_options":{"include_usage":true}`} {
			body := fmt.Sprintf(`{"model":"tiny","temperature":0,"max_tokens":40,%s,%s%s,"messages":[{"role":"user","content":%q}]}`,
				tools, choice, stream, sentences(fmt.Sprintf("tools%d", i), 40))
			got, want := hear(t, gateway.URL, "/v1/chat/completions", body), hear(t, p.prefill.url, "/v1/chat/completions", body)
			got.says(t, want, body)
			// The tiny model never ends its arguments, so only a stream tells of the call.
			if i == 0 && stream != "" && want.Calls[0].Name != "get_weather" {
				t.Errorf("the engine calls %+v", want.Calls)
			}
		}
	}
}

// manyTurns plays conversations. From the second turn on, the prefill engine reads what the decode engine computed.
func (p *pair) manyTurns(t *testing.T) {
	gateway := p.serve(t, "nixl_two_way", "--disaggregation", "always")
	for _, stream := range []bool{false, true} {
		var history []chatMessage
		for turn := range 3 {
			history = append(history, say("user", sentences(fmt.Sprintf("two%v%d", stream, turn), 30)))
			body := map[string]any{"model": "tiny", "temperature": 0, "max_tokens": 120, "ignore_eos": true, "messages": history}
			if stream {
				body["stream"], body["stream_options"] = true, map[string]any{"include_usage": true}
			}
			got := p.turn(t, gateway, "/v1/chat/completions", body, fmt.Sprintf("a chat, streamed %v, turn %d", stream, turn))
			history = append(history, say("assistant", got.Text))
		}
	}
	// The text of the tiny model does not become the same tokens again, so only a prompt of ids begins with an answer.
	prompt := slices.Repeat([]int{70, 16, 15, 300, 458}, 20)
	for turn := range 4 {
		read := p.prefill.metric(t, "vllm:nixl_bytes_transferred_sum")
		got := p.turn(t, gateway, "/v1/completions", map[string]any{"model": "tiny", "temperature": 0, "max_tokens": 800, "ignore_eos": true,
			"return_token_ids": true, "prompt": prompt}, fmt.Sprintf("ids, turn %d", turn))
		if read == p.prefill.metric(t, "vllm:nixl_bytes_transferred_sum") && turn > 0 {
			t.Errorf("turn %d: the prefill engine read nothing", turn)
		}
		prompt = append(append(prompt, got.IDs...), 70, 16, 15, 300, 1000+turn)
	}
	var last struct {
		Decisions []struct {
			Fetched int `json:"fetched_tokens"`
		}
	}
	testenv.JSON(t, gateway.Admin+"/admin/decisions?n=3", &last)
	for i, d := range last.Decisions {
		if d.Fetched < 700 {
			t.Errorf("decision %d: %d tokens were fetched", i, d.Fetched)
		}
	}
}

// turn sends a turn of a conversation to the gateway, and to the decode engine alone.
func (p *pair) turn(t *testing.T, gateway *testenv.Gateway, path string, body map[string]any, what string) *heard {
	t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	read := p.prefill.metric(t, "vllm:nixl_bytes_transferred_sum")
	got := hear(t, gateway.URL, path, string(text))
	t.Logf("%s: the prefill engine read %v bytes", what, p.prefill.metric(t, "vllm:nixl_bytes_transferred_sum")-read)
	got.says(t, hear(t, p.decode.url, path, string(text)), what)
	return got
}

func (p *pair) bypassed(t *testing.T) {
	gateway := p.serve(t, "", "--disaggregation", "auto", "--pd-uncached-token-threshold", "256")
	before := p.atPrefill.asked.Load()
	for _, fields := range []string{
		`"prompt":"short"`,
		fmt.Sprintf(`"prompt":%q`, sentences("short", 20)),
		fmt.Sprintf(`"prompt":%q,"n":2,"temperature":0.5`, sentences("two answers", 100)),
		fmt.Sprintf(`"prompt":[%q,%q]`, sentences("one", 100), sentences("two", 100)),
	} {
		if got := hear(t, gateway.URL, "/v1/completions", `{"model":"tiny","max_tokens":4,`+fields+`}`); got.Status != http.StatusOK {
			t.Errorf("%.60s: %d %s", fields, got.Status, got.raw)
		}
	}
	never := p.serve(t, "", "--disaggregation", "never")
	path, body := legRequest(2, 200)
	hear(t, never.URL, path, body)
	if n := p.atPrefill.asked.Load() - before; n != 0 {
		t.Errorf("the prefill engine was asked %d times", n)
	}
}

// departures sends 1,000 requests. Two thirds of their clients leave at a random time.
func (p *pair) departures(t *testing.T) {
	gateway := p.serve(t, "", "--disaggregation", "always")
	var next, whole, left atomic.Int64
	var clients sync.WaitGroup
	for range 12 {
		clients.Go(func() {
			for i := int(next.Add(1)); i <= 1000; i = int(next.Add(1)) {
				ctx, cancel := context.WithCancel(context.Background())
				var stop *time.Timer
				if i%3 != 0 {
					stop = time.AfterFunc(time.Duration(rand.Int64N(int64(400*time.Millisecond))), cancel)
				}
				path, body := legRequest(i, 5+i%40)
				got, err := hearUntil(ctx, gateway.URL, path, body)
				switch {
				case err != nil && ctx.Err() != nil:
					left.Add(1)
				case err != nil || got.Status != http.StatusOK:
					t.Errorf("request %d: %v %d %.300s", i, err, got.Status, got.raw)
				default:
					whole.Add(1)
				}
				if stop != nil {
					stop.Stop()
				}
				cancel()
			}
		})
	}
	clients.Wait()
	t.Logf("%d whole answers, %d clients left", whole.Load(), left.Load())
	if whole.Load() < 300 || left.Load() < 100 {
		t.Errorf("%d whole answers, %d clients left", whole.Load(), left.Load())
	}
}

// leavings lets a client leave during the prefill leg, between the legs, during the transfer, and in the stream.
func (p *pair) leavings(t *testing.T) {
	gateway := p.serve(t, "", "--disaggregation", "always")
	for i, phase := range []string{"prefill", "between", "transfer", "stream"} {
		ctx, leave := context.WithCancel(context.Background())
		gone := make(chan struct{}) // closed when the door saw the phase
		var once sync.Once
		at := func(d *door, before, after bool) {
			d.meet(t, func(next http.Handler, w http.ResponseWriter, r *http.Request) {
				defer once.Do(func() { close(gone) }) // ServeHTTP panics if the connection ends
				if before {
					leave()
				}
				next.ServeHTTP(w, r)
				if after {
					leave()
				}
			})
		}
		switch phase {
		case "prefill":
			at(p.atPrefill, true, false)
		case "between":
			at(p.atPrefill, false, true)
		case "transfer":
			at(p.atDecode, true, false)
		default:
			close(gone)
		}
		path, body := "/v1/completions", fmt.Sprintf(`{"model":"tiny","stream":true,"ignore_eos":true,"max_tokens":5000,"prompt":%q}`, sentences(phase, 100))
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(r)
		if err == nil {
			text := make([]byte, 400)
			if _, err = io.ReadFull(resp.Body, text); err == nil && resp.StatusCode != http.StatusOK || phase != "stream" {
				t.Errorf("%s: the client is told %d %s", phase, resp.StatusCode, text)
			}
			leave()
			resp.Body.Close()
		}
		leave()
		if (err == nil) != (phase == "stream") {
			t.Errorf("%s: %v", phase, err)
		}
		testenv.WaitFor(t, time.Minute, "the phase "+phase, func() error {
			select {
			case <-gone:
				return nil
			default:
				return errors.New("no leg came to the door")
			}
		})
		p.atPrefill.meets.Store(nil)
		p.atDecode.meets.Store(nil)
		path, body = legRequest(i, 50)
		hear(t, gateway.URL, path, body).says(t, hear(t, p.prefill.url, path, body), phase)
	}
}

// refusals sends requests that an engine refuses. The client is told what the engine says.
func (p *pair) refusals(t *testing.T) {
	gateway := p.serve(t, "", "--disaggregation", "always")
	for _, fields := range []string{`"temperature":-1`, `"max_tokens":100000`, `"top_p":7`} {
		body := fmt.Sprintf(`{"model":"tiny","prompt":%q,%s}`, sentences("refused", 60), fields)
		got, want := hear(t, gateway.URL, "/v1/completions", body), hear(t, p.decode.url, "/v1/completions", body)
		if got.Status != http.StatusBadRequest || got.raw != want.raw {
			t.Errorf("%s: %d %s, the engine alone says %d %s", fields, got.Status, got.raw, want.Status, want.raw)
		}
	}
	for _, foreign := range []string{`{"do_remote_prefill":true}`, `{"do_remote_decode":true}`, `{}`, `7`} { // the first would end the engine
		body := fmt.Sprintf(`{"model":"tiny","prompt":%q,"kv_transfer_params":%s}`, sentences("foreign", 60), foreign)
		if got := hear(t, gateway.URL, "/v1/completions", body); got.Status != http.StatusBadRequest {
			t.Errorf("kv_transfer_params %s of a client: %d %s", foreign, got.Status, got.raw)
		}
	}
}

// failures lets one leg fail. The client is told nothing of it.
func (p *pair) failures(t *testing.T) {
	for _, at := range []*door{p.atPrefill, p.atDecode} {
		for i, status := range []int{500, 503, 0} {
			gateway := p.serve(t, "", "--disaggregation", "always")
			var failed atomic.Bool
			at.meet(t, func(next http.Handler, w http.ResponseWriter, r *http.Request) {
				switch {
				case failed.Swap(true):
					next.ServeHTTP(w, r)
				case status == 0:
					panic(http.ErrAbortHandler)
				default:
					http.Error(w, `{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}`, status)
				}
			})
			path, body := legRequest(40+i, 60)
			got := hear(t, gateway.URL, path, body)
			got.says(t, hear(t, p.prefill.url, path, body), fmt.Sprintf("%s, status %d", at.url, status))
			if !failed.Load() {
				t.Errorf("%s was not asked", at.url)
			}
			at.meets.Store(nil)
			gateway.Stop(syscall.SIGTERM)
		}
	}
}

// leftAlone lets transfers fail. After three failures requests have one leg.
func (p *pair) leftAlone(t *testing.T) {
	gateway := p.serve(t, "", "--disaggregation", "always")
	p.atDecode.meet(t, func(_ http.Handler, w http.ResponseWriter, _ *http.Request) {
		http.Error(w, `{"error":{"message":"Internal server error","type":"InternalServerError","param":null,"code":500}}`, 500)
	})
	before := p.atPrefill.divided.Load()
	for i := range 8 {
		path, body := legRequest(60+i, 60)
		got := hear(t, gateway.URL, path, body)
		got.says(t, hear(t, p.prefill.url, path, body), fmt.Sprintf("request %d", i))
	}
	n := p.atPrefill.divided.Load() - before
	t.Logf("%d prefill legs of 8 requests", n)
	if n < 3 || n > 7 {
		t.Errorf("%d prefill legs of 8 requests whose transfers fail", n)
	}
}

// lateDecode holds a decode leg until the lease of its blocks has ended.
func (p *pair) lateDecode(t *testing.T) {
	gateway := p.serve(t, "", "--disaggregation", "always")
	var late atomic.Bool
	p.atDecode.meet(t, func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		if !late.Swap(true) {
			before := p.prefill.metric(t, "vllm:nixl_num_kv_expired_reqs_total")
			testenv.Poll((leaseSeconds+60)*time.Second, func() bool { return p.prefill.metric(t, "vllm:nixl_num_kv_expired_reqs_total") > before })
		}
		next.ServeHTTP(w, r)
	})
	path, body := legRequest(70, 60)
	hear(t, gateway.URL, path, body).says(t, hear(t, p.prefill.url, path, body), "a late decode leg")
}

// frozenPrefill stops the prefill engine after its leg, so the transfer does not end: vLLM 0.32 has no time limit for
// it. The stream is served all the same.
func (p *pair) frozenPrefill(t *testing.T) {
	path, body := legRequest(81, 120) // a stream
	want := hear(t, p.prefill.url, path, body)
	gateway := p.serve(t, "", "--disaggregation", "always")
	thaw := func() { _ = syscall.Kill(-p.prefill.pgid, syscall.SIGCONT) }
	t.Cleanup(thaw)
	p.atPrefill.meet(t, func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		_ = syscall.Kill(-p.prefill.pgid, syscall.SIGSTOP)
	})
	start := time.Now()
	hear(t, gateway.URL, path, body).says(t, want, "the prefill engine freezes")
	t.Logf("served after %v", time.Since(start).Round(time.Millisecond))
	thaw()
}

// again starts an engine again, once it is gone.
func (p *pair) again(t *testing.T, e *realEngine) {
	t.Helper()
	_ = syscall.Kill(-e.pgid, syscall.SIGKILL)
	testenv.Until(t, e.name+" is gone", e.gone)
	e.start(t)
	e.await(t)
	p.warm(t)
}

// deadPrefill kills the prefill engine between the legs.
func (p *pair) deadPrefill(t *testing.T) {
	path, body := legRequest(90, 200)
	want := hear(t, p.prefill.url, path, body)
	gateway := p.serve(t, "", "--disaggregation", "always")
	p.atPrefill.meet(t, func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		_ = syscall.Kill(-p.prefill.pgid, syscall.SIGKILL)
	})
	start := time.Now()
	hear(t, gateway.URL, path, body).says(t, want, "the prefill engine dies between the legs")
	t.Logf("served after %v", time.Since(start).Round(time.Millisecond))
	p.atPrefill.meets.Store(nil)
	path, body = legRequest(91, 20)
	hear(t, gateway.URL, path, body).says(t, hear(t, p.decode.url, path, body), "a request to the engine that is left")
	p.again(t, p.prefill)
	gateway = p.serve(t, "", "--disaggregation", "always")
	before := p.atDecode.divided.Load()
	for i := range 4 {
		path, body := legRequest(92+i, 60)
		hear(t, gateway.URL, path, body).says(t, hear(t, p.prefill.url, path, body), "the engine is back")
	}
	if n := p.atDecode.divided.Load() - before; n != 4 {
		t.Errorf("%d decode legs of 4 requests after the prefill engine is back", n)
	}
}

// deadSource kills the prefill engine while the decode engine reads its blocks. The engine is stopped before, so that
// the read cannot end earlier.
func (p *pair) deadSource(t *testing.T) {
	path, body := legRequest(101, 200) // a stream
	want := hear(t, p.decode.url, path, body)
	gateway := p.serve(t, "", "--disaggregation", "always")
	p.atPrefill.meet(t, func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		_ = syscall.Kill(-p.prefill.pgid, syscall.SIGSTOP)
	})
	var killed atomic.Bool
	p.atDecode.meet(t, func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		if !killed.Swap(true) {
			go func() {
				testenv.Poll(time.Minute, func() bool {
					return p.decode.metric(t, "vllm:num_requests_kv_fetch_by_stage", `stage="in_progress"`) > 0
				})
				_ = syscall.Kill(-p.prefill.pgid, syscall.SIGKILL)
			}()
		}
		next.ServeHTTP(w, r)
	})
	start := time.Now()
	hear(t, gateway.URL, path, body).says(t, want, "the prefill engine dies during the transfer")
	t.Logf("served after %v", time.Since(start).Round(time.Millisecond))
	testenv.Until(t, "the prefill engine is gone", p.prefill.gone)
}

// deadDecode kills the decode engine in a stream, which the other engine continues. When the decode engine is back, it
// knows nothing of the transfers before, and gets decode legs again.
func (p *pair) deadDecode(t *testing.T) {
	const path = "/v1/completions"
	body := fmt.Sprintf(`{"model":"tiny","temperature":0,"stream":true,"stream_options":{"include_usage":true},"ignore_eos":true,"max_tokens":600,"prompt":%q}`,
		sentences("cold", 60))
	want := hear(t, p.prefill.url, path, body)
	gateway := testenv.Serve(t, "--worker", p.atPrefill.url+",role=both", "--worker", p.atDecode.url+",role=decode", "--disaggregation", "always")
	gateway.Ready(t)
	p.atDecode.meet(t, func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&dying{ResponseWriter: w, after: 20, die: func() { _ = syscall.Kill(-p.decode.pgid, syscall.SIGKILL) }}, r)
	})
	hear(t, gateway.URL, path, body).says(t, want, "the decode engine dies in a stream")
	p.atDecode.meets.Store(nil)
	testenv.Until(t, "the decode engine is gone", p.decode.gone)
	p.again(t, p.decode)
	testenv.WaitFor(t, time.Minute, "decode legs after the decode engine is back", func() error {
		before := p.atDecode.divided.Load()
		path, body := legRequest(110, 60)
		hear(t, gateway.URL, path, body).says(t, hear(t, p.prefill.url, path, body), "the decode engine is back")
		if p.atDecode.divided.Load() == before {
			return errors.New("the decode engine got no leg")
		}
		return nil
	})
}

// dying is a writer that calls die once, after some writes.
type dying struct {
	http.ResponseWriter
	after int
	die   func()
}

func (d *dying) Write(b []byte) (int, error) {
	if d.after--; d.after == 0 {
		d.die()
	}
	return d.ResponseWriter.Write(b)
}

// Unwrap lets http.ResponseController find the flusher.
func (d *dying) Unwrap() http.ResponseWriter { return d.ResponseWriter }
