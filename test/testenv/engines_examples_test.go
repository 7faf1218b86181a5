package testenv_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// TestTheExamplesWithARealEngine runs the programs of examples/ against a real vLLM. The program follow must print
// vLLM's blocks. The program embed has the choice between vLLM, which has the prompt cached, and a mock engine, which
// has not. It must route the prompt to vLLM.
func TestTheExamplesWithARealEngine(t *testing.T) {
	besideAnother(t)
	e := begin(t, "examples", launch{kind: "vllm", env: []string{fmt.Sprint("BLOCK=", examplesBlock), "MAXLEN=1024"}})
	programs := t.TempDir()
	build := exec.Command("go", "build", "-o", programs, "./...")
	build.Dir = "../../examples"
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the examples: %v\n%s", err, out)
	}
	e.await(t)
	events, replay := fmt.Sprintf("tcp://127.0.0.1:%d", e.pub), fmt.Sprintf("tcp://127.0.0.1:%d", e.rep)

	var printed testenv.Buffer
	follow := exec.Command(filepath.Join(programs, "follow"), "-events", events, "-replay", replay)
	follow.Stdout, follow.Stderr = &printed, &printed
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = follow.Process.Signal(syscall.SIGINT)
		if err := follow.Wait(); err != nil {
			t.Errorf("follow: %v", err)
		}
		if t.Failed() {
			t.Logf("follow printed:\n%s", &printed)
		}
	}()
	prints := func(pattern string) {
		t.Helper()
		testenv.WaitFor(t, time.Minute, "follow prints "+pattern, func() error {
			if regexp.MustCompile("(?m)" + pattern).MatchString(printed.String()) {
				return nil
			}
			return fmt.Errorf("it printed:\n%s", &printed)
		})
	}
	prints("^the history is complete$")

	// The prompt is the same as in embed: 200 tokens, which are 6 full blocks of 32 tokens and a part of a block.
	prompt := make([]int, 200)
	for i := range prompt {
		prompt[i] = 1000 + i
	}
	body, err := json.Marshal(map[string]any{"model": "tiny", "prompt": prompt, "max_tokens": 1})
	if err != nil {
		t.Fatal(err)
	}
	ask := func() {
		t.Helper()
		resp, err := http.Post(e.url+"/v1/completions", "application/json", bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("the engine answered %s", resp.Status)
		}
	}
	ask()
	prints(`^\d+ stored on gpu: 6 blocks of 32 tokens at the beginning of a prompt: .*; 6 blocks now$`)

	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	embed := exec.CommandContext(ctx, filepath.Join(programs, "embed"), "-model", "tiny", mockWorker(t), e.url+","+events+","+replay)
	out, err := embed.CombinedOutput()
	if err != nil {
		t.Fatalf("embed: %v\n%s", err, out)
	}
	decided := 0
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "prompt tokens matched") {
			decided++
			if !strings.Contains(line, e.url+" ") || !strings.Contains(line, "192 of 200 prompt tokens matched") {
				t.Errorf("not routed to the engine that has the prompt: %s", line)
			}
		}
	}
	if decided != 3 {
		t.Errorf("%d decisions, want 3", decided)
	}
	t.Logf("embed printed:\n%s", out)

	e.post(t, "/reset_prefix_cache")
	ask() // vLLM publishes the event of a reset with its next step
	prints("^[0-9]+ cleared gpu; 0 blocks now$")
}

const examplesBlock = 32

// mockWorker starts a mock engine of the model "tiny". It returns the engine's addresses in the form of embed's
// arguments: URL,EVENTS,REPLAY.
func mockWorker(t *testing.T) string {
	t.Helper()
	config := mockengine.DefaultConfig()
	config.Model, config.BlockSize = "tiny", examplesBlock
	server, err := mockengine.New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	<-server.Ready()
	source := server.Sources()[0]
	return server.URL() + "," + source.Endpoint + "," + source.Replay
}
