package gateway

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// crowd is a listener that lets no more than so many clients in at once. The others wait to be accepted, in the system's queue. So
// that their turn comes, answers end their connections while somebody waits, and those that were idle for a while are closed.
type crowd struct {
	net.Listener
	slots  chan struct{}
	full   atomic.Bool
	closed chan struct{}
	once   sync.Once

	mu    sync.Mutex // guards seats
	seats map[*seat]struct{}
}

// seat is a connection that was let in.
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
	// idleEnough is how long a connection must have been idle to be closed for somebody who waits. A client may be about to ask again:
	// one that is busy does so within milliseconds, and would lose that request.
	idleEnough = time.Second
	idleLook   = 100 * time.Millisecond
)

// crowded bounds server, which listens on l, to most clients; 0 is no bound. It takes over server's ConnState and wraps its Handler.
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

// turn notes how a connection is used.
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

// closeIdle closes the connections that are idle since before.
func (c *crowd) closeIdle(before int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for s := range c.seats {
		if since := s.idle.Load(); since != 0 && since < before {
			_ = s.Close()
		}
	}
}

// Close lets nobody in any more.
func (c *crowd) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Listener.Close()
}
