package zmtp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Endpoint is the address of a socket: a path for ipc, or host and port for tcp.
type Endpoint struct {
	Path string // path of an ipc endpoint; "@name" is an abstract socket
	Host string // host of a tcp endpoint: a name, an address without brackets, or "*" for every address of the machine
	Port int    // port of a tcp endpoint; 0 is any free port
}

// ParseEndpoint reads tcp://host:port, tcp://[v6]:port, tcp://*:port and ipc://path (ipc://@name for an abstract
// socket). The port is after the last colon, as in libzmq, so tcp://:::5557 is valid, too. "*" as a port means port 0.
func ParseEndpoint(text string) (Endpoint, error) {
	if path, ok := strings.CutPrefix(text, "ipc://"); ok {
		if path == "" || path == "@" || path == "*" {
			return Endpoint{}, fmt.Errorf("%q names no path", text)
		}
		return Endpoint{Path: path}, nil
	}
	rest, ok := strings.CutPrefix(text, "tcp://")
	if !ok {
		return Endpoint{}, fmt.Errorf("%q does not begin with tcp:// or ipc://", text)
	}
	colon := strings.LastIndexByte(rest, ':')
	if colon < 0 {
		return Endpoint{}, fmt.Errorf("%q names no port: write tcp://HOST:PORT", text)
	}
	host, port := rest[:colon], rest[colon+1:]
	if host == "" {
		return Endpoint{}, fmt.Errorf("%q names no host: * stands for every address", text)
	}
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	if host != "*" && !HostName(host) {
		return Endpoint{}, fmt.Errorf("%q: the part before the port is neither *, an address nor a host name", text)
	}
	if port == "*" {
		port = "0"
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return Endpoint{}, fmt.Errorf("%q: the port is not within 0..65535", text)
	}
	return Endpoint{Host: host, Port: int(number)}, nil
}

// HostName reports whether s can be an address or the name of a host.
func HostName(s string) bool {
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._%:", c) >= 0) {
			return false
		}
	}
	return s != ""
}

// Wildcard reports whether the endpoint means every address of its machine. Such an endpoint is for binding: it does
// not name the machine to dial.
func (e Endpoint) Wildcard() bool {
	ip, err := netip.ParseAddr(e.Host)
	return e.Host == "*" || err == nil && ip.IsUnspecified()
}

// Canonical returns the endpoint in one form, so that two spellings of the same endpoint become equal: names in lower
// case, addresses in their short form, localhost as 127.0.0.1, paths without "." and "..".
func (e Endpoint) Canonical() Endpoint {
	if e.Path != "" {
		if e.Path[0] != '@' {
			e.Path = filepath.Clean(e.Path)
		}
		return e
	}
	e.Host = CanonicalHost(e.Host)
	return e
}

// CanonicalHost returns a host name or address in the form that Endpoint.Canonical uses.
func CanonicalHost(host string) string {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if host == "localhost" {
		return "127.0.0.1"
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().String()
	}
	return host
}

// String returns the endpoint in the form that ParseEndpoint reads.
func (e Endpoint) String() string {
	if e.Path != "" {
		return "ipc://" + e.Path
	}
	return "tcp://" + net.JoinHostPort(e.Host, strconv.Itoa(e.Port))
}

// endpoint is an address for package net.
type endpoint struct {
	text    string // the text from which parseEndpoint made the endpoint
	network string // "tcp" or "unix"
	address string
}

// parseEndpoint reads the endpoint of a socket. If bind is true, the socket binds the endpoint; otherwise it dials the
// endpoint. An endpoint to dial must have a port and name a single host.
func parseEndpoint(text string, bind bool) (endpoint, error) {
	e, err := ParseEndpoint(text)
	if err != nil {
		return endpoint{}, fmt.Errorf("parse endpoint: %w", err)
	}
	if e.Path != "" {
		return endpoint{text, "unix", e.Path}, nil
	}
	if e.Host == "*" {
		e.Host = ""
	}
	if !bind && (e.Host == "" || e.Port == 0) {
		return endpoint{}, fmt.Errorf("parse endpoint: %q cannot be dialled, it names no single host and port", text)
	}
	return endpoint{text, "tcp", net.JoinHostPort(e.Host, strconv.Itoa(e.Port))}, nil
}

// listen opens the endpoint. If a process that was killed left its socket file behind, listen replaces this file.
func (e endpoint) listen(open func(network, address string) (net.Listener, error)) (net.Listener, error) {
	l, err := open(e.network, e.address)
	if err != nil && e.network == "unix" && e.removeStale() {
		l, err = open(e.network, e.address)
	}
	if err != nil {
		return nil, fmt.Errorf("bind %s: %w", e.text, err)
	}
	return l, nil
}

// removeStale removes the endpoint's socket file if no process listens there.
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
	// A refused connection proves that no process listens. Other errors, such as a full backlog or a missing permission,
	// do not prove that.
	return errors.Is(err, errRefused) && os.Remove(e.address) == nil
}

// opened returns the endpoint's text, with the port on which l listens in place of the port 0 or *.
func (e endpoint) opened(l net.Listener) string {
	tcp, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		return e.text
	}
	host := e.text[len("tcp://"):strings.LastIndexByte(e.text, ':')]
	return "tcp://" + host + ":" + strconv.Itoa(tcp.Port)
}
