package gateway

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// crowd is a listener that lets no more than so many clients in at once. The others wait to be accepted, in the system's queue. So
// that their turn comes, connections that are idle are closed while somebody waits, and answers end theirs.
type crowd struct {
	net.Listener
	server *http.Server
	slots  chan struct{}
	full   atomic.Bool
	closed chan struct{}
	once   sync.Once
}

// crowded returns l, bounded to most clients of server; 0 is no bound. It takes over server's ConnState.
func crowded(l net.Listener, server *http.Server, most int) net.Listener {
	if most <= 0 {
		return l
	}
	c := &crowd{Listener: l, server: server, slots: make(chan struct{}, most), closed: make(chan struct{})}
	server.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed || s == http.StateHijacked {
			<-c.slots
		}
	}
	return c
}

// Accept returns the next connection when there is room for it.
func (c *crowd) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	select {
	case c.slots <- struct{}{}:
		if c.full.CompareAndSwap(true, false) {
			c.server.SetKeepAlivesEnabled(true)
		}
		return conn, nil
	default:
	}
	c.full.Store(true)
	c.server.SetKeepAlivesEnabled(false) // closes the idle ones
	select {
	case c.slots <- struct{}{}:
		return conn, nil
	case <-c.closed:
		_ = conn.Close()
		return nil, net.ErrClosed
	}
}

// Close lets nobody in any more.
func (c *crowd) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Listener.Close()
}
