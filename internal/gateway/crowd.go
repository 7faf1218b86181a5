package gateway

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// crowd is a listener with a bound on open connections. Further clients wait in the system's queue until they are
// accepted. While a client waits, each answer ends its connection, and idle connections are closed.
type crowd struct {
	net.Listener
	slots  chan struct{}
	full   atomic.Bool
	closed chan struct{}
	once   sync.Once

	mu    sync.Mutex // guards seats
	seats map[*seat]struct{}
}

// seat is an accepted connection.
type seat struct {
	net.Conn
	idle atomic.Int64 // since when, Unix nanoseconds; 0: it is not
}

// CloseWrite ends our side, where the connection can: the server does it before it closes.
func (s *seat) CloseWrite() error {
	if half, can := s.Conn.(interface{ CloseWrite() error }); can {
		return half.CloseWrite()
	}
	return nil
}

const (
	// idleEnough is how long a connection must have been idle before it is closed for a waiting client. A busy client
	// sends its next request within milliseconds, and would lose it if its connection were closed.
	idleEnough = time.Second
	idleLook   = 100 * time.Millisecond
)

// crowded bounds server, which listens on l, to most clients; 0 is no bound. It takes over server's ConnState and
// wraps its Handler.
func crowded(l net.Listener, server *http.Server, most int) net.Listener {
	if most <= 0 {
		return l
	}
	c := &crowd{Listener: l, slots: make(chan struct{}, most), closed: make(chan struct{}), seats: map[*seat]struct{}{}}
	server.ConnState = c.turn
	next := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.full.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
	return c
}

// turn records a connection's state: idle, active or closed.
func (c *crowd) turn(conn net.Conn, state http.ConnState) {
	s, ours := conn.(*seat)
	if !ours {
		return
	}
	switch state {
	case http.StateIdle:
		s.idle.Store(time.Now().UnixNano())
	case http.StateActive:
		s.idle.Store(0)
	case http.StateClosed, http.StateHijacked:
		c.mu.Lock()
		delete(c.seats, s)
		c.mu.Unlock()
		<-c.slots
	}
}

// Accept returns the next connection when there is room for it.
func (c *crowd) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	select {
	case c.slots <- struct{}{}:
		c.full.Store(false)
		return c.admit(conn), nil
	default:
		c.full.Store(true)
	}
	look := time.NewTicker(idleLook)
	defer look.Stop()
	for {
		select {
		case c.slots <- struct{}{}:
			return c.admit(conn), nil
		case now := <-look.C:
			c.closeIdle(now.Add(-idleEnough).UnixNano())
		case <-c.closed:
			_ = conn.Close()
			return nil, net.ErrClosed
		}
	}
}

func (c *crowd) admit(conn net.Conn) net.Conn {
	s := &seat{Conn: conn}
	c.mu.Lock()
	c.seats[s] = struct{}{}
	c.mu.Unlock()
	return s
}

// closeIdle closes the connections that became idle before a time, in Unix nanoseconds.
func (c *crowd) closeIdle(before int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.seats {
		if since := s.idle.Load(); since != 0 && since < before {
			_ = s.Close()
		}
	}
}

// Close stops accepting.
func (c *crowd) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Listener.Close()
}
