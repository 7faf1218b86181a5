package proxy

import (
	"net"
	"sync/atomic"
	"time"
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
