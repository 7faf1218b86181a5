package indexer

import (
	"net"
	"net/http"
	"sync"
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

func (c *Connections) boundHTTP(l net.Listener, server *http.Server) net.Listener {
	if c.HTTP == nil {
		return l
	}
	return c.HTTP(l, server, func(w http.ResponseWriter, _ *http.Request) {
		problem(w, http.StatusServiceUnavailable, errConnections)
	})
}

func (c *Connections) boundGRPC(l net.Listener) net.Listener {
	if c.GRPC == 0 {
		return l
	}
	return &boundedListener{l, make(chan struct{}, c.GRPC)}
}

// boundedListener closes connections for which there is no room.
type boundedListener struct {
	net.Listener
	open chan struct{} // has an element for each open connection
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
