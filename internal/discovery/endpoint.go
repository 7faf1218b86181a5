package discovery

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// endpoint is a ZMQ endpoint: tcp with host and port, or ipc with a path.
type endpoint struct {
	path string // ipc
	host string // tcp; may be a wildcard
	port int
}

func parseEndpoint(s string) (endpoint, error) {
	if path, ok := strings.CutPrefix(s, "ipc://"); ok {
		if path == "" {
			return endpoint{}, fmt.Errorf("endpoint %q names no path", s)
		}
		return endpoint{path: path}, nil
	}
	address, ok := strings.CutPrefix(s, "tcp://")
	if !ok {
		return endpoint{}, fmt.Errorf("endpoint %q does not begin with tcp:// or ipc://", s)
	}
	i := strings.LastIndexByte(address, ':')
	if i < 0 {
		return endpoint{}, fmt.Errorf("endpoint %q names no port", s)
	}
	port, err := strconv.Atoi(address[i+1:])
	if err != nil || port < 1 || port > 65535 {
		return endpoint{}, fmt.Errorf("endpoint %q: port %q is not within 1..65535", s, address[i+1:])
	}
	host := strings.TrimSuffix(strings.TrimPrefix(address[:i], "["), "]")
	if host == "" || strings.ContainsAny(host, "[]") {
		return endpoint{}, fmt.Errorf("endpoint %q names no host", s)
	}
	return endpoint{host: host, port: port}, nil
}

// wildcard reports whether the endpoint is one to bind, not one to dial: every address of the engine's machine.
func (e endpoint) wildcard() bool {
	return e.host == "*" || e.host == "::" || e.host == "0.0.0.0"
}

// at returns the endpoint that reaches rank behind e: its port is higher by offset, and a wildcard becomes host.
func (e endpoint) at(host string, offset int) (string, error) {
	if e.path != "" {
		if offset != 0 {
			return "", fmt.Errorf("ipc endpoint %q cannot be told apart by rank", e.path)
		}
		return "ipc://" + e.path, nil
	}
	port := e.port + offset
	if port > 65535 {
		return "", fmt.Errorf("port %d + rank %d is beyond 65535", e.port, offset)
	}
	if !e.wildcard() {
		host = e.host
	}
	return "tcp://" + net.JoinHostPort(host, strconv.Itoa(port)), nil
}
