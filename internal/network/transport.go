package network

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// TransportConfig bounds a Transport. A zero field has the meaning that it has in http.Transport.
type TransportConfig struct {
	ConnectTimeout time.Duration // includes the TLS handshake; must not be 0
	HeaderTimeout  time.Duration
	IdleTimeout    time.Duration
	IdlePerPeer    int
	Plain          bool        // asks for no compressed answers
	TLS            *tls.Config // for URLs that are in no table; nil means the machine's authorities
}

// Transport is an http.RoundTripper that reaches each peer as the peer's settings say. The URL of a request is the URL
// of a peer with a path behind it. It uses no proxy from the environment. It is safe for concurrent use.
type Transport struct {
	network Network
	peers   *Peers
	config  TransportConfig
	rest    *http.Transport // for URLs that are in no table

	mu sync.Mutex // guards of
	of map[*Peer]*http.Transport
}

// NewTransport returns a transport for the peers of a table. It starts nothing. A nil n means the machine's network.
func NewTransport(n Network, peers *Peers, c TransportConfig) *Transport {
	t := &Transport{network: n, peers: peers, config: c, of: map[*Peer]*http.Transport{}}
	t.rest = t.base()
	t.rest.TLSClientConfig = c.TLS
	return t
}

func (t *Transport) base() *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, t.config.ConnectTimeout)
			defer cancel()
			return Of(t.network).Dial(ctx, network, address)
		},
		TLSHandshakeTimeout:   t.config.ConnectTimeout,
		MaxIdleConnsPerHost:   t.config.IdlePerPeer,
		IdleConnTimeout:       t.config.IdleTimeout,
		ResponseHeaderTimeout: t.config.HeaderTimeout,
		DisableCompression:    t.config.Plain,
	}
}

// RoundTrip sends a request to the peer that its URL names. A client's request gets the peer's key if the peer's
// settings say so.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	p := t.peers.at(r.URL)
	if p == nil {
		return t.rest.RoundTrip(r)
	}
	out := *r
	if p.Network == "unix" {
		u := &url.URL{Scheme: "http", Host: p.Host, RawQuery: r.URL.RawQuery}
		u.Path = strings.TrimPrefix(r.URL.Path, p.Address)
		out.URL, out.Host = u, p.Host
	}
	if p.SendsKey(r.Header) {
		out.Header = r.Header.Clone()
		p.Authorize(out.Header)
	}
	resp, err := t.transport(p).RoundTrip(&out)
	if err != nil {
		return nil, Explained(err)
	}
	resp.Request = r
	return resp, nil
}

// transport returns the transport for one peer. When a peer is new, it drops the transports of peers that are gone.
func (t *Transport) transport(p *Peer) *http.Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own := t.of[p]; own != nil {
		return own
	}
	for old, own := range t.of {
		if old.Gone() {
			own.CloseIdleConnections()
			delete(t.of, old)
		}
	}
	own := p.configure(t.base(), t.network, t.config.ConnectTimeout)
	t.of[p] = own
	return own
}

// configure sets up base for calls to the peer only.
func (p *Peer) configure(base *http.Transport, n Network, timeout time.Duration) *http.Transport {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		c, _, err := p.Dial(ctx, n)
		if err == nil && p.Secure && !p.SpeaksHTTP2(c) {
			c = &refusable{Conn: c}
		}
		if err == nil && !p.Secure && p.SpeaksHTTP2(c) {
			c = &unheard{Conn: c}
		}
		return c, err
	}
	base.DialContext, base.DialTLSContext = dial, dial
	base.Protocols, base.HTTP2 = p.protocols(), http2Config()
	return base
}

// CloseIdleConnections closes the connections that no request uses.
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rest.CloseIdleConnections()
	for _, own := range t.of {
		own.CloseIdleConnections()
	}
}

// refusable is a TLS connection that http.Transport reads and writes at once. In TLS 1.3 the client's handshake is
// complete before the server has seen the client's certificate (RFC 8446 §2), so a refusal comes with the first read.
// http.Transport then closes the connection, and reports the write that failed because of this, if it comes first. So
// such a write fails with the refusal here.
type refusable struct {
	net.Conn
	refusal atomic.Pointer[net.OpError]
}

func (c *refusable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "remote error" {
		c.refusal.Store(op)
	}
	return n, err
}

func (c *refusable) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if refusal := c.refusal.Load(); err != nil && refusal != nil {
		err = refusal
	}
	return n, err
}

// unheard is a connection on which HTTP/2 is spoken without a handshake. A server of HTTP/1.1 answers with words of its
// own, and closes the connection. If the next write fails because of that before the answer is read, http.Transport
// reports the write. So such a write fails with the hint here.
type unheard struct {
	net.Conn
	heard atomic.Bool // the server has sent HTTP/2
}

func (c *unheard) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.heard.Load() {
		const other = "HTTP/1." // as the head of a frame this would be 4 MB long
		k := min(n, len(other))
		c.heard.Store(string(b[:k]) != other[:k])
	}
	return n, err
}

func (c *unheard) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if err != nil && !c.heard.Load() {
		err = &hinted{err, hintEnded}
	}
	return n, err
}
