package network

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"sync/atomic"
)

// KeyUse says which requests carry a peer's own key.
type KeyUse string

// The uses of a peer's key.
const (
	KeyForQuestions KeyUse = "questions" // only the process's own questions; clients send their own keys
	KeyIfMissing    KeyUse = "missing"   // also requests of clients that sent no key
	KeyAlways       KeyUse = "always"    // every request; the key takes the place of the client's key
)

// PeerConfig says how a server is reached, in addition to its URL. The zero value is no key, and for https the root
// certificates of the machine.
type PeerConfig struct {
	TLS    TLS
	Key    string // bearer token; "" is none
	KeyUse KeyUse // "" means KeyForQuestions
}

// Peer is a server that the process calls. It is safe for concurrent use.
type Peer struct {
	PeerConfig
	URL     string // the URL that names the peer
	Network string // tcp or unix
	Address string // host:port, or the path of a Unix socket
	Host    string // value of the field Host
	Prefix  string // beginning of the path, escaped; "" if there is none
	Secure  bool   // https

	name  string // host without the port, for TLS
	files tlsFiles
	gone  atomic.Bool
}

// ParsePeer returns the peer at an http, https or unix URL.
func ParsePeer(at string, c PeerConfig) (*Peer, error) {
	u, err := url.Parse(at)
	switch {
	case err != nil:
		return nil, fmt.Errorf("parse worker url: %w", err)
	case u.Scheme == "unix" && u.Host == "" && strings.HasPrefix(u.Path, "/") && u.RawQuery == "" && u.Fragment == "":
		p := &Peer{PeerConfig: c, URL: at, Network: "unix", Address: path.Clean(u.Path), Host: "localhost"}
		p.files.from = c.TLS
		return p, nil
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, fmt.Errorf("worker url %q: the scheme must be http, https or unix", at)
	case u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("worker url %q: want scheme://host:port and perhaps a path", at)
	}
	p := &Peer{PeerConfig: c, URL: at, Network: "tcp", Host: u.Host, Secure: u.Scheme == "https", name: u.Hostname(),
		Prefix: strings.TrimRight(u.EscapedPath(), "/")}
	p.files.from = c.TLS
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	p.Address = net.JoinHostPort(u.Hostname(), port)
	return p, nil
}

// Gone reports whether the peer was replaced in its table: by a peer at the same URL with other settings, or by none.
func (p *Peer) Gone() bool { return p.gone.Load() }

// Dial connects to the peer over n. With https it also makes the TLS handshake, for HTTP/1.1. below is the connection
// under TLS, or c itself.
func (p *Peer) Dial(ctx context.Context, n Network) (c, below net.Conn, err error) {
	if c, err = Of(n).Dial(ctx, p.Network, p.Address); err != nil || !p.Secure {
		return c, c, err
	}
	config, err := p.files.config()
	if err != nil {
		_ = c.Close()
		return nil, nil, err
	}
	config = config.Clone()
	if config.NextProtos = []string{"http/1.1"}; config.ServerName == "" {
		config.ServerName = p.name
	}
	secure := tls.Client(c, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, nil, Explained(err)
	}
	return secure, c, nil
}

// Authorize puts the peer's key into the header of a client's request, if the peer's settings say so.
func (p *Peer) Authorize(h http.Header) {
	if p.SendsKey(h) {
		h["Authorization"] = []string{"Bearer " + p.Key}
		delete(h, "X-Api-Key")
	}
}

// SendsKey reports whether a client's request with this header gets the peer's key. A client's key then stays behind:
// the fields Authorization and X-Api-Key, which Anthropic's clients send.
func (p *Peer) SendsKey(h http.Header) bool {
	switch {
	case p.Key == "":
		return false
	case p.KeyUse == KeyIfMissing:
		return h.Get("Authorization") == "" && h.Get("X-Api-Key") == ""
	}
	return p.KeyUse == KeyAlways
}

// Redact removes the peer's key from text.
func (p *Peer) Redact(text string) string {
	if p.Key == "" {
		return text
	}
	return strings.ReplaceAll(text, p.Key, "[redacted]")
}

// Peers is a table of peers. It is safe for concurrent use. The zero value is empty.
type Peers struct {
	mu    sync.Mutex // held by writers
	byURL atomic.Pointer[map[string]*Peer]
}

// Replace makes list the content of the table. A peer of the table whose URL and settings are in the list stays.
func (t *Peers) Replace(list []*Peer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := make(map[string]*Peer, len(list))
	old := t.all()
	for _, p := range list {
		if was := old[p.URL]; was != nil && was.PeerConfig == p.PeerConfig {
			p = was
		}
		next[p.URL] = p
	}
	t.byURL.Store(&next)
	for at, p := range old {
		if next[at] != p {
			p.gone.Store(true)
		}
	}
}

func (t *Peers) all() map[string]*Peer {
	if m := t.byURL.Load(); m != nil {
		return *m
	}
	return nil
}

// Of returns the peer at url. If the table has none, it returns a peer without settings. A nil table is empty.
func (t *Peers) Of(url string) (*Peer, error) {
	if t != nil {
		if p := t.all()[url]; p != nil {
			return p, nil
		}
	}
	return ParsePeer(url, PeerConfig{})
}

// at returns the peer whose URL is the longest beginning of u, cut at a slash; nil if there is none.
func (t *Peers) at(u *url.URL) *Peer {
	if t == nil {
		return nil
	}
	all := t.all()
	start := u.Scheme + "://" + u.Host
	for under := strings.TrimRight(u.EscapedPath(), "/"); ; under = under[:max(strings.LastIndexByte(under, '/'), 0)] {
		if p := all[start+under]; p != nil || under == "" {
			return p
		}
	}
}

// Explained returns err with a hint, if err is about a certificate or about TLS itself. Otherwise it returns err.
func Explained(err error) error {
	hint := ""
	var op *net.OpError
	switch {
	case as[*tls.CertificateVerificationError](err):
		hint = certificateHint(err)
	case as[tls.RecordHeaderError](err):
		hint = "the worker does not speak TLS at this port: write http:// in its URL"
	case errors.As(err, &op) && op.Op == "remote error" && strings.Contains(op.Err.Error(), "certificate"):
		hint = "the worker refuses the router's certificate: set tls.cert_file and tls.key_file to a certificate that it accepts"
	default:
		return err
	}
	if as[*hinted](err) {
		return err
	}
	return &hinted{err, hint}
}

// hinted is an error with a hint.
type hinted struct {
	error
	hint string
}

func (h *hinted) Error() string { return h.hint + ": " + h.error.Error() }
func (h *hinted) Unwrap() error { return h.error }

// as reports whether err wraps an error of type E.
func as[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}
