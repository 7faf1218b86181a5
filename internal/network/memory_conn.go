package network

import (
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// pair is one connection with its two ends.
type pair struct {
	network        *Memory
	client, server netip.AddrPort
	up, down       *direction   // up: from the dialling side to the accepting side; down: the opposite direction
	left           atomic.Int32 // number of sides that have closed the connection: 0 to 2
}

func newPair(from, to *Host, client, server netip.AddrPort) *pair {
	return &pair{network: from.network, client: client, server: server, up: newDirection(from, to), down: newDirection(from, to)}
}

// leave records that a side has closed the connection.
func (p *pair) leave() {
	if p.left.Add(1) == 2 {
		p.network.forget(p)
	}
}

// direction carries the bytes of a connection one way. Its reader is at one end of the connection, its writer at the
// other end.
type direction struct {
	a, b *Host

	mu      sync.Mutex // guards the fields below
	cond    sync.Cond  // signals any change
	queue   []segment
	size    int  // number of bytes in queue
	ended   bool // true: further writes fail, because the direction was closed or reset
	deaf    bool // true: the reader has closed the connection, and further bytes are answered by a reset
	broken  bool // true: the connection was cut
	readBy  deadline
	writeBy deadline
	arrival *time.Timer // timer that wakes the reader when the first segment arrives; nil: no reader waits for the segment
	last    time.Time   // arrival time of the last segment; a later segment never arrives before it
}

// segment is a piece of the stream with the time of its arrival: bytes, EOF or a reset.
type segment struct {
	at    time.Time
	bytes []byte
	sign  error // io.EOF or a reset; nil: the segment has bytes
}

// deadline is the time limit of reads or of writes. The mutex of the direction guards it.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func newDirection(a, b *Host) *direction {
	d := &direction{a: a, b: b}
	d.cond.L = &d.mu
	return d
}

var errReset = os.NewSyscallError("read", syscall.ECONNRESET)

// lost reports whether bytes that are sent in this direction are lost at present.
func (d *direction) lost() bool { return d.a.lost.Load() || d.b.lost.Load() }

// wake wakes all reads and writes that wait for this direction.
func (d *direction) wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cond.Broadcast()
}

// cut drops the bytes that were not read. From then on reads and writes fail with a reset.
func (d *direction) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken = true
	d.queue, d.size = nil, 0
	d.cond.Broadcast()
}

// end closes the direction: the reader sees EOF after the bytes that were already written.
func (d *direction) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.ended {
		d.ended = true
		d.push(segment{sign: io.EOF})
	}
	d.cond.Broadcast()
}

// reset closes the direction with a reset: the reader sees the reset after the bytes that were already written. Further
// writes fail.
func (d *direction) reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ended = true
	d.push(segment{sign: errReset})
}

// push queues a segment. The caller holds d.mu.
func (d *direction) push(s segment) {
	s.at = time.Now().Add(pathDelay(d.a, d.b))
	if s.at.Before(d.last) {
		s.at = d.last
	}
	d.last = s.at
	d.queue = append(d.queue, s)
	d.size += len(s.bytes)
	d.cond.Broadcast()
}

// arrived returns the first segment of the queue if it has arrived, and otherwise nil. The caller holds d.mu.
func (d *direction) arrived() *segment {
	if len(d.queue) == 0 || d.lost() {
		return nil
	}
	s := &d.queue[0]
	if wait := time.Until(s.at); wait > 0 {
		if d.arrival == nil {
			d.arrival = time.AfterFunc(wait, func() {
				d.mu.Lock()
				defer d.mu.Unlock()
				d.arrival = nil
				d.cond.Broadcast()
			})
		}
		return nil
	}
	return s
}

func (d *direction) read(b []byte, closed *atomic.Bool) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		switch {
		case closed.Load():
			return 0, net.ErrClosed
		case d.readBy.over():
			return 0, os.ErrDeadlineExceeded
		case d.broken:
			return 0, errReset
		case len(b) == 0:
			return 0, nil
		}
		s := d.arrived()
		switch {
		case s == nil:
			d.cond.Wait()
			continue
		case s.sign != nil:
			return 0, s.sign
		}
		n := copy(b, s.bytes)
		s.bytes = s.bytes[n:]
		d.size -= n
		if len(s.bytes) == 0 {
			d.queue[0] = segment{}
			d.queue = d.queue[1:]
		}
		d.cond.Broadcast()
		return n, nil
	}
}

// write writes b to d. back is the opposite direction of the same connection: a reset from the other side arrives
// there.
func (d *direction) write(b []byte, closed *atomic.Bool, back *direction) (n int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		switch {
		case closed.Load():
			return n, net.ErrClosed
		case d.writeBy.over():
			return n, os.ErrDeadlineExceeded
		case d.broken:
			return n, os.NewSyscallError("write", syscall.ECONNRESET)
		case d.ended:
			return n, os.NewSyscallError("write", syscall.EPIPE)
		case len(b) == n:
			return n, nil
		}
		if d.deaf && !d.lost() {
			// As with TCP, the first write to a closed socket succeeds. The other side answers with a reset, and later calls
			// fail.
			d.ended = true
			// The reset runs in its own goroutine, because it locks back.mu, and no goroutine may hold the mutexes of both
			// directions. The goroutine ends without waiting for other events.
			go back.reset()
			return len(b), nil
		}
		room := window - d.size
		if room <= 0 {
			d.cond.Wait()
			continue
		}
		part := b[n:min(len(b), n+room)]
		d.push(segment{bytes: append([]byte(nil), part...)})
		n += len(part)
	}
}

// over reports whether the deadline has passed. A zero deadline never passes.
func (l *deadline) over() bool { return !l.at.IsZero() && !time.Now().Before(l.at) }

// limit sets l to the time t. l is d.readBy or d.writeBy.
func (d *direction) limit(l *deadline, t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.at = t
	if wait := time.Until(t); !t.IsZero() && wait > 0 {
		l.timer = time.AfterFunc(wait, d.wake)
	}
	d.cond.Broadcast()
}

// conn is one end of a connection.
type conn struct {
	pair          *pair
	in, out       *direction
	local, remote netip.AddrPort
	closed        atomic.Bool
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.in.read(b, &c.closed)
	return n, c.wrap("read", err)
}

func (c *conn) Write(b []byte) (int, error) {
	n, err := c.out.write(b, &c.closed, c.in)
	return n, c.wrap("write", err)
}

// wrap wraps an error in a net.OpError, as package net does. It returns io.EOF unchanged.
func (c *conn) wrap(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// CloseWrite closes the direction to the other side: the other side reads EOF after the bytes that were already
// written.
func (c *conn) CloseWrite() error {
	if c.closed.Load() {
		return c.wrap("close", net.ErrClosed)
	}
	c.out.end()
	return nil
}

// Close closes the connection. If bytes for this side were not read, the other side gets a reset, as from a kernel.
// Otherwise the other side gets EOF.
func (c *conn) Close() error {
	if c.closed.Swap(true) {
		return c.wrap("close", net.ErrClosed)
	}
	c.in.limit(&c.in.readBy, time.Time{})
	c.out.limit(&c.out.writeBy, time.Time{})
	if c.in.stopReading() {
		c.out.reset()
	} else {
		c.out.end()
	}
	c.pair.leave()
	return nil
}

// stopReading ends reading, and reports whether there were unread bytes.
func (d *direction) stopReading() (unread bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	unread = d.size > 0
	d.deaf = true
	d.queue, d.size = nil, 0
	if d.arrival != nil {
		d.arrival.Stop()
		d.arrival = nil
	}
	d.cond.Broadcast()
	return unread
}

func (c *conn) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(c.local) }
func (c *conn) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(c.remote) }

func (c *conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	if c.closed.Load() {
		return c.wrap("set", net.ErrClosed)
	}
	c.in.limit(&c.in.readBy, t)
	return nil
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	if c.closed.Load() {
		return c.wrap("set", net.ErrClosed)
	}
	c.out.limit(&c.out.writeBy, t)
	return nil
}
