package testenv

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Process is one running command.
type Process struct {
	Name string
	cmd  *exec.Cmd
	log  Buffer
	done chan struct{}
}

var built = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("WARMPATH_BINARY"); path != "" {
		return path, nil
	}
	dir, err := os.MkdirTemp("", "warmpath-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "warmpath")
	out, err := exec.Command("go", "build", "-o", path, "github.com/warmpath/warmpath/cmd/warmpath").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the binary: %w\n%s", err, out)
	}
	return path, nil
})

// Binary returns the path of the warmpath binary. The path is $WARMPATH_BINARY; if this is not set, Binary builds the
// binary. With -short it skips the test, because the test starts processes and waits for their health checks.
func Binary(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("the built binary is tested by `make test` and `make test-binary`, not by -short")
	}
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Start runs the command in a new process group, and stops it when the test ends.
func Start(t testing.TB, name string, command string, args ...string) *Process {
	t.Helper()
	p := &Process{Name: name, cmd: exec.Command(command, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() { // ends when the process ends; Stop waits for this
		_ = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.Stop(syscall.SIGTERM)
		if t.Failed() {
			t.Logf("--- %s printed:\n%s", name, tail(p.log.String(), 6000))
		}
	})
	return p
}

// Stop signals the process group and waits for its end. After 20 s it kills the group.
func (p *Process) Stop(signal syscall.Signal) {
	_ = syscall.Kill(-p.cmd.Process.Pid, signal)
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
	}
}

// Signal sends a signal to the process only, not to its group.
func (p *Process) Signal(signal syscall.Signal) { _ = p.cmd.Process.Signal(signal) }

// Log returns what the process has printed so far.
func (p *Process) Log() string { return p.log.String() }

// Exited reports whether the process has ended.
func (p *Process) Exited() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// PID returns the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}

// Gateway is a running `warmpath serve`.
type Gateway struct {
	*Process
	URL, Admin string // http://host:port of the two listeners
	workers    int    // number of workers that its flags list
}

// Serve starts `warmpath serve` with the given further arguments on free ports and waits until it answers /health.
func Serve(t testing.TB, args ...string) *Gateway {
	t.Helper()
	for range 5 {
		if g := serve(t, FreePort(t), FreePort(t), args); g != nil {
			return g
		}
	}
	t.Fatal("each port that was free was taken before the gateway had it")
	return nil
}

// serve starts `warmpath serve` on the given ports. It returns nil if another process uses one of the ports.
func serve(t testing.TB, port, admin int, args []string) *Gateway {
	t.Helper()
	listen, adminListen := fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("127.0.0.1:%d", admin)
	args = append([]string{"serve", "--listen", listen, "--admin-listen", adminListen}, args...)
	g := &Gateway{Process: Start(t, "warmpath serve", Binary(t), args...), URL: "http://" + listen, Admin: "http://" + adminListen}
	for _, arg := range args {
		if arg == "--worker" {
			g.workers++
		}
	}
	taken := false
	WaitFor(t, 20*time.Second, "the gateway to answer", func() error {
		if !g.Exited() {
			if err := Reachable(g.URL + "/health"); err != nil { // it may speak TLS
				return Reachable(g.Admin + "/health")
			}
			return nil
		}
		if taken = strings.Contains(g.Log(), "address already in use"); !taken {
			t.Fatalf("the gateway ended:\n%s", g.Log())
		}
		return nil
	})
	if taken {
		return nil
	}
	return g
}

// Ready waits until each worker that the gateway's flags list is ready, and at least one worker. /readiness alone
// answers 200 as soon as one of several workers is ready; requests then have no other worker.
func (g *Gateway) Ready(t testing.TB) {
	t.Helper()
	g.WorkersReady(t, max(g.workers, 1))
}

// WorkersReady waits until n workers are ready and /readiness answers 200. It is for tests whose workers are in the
// configuration file, or whose workers cannot all be ready.
func (g *Gateway) WorkersReady(t testing.TB, n int) {
	t.Helper()
	WaitFor(t, 30*time.Second, fmt.Sprintf("%d workers to be ready", n), func() error {
		resp, err := http.Get(g.URL + "/readiness")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		var state struct {
			Reason string
			Ready  int
		}
		if err := json.NewDecoder(resp.Body).Decode(&state); err != nil {
			return fmt.Errorf("/readiness answered %d: %w", resp.StatusCode, err)
		}
		if resp.StatusCode != http.StatusOK || state.Ready != n {
			return fmt.Errorf("/readiness answered %d, %d are ready: %s", resp.StatusCode, state.Ready, state.Reason)
		}
		return nil
	})
}

// Reachable returns nil if a GET of url is answered with 200.
func Reachable(url string) error {
	client := http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %d: %s", url, resp.StatusCode, body)
	}
	return nil
}

// Poll calls done until done returns true. If this takes longer than limit, Poll returns false. The pauses between
// calls grow from 2 to 50 ms. Use Poll for the state of another process or of a server on a real socket, if no event
// tells the test of a change.
func Poll(limit time.Duration, done func() bool) bool {
	pause := time.Millisecond
	for deadline := time.Now().Add(limit); !done(); time.Sleep(pause) {
		if time.Now().After(deadline) {
			return false
		}
		pause = min(2*pause, 50*time.Millisecond)
	}
	return true
}

// Until polls until ok returns true. After a minute it fails the test. The time is long because a busy machine is slow.
func Until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !Poll(time.Minute, ok) {
		t.Fatalf("waited in vain until %s", what)
	}
}

// WaitFor calls check until check returns nil. After the time limit it fails the test with check's last error.
func WaitFor(t testing.TB, limit time.Duration, what string, check func() error) {
	t.Helper()
	var err error
	if !Poll(limit, func() bool { err = check(); return err == nil }) {
		t.Fatalf("waited %v for %s: %v", limit, what, err)
	}
}

// JSON reads the answer of a GET into v.
func JSON(t testing.TB, url string, v any) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatalf("get %s: %v", url, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
		t.Fatalf("get %s: %d %s", url, resp.StatusCode, body)
	}
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
		t.Fatalf("decode %s: %v", url, err)
	}
}

// Post sends a JSON body and returns status and answer.
func Post(t testing.TB, url, body string) (int, string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatalf("post %s: %v", url, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("read the answer of %s: %v", url, err)
	}
	return resp.StatusCode, string(answer)
}
