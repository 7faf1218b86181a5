package gateway_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
)

// golden is a request of a client, and the answer of an engine (vLLM 0.32, SGLang 0.5.23), from testdata/surface.
type golden struct {
	name      string
	path      string
	query     string // with its ?
	header    http.Header
	body      []byte
	status    int
	kind      string // Content-Type of the answer
	answer    []byte
	unchecked bool // the router does not read the answer
}

func goldens(t *testing.T) (all []golden) {
	t.Helper()
	names, err := filepath.Glob("testdata/surface/*.request")
	if err != nil || len(names) == 0 {
		t.Fatal("no golden requests", err)
	}
	for _, name := range names {
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(read(t, name))))
		if err != nil {
			t.Fatal(name, err)
		}
		name = strings.TrimSuffix(name, ".request")
		a, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(read(t, name+".answer"))), r)
		if err != nil {
			t.Fatal(name, err)
		}
		g := golden{name: filepath.Base(name), path: r.URL.Path, header: r.Header, status: a.StatusCode, kind: a.Header.Get("Content-Type")}
		if g.body, err = io.ReadAll(r.Body); err != nil {
			t.Fatal(name, err)
		}
		if g.answer, err = io.ReadAll(a.Body); err != nil {
			t.Fatal(name, err)
		}
		g.unchecked = strings.Contains(g.path, "/audio/") || strings.Contains(g.path, "/images/") || strings.HasSuffix(g.name, "bytes")
		all = append(all, g)
	}
	return all
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func (g *golden) streamed() bool {
	return strings.HasPrefix(g.kind, "text/event-stream") && !g.unchecked
}

// send sends the golden request.
func (g *golden) send(t *testing.T, f *fixture) (*http.Response, []byte, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+g.path+g.query, bytes.NewReader(g.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = g.header.Clone()
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp, text, err
}

// give answers with the first n bytes of the golden answer. If n is less than all bytes, it then cuts the connection.
func (g *golden) give(w http.ResponseWriter, n int) {
	w.Header().Set("Content-Type", g.kind)
	w.WriteHeader(g.status)
	for rest := g.answer[:n]; len(rest) > 0; rest = rest[min(len(rest), 100):] {
		_, _ = w.Write(rest[:min(len(rest), 100)])
		_ = http.NewResponseController(w).Flush()
	}
	if n < len(g.answer) {
		panic(http.ErrAbortHandler)
	}
}

func TestEveryEndpointPassesRequestsAndAnswersByteForByte(t *testing.T) {
	seen := map[string]bool{}
	for _, g := range goldens(t) {
		seen[g.path] = true
		g.query = "?beta=true&x=%20" // Claude Code sends beta=true
		t.Run(g.name, func(t *testing.T) {
			f := serve(t, nil, worker(t, func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				if r.RequestURI != g.path+g.query || !bytes.Equal(body, g.body) {
					t.Errorf("the worker got %s %q", r.RequestURI, body)
				}
				for name := range g.header {
					if name != "Content-Length" && r.Header.Get(name) != g.header.Get(name) {
						t.Errorf("the worker got %s: %q, want %q", name, r.Header.Get(name), g.header.Get(name))
					}
				}
				g.give(w, len(g.answer))
			}))
			resp, text, err := g.send(t, f)
			if err != nil || resp.StatusCode != g.status || resp.Header.Get("Content-Type") != g.kind || !bytes.Equal(text, g.answer) {
				t.Errorf("%v, %+v\n%s\nwant %d\n%s", err, resp, text, g.status, g.answer)
			}
			rec := f.last(t, 1)
			if rec.Status != g.status || g.status == 200 && rec.Finish != "success" {
				t.Errorf("recorded as %d %s: %s", rec.Status, rec.Finish, rec.Error)
			}
			f.idle(t)
		})
	}
	for _, path := range gateway.WorkerPaths() {
		if path = strings.TrimSuffix(path, "/"); !seen[path] && !strings.HasSuffix(path, "/audio") && !strings.HasSuffix(path, "/images") &&
			path != "/v1/chat/completions" && path != "/v1/completions" && path != "/v1/images/variations" {
			t.Errorf("%s has no golden request", path)
		}
	}
}

// checkErrorShape checks that an error has the shape of the path's dialect.
func checkErrorShape(t *testing.T, path, text string) {
	t.Helper()
	var e struct {
		Type  string
		Error struct{ Message, Type, Code string }
	}
	if err := json.Unmarshal([]byte(text), &e); err != nil || e.Error.Message == "" || e.Error.Type == "" {
		t.Errorf("%s: no error in a known shape: %s", path, text)
	}
	if anthropic := strings.HasPrefix(path, "/v1/messages"); (e.Type == "error") != anthropic {
		t.Errorf("%s: an error in the shape of another dialect: %s", path, text)
	}
}

func TestEveryEndpointRefusesInItsOwnShape(t *testing.T) {
	f := serve(t, nil, worker(t, func(http.ResponseWriter, *http.Request) { t.Error("the worker was asked") }))
	send := func(method, path, body string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, f.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := f.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		text, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(text)
	}
	for _, path := range append(gateway.WorkerPaths(), "/v1/messages/batches") {
		if path == "/v1/responses/" {
			continue // it has no bodies: see TestAnUnknownOrLostResponseIsRefusedInOpenAIsShape
		}
		if strings.HasSuffix(path, "/") {
			path += "more"
		}
		for _, c := range []struct {
			method, body string
			status       int
		}{
			{"POST", `{"model":"other"}`, 404},
			{"POST", `{"model":7}`, 400},
			{"POST", `{"model":`, 400},
			{"PUT", `{"model":"m"}`, 405},
		} {
			want := c.status
			if path == "/v1/messages/batches" {
				want = 404
			}
			status, text := send(c.method, path, c.body)
			if status != want {
				t.Errorf("%s %s with %s: %d, want %d", c.method, path, c.body, status, want)
			}
			checkErrorShape(t, path, text)
		}
	}
}

// An answer that is cut before its end is asked of another worker if no byte was forwarded. Otherwise the client sees
// that the answer is incomplete: by an error event in a stream, else by the end of the connection.
func TestNoEndpointTakesACutAnswerForAWholeOne(t *testing.T) {
	for _, g := range goldens(t) {
		if g.status != 200 {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			first := true // one request at a time
			answer := func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				if first {
					first = false
					g.give(w, len(g.answer)-1-len(g.answer)/4)
				}
				g.give(w, len(g.answer))
			}
			f := serve(t, nil, worker(t, answer), worker(t, answer))
			resp, text, err := g.send(t, f)
			switch {
			case g.unchecked:
				if err == nil && resp.StatusCode == 200 && f.last(t, 1).Attempts == 1 {
					t.Errorf("a clean end after %d of %d bytes", len(text), len(g.answer))
				}
			case g.streamed():
				if err != nil || !strings.Contains(string(text), "worker_failed") || strings.Contains(string(text), "[DONE]") {
					t.Errorf("%v: %s", err, text)
				}
				last := text[bytes.LastIndex(bytes.TrimRight(text, "\n"), []byte("\n"))+1:]
				checkErrorShapeOfEvent(t, g.path, string(last))
			default:
				if err != nil || resp.StatusCode != 200 || !bytes.Equal(text, g.answer) || f.last(t, 1).Attempts != 2 {
					t.Errorf("%v: %s", err, text)
				}
			}
			f.idle(t)
		})
	}
}

func checkErrorShapeOfEvent(t *testing.T, path, line string) {
	t.Helper()
	data, is := strings.CutPrefix(strings.TrimSpace(line), "data: ")
	if !is {
		t.Errorf("%s: the last line is %q", path, line)
	}
	var e struct {
		Type  string
		Error struct{ Message, Code string }
	}
	if err := json.Unmarshal([]byte(data), &e); err != nil || e.Error.Message == "" || e.Error.Code != "worker_failed" {
		t.Errorf("%s: %v in %s", path, err, data)
	}
	if typed := path == "/v1/messages" || path == "/v1/responses"; (e.Type == "error") != typed {
		t.Errorf("%s: an error event in the shape of another dialect: %s", path, data)
	}
}

// The worker sends the second half only after the client has the first half, so the test ends only if the router passes
// on the first half alone.
func TestSoundIsPassedOnAsItComes(t *testing.T) {
	read := make(chan struct{})
	f := serve(t, nil, worker(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "audio/mpeg")
		_, _ = io.WriteString(w, "first")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-read:
		case <-r.Context().Done():
		}
		_, _ = io.WriteString(w, "second")
	}))
	resp, err := f.client.Post(f.url+"/v1/audio/speech", "application/json", strings.NewReader(`{"model":"m","input":"hi"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	got := make([]byte, 5)
	if _, err := io.ReadFull(resp.Body, got); err != nil || string(got) != "first" {
		t.Fatalf("%q, %v", got, err)
	}
	close(read)
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "second" {
		t.Errorf("%q, %v", rest, err)
	}
}

// A form names its model in a field; the router reads this field and changes nothing.
func TestAFormGoesToTheWorkersOfItsModel(t *testing.T) {
	f := serve(t, nil, dead(t))
	f.fleet.Put(worker(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"text":"hello"}`)
	}), fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "whisper"}}})
	form := func(model string) string {
		return "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n\xff\x00\r\n--b\r\n" +
			"Content-Disposition: form-data; name=\"model\"\r\n\r\n" + model + "\r\n--b--\r\n"
	}
	for model, want := range map[string]int{"whisper": 200, "other": 404, "m": 502} {
		resp, err := f.client.Post(f.url+"/v1/audio/transcriptions", "multipart/form-data; boundary=b", strings.NewReader(form(model)))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("model %s: %d, want %d", model, resp.StatusCode, want)
		}
	}
}

func TestTheIdsOfGenerateAreMatchedAsTheyAre(t *testing.T) {
	ids := make([]string, 40)
	for i := range ids {
		ids[i] = fmt.Sprint(i + 7)
	}
	f := serve(t, func(s *settings) { s.facts.Engine = fleet.EngineSGLang }, worker(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, `{"text":"a","meta_info":{"finish_reason":{"type":"stop"},"prompt_tokens":40,"completion_tokens":1,"cached_tokens":32}}`)
	}))
	g := golden{path: "/generate", header: http.Header{}, body: []byte(`{"input_ids":[` + strings.Join(ids, ",") + `]}`)}
	for n := 1; n <= 2; n++ {
		if resp, text, err := g.send(t, f); err != nil || resp.StatusCode != 200 {
			t.Fatalf("%v: %s", err, text)
		}
		rec := f.last(t, n)
		if rec.TokenSource != "given" || rec.PromptTokens != 40 || rec.PredictedTokens != 32*(n-1) || *rec.ReportedTokens != 32 {
			t.Errorf("request %d: %d ids, source %s, predicted %d, reported %v", n, rec.PromptTokens, rec.TokenSource, rec.PredictedTokens, rec.ReportedTokens)
		}
	}
	images := golden{path: "/generate", header: http.Header{}, body: []byte(`{"image_data":"x",` + string(g.body[1:]))}
	if _, text, err := images.send(t, f); err != nil {
		t.Fatal(err, text)
	}
	if rec := f.last(t, 3); rec.PromptTokens != 0 || rec.PredictedTokens != 0 {
		t.Errorf("with an image: %d ids, predicted %d", rec.PromptTokens, rec.PredictedTokens)
	}
}

// An embedding counts as a request of its worker, and its prompt is matched with no cache.
func TestAnEmbeddingIsRoutedByLoad(t *testing.T) {
	reserved := make(chan int64, 1)
	var f *fixture
	f = serve(t, nil, worker(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		reserved <- f.fleet.Snapshot().Load(0).Requests
		_, _ = io.WriteString(w, `{"data":[],"usage":{"prompt_tokens":4}}`)
	}))
	g := golden{path: "/v1/embeddings", header: http.Header{}, body: []byte(`{"model":"m","input":"hi"}`)}
	if resp, text, err := g.send(t, f); err != nil || resp.StatusCode != 200 {
		t.Fatalf("%v: %s", err, text)
	}
	if n := <-reserved; n != 1 {
		t.Errorf("%d requests are reserved", n)
	}
	if rec := f.last(t, 1); rec.TokenSource != "unneeded" || rec.OutputTokens == nil || *rec.OutputTokens != 0 {
		t.Errorf("recorded as %+v", rec)
	}
	f.idle(t)
}

// A path below /v1/audio/ or /v1/images/ goes to the engine as it is. So it must not lead to another endpoint.
func TestAPathCannotLeaveItsEndpoint(t *testing.T) {
	f := serve(t, nil, worker(t, func(_ http.ResponseWriter, r *http.Request) { t.Errorf("the worker got %s", r.RequestURI) }))
	for _, path := range []string{"/v1/audio/", "/v1/audio/..", "/v1/audio/../../sleep", "/v1/audio/%2e%2e/%2e%2e/sleep", "/v1/audio/a%2f..%2f..%2fsleep",
		"/v1/audio//speech", "/v1/audio/./speech", "/v1/audio/speech/", "/v1/images/a;b", "/v1/images/a%00", "/v1/images/a%5c..%5cb", "/v1/images/%20"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url, strings.NewReader(`{"model":"m"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.URL.Opaque = path
		resp, err := f.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != 404 {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
	}
}
