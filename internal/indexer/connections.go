package indexer

import (
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Connections bounds the connections of the listeners. The zero value sets no bound.
type Connections struct {
	// HTTP bounds the connections and requests of server, which must serve the returned listener. refuse answers a
	// request for which there is no place. Nil: no bound.
	HTTP func(l net.Listener, server *http.Server, refuse http.HandlerFunc) net.Listener
	// GRPC is the number of connections over gRPC; 0: no bound. Further ones are closed at once, and clients try again.
	GRPC int
	// Readers is the number of streams of changes over both; 0: maxReaders, which is also the most. A stream lasts for
	// hours. So it should be well below the other bounds, or streams leave no room for questions.
	Readers int
}

// warnFull returns a function that warns, at most once a minute, that a listener refuses clients.
func warnFull(log *slog.Logger, listener string) (full func()) {
	var warned minute
	return func() {
		if warned.begins(time.Now()) {
			log.Warn("the index service refuses clients, because it has too many connections or requests: raise the limit of file descriptors (ulimit -n, LimitNOFILE), "+
				"or let each process use one connection for all its questions", "listener", listener)
		}
	}
}

// boundHTTP calls full for each request that is refused.
func (c *Connections) boundHTTP(l net.Listener, server *http.Server, full func()) net.Listener {
	if c.HTTP == nil {
		return l
	}
	return c.HTTP(l, server, func(w http.ResponseWriter, _ *http.Request) {
		full()
		problem(w, http.StatusServiceUnavailable, errConnections)
	})
}

// boundGRPC calls full for each connection that is refused.
func (c *Connections) boundGRPC(l net.Listener, full func()) net.Listener {
	if c.GRPC == 0 {
		return l
	}
	return &boundedListener{l, make(chan struct{}, c.GRPC), full}
}

// boundedListener closes connections for which there is no room.
type boundedListener struct {
	net.Listener
	open chan struct{} // has an element for each open connection
	full func()        // is called for each connection that is closed for want of room
}

// Accept returns the next connection for which there is room.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.open <- struct{}{}:
			return &boundedConn{conn, sync.OnceFunc(func() { <-l.open })}, nil
		default:
			l.full()
			_ = conn.Close()
		}
	}
}

type boundedConn struct {
	net.Conn
	leave func()
}

// Close closes the connection and makes room.
func (c *boundedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
