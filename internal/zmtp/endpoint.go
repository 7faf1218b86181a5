package zmtp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/network"
)

// endpoint is a parsed address in the terms of package net.
type endpoint struct {
	text    string // as given
	network string // "tcp" or "unix"
	address string
}

// parseEndpoint reads tcp://host:port, tcp://[v6]:port, tcp://*:port and ipc://path (ipc://@name for an abstract socket).
// The port is after the last colon, as in libzmq, so a bare tcp://:::5557 is understood. "*" as host means every interface
// and "*" or 0 as port any free one; both only when bind is true.
func parseEndpoint(text string, bind bool) (endpoint, error) {
	if path, ok := strings.CutPrefix(text, "ipc://"); ok {
		if path == "" || path == "@" || path == "*" {
			return endpoint{}, fmt.Errorf("parse endpoint %q: no path", text)
		}
		return endpoint{text, "unix", path}, nil
	}
	rest, ok := strings.CutPrefix(text, "tcp://")
	if !ok {
		return endpoint{}, fmt.Errorf("parse endpoint %q: want tcp://host:port or ipc://path", text)
	}
	colon := strings.LastIndexByte(rest, ':')
	if colon < 0 {
		return endpoint{}, fmt.Errorf("parse endpoint %q: no port", text)
	}
	host, port := rest[:colon], rest[colon+1:]
	if inner, bracketed := strings.CutPrefix(host, "["); bracketed {
		if host, bracketed = strings.CutSuffix(inner, "]"); !bracketed {
			return endpoint{}, fmt.Errorf("parse endpoint %q: unclosed bracket", text)
		}
	}
	if strings.ContainsAny(host, "/;[] ") {
		return endpoint{}, fmt.Errorf("parse endpoint %q: bad host %q", text, host)
	}
	if port == "*" {
		port = "0"
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return endpoint{}, fmt.Errorf("parse endpoint %q: bad port %q", text, port)
	}
	if host == "*" {
		host = ""
	}
	if !bind && (host == "" || number == 0) {
		return endpoint{}, fmt.Errorf("parse endpoint %q: cannot be dialled, it names no single host and port", text)
	}
	if host == "" && rest[:colon] == "" {
		return endpoint{}, fmt.Errorf("parse endpoint %q: no host", text)
	}
	return endpoint{text, "tcp", net.JoinHostPort(host, port)}, nil
}

// listen opens the endpoint. A socket file that nobody listens on any more, left by a process that was killed, is replaced.
func (e endpoint) listen(n network.Network) (net.Listener, error) {
	l, err := n.Listen(e.network, e.address)
	if err != nil && e.network == "unix" && e.removeStale() {
		l, err = n.Listen(e.network, e.address)
	}
	if err != nil {
		return nil, fmt.Errorf("bind %s: %w", e.text, err)
	}
	return l, nil
}

// removeStale removes the endpoint's socket file when nobody answers there.
func (e endpoint) removeStale() bool {
	info, err := os.Lstat(e.address)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return false
	}
	conn, err := net.DialTimeout("unix", e.address, time.Second)
	if err == nil {
		conn.Close()
		return false
	}
	// Only a refusal proves that nobody listens; a full backlog or a missing permission does not.
	return errors.Is(err, errRefused) && os.Remove(e.address) == nil
}

// opened returns the endpoint text with the port that l got.
func (e endpoint) opened(l net.Listener) string {
	tcp, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return e.text
	}
	host := e.text[len("tcp://"):strings.LastIndexByte(e.text, ':')]
	return "tcp://" + host + ":" + strconv.Itoa(tcp.Port)
}
