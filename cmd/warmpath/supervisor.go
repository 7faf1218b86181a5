package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/app"
	"github.com/warmpath/warmpath/internal/config"
)

// supervisor tells the process that supervises this one, such as systemd, about changes of state: the protocol of
// sd_notify(3), a datagram for each change. Without a supervisor its methods do nothing. Its methods may be called from
// any goroutine.
type supervisor struct {
	socket string // as in config.NotifySocket
	log    *slog.Logger
}

// ready says that clients can connect, also after a reload.
func (s supervisor) ready() { s.tell("READY=1") }

// reloading says that the configuration is read again. ready follows, also if the new configuration is refused.
func (s supervisor) reloading() { s.tell("RELOADING=1") }

// stopping says that the process ends within the given time. Otherwise systemd kills it after TimeoutStopSec, which
// knows nothing of gateway.drain_timeout.
func (s supervisor) stopping(within time.Duration) {
	s.tell("STOPPING=1", fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", within.Microseconds()), "STATUS=finishing the requests under way")
}

// tell sends one message. An error is only logged: the router can serve without its supervisor.
func (s supervisor) tell(assignments ...string) {
	if s.socket == "" {
		return
	}
	if err := send(s.socket, strings.Join(assignments, "\n")); err != nil {
		s.log.Warn("the supervisor was not told of a change of state: correct "+config.EnvNotifySocket, "state", assignments[0], "error", err)
	}
}

// send sends one datagram. Its deadline keeps a supervisor that reads nothing from stopping the router.
func send(address, message string) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	_, err = conn.Write([]byte(message))
	return err
}

// follow reports the start and the end of the router a until stop is called. within is how long the end may take.
func (s supervisor) follow(ctx context.Context, a *app.App, within time.Duration) (stop func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() { // ends with ctx or at stop, which waits
		defer close(done)
		select {
		case <-a.Listening():
			s.ready()
		case <-over:
			return
		}
		select {
		case <-ctx.Done():
			s.stopping(within)
		case <-over:
		}
	}()
	return func() {
		close(over)
		<-done
	}
}
