package gateway

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/internal/api"
)

// ConnectionLimit bounds the connections and the requests of a listener. The zero value sets no limit.
type ConnectionLimit struct {
	// Serving is the number of requests that may be served at the same time; 0 is no limit.
	Serving int
	// Waiting is the number of further requests that may wait, in order and without a time limit.
	Waiting int
	// Spare is the number of connections that may be open beyond Serving and Waiting, so that probes are answered without
	// waiting. While Waiting requests wait, any other further request waits up to waitEnough until it can be served.
	Spare int
}

const (
	// idleEnough is how long a connection must be without a request before it is closed for a waiting client. A busy
	// client sends its next request within milliseconds. If its connection were closed at this moment, the request would
	// be lost.
	idleEnough = time.Second
	// silentEnough takes the place of idleEnough for a connection that never had a request. A client sends its first
	// request right after the handshake, so this time only has to cover slow clients.
	silentEnough = 250 * time.Millisecond
	// waitEnough is how long a further request waits when Waiting requests wait already. After such a request has waited
	// and got no place, further requests are refused immediately until a place is free. So the listener continues to
	// accept connections, and answers probes that wait in the system's queue.
	waitEnough = 3 * time.Second
	// idleLook is the pause between two searches for idle connections.
	idleLook = 50 * time.Millisecond
)

// limitListener is a listener with a limit of connections. While no further connection may be open and a client waits
// to be accepted, each answer ends its connection, and idle connections are closed. At most limit.Serving requests are
// served at the same time: each of them has a place. The handler makes all requests except probes wait for a place. A
// place belongs to a request, not to a connection, because one HTTP/2 connection carries many requests.
type limitListener struct {
	net.Listener
	limit ConnectionLimit
	open  chan struct{} // holds a token for each open connection
	// full is true after Accept found no free token, until a later Accept finds a free token without waiting. While full
	// is true, each answer ends its connection.
	full atomic.Bool
	// serving holds a token for each request that is served. A channel serves its senders in order.
	serving chan struct{}
	waiting atomic.Int64 // number of requests that wait
	stuck   atomic.Bool  // true after a request waited and got no place, until a place is free
	closed  chan struct{}
	once    sync.Once

	mu    sync.Mutex // guards conns
	conns map[*limitedConn]struct{}
}

type limitedConn struct {
	net.Conn
	requests atomic.Int32 // number of requests under way
	silent   atomic.Bool  // no request has come on this connection yet
	idle     atomic.Int64 // time since which the connection has had no request, in Unix nanoseconds
}

// CloseWrite closes our sending side, if the connection can do that. net/http calls CloseWrite before it closes the
// connection.
func (c *limitedConn) CloseWrite() error {
	if half, can := c.Conn.(interface{ CloseWrite() error }); can {
		return half.CloseWrite()
	}
	return nil
}

type connKey struct{}

// limitedOf returns the connection of a limitListener, which may be inside a TLS connection. It returns nil for another
// value.
func limitedOf(conn any) *limitedConn {
	if secure, is := conn.(*tls.Conn); is {
		conn = secure.NetConn()
	}
	c, _ := conn.(*limitedConn)
	return c
}

// LimitConnections bounds the connections and requests of server. server must serve the returned listener.
// LimitConnections sets server's ConnState and ConnContext, and wraps its Handler. refuse answers a request for which
// there is no place.
func LimitConnections(l net.Listener, server *http.Server, limit ConnectionLimit, refuse http.HandlerFunc) net.Listener {
	if limit.Serving <= 0 {
		return l
	}
	c := &limitListener{Listener: l, limit: limit, open: make(chan struct{}, limit.Serving+limit.Waiting+limit.Spare),
		serving: make(chan struct{}, limit.Serving), closed: make(chan struct{}), conns: map[*limitedConn]struct{}{}}
	server.ConnState = c.changed
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, conn)
	}
	next := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if conn := limitedOf(r.Context().Value(connKey{})); conn != nil {
			conn.silent.Store(false)
			conn.requests.Add(1)
			defer func() {
				conn.idle.Store(time.Now().UnixNano())
				conn.requests.Add(-1)
			}()
		}
		if c.full.Load() {
			w.Header().Set("Connection", "close")
		}
		switch {
		case probe(r):
			next.ServeHTTP(w, r)
		case c.wait(r.Context()):
			defer c.leave()
			next.ServeHTTP(w, r)
		default:
			w.Header().Set("Connection", "close")
			refuse(w, r)
		}
	})
	return c
}

// probe reports whether r is a probe, which is answered without a place.
func probe(r *http.Request) bool {
	to := exactRoutes[r.URL.Path]
	return to != nil && to.open && to.allows(r.Method)
}

// wait takes a place for a request; leave frees the place. wait returns false if it gets no place.
func (l *limitListener) wait(ctx context.Context) bool {
	select {
	case l.serving <- struct{}{}:
		return true
	default:
	}
	var late <-chan time.Time // nil: the first Waiting requests wait without a limit
	if l.waiting.Add(1) > int64(l.limit.Waiting) {
		if l.stuck.Load() {
			l.waiting.Add(-1)
			return false
		}
		late = time.After(waitEnough)
	}
	defer l.waiting.Add(-1)
	select {
	case l.serving <- struct{}{}:
		return true
	case <-late:
		l.stuck.Store(true)
	case <-ctx.Done():
	case <-l.closed:
	}
	return false
}

// leave frees the place of a request that has ended.
func (l *limitListener) leave() {
	<-l.serving
	l.stuck.Store(false)
}

// changed is server's ConnState: it is called when the state of a connection changes. If the connection is closed,
// changed removes the connection from conns and frees its token.
func (l *limitListener) changed(conn net.Conn, state http.ConnState) {
	c := limitedOf(conn)
	if c == nil || state != http.StateClosed && state != http.StateHijacked {
		return
	}
	l.mu.Lock()
	delete(l.conns, c)
	l.mu.Unlock()
	<-l.open
}

// Accept returns the next connection. While the limit of connections is reached, Accept waits, and closes idle
// connections to make room.
func (l *limitListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	select {
	case l.open <- struct{}{}:
		l.full.Store(false)
		return l.admit(conn), nil
	default:
		l.full.Store(true)
	}
	look := time.NewTicker(idleLook)
	defer look.Stop()
	for {
		select {
		case l.open <- struct{}{}:
			return l.admit(conn), nil
		case now := <-look.C:
			l.closeIdle(now)
		case <-l.closed:
			_ = conn.Close()
			return nil, net.ErrClosed
		}
	}
}

// admit wraps an accepted connection for which a token was put into open.
func (l *limitListener) admit(conn net.Conn) net.Conn {
	c := &limitedConn{Conn: conn}
	c.silent.Store(true)
	c.idle.Store(time.Now().UnixNano())
	l.mu.Lock()
	l.conns[c] = struct{}{}
	l.mu.Unlock()
	return c
}

// closeIdle closes the connections that have had no request for too long.
func (l *limitListener) closeIdle(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		enough := idleEnough
		if c.silent.Load() {
			enough = silentEnough
		}
		if c.requests.Load() == 0 && c.idle.Load() < now.Add(-enough).UnixNano() {
			_ = c.Close()
		}
	}
}

// Close stops accepting. Requests that wait for a place are refused.
func (l *limitListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// refuseConnection answers a request for which there is no place.
func (g *Gateway) refuseConnection(w http.ResponseWriter, r *http.Request) {
	g.refuse(w, dialectAt(r.URL.Path), "connections", api.NoPlace())
}
