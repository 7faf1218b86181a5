package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// warmpathCommand returns the command of this package with the arguments, as a process of its own.
func warmpathCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Args[0] = "warmpath" // TestMain runs the command of this name
	return cmd
}

// The program that reads the access log from the standard output ends. The router serves on.
func TestTheRouterOutlivesTheReaderOfItsLog(t *testing.T) {
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	router := warmpathCommand(t, "serve", "--listen", "127.0.0.1:0", "--admin-listen", "", "--worker", "http://127.0.0.1:1,events=none", "--access-log", "stdout")
	router.Stdout = in
	log, err := router.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := router.Start(); err != nil {
		t.Fatal(err)
	}
	_ = out.Close()
	_ = in.Close()
	address := ""
	lines := bufio.NewScanner(log)
	for address == "" && lines.Scan() {
		if m := regexp.MustCompile(`msg=serving listen=(\S+)`).FindStringSubmatch(lines.Text()); m != nil {
			address = m[1]
		}
	}
	for range 2 {
		resp, err := http.Get("http://" + address + "/v1/models") // its line is written at the end at the latest
		if err != nil {
			t.Error(err)
			continue
		}
		_ = resp.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
	if err := router.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	for lines.Scan() { // until the router has ended
	}
	if err := router.Wait(); err != nil {
		t.Errorf("the router ended: %v", err)
	}
}

// Somebody holds the pipe of the standard error and does not read it. The pipe is full. The router serves and ends.
func TestTheRouterServesAndEndsIfNobodyReadsItsStandardError(t *testing.T) {
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	defer in.Close()
	for n := 1; n > 0; { // until the pipe is full
		_ = in.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		n, _ = in.Write(make([]byte, 1<<20))
	}
	address, admin := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t)), fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	router := warmpathCommand(t, "serve", "--listen", address, "--admin-listen", admin, "--log-level", "debug", "--engine-wait-timeout-secs", "0",
		"--worker", "http://127.0.0.1:1,events=none,model=m")
	router.Stderr = in
	if err := router.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = router.Process.Kill() }()
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	testenv.WaitFor(t, 20*time.Second, "the router serves", func() error {
		resp, err := client.Get("http://" + address + "/health")
		if err == nil {
			_ = resp.Body.Close()
		}
		return err
	})
	for range 20 {
		resp, err := client.Post("http://"+address+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x"}`))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	if resp, err := client.Get("http://" + admin + "/metrics"); err != nil {
		t.Error(err)
	} else {
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if want := `warmpath_log_lines_total{log="router",result="written"} 0`; err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%v: the metrics lack %s", err, want)
		}
	}
	if err := router.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Wait() }() // ends with the router
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the router ended: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the router does not end")
	}
}

// unread is a standard error that takes nothing until it is closed.
type unread chan struct{}

func (u unread) Write(b []byte) (int, error) { <-u; return len(b), nil }

func TestARouterThatCannotStartEndsIfNobodyReadsWhy(t *testing.T) {
	stderr := make(unread)
	defer close(stderr)
	if code := run([]string{"serve"}, io.Discard, stderr); code != exitUsage {
		t.Errorf("exit code %d", code)
	}
}

// The error is the last line, behind the lines of the log, and nothing of both is lost.
func TestTheErrorOfTheStartFollowsTheLog(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	var stderr bytes.Buffer
	code := run([]string{"serve", "--listen", taken.Addr().String(), "--admin-listen", "", "--worker", "http://127.0.0.1:1,events=none", "--policy", "least_load"}, io.Discard, &stderr)
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	if code != exitFailed || len(lines) < 2 || !strings.Contains(lines[0], "level=INFO") || !strings.HasPrefix(lines[len(lines)-1], "warmpath: listen for clients:") {
		t.Errorf("exit code %d:\n%s", code, stderr.String())
	}
}

// A worker sends a second answer that nobody asked for, with a key in it. net/http reports its first bytes.
func TestASecondAnswerOfAWorkerIsNotPrinted(t *testing.T) {
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nAuthorization: Bearer sk-secret\r\n\r\n")
		_ = conn.(*net.TCPConn).CloseWrite()
	}))
	defer worker.Close()
	var log testenv.Buffer
	router := warmpathCommand(t, "serve", "--listen", "127.0.0.1:0", "--admin-listen", "", "--log-level", "debug", "--worker", worker.URL+",events=none,model=m")
	router.Stderr = &log
	if err := router.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.Until(t, "net/http reports the second answer", func() bool { return strings.Contains(log.String(), "Unsolicited response") })
	_ = router.Process.Signal(syscall.SIGTERM)
	if err := router.Wait(); err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(log.String()) {
		if !strings.HasPrefix(line, "time=") || strings.Contains(line, "secret") || strings.Contains(line, "Unsolicited") && !strings.Contains(line, "level=DEBUG") {
			t.Errorf("the log has %s", line)
		}
	}
}
