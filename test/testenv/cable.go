package testenv

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Cable is a TCP proxy between clients and a server: a network connection that a test can cut and delay. Its methods
// may be called from any goroutine.
type Cable struct {
	listener net.Listener
	target   string
	carry    func(to, from net.Conn)

	mu    sync.Mutex // guards the fields below
	cut   bool
	delay time.Duration
	conns map[net.Conn]bool // both ends of all connections
}

// NewCable returns a cable to the server at target, host:port. It is whole, and without a delay. The end of the test
// cuts it.
func NewCable(t testing.TB, target string) *Cable { return NewCableWith(t, target, nil) }

// NewCableWith returns a cable that carries each direction of a connection with carry. carry returns when one end has
// closed, and closes to. If carry is nil, bytes are carried as they are, with the delay of SetDelay.
func NewCableWith(t testing.TB, target string, carry func(to, from net.Conn)) *Cable {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen for a cable: %v", err)
	}
	c := &Cable{listener: listener, target: target, carry: carry, conns: map[net.Conn]bool{}}
	if carry == nil {
		c.carry = c.copy
	}
	var running sync.WaitGroup
	running.Go(func() { // ends when the listener is closed; the cleanup waits
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { c.connect(in) }) // ends when the cable is cut; the cleanup waits
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		c.SetDelay(0)
		c.Cut()
		running.Wait()
	})
	return c
}

// Address returns the address for clients, host:port.
func (c *Cable) Address() string { return c.listener.Addr().String() }

// Cut closes all connections. Until Mend is called, each new one is closed, too.
func (c *Cable) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = true
	for conn := range c.conns {
		_ = conn.Close()
	}
}

// Mend lets clients connect again after Cut.
func (c *Cable) Mend() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = false
}

// SetDelay sets the time that bytes take in each direction. It is the delay of the bytes that are sent from now on.
// These do not overtake earlier bytes.
func (c *Cable) SetDelay(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.delay = d
}

// hold notes an end of a connection. It returns false if the cable is cut.
func (c *Cable) hold(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.cut {
		c.conns[conn] = true
	}
	return !c.cut
}

// drop closes an end of a connection.
func (c *Cable) drop(conn net.Conn) {
	_ = conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.conns, conn)
}

// connect connects a client to the server, and carries bytes in both directions until one end closes.
func (c *Cable) connect(in net.Conn) {
	defer c.drop(in)
	if !c.hold(in) {
		return
	}
	out, err := net.DialTimeout("tcp", c.target, 5*time.Second)
	if err != nil {
		return
	}
	defer c.drop(out)
	if !c.hold(out) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { c.carry(out, in) })
	both.Go(func() { c.carry(in, out) })
	both.Wait()
}

// copy carries bytes until one end closes. Bytes wait in a queue for the delay, so that a delay does not bound the
// throughput.
func (c *Cable) copy(to, from net.Conn) {
	type piece struct {
		data []byte
		due  time.Time
	}
	queue := make(chan piece, 4096)
	var writing sync.WaitGroup
	writing.Go(func() { // ends when the queue is closed, below
		for p := range queue {
			if wait := time.Until(p.due); wait > 0 {
				timer := time.NewTimer(wait)
				<-timer.C
			}
			_, _ = to.Write(p.data) // after an error the rest is lost
		}
		_ = to.Close()
	})
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			c.mu.Lock()
			delay := c.delay
			c.mu.Unlock()
			queue <- piece{append([]byte(nil), buf[:n]...), time.Now().Add(delay)}
		}
		if err != nil {
			break
		}
	}
	close(queue)
	writing.Wait()
}
