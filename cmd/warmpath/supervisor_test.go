package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/config"
)

// heard returns the next message that a supervisor hears at its socket.
func heard(t *testing.T, socket *net.UnixConn) string {
	t.Helper()
	var buffer [4096]byte
	if err := socket.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	n, err := socket.Read(buffer[:])
	if err != nil {
		t.Fatalf("the supervisor heard nothing: %v", err)
	}
	return string(buffer[:n])
}

func TestASupervisorHearsOfEachChangeOfState(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "warmpath.yaml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const good = "listen: 127.0.0.1:0\nadmin: {listen: \"\"}\nwatch_interval: 0s\nworkers: []\ngateway: {drain_timeout: 90s, drain_delay: 1ms}\n"
	write(good)
	address := &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"}
	socket, err := net.ListenUnixgram("unixgram", address)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	t.Setenv(config.EnvNotifySocket, address.Name)

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var log strings.Builder
	root := newRoot()
	root.SetArgs([]string{"serve", "--config", file})
	root.SetOut(&log)
	root.SetErr(&log)
	ended := make(chan error, 1)
	go func() { ended <- root.ExecuteContext(ctx) }() // ends with ctx; received below
	if got := heard(t, socket); got != "READY=1" {
		t.Fatalf("at the start: %q", got)
	}
	for _, text := range []string{good, "listen: [", good} { // a refused reload ends, too
		write(text)
		self, err := os.FindProcess(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if err := self.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if got := heard(t, socket) + " " + heard(t, socket); got != "RELOADING=1 READY=1" {
			t.Errorf("at a reload: %q", got)
		}
	}
	cancel()
	want := fmt.Sprintf("STOPPING=1\nEXTEND_TIMEOUT_USEC=%d\nSTATUS=", (90*time.Second + time.Millisecond + stopMargin).Microseconds())
	if got := heard(t, socket); !strings.HasPrefix(got, want) {
		t.Errorf("at the end: %q, want %q", got, want)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if strings.Contains(log.String(), "the supervisor was not told") {
		t.Error(log.String())
	}
}

// A router whose supervisor cannot be reached serves all the same, and says so.
func TestASupervisorThatCannotBeReachedIsAWarning(t *testing.T) {
	for _, socket := range []string{"", filepath.Join(t.TempDir(), "nobody"), strings.Repeat("x", 300)} {
		var log strings.Builder
		supervisor{socket: socket, log: slog.New(slog.NewTextHandler(&log, nil))}.ready()
		if warned := strings.Contains(log.String(), "correct NOTIFY_SOCKET"); warned != (socket != "") {
			t.Errorf("%q: the log is %q", socket, log.String())
		}
	}
}
