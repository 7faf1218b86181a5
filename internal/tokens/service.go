package tokens

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// service is a tokenizer service. It has the same endpoints as vLLM, and is asked before any engine.
type service struct {
	worker Worker
	socket string       // path of the Unix socket; empty: the service is reached over TCP
	client *http.Client // client for the service; nil: the Source's own client is used
}

// socketHost is the base URL of requests over a Unix socket. net/http needs a host in a URL, but the dialer ignores
// this host.
const socketHost = "http://tokenizer.sock"

// parseService reads Config.Service. It returns nil for an empty text.
func parseService(text string) (*service, error) {
	if text == "" {
		return nil, nil
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%q is not a URL such as http://host:8000", text) // err may quote a part of a password
	case u.RawQuery != "" || u.Fragment != "" || u.User != nil:
		return nil, fmt.Errorf("%q has more than an address and a path", text)
	case u.Scheme == "unix" && u.Host == "" && filepath.IsAbs(u.Path):
		return &service{worker: Worker{URL: socketHost, Kind: VLLM}, socket: u.Path}, nil
	case !possiblePort(u.Port()):
		return nil, fmt.Errorf("%q: port %s is not within 1..65535", text, u.Port())
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "":
		return &service{worker: Worker{URL: strings.TrimRight(text, "/"), Kind: VLLM}}, nil
	}
	return nil, fmt.Errorf("%q is neither unix:///path/to/socket nor http://host:port", text)
}

// possiblePort reports whether a URL's port can be dialled. "" means the default port of the scheme.
func possiblePort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return port == "" || err == nil && n > 0
}

// connect makes an HTTP client for a service behind a Unix socket. base is the Source's client.
func (v *service) connect(base *http.Client) {
	if v.socket == "" {
		return
	}
	dialer := net.Dialer{Timeout: time.Second}
	client := *base
	client.Transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", v.socket)
		},
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     4 * time.Second, // less than the 5 s after which uvicorn closes an idle connection
		DisableCompression:  true,
	}
	v.client = &client
}

// serviceFor returns a list with the tokenizer service, which is asked before p's workers. The list is empty if there
// is no service, or if the service must not be asked for p.
func (s *Source) serviceFor(p *Prompt) []Worker {
	if s.service == nil || p.engineOnly {
		return nil
	}
	return []Worker{s.service.worker}
}

// isService reports whether url is the service's URL.
func (s *Source) isService(url string) bool { return s.service != nil && s.service.worker.URL == url }

// clientOf returns the HTTP client that reaches w.
func (s *Source) clientOf(w Worker) *http.Client {
	if s.isService(w.URL) && s.service.client != nil {
		return s.service.client
	}
	return s.client
}
