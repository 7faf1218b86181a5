package testenv_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// lmcacheController is the real controller of LMCache 0.5.6. A script plays the engines that report to the controller,
// because real ones would need a GPU.
type lmcacheController struct {
	*testenv.Process
	url     string
	engines *json.Encoder  // the script's input
	heard   *bufio.Scanner // the script's output
}

func startLMCache(t *testing.T) *lmcacheController {
	t.Helper()
	dir := root(t, "vllm")
	python := filepath.Join(dir, "venv", "bin", "python")
	library := filepath.Join(filepath.Dir(dir), "lmcache")
	if _, err := os.Stat(filepath.Join(library, "lmcache")); err != nil {
		testenv.Missing(t, library, "make test-engines")
	}
	port, pull, reply := testenv.FreePort(t), testenv.FreePort(t), testenv.FreePort(t)
	env := []string{"PYTHONPATH=" + library, "PYTHONHASHSEED=0", "CUDA_VISIBLE_DEVICES="}
	c := &lmcacheController{url: fmt.Sprintf("http://127.0.0.1:%d", port)}
	c.Process = testenv.Start(t, "lmcache_controller", "env", append(env, python, "-m", "lmcache.v1.api_server", "--host", "127.0.0.1",
		"--port", fmt.Sprint(port), "--monitor-ports", fmt.Sprintf(`{"pull":%d,"reply":%d}`, pull, reply))...)
	script := exec.Command(python, "../engines/lmcache_worker.py", fmt.Sprint(pull), fmt.Sprint(reply))
	script.Env = append(os.Environ(), env...)
	script.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := script.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := script.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := script.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close() // the script ends when its input ends
		_ = script.Wait()
	})
	c.engines, c.heard = json.NewEncoder(stdin), bufio.NewScanner(stdout)
	testenv.WaitFor(t, 10*time.Minute, "the LMCache controller to answer", func() error {
		if c.Exited() {
			t.Fatal("the LMCache controller ended")
		}
		return testenv.Reachable(c.url + "/controller/workers")
	})
	for c.heard.Scan() && c.heard.Text() != "ready" { // the output also has lines of the library's log
	}
	return c
}

// tell sends a command to the script and waits until it is done.
func (c *lmcacheController) tell(t *testing.T, what map[string]any) {
	t.Helper()
	if err := c.engines.Encode(what); err != nil {
		t.Fatal(err)
	}
	if !c.heard.Scan() {
		t.Fatalf("the script ended: %v", c.heard.Err())
	}
}

func (c *lmcacheController) register(t *testing.T, instance string, worker int) {
	c.tell(t, map[string]any{"instance": instance, "worker": worker, "ip": "127.0.0.1", "port": 7001 + worker})
}

func (c *lmcacheController) cached(t *testing.T, instance string, tokens []uint32) {
	c.tell(t, map[string]any{"instance": instance, "worker": 0, "tokens": tokens})
}

// startMock starts a mock engine and returns its URL.
func startMock(t *testing.T) string {
	t.Helper()
	port := testenv.FreePort(t)
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	testenv.Start(t, "warmpath mock", testenv.Binary(t), "mock", "--listen", fmt.Sprintf("127.0.0.1:%d", port), "--speed", "0", "--output-tokens", "4")
	testenv.WaitFor(t, 20*time.Second, "the mock engine", func() error { return testenv.Reachable(url + "/health") })
	return url
}

// TestLMCacheControllerIsAsked tests that requests go to the worker that the real controller's answers favour, with
// both lookup modes: by prefix and by occupancy. It also tests that requests are still served after the controller has
// died.
func TestLMCacheControllerIsAsked(t *testing.T) {
	c := startLMCache(t)
	one, two := startMock(t), startMock(t)
	settings := fmt.Sprintf("    controller_url: %s\n    poll_interval_secs: 1\n    fallback_policy: least_load\n    lmcache_worker_map: {one: %q, two: %q}\n", c.url, one, two)
	config := filepath.Join(t.TempDir(), "warmpath.yaml")
	text := "policies:\n  - type: lmcache_aware\n    lookup_mode: prefix_lookup\n" + settings +
		"  - type: lmcache_aware\n    name: occupancy\n    cache_weight: 1\n" + settings +
		"policy: lmcache_aware\nrequest_policies: [occupancy]\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	g := testenv.Serve(t, "--config", config, "--worker", one, "--worker", two)
	g.Ready(t)

	c.register(t, "one", 0)
	c.register(t, "two", 0)
	c.register(t, "two", 1) // a second rank of the same engine
	blue, red := conversation("blue"), conversation("red")
	c.cached(t, "two", promptTokens(t, one, blue))
	c.cached(t, "one", promptTokens(t, one, red)[:256])
	// goes waits until six requests in a row go to the worker want. The first requests may go elsewhere: the controller
	// applies messages with a delay, and on a busy machine a lookup may take longer than its limit of 200 ms. After such a
	// timeout the next lookup is made a second later.
	goes := func(prompt, policy, want string) {
		t.Helper()
		right := 0
		testenv.WaitFor(t, 2*time.Minute, "requests to go where their prompt is cached", func() error {
			if got := askGateway(t, g.URL, prompt, policy); got != want {
				right = 0
				return fmt.Errorf("one went to %s, not to %s", got, want)
			}
			if right++; right < 6 {
				return fmt.Errorf("%d in a row so far", right)
			}
			return nil
		})
	}
	goes(blue, "", two)
	goes(red, "", one)
	goes(blue, "", two)
	// Worker two has at least four chunks of 256 tokens, of the conversation blue. Worker one has only one chunk, of
	// the conversation red.
	goes(conversation("green"), "occupancy", two)

	c.Stop(syscall.SIGKILL)
	for range 20 {
		askGateway(t, g.URL, blue, "")
		askGateway(t, g.URL, blue, "occupancy")
	}
}

// conversation returns the body of a chat of about 1,100 tokens.
func conversation(topic string) string {
	return fmt.Sprintf(`{"model":"mock","messages":[{"role":"user","content":%q}]}`, strings.Repeat("Tell me more about "+topic+" things. ", 100))
}

// promptTokens returns the token ids of a chat, as the engine makes them.
func promptTokens(t *testing.T, engine, chat string) []uint32 {
	t.Helper()
	status, answer := testenv.Post(t, engine+"/tokenize", chat)
	var tokenized struct {
		Tokens []uint32 `json:"tokens"`
	}
	if err := json.Unmarshal([]byte(answer), &tokenized); err != nil || status != http.StatusOK || len(tokenized.Tokens) < 512 {
		t.Fatalf("tokenize: %d, %d tokens, %v", status, len(tokenized.Tokens), err)
	}
	return tokenized.Tokens
}

// askGateway sends a chat and returns the worker that answered it.
func askGateway(t *testing.T, gateway, chat, policy string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, gateway+"/v1/chat/completions", strings.NewReader(chat))
	if err != nil {
		t.Fatal(err)
	}
	if policy != "" {
		req.Header.Set("X-Warmpath-Policy", policy)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %s %v", resp.StatusCode, body, err)
	}
	return resp.Header.Get("X-Warmpath-Worker")
}
