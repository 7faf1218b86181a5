package mockengine

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a mock engine until the test ends.
func start(t testing.TB, change func(*Config)) *Server {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Events, cfg.Replay = "", "" // tests that need events set these addresses themselves
	if change != nil {
		change(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	select {
	case <-s.Ready():
	case err := <-ended:
		ended <- err
		t.Fatalf("run ended before it was ready: %v", err)
	}
	return s
}

// client returns a client whose connections are closed when the test ends.
func client(t testing.TB) *http.Client {
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

// object is a JSON object.
type object = map[string]any

// call sends body by POST, or sends a GET if body is nil. It returns the status and the bytes of the answer.
func call(t testing.TB, s *Server, path string, body any, header ...string) (int, []byte) {
	t.Helper()
	request, err := http.NewRequest(http.MethodGet, s.URL()+path, nil)
	if body != nil {
		data, isBytes := body.([]byte)
		if !isBytes {
			if data, err = json.Marshal(body); err != nil {
				t.Fatal(err)
			}
		}
		request, err = http.NewRequest(http.MethodPost, s.URL()+path, bytes.NewReader(data))
	}
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := client(t).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, data
}

// completion is an answer of chat/completions or completions, or one chunk of a streamed answer.
type completion struct {
	ID      string
	Object  string
	Model   string
	Choices []choice
	Usage   *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
		Details    *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	}
	PromptIDs []uint32 `json:"prompt_token_ids"`
	Error     *struct {
		Message string
		Type    string
		Code    int
	}
}

type choice struct {
	Index   int
	Text    string
	Message struct {
		Role      string
		Content   *string
		ToolCalls []struct {
			ID       string
			Function struct{ Name, Arguments string }
		} `json:"tool_calls"`
	}
	Delta *struct {
		Role      string
		Content   string
		ToolCalls []struct {
			Function struct{ Name, Arguments string }
		} `json:"tool_calls"`
	}
	FinishReason *string  `json:"finish_reason"`
	StopReason   *string  `json:"stop_reason"`
	TokenIDs     []uint32 `json:"token_ids"`
	PromptIDs    []uint32 `json:"prompt_token_ids"`
}

func (c *completion) cached() int {
	if c.Usage == nil || c.Usage.Details == nil {
		return -1
	}
	return c.Usage.Details.Cached
}

// complete sends a request, and checks that the answer has status 200 and is JSON.
func complete(t testing.TB, s *Server, path string, body object, header ...string) completion {
	t.Helper()
	status, data := call(t, s, path, body, header...)
	if status != http.StatusOK {
		t.Fatalf("%s: status %d: %s", path, status, data)
	}
	var c completion
	if err := json.Unmarshal(data, &c); err != nil {
		t.Fatalf("%s: %v in %s", path, err, data)
	}
	return c
}

// stream is a received SSE stream.
type stream struct {
	chunks []completion
	done   bool // the stream ended with [DONE]
	err    error
}

// text returns the whole text of one choice.
func (s *stream) text(index int) string {
	var b strings.Builder
	for _, c := range s.chunks {
		for _, ch := range c.Choices {
			if ch.Index != index {
				continue
			}
			b.WriteString(ch.Text)
			if ch.Delta != nil {
				b.WriteString(ch.Delta.Content)
			}
		}
	}
	return b.String()
}

func (s *stream) finish(index int) string {
	for _, c := range s.chunks {
		for _, ch := range c.Choices {
			if ch.Index == index && ch.FinishReason != nil {
				return *ch.FinishReason
			}
		}
	}
	return ""
}

func streamed(t testing.TB, s *Server, path string, body object) stream {
	t.Helper()
	body["stream"] = true
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client(t).Post(s.URL()+path, "application/json", bytes.NewReader(data))
	if err != nil {
		return stream{err: err}
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		t.Fatalf("%s: status %d", path, response.StatusCode)
	}
	var out stream
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		payload, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
		case payload == "[DONE]":
			out.done = true
		default:
			var c completion
			if err := json.Unmarshal([]byte(payload), &c); err != nil {
				t.Fatalf("chunk %q: %v", payload, err)
			}
			out.chunks = append(out.chunks, c)
		}
	}
	out.err = lines.Err()
	return out
}

func userSays(text string) object { return object{"role": "user", "content": text} }

// long returns a text of about n tokens.
func long(topic string, n int) string { return strings.Repeat(topic+" word", n/2) }

func stringReader(s string) io.Reader { return strings.NewReader(s) }
