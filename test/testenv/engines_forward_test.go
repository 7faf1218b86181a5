package testenv_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// recorder is a proxy between the gateway and an engine. It keeps the last body that was sent to each path.
type recorder struct {
	url string

	mu     sync.Mutex
	bodies map[string][]byte // by path: the last body; guarded by mu
}

func record(t *testing.T, e *realEngine) *recorder {
	t.Helper()
	target, err := url.Parse(e.url)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{bodies: map[string][]byte{}}
	through := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(target) }}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Errorf("read what is sent to %s: %v", e.name, err)
		}
		r.mu.Lock()
		r.bodies[req.URL.Path] = body
		r.mu.Unlock()
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		through.ServeHTTP(w, req)
	}))
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

func (r *recorder) last(path string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return string(r.bodies[path])
}

// said has the parts of an answer that a test compares.
type said struct {
	Text   string
	Prompt int
	Cached int
}

func answerOf(t *testing.T, at, path, body string) said {
	t.Helper()
	resp, err := http.Post(at+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var a struct {
		Choices []struct {
			Text    string
			Message struct{ Content string }
		}
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || resp.StatusCode != http.StatusOK || len(a.Choices) != 1 {
		t.Fatalf("%s: status %d, error %v, %d choices\n%s", path, resp.StatusCode, err, len(a.Choices), body)
	}
	return said{a.Choices[0].Text + a.Choices[0].Message.Content, a.Usage.Prompt, a.Usage.Details.Cached}
}

// forwarding tests that the engine gives the same answers and has the same cached tokens if the gateway sends it token
// ids in place of the text. It also tests that the gateway sends the text for requests with the options in refused,
// because ids alone could change their answers. field is the beginning of the request's field with the ids.
func forwarding(t *testing.T, e *realEngine, dir, path, field string, request func(text, more string) string, refused []string) {
	recorded := record(t, e)
	config := filepath.Join(t.TempDir(), "warmpath.yaml")
	if err := os.WriteFile(config, []byte("tokens:\n  forward: auto\nmodels:\n  - path: "+dir+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	gateway := testenv.Serve(t, "--config", config, "--worker", recorded.url)
	gateway.Ready(t)
	waitTrust(t, gateway, "exact", 1)
	forwarded := func() bool { return strings.Contains(recorded.last(path), field) }
	for i := range 20 { // the gateway's self-check needs these requests before it trusts the model's files
		answerOf(t, gateway.URL, path, request(sentences(fmt.Sprintf("proof%d", i), 10), ""))
		if i == 0 && forwarded() {
			t.Error("ids are sent before any was compared with the engine's")
		}
	}
	testenv.WaitFor(t, 30*time.Second, "twenty prompts to be compared", func() error {
		var state struct {
			Tokens struct{ Checked, Differed int }
		}
		testenv.JSON(t, gateway.Admin+"/admin/workers", &state)
		if state.Tokens.Checked < 20 || state.Tokens.Differed > 0 {
			return fmt.Errorf("%+v", state.Tokens)
		}
		return nil
	})
	for i, text := range snippets {
		// The salts separate the blocks of requests through the gateway from the blocks of direct requests. So both must find
		// the same number of cached tokens.
		one := fmt.Sprintf(`,"cache_salt":"straight%d"`, i)
		two := fmt.Sprintf(`,"cache_salt":"through%d"`, i)
		for turn := range 3 {
			text := sentences("shared", 20+turn*30) + text
			straight := answerOf(t, e.url, path, request(text, one))
			through := answerOf(t, gateway.URL, path, request(text, two))
			if !forwarded() {
				t.Fatalf("snippet %d: the engine was sent %.300s", i, recorded.last(path))
			}
			if straight != through {
				t.Errorf("snippet %d turn %d: %+v without ids, %+v with them", i, turn, straight, through)
			}
		}
	}
	for _, more := range refused {
		body := request(sentences("lost", 10), more)
		answerOf(t, gateway.URL, path, body)
		if recorded.last(path) != body {
			t.Errorf("%s: the engine was sent %.300s", more, recorded.last(path))
		}
	}
	var last struct {
		Decisions []struct {
			Source     string `json:"token_source"`
			Difference *int
		}
	}
	testenv.JSON(t, gateway.Admin+"/admin/decisions?n=1000", &last)
	for i, d := range last.Decisions {
		if d.Difference != nil && *d.Difference > 0 {
			t.Errorf("decision %d predicted %d tokens too many", i, *d.Difference)
		}
	}
}

// forwardingVLLM tests the forwarding of ids to vLLM. A completion has the ids as its prompt. A chat has the ids in the
// field kv_transfer_params, in addition to its messages.
func forwardingVLLM(t *testing.T, e *realEngine, dir string) {
	forwarding(t, e, dir, "/v1/chat/completions", `"kv_transfer_params":{"prompt_token_ids":[`, chatOf, []string{`,"logprobs":true`,
		`,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none"`, `,"chat_template_kwargs":{"enable_thinking":false}`, `,"unheard_of":1`})
	forwarding(t, e, dir, "/v1/completions", `"prompt":[`, func(text, more string) string {
		return fmt.Sprintf(`{"model":"tiny","max_tokens":16,"temperature":0,"prompt":%s%s}`, encodeText(text), more)
	}, []string{`,"echo":true`, `,"logprobs":1`, `,"truncate_prompt_tokens":8`, `,"unheard_of":1`})
}

// forwardingSGLang tests the forwarding of ids to SGLang. A chat has the ids in the field input_ids, in addition to its
// messages.
func forwardingSGLang(t *testing.T, e *realEngine, dir string) {
	forwarding(t, e, dir, "/v1/chat/completions", `"input_ids":[`, chatOf, []string{`,"logprobs":true`, `,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none"`, `,"chat_template_kwargs":{"enable_thinking":false}`, `,"unheard_of":1`})
}

func chatOf(text, more string) string {
	return fmt.Sprintf(`{"model":"tiny","max_tokens":16,"temperature":0,"messages":[{"role":"system","content":"Help."},{"role":"user","content":%s}]%s}`, encodeText(text), more)
}

func encodeText(text string) string {
	out, err := json.Marshal(text)
	if err != nil {
		panic("bug: " + err.Error())
	}
	return string(out)
}
