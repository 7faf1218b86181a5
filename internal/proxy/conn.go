package proxy

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/internal/network"
)

// conn is a connection to a worker, or a stream on an HTTP/2 connection. Only one exchange uses it at a time. abort may
// be called from any goroutine.
type conn struct {
	net.Conn
	worker *worker
	shared *shared // the HTTP/2 connection of which Conn is a stream; nil for HTTP/1.1
	// look finds out whether anything came on the TCP connection. With TLS, this is the connection below the TLS layer.
	look   look
	pieces [2][]byte   // the two slices that writeBoth writes
	bufs   net.Buffers // the part of pieces that is not written yet
	since  time.Time   // when the connection became idle
	// limit is the connection's deadline, which an earlier exchange may have set; zero when there is no deadline.
	limit   time.Time
	aborted atomic.Bool
	abort   func() // a stored function value, so that passing it to context.AfterFunc allocates no closure
}

// newConn returns a conn over c. tcp is the TCP connection below c, or c itself.
func newConn(c, tcp net.Conn, w *worker) *conn {
	k := &conn{Conn: c, worker: w}
	k.look.init(tcp)
	k.abort = func() {
		k.aborted.Store(true)
		k.Conn.Close()
	}
	return k
}

// quiet reports whether nothing came on the connection while it was idle, neither bytes nor its end. Bytes that come
// before a request would be taken for the answer to the request. On a system on which this cannot be tested, quiet
// returns true.
func (k *conn) quiet() bool { return k.look.quiet() }

// writeBoth writes a and then b. Over plain TCP this usually takes one system call.
func (k *conn) writeBoth(a, b []byte) error {
	k.pieces = [2][]byte{a, b}
	k.bufs = k.pieces[:]
	_, err := k.bufs.WriteTo(k.Conn)
	k.pieces, k.bufs = [2][]byte{}, nil
	return err
}

// arm sets the deadline of reads and writes to a time between t and t plus a quarter of patience. Setting a deadline
// may wake the runtime's poller. So arm keeps the present deadline if that is late enough. In this way a deadline of
// minutes is set once for many exchanges.
func (k *conn) arm(t time.Time, patience time.Duration) {
	if k.limit.Before(t) {
		k.limit = t.Add(patience / 4)
		// This fails only on a closed connection, and the next read or write returns that error.
		k.SetDeadline(k.limit)
	}
}

// disarm removes the deadline.
func (k *conn) disarm() {
	k.limit = time.Time{}
	k.SetDeadline(k.limit)
}

// worker keeps the connections to one worker: the idle ones of HTTP/1.1, and all of HTTP/2.
type worker struct {
	*network.Peer
	url   string
	http2 atomic.Bool // the worker spoke HTTP/2 on the last connection that was made

	mu      sync.Mutex // guards the fields below
	idle    []*conn    // ordered by time of last use, the latest at the end
	shared  []*shared  // HTTP/2 connections that may get further streams, in the order in which they were made
	limit   int        // number of streams that the worker allows on a connection; 0: not known yet
	dialing *dialing   // the present dial for HTTP/2; nil if there is none
	closed  bool       // no connections are kept any more
}

// take returns the idle connection that was used last, or a stream on an HTTP/2 connection that is open. It returns nil
// if there is none, or if every connection is too old.
func (w *worker) take(now time.Time, maxIdle time.Duration) *conn {
	if w.http2.Load() {
		return w.open(now, maxIdle)
	}
	w.mu.Lock()
	n := len(w.idle)
	if n == 0 {
		w.mu.Unlock()
		return nil
	}
	k := w.idle[n-1]
	if now.Sub(k.since) < maxIdle {
		w.idle[n-1] = nil
		w.idle = w.idle[:n-1]
		w.mu.Unlock()
		return k
	}
	old := w.idle // the last connection is the youngest, so all idle connections are too old
	w.idle = nil
	w.mu.Unlock()
	closeAll(old)
	return nil
}

// keep adds a connection to the idle connections. If there are limit idle connections already, or after shut, it closes
// the connection.
func (w *worker) keep(k *conn, limit int) {
	w.mu.Lock()
	if !w.closed && len(w.idle) < limit {
		w.idle = append(w.idle, k)
		k = nil
	}
	w.mu.Unlock()
	if k != nil {
		k.Close()
	}
}

// reap closes connections that have been idle since before the given time.
func (w *worker) reap(before time.Time) {
	w.mu.Lock()
	n := 0
	for n < len(w.idle) && w.idle[n].since.Before(before) {
		n++
	}
	old := append([]*conn(nil), w.idle[:n]...)
	w.idle = append(w.idle[:0], w.idle[n:]...)
	clear(w.idle[len(w.idle) : len(w.idle)+n])
	w.reapShared(before)
	w.mu.Unlock()
	closeAll(old)
}

// shut closes all connections that are idle. From then on, connections are closed instead of kept.
func (w *worker) shut() {
	w.mu.Lock()
	old := w.idle
	w.idle, w.closed = nil, true
	w.reapShared(time.Now())
	w.mu.Unlock()
	closeAll(old)
}

func closeAll(list []*conn) {
	for _, k := range list {
		k.Close()
	}
}

func (w *worker) dial(ctx context.Context, cfg *Config) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.ConnectTimeout)
	defer cancel()
	c, below, err := w.Dial(ctx, cfg.Network)
	if err != nil {
		return nil, err
	}
	w.http2.Store(w.SpeaksHTTP2(c))
	if w.SpeaksHTTP2(c) {
		return w.share(ctx, c, cfg)
	}
	return newConn(c, below, w), nil
}
