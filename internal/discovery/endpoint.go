package discovery

import (
	"fmt"

	"github.com/warmpath/warmpath/internal/zmtp"
)

// parseEndpoint parses the endpoint of an engine's socket. A TCP endpoint must have a port; its host may be a wildcard.
func parseEndpoint(text string) (zmtp.Endpoint, error) {
	e, err := zmtp.ParseEndpoint(text)
	if err != nil {
		return e, fmt.Errorf("endpoint %w", err)
	}
	if e.Path == "" && e.Port == 0 {
		return e, fmt.Errorf("endpoint %q: the port is not within 1..65535", text)
	}
	return e, nil
}

// endpointAt returns the endpoint of another rank: the port of e plus offset. If the host of e is a wildcard, the
// result has host in its place.
func endpointAt(e zmtp.Endpoint, host string, offset int) (zmtp.Endpoint, error) {
	if e.Path != "" {
		if offset != 0 {
			return e, fmt.Errorf("ipc endpoint %q is the same for every rank", e.Path)
		}
		return e, nil
	}
	if e.Port+offset > 65535 {
		return e, fmt.Errorf("port %d + rank %d is beyond 65535", e.Port, offset)
	}
	e.Port += offset
	if e.Wildcard() {
		if host == "" {
			return e, fmt.Errorf("%s needs a host: the worker is behind a Unix socket, so write the host of the engine, such as tcp://127.0.0.1:%d", e, e.Port)
		}
		e.Host = host
	}
	return e, nil
}
