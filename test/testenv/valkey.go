package testenv

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// ValkeyKinds are the servers that [StartValkey] can start.
var ValkeyKinds = []string{"valkey", "redis"}

// ValkeyServer is a Valkey or Redis server that runs for a test. It keeps nothing on disk.
type ValkeyServer struct {
	Address string // host:port
	Socket  string // the path of its Unix socket

	t       testing.TB
	kind    string
	args    []string
	process *Process
}

// StartValkey starts Valkey 9 (kind "valkey") or Redis 7 (kind "redis") on a free port, with further arguments of the
// server. It skips the test if the server is not installed, and with -short: servers take time. The server stops when
// the test ends.
func StartValkey(t testing.TB, kind string, args ...string) *ValkeyServer {
	t.Helper()
	if testing.Short() {
		t.Skip("tests with a real server of the shared index take a minute")
	}
	port := FreePort(t)
	dir, err := os.MkdirTemp("", "wp-valkey-") // the path of a Unix socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &ValkeyServer{Address: fmt.Sprintf("127.0.0.1:%d", port), Socket: filepath.Join(dir, "s"), t: t, kind: kind}
	s.args = append([]string{"--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--unixsocket", s.Socket, "--save", "", "--appendonly", "no", "--dir", dir}, args...)
	s.start()
	return s
}

func (s *ValkeyServer) start() {
	s.t.Helper()
	command, args := "", s.args
	switch s.kind {
	case "valkey":
		command = Installed(s.t, "valkey/valkey-server", "make interop")
	case "redis":
		root := filepath.Dir(filepath.Dir(filepath.Dir(Installed(s.t, "redis/usr/bin/redis-server", "make interop"))))
		libraries, err := filepath.Glob(filepath.Join(root, "usr/lib/*-linux-gnu"))
		if err != nil || len(libraries) == 0 {
			s.t.Fatalf("%s has no libraries: %v", root, err)
		}
		command = "env"
		args = append([]string{"LD_LIBRARY_PATH=" + strings.Join(libraries, ":"), filepath.Join(root, "usr/bin/redis-server")}, args...)
	default:
		s.t.Fatalf("kind %q is none of %q", s.kind, ValkeyKinds)
	}
	s.process = Start(s.t, s.kind, command, args...)
	if !Poll(30*time.Second, func() bool { return s.process.Exited() || s.answers() }) || s.process.Exited() {
		s.t.Fatalf("%s does not answer; it printed:\n%s", s.kind, s.process.Log())
	}
}

// answers reports whether the server answers a PING, be it with an error.
func (s *ValkeyServer) answers() bool {
	c, err := net.DialTimeout("tcp", s.Address, time.Second)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	fmt.Fprint(c, "PING\r\n")
	line, err := bufio.NewReader(c).ReadString('\n')
	return err == nil && (strings.HasPrefix(line, "+PONG") || strings.HasPrefix(line, "-NOAUTH"))
}

// Kill ends the server at once, as a crash does.
func (s *ValkeyServer) Kill() { s.process.Stop(syscall.SIGKILL) }

// Pause stops the server without closing its connections, until Resume.
func (s *ValkeyServer) Pause() { s.process.Signal(syscall.SIGSTOP) }

// Resume continues the server after Pause.
func (s *ValkeyServer) Resume() { s.process.Signal(syscall.SIGCONT) }

// Restart starts the server again after Kill, at the same address. It is empty.
func (s *ValkeyServer) Restart() {
	s.t.Helper()
	s.start()
}

// PID returns the id of the server's process.
func (s *ValkeyServer) PID() int { return s.process.PID() }
