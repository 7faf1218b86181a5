package testenv_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// realEngine is one running engine server.
type realEngine struct {
	name      string
	url       string
	http      int
	pub, rep  int
	pgid      int
	log       string
	fork      string             // the script's FORK: the engine starts with a third of the CPU time
	start     func(t *testing.T) // starts the engine; a restart uses the same ports
	startedAt time.Time
}

// root returns the folder into which test/engines/setup.sh installed an engine. Only `make test-engines` runs these
// tests, because they take about ten minutes. If an engine is missing there, the test fails.
func root(t *testing.T, kind string) string {
	t.Helper()
	dir := os.Getenv("WARMPATH_ENGINES")
	if dir == "" {
		testenv.Missing(t, "real engines", "make test-engines")
	}
	dir = filepath.Join(dir, kind)
	if _, err := os.Stat(filepath.Join(dir, "venv", "bin", "python")); err != nil {
		t.Fatalf("WARMPATH_ENGINES is set, but %s is not installed in %s: run test/engines/setup.sh", kind, dir)
	}
	return dir
}

// launch has the settings of the script that starts an engine: environment variables and additional arguments.
type launch struct {
	kind string // vllm or sglang
	env  []string
	args []string
}

// besideAnother lets a test with one engine run at the same time as another such test, since an engine starts on one
// core. `make test-engines` sets how many. The test skips without the engines.
func besideAnother(t *testing.T) {
	t.Helper()
	root(t, "vllm")
	t.Parallel()
}

// begin starts an engine and does not wait until the engine answers. await waits for this.
func begin(t *testing.T, name string, l launch) *realEngine {
	t.Helper()
	dir := root(t, l.kind)
	script, key := "../engines/scripts/serve.sh", "VLLM_DIR="
	if l.kind == "sglang" {
		script, key = "../engines/scripts/serve_sglang.sh", "SGL_DIR="
	}
	logs := t.TempDir()
	e := &realEngine{name: name, fork: "1", http: testenv.FreePort(t), pub: testenv.FreePort(t), rep: testenv.FreePort(t)}
	// A connector's library and the groups of several ranks may start threads, which a forked process would not have.
	if slices.Contains(l.args, "--kv-transfer-config") || slices.Contains(l.args, "--data-parallel-size") {
		e.fork = ""
	}
	e.url = fmt.Sprintf("http://127.0.0.1:%d", e.http)
	e.log = filepath.Join(logs, name+".log")
	if l.kind == "sglang" {
		e.log = filepath.Join(dir, "logs", name+".log")
	}
	e.start = func(t *testing.T) {
		t.Helper()
		args := append([]string{script, name, strconv.Itoa(e.http), strconv.Itoa(e.pub), strconv.Itoa(e.rep)}, l.args...)
		cmd := exec.Command("bash", args...)
		cmd.Env = append(append(os.Environ(), key+dir, "LOGDIR="+logs, "FORK="+e.fork), l.env...)
		// Give the engine a process group of its own, so that stop can end the engine with all its child processes.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if out, err := cmd.Output(); err != nil {
			t.Fatalf("start %s: %v\n%s", name, err, out)
		}
		e.pgid, e.startedAt = cmd.Process.Pid, time.Now()
	}
	e.start(t)
	t.Cleanup(func() {
		e.stop()
		if t.Failed() {
			t.Log(e.said())
		}
	})
	return e
}

// said returns the errors and the last lines of the engine's log.
func (e *realEngine) said() string {
	out, _ := os.ReadFile(e.log)
	lines := strings.Split(string(out), "\n")
	errors := slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return !strings.Contains(l, "Error") })
	return fmt.Sprintf("--- errors of %s:\n%s\n--- its last lines:\n%s", e.name, strings.Join(errors[:min(len(errors), 15)], "\n"),
		strings.Join(lines[max(0, len(lines)-25):], "\n"))
}

func (e *realEngine) await(t *testing.T) {
	t.Helper()
	again := true
	testenv.WaitFor(t, 10*time.Minute, e.name+" to be healthy", func() error {
		if !e.gone() {
			return testenv.Reachable(e.url + "/health")
		}
		if !again {
			t.Fatalf("%s ended twice while starting", e.name)
		}
		// Two engines that start at the same time may choose the same internal port. The second attempt is alone, so it does
		// not fail for this reason; nor for a process that could not be forked.
		t.Logf("%s ended while starting; once more. It said:\n%s", e.name, e.said())
		again, e.fork = false, ""
		e.start(t)
		return fmt.Errorf("%s was started again", e.name)
	})
	t.Logf("%s ready after %v", e.name, time.Since(e.startedAt).Round(time.Second))
}

func (e *realEngine) gone() bool { return syscall.Kill(-e.pgid, 0) != nil }

// stop ends the engine and its children. SIGTERM lets the engine end its children itself. If a process is left after
// 30 s, all get SIGKILL.
func (e *realEngine) stop() {
	_ = syscall.Kill(-e.pgid, syscall.SIGTERM)
	if !testenv.Poll(30*time.Second, e.gone) {
		_ = syscall.Kill(-e.pgid, syscall.SIGKILL)
	}
}

func (e *realEngine) post(t *testing.T, path string) {
	t.Helper()
	resp, err := http.Post(e.url+path, "application/json", nil)
	if err != nil {
		t.Fatalf("post %s to %s: %v", path, e.name, err)
	}
	resp.Body.Close()
}
