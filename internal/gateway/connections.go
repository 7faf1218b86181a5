package gateway

import (
	"context"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/internal/api"
)

// ConnectionLimit bounds the connections of a listener. The zero value is no limit.
type ConnectionLimit struct {
	// Serving is how many connections are served at once; 0 is no limit.
	Serving int
	// Waiting is how many further clients wait in order, accepted and with a request.
	Waiting int
	// Looking is how many further connections are accepted to read the path of their first request: a probe must not
	// wait behind clients. Probes and refusals are answered in these places.
	Looking int
}

// Total returns the number of connections that may be open at once: one more is held while it waits for a place.
func (l ConnectionLimit) Total() int { return l.Serving + l.Waiting + l.Looking + 1 }

const (
	// quietEnough is how long a connection must have been without a request before it is closed for a waiting client. A
	// busy client sends its next request within milliseconds, and would lose it if its connection were closed.
	quietEnough = time.Second
	// silentEnough is quietEnough for a connection that has sent nothing while all places for looking are taken. A
	// client sends its request with the end of the handshake, so this is for slow clients' machines.
	silentEnough = 250 * time.Millisecond
	// waitEnough is how old the oldest waiting client must be before clients beyond Waiting are refused. A fleet that
	// serves Waiting and Looking clients in less refuses nobody, however many come. A probe waits little longer.
	waitEnough = 3 * time.Second
	// relieveTick is the pause between two looks at which connections to close and whom to refuse.
	relieveTick = 50 * time.Millisecond
)

// limitListener is a listener with a limit of connections. While all places are taken, each answer ends its
// connection, quiet connections are closed, and probes are served at once. Clients wait in order. When they wait long,
// further ones are refused, so that the system's queue, in which probes wait, too, never stands still.
type limitListener struct {
	net.Listener
	limit  ConnectionLimit
	look   chan struct{}     // a token for each place for looking that is taken
	ready  chan *limitedConn // for Accept; has room for all that may be open
	failed chan error        // of the inner Accept
	closed chan struct{}
	once   sync.Once
	all    sync.WaitGroup // goroutines
	full   atomic.Bool    // somebody found no place among the served, and relieve still runs

	mu        sync.Mutex // guards what follows, and the places of connections
	serving   int
	waiting   []*limitedConn // in order; those from limit.Waiting on keep their place for looking
	conns     map[*limitedConn]struct{}
	blocked   bool // accept waits for a place for looking
	relieving bool // relieve runs
}

// place is what a connection takes up until it is closed.
type place uint8

const (
	placeNone place = iota // waits, beyond the places for looking and serving; or is closed
	placeLooking
	placeServing
)

// limitedConn is an accepted connection.
type limitedConn struct {
	net.Conn
	head    []byte       // read while looking, not yet by the server
	quiet   atomic.Int64 // without a request since, Unix nanoseconds; 0: has one
	place   place
	waits   bool // is in waiting
	single  bool // a probe, or refused: serves one request in a place for looking
	refused bool
}

// Read returns first what was read while looking.
func (c *limitedConn) Read(p []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(p, c.head)
		if c.head = c.head[n:]; len(c.head) == 0 {
			c.head = nil
		}
		return n, nil
	}
	return c.Conn.Read(p)
}

// CloseWrite ends our side, where the connection can: the server does it before it closes.
func (c *limitedConn) CloseWrite() error {
	if half, can := c.Conn.(interface{ CloseWrite() error }); can {
		return half.CloseWrite()
	}
	return nil
}

type connKey struct{}

// LimitConnections bounds the connections of server, which is to serve the listener that is returned. It takes over
// server's ConnState and ConnContext and wraps its Handler; refuse answers a request for which there is no place.
// wait returns when everything it started has ended, after the listener was closed.
func LimitConnections(l net.Listener, server *http.Server, limit ConnectionLimit, refuse http.HandlerFunc) (limited net.Listener, wait func()) {
	if limit.Serving <= 0 {
		return l, func() {}
	}
	limit.Waiting, limit.Looking = max(limit.Waiting, 0), max(limit.Looking, 1)
	c := &limitListener{Listener: l, limit: limit, look: make(chan struct{}, limit.Looking), ready: make(chan *limitedConn, limit.Total()),
		failed: make(chan error), closed: make(chan struct{}), conns: map[*limitedConn]struct{}{}}
	server.ConnState = c.turn
	server.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, conn)
	}
	next := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _ := r.Context().Value(connKey{}).(*limitedConn)
		if c.full.Load() || conn != nil && conn.single {
			w.Header().Set("Connection", "close")
		}
		if conn != nil && conn.refused {
			refuse(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
	c.all.Go(c.accept)
	return c, c.all.Wait
}

// Accept returns the next connection that is to be served.
func (l *limitListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case err := <-l.failed:
		return nil, err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close stops accepting, and closes the connections that wait.
func (l *limitListener) Close() error {
	l.once.Do(func() {
		close(l.closed)
		l.mu.Lock()
		defer l.mu.Unlock()
		for c := range l.conns {
			if c.place != placeServing && !c.single {
				_ = c.Close()
			}
		}
		for len(l.ready) > 0 {
			select {
			case c := <-l.ready:
				_ = c.Close()
			default:
			}
		}
	})
	return l.Listener.Close()
}

// accept takes connections until the listener is closed. It pauses while all places are taken.
func (l *limitListener) accept() {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			select {
			case l.failed <- err:
				continue
			case <-l.closed:
				return
			}
		}
		if c := (&limitedConn{Conn: conn}); !l.take(c) {
			_ = conn.Close()
			return
		}
	}
}

// take gives c a place among the served, or one for looking; it waits for the latter. It returns false when the
// listener is closed.
func (l *limitListener) take(c *limitedConn) bool {
	l.mu.Lock()
	if l.isClosed() {
		l.mu.Unlock()
		return false
	}
	c.quiet.Store(time.Now().UnixNano())
	if l.admit(c) {
		l.conns[c] = struct{}{}
		l.mu.Unlock()
		return true
	}
	l.full.Store(true)
	l.startRelieving()
	l.blocked = true
	l.mu.Unlock()
	select {
	case l.look <- struct{}{}:
	case <-l.closed:
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.blocked = false
	if l.isClosed() {
		return false
	}
	c.quiet.Store(time.Now().UnixNano())
	c.place = placeLooking
	l.conns[c] = struct{}{}
	l.all.Go(func() { l.decide(c) }) // ends when the path of the request is there, or the connection is closed
	return true
}

// admit gives c a place among the served if there is one and nobody waits.
func (l *limitListener) admit(c *limitedConn) bool {
	if l.serving >= l.limit.Serving || len(l.waiting) > 0 {
		return false
	}
	l.serve(c)
	return true
}

// serve gives c a place among the served.
func (l *limitListener) serve(c *limitedConn) {
	l.stopLooking(c)
	l.serving++
	c.place = placeServing
	l.ready <- c
}

// serveOnce has c's request answered in its place for looking: a probe, or a client that is refused.
func (l *limitListener) serveOnce(c *limitedConn, refused bool) {
	c.single, c.refused = true, refused
	l.ready <- c
}

// decide reads the beginning of a connection's first request, and serves it, lets it wait or refuses it.
func (l *limitListener) decide(c *limitedConn) {
	probe, err := c.readPath()
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	c.quiet.Store(now.UnixNano())
	switch {
	case err != nil || l.isClosed():
		_ = c.Close()
		l.release(c)
	case probe:
		l.serveOnce(c, false)
	case l.admit(c):
	case len(l.waiting) >= l.limit.Waiting && l.late(now):
		l.serveOnce(c, true)
	default:
		c.waits = true
		l.waiting = append(l.waiting, c)
		if len(l.waiting) <= l.limit.Waiting {
			l.stopLooking(c)
		}
	}
}

// late reports whether the oldest client has waited for long.
func (l *limitListener) late(now time.Time) bool {
	return len(l.waiting) > 0 && l.waiting[0].quiet.Load() < now.Add(-waitEnough).UnixNano()
}

func (l *limitListener) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// release gives c's place back and serves the next that wait.
func (l *limitListener) release(c *limitedConn) {
	delete(l.conns, c)
	if c.place == placeServing {
		l.serving--
		c.place = placeNone
	}
	l.stopLooking(c)
	for l.serving < l.limit.Serving && len(l.waiting) > 0 && !l.isClosed() {
		next := l.waiting[0]
		l.waiting = slices.Delete(l.waiting, 0, 1)
		next.waits = false
		next.quiet.Store(time.Now().UnixNano())
		l.serve(next)
		if i := l.limit.Waiting; i > 0 && len(l.waiting) >= i { // the first of those beyond the places for waiting
			l.stopLooking(l.waiting[i-1])
		}
	}
}

// stopLooking gives back c's place for looking if it has one.
func (l *limitListener) stopLooking(c *limitedConn) {
	if c.place == placeLooking {
		c.place = placeNone
		<-l.look
	}
}

// turn records a connection's state: without a request, with one, or closed.
func (l *limitListener) turn(conn net.Conn, state http.ConnState) {
	c, ours := conn.(*limitedConn)
	if !ours {
		return
	}
	switch state {
	case http.StateIdle:
		c.quiet.Store(time.Now().UnixNano())
	case http.StateActive:
		if !c.single {
			c.quiet.Store(0)
		}
	case http.StateClosed, http.StateHijacked:
		l.mu.Lock()
		l.release(c)
		l.mu.Unlock()
	}
}

// startRelieving has relieve run.
func (l *limitListener) startRelieving() {
	if !l.relieving {
		l.relieving = true
		l.all.Go(l.relieve) // ends when there is nobody to relieve, or the listener is closed
	}
}

// relieve closes quiet connections and refuses clients, while there are more than places.
func (l *limitListener) relieve() {
	tick := time.NewTicker(relieveTick)
	defer tick.Stop()
	for {
		select {
		case <-l.closed:
			return
		case now := <-tick.C:
			if !l.relieveAt(now) {
				return
			}
		}
	}
}

// relieveAt is one look of relieve. It reports whether another one is needed.
func (l *limitListener) relieveAt(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	quiet, silent := now.Add(-quietEnough).UnixNano(), now.Add(-silentEnough).UnixNano()
	needed := l.blocked || len(l.waiting) > 0
	for c := range l.conns {
		since := c.quiet.Load()
		switch {
		case since == 0 || c.waits:
		case c.place == placeServing && needed && since < quiet,
			c.place == placeLooking && since < quiet,
			c.place == placeLooking && !c.single && l.blocked && since < silent:
			_ = c.Close() // the server, or decide, gives its place back
		}
	}
	if most := l.limit.Waiting; len(l.waiting) > most && l.late(now) {
		for _, c := range l.waiting[most:] {
			c.waits = false
			l.serveOnce(c, true)
		}
		l.waiting = l.waiting[:most]
	}
	l.relieving = needed || len(l.look) > 0
	l.full.Store(l.relieving)
	return l.relieving
}

// probes are the requests that are answered without a place among the served.
var probes = []string{"GET /health", "HEAD /health", "GET /readiness", "HEAD /readiness"}

// readPath reads until it is known whether the first request is a probe.
func (c *limitedConn) readPath() (probe bool, err error) {
	buf := make([]byte, 512)
	for {
		n, err := c.Conn.Read(buf[len(c.head):])
		c.head = buf[:len(c.head)+n]
		probe, decided := isProbe(string(c.head))
		if decided {
			return probe, nil
		}
		if err != nil {
			return false, err
		}
	}
}

// isProbe reports whether a request that begins with text asks for /health or /readiness. decided is false when text is
// too short to tell.
func isProbe(text string) (probe, decided bool) {
	decided = true
	for _, p := range probes {
		rest, whole := strings.CutPrefix(text, p)
		switch {
		case whole && rest == "", !whole && strings.HasPrefix(p, text):
			decided = false
		case whole && (rest[0] == ' ' || rest[0] == '?'):
			return true, true
		}
	}
	return false, decided
}

// refuseConnection answers a client for which there is no place.
func (g *Gateway) refuseConnection(w http.ResponseWriter, _ *http.Request) {
	g.refuse(w, api.OpenAIChat, "connections", api.NoPlace())
}
