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
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// KeyUse says which requests carry a peer's own key.
type KeyUse string

// The uses of a peer's key.
const (
	KeyForQuestions KeyUse = "questions" // only the process's own questions; clients send their own keys
	KeyIfMissing    KeyUse = "missing"   // also requests of clients that sent no key
	KeyAlways       KeyUse = "always"    // every request; the key takes the place of the client's key
)

// Protocol says which version of HTTP a peer speaks.
type Protocol string

// The protocols.
const (
	// ProtocolAuto is HTTP/2 if the peer offers it in the TLS handshake (ALPN, RFC 7301), else HTTP/1.1. Without TLS it
	// is HTTP/1.1.
	ProtocolAuto  Protocol = "auto"
	ProtocolHTTP1 Protocol = "http1" // HTTP/1.1
	// ProtocolHTTP2 is HTTP/2 only. Without TLS, the peer must know this beforehand (RFC 9113 §3.3).
	ProtocolHTTP2 Protocol = "http2"
)

// PeerConfig says how a server is reached, in addition to its URL. The zero value is no key, and for https the root
// certificates of the machine.
type PeerConfig struct {
	TLS      PeerTLS
	Key      string   // bearer token; "" is none
	KeyUse   KeyUse   // "" means KeyForQuestions
	Protocol Protocol // "" means ProtocolAuto
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
	case strings.HasSuffix(u.Host, ":"): // a variable was empty, or half of a file was read
		return nil, fmt.Errorf("worker url %q has a colon and no port: write the port, or leave the colon out", at)
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

// Dial connects to the peer over n. With https it also makes the TLS handshake. below is the connection under TLS, or c
// itself. After that, SpeaksHTTP2 says which protocol c has.
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
	if config.NextProtos = p.alpn(); config.ServerName == "" {
		config.ServerName = p.name
	}
	secure := tls.Client(c, config)
	err = secure.HandshakeContext(ctx)
	if err == nil && p.Protocol == ProtocolHTTP2 && !p.SpeaksHTTP2(secure) {
		err = errNoHTTP2
	}
	if err != nil {
		_ = c.Close()
		return nil, nil, Explained(err)
	}
	return secure, c, nil
}

// errNoHTTP2 is the error for a server that ignores the protocols that it is offered.
var errNoHTTP2 = &hinted{errors.New("the TLS handshake chose no protocol"), hintNoHTTP2}

// alpn returns the protocols that are offered in the TLS handshake.
func (p *Peer) alpn() []string {
	switch p.Protocol {
	case ProtocolHTTP1:
		return []string{"http/1.1"}
	case ProtocolHTTP2:
		return []string{"h2"}
	}
	return []string{"h2", "http/1.1"}
}

// SpeaksHTTP2 reports whether c, which Dial returned, is a connection for HTTP/2.
func (p *Peer) SpeaksHTTP2(c net.Conn) bool {
	if secure, is := c.(*tls.Conn); is {
		return secure.ConnectionState().NegotiatedProtocol == "h2"
	}
	return p.Protocol == ProtocolHTTP2
}

// protocols returns the protocols for a transport of net/http.
func (p *Peer) protocols() *http.Protocols {
	of := new(http.Protocols)
	of.SetHTTP1(p.Protocol != ProtocolHTTP2)
	of.SetHTTP2(p.Secure && p.Protocol != ProtocolHTTP1)
	of.SetUnencryptedHTTP2(!p.Secure && p.Protocol == ProtocolHTTP2)
	return of
}

// HTTP2Conn makes an HTTP/2 connection of c, which Dial returned and SpeaksHTTP2 confirmed. The connection owns c. A
// place for one request is reserved on it.
func (p *Peer) HTTP2Conn(ctx context.Context, c net.Conn, maxHeaderBytes int) (*http.ClientConn, error) {
	own := c
	if !p.Secure { // over TLS the handshake has shown that the server speaks HTTP/2
		own = &unheard{Conn: c}
	}
	dial := func(context.Context, string, string) (net.Conn, error) { return own, nil }
	t := &http.Transport{
		DialContext: dial, DialTLSContext: dial, Protocols: new(http.Protocols), HTTP2: http2Config(),
		DisableCompression: true, MaxResponseHeaderBytes: int64(maxHeaderBytes),
	}
	t.Protocols.SetHTTP2(p.Secure)
	t.Protocols.SetUnencryptedHTTP2(!p.Secure)
	h, err := t.NewClientConn(ctx, p.scheme(), net.JoinHostPort(p.name, "0"))
	if err != nil {
		_ = c.Close()
		return nil, Explained(err)
	}
	if err := h.Reserve(); err != nil {
		_ = h.Close()
		return nil, &hinted{err, hintEnded}
	}
	return h, nil
}

// scheme returns the scheme of the peer's requests.
func (p *Peer) scheme() string {
	if p.Secure {
		return "https"
	}
	return "http"
}

// At returns the URL of a request to the peer. path is escaped, and may have a query.
func (p *Peer) At(path string) (*url.URL, error) {
	u, err := url.ParseRequestURI(path)
	if err != nil {
		return nil, err
	}
	u.Scheme, u.Host = p.scheme(), p.Host
	return u, nil
}

// http2Config returns the bounds of HTTP/2 connections.
func http2Config() *http.HTTP2Config {
	return &http.HTTP2Config{
		// All requests share a connection, so a connection that is dead without a word would take all of them. The
		// connection is asked after 15 s without a frame. An engine may be busy for some seconds, and must then not
		// lose its streams: so it has 30 s to answer.
		SendPingTimeout: 15 * time.Second,
		PingTimeout:     30 * time.Second,
		// While a client does not read, so many bytes of its answer wait here. The default of 4 MiB would be 8 GB for
		// 2,000 slow clients.
		MaxReceiveBufferPerStream: 256 << 10,
	}
}

// Authorize puts the peer's key into the header of a client's request, if the peer's settings say so.
func (p *Peer) Authorize(h http.Header) {
	if p.SendsKey(h) {
		for _, name := range keyFields {
			delete(h, name)
		}
		h["Authorization"] = []string{"Bearer " + p.Key}
	}
}

// keyFields are the header fields in which clients send keys: those of OpenAI, of Anthropic and of Azure.
var keyFields = []string{"Authorization", "X-Api-Key", "Api-Key"}

// KeyField reports whether the field with this canonical name may have a client's key.
func KeyField(name string) bool { return slices.Contains(keyFields, name) }

// SendsKey reports whether a client's request with this header gets the peer's key. A client's key then stays behind:
// see KeyField. A key in Api-Key alone counts as missing, because engines do not read this field.
func (p *Peer) SendsKey(h http.Header) bool {
	switch {
	case p.Key == "":
		return false
	case p.KeyUse == KeyIfMissing:
		return h.Get("Authorization") == "" && h.Get("X-Api-Key") == ""
	}
	return p.KeyUse == KeyAlways
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
	case errors.As(err, &op) && op.Op == "remote error" && strings.Contains(op.Err.Error(), "no application protocol"):
		hint = hintNoHTTP2
	case strings.Contains(err.Error(), "http2: frame too large"): // the bytes are no frame
		hint = hintNoHTTP2
	case strings.Contains(err.Error(), "http2: client conn could not be established"):
		hint = hintEnded
	default:
		return err
	}
	if as[*hinted](err) {
		return err
	}
	return &hinted{err, hint}
}

const (
	hintNoHTTP2 = "the worker does not speak HTTP/2 at this port: set its protocol to auto or http1"
	hintEnded   = "the worker closed the connection before HTTP/2 began: if it does not speak HTTP/2 at this port, set its protocol to auto or http1"
)

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
