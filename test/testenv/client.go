package testenv

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

//go:embed driver.py
var driver string

//go:embed driver.mjs
var nodeDriver string

// Client sends requests with the official OpenAI and Anthropic clients for Python or Node, so that tests see exactly
// the requests that these clients send and the answers that they accept. A process (the driver) runs the clients.
// The driver makes one call after another. A Client is safe for concurrent use.
type Client struct {
	mu  sync.Mutex
	in  io.WriteCloser
	out *bufio.Reader
}

// Call is one request through the client. Body has the arguments of the OpenAI client's method. Extra has fields of the
// body that the OpenAI client does not know.
type Call struct {
	Call    string            `json:"call"` // method: chat, completions, models, or any: see Any
	Base    string            `json:"base"` // base URL, which ends in /v1 for the OpenAI client
	Body    map[string]any    `json:"body,omitempty"`
	Extra   map[string]any    `json:"extra,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	// The next fields are for the call any. Client is openai or anthropic. Method is the client's method, such as
	// responses.create. Args are the arguments without a name, and Body has those with a name.
	Client string `json:"client,omitempty"`
	Method string `json:"method,omitempty"`
	Args   []any  `json:"args,omitempty"`
}

// Answer is the result of a call, as the OpenAI client returns it.
type Answer struct {
	Text      string            `json:"text"`
	Finish    string            `json:"finish"`
	Usage     *Usage            `json:"usage"`
	Chunks    int               `json:"chunks"`
	ToolCalls []map[string]any  `json:"tool_calls"`
	Headers   map[string]string `json:"headers"`
	IDs       []string          `json:"ids"`
	Extra     map[string]any    `json:"extra"` // fields of the response that the OpenAI client does not know
	Error     *ClientError      `json:"error"`
	// Value is the result of the call any. Events are the events of its stream.
	Value  map[string]any   `json:"value"`
	Events []map[string]any `json:"events"`
}

// Usage has the numbers of tokens that the engine reports.
type Usage struct {
	PromptTokens int `json:"prompt_tokens"`
	Details      *struct {
		CachedTokens int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// Cached returns the number of cached tokens that the engine reports, or 0 if the engine reports none.
func (u *Usage) Cached() int {
	if u == nil || u.Details == nil {
		return 0
	}
	return u.Details.CachedTokens
}

// ClientError is an exception that the OpenAI client raised.
type ClientError struct {
	Type    string `json:"type"`
	Status  int    `json:"status"`
	Message string `json:"message"`
	Body    any    `json:"body"`
}

// Header returns the response header with the given name. Upper and lower case do not matter.
func (a *Answer) Header(name string) string {
	for k, v := range a.Headers {
		if strings.EqualFold(k, name) {
			return v
		}
	}
	return ""
}

// StartClient runs a driver until the test ends. The Python interpreter is $WARMPATH_OPENAI_PYTHON, or the interpreter
// that `make interop` or `make test-engines` installs. If there is no such interpreter, the test skips.
func StartClient(t testing.TB) *Client {
	t.Helper()
	python := openaiPython()
	if python == "" {
		Missing(t, "the OpenAI client for Python", "make interop")
	}
	return drive(t, exec.Command(python, "-u", "-c", driver))
}

// StartNodeClient runs a driver of the clients for Node until the test ends. The driver knows the call any only. If the
// clients are not installed, the test skips.
func StartNodeClient(t testing.TB) *Client {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "warmpath", "npm")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "@anthropic-ai", "sdk")); err != nil {
		Missing(t, "the OpenAI and Anthropic clients for Node", "make interop")
	}
	cmd := exec.Command("node", "--input-type=module", "-e", nodeDriver)
	cmd.Dir = dir // Node looks for the clients from here
	return drive(t, cmd)
}

// drive starts a driver.
func drive(t testing.TB, cmd *exec.Cmd) *Client {
	t.Helper()
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatalf("open the driver's input: %v", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatalf("open the driver's output: %v", err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start the driver of the clients: %v", err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait() // the driver ends when its input ends; its answers have contained all errors
	})
	return &Client{in: in, out: bufio.NewReaderSize(out, 1<<20)}
}

func openaiPython() string {
	candidates := []string{os.Getenv("WARMPATH_OPENAI_PYTHON")}
	if home, err := os.UserCacheDir(); err == nil {
		for _, dir := range []string{"openai", "engines/vllm/venv"} {
			candidates = append(candidates, filepath.Join(home, "warmpath", dir, "bin", "python"))
		}
	}
	for _, python := range candidates {
		if python == "" {
			continue
		}
		if exec.Command(python, "-c", "import openai").Run() == nil {
			return python
		}
	}
	return ""
}

// Any calls any method of a client.
func (c *Client) Any(t testing.TB, base, client, method string, body map[string]any, args ...any) *Answer {
	t.Helper()
	return c.Do(t, Call{Call: "any", Base: base, Client: client, Method: method, Body: body, Args: args})
}

// Do makes one call and returns the OpenAI client's answer.
func (c *Client) Do(t testing.TB, call Call) *Answer {
	t.Helper()
	line, err := json.Marshal(call)
	if err != nil {
		t.Fatalf("encode the call: %v", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		t.Fatalf("write to the OpenAI client: %v", err)
	}
	reply, err := c.out.ReadBytes('\n')
	if err != nil {
		t.Fatalf("read from the OpenAI client: %v", err)
	}
	var a Answer
	if err := json.Unmarshal(reply, &a); err != nil {
		t.Fatalf("decode the OpenAI client's answer %.200s: %v", reply, err)
	}
	return &a
}
