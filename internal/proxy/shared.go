package proxy

import (
	"context"
	"net"
	"net/http"
	"slices"
	"time"
)

// shared is an HTTP/2 connection, on which many exchanges have a stream each. The worker's mutex guards its fields.
type shared struct {
	*http.ClientConn
	streams int       // number of exchanges that use it
	since   time.Time // when streams became 0
	retired bool      // gets no further streams
}

// open returns a stream on a connection that is open; nil if there is none with room. It drops the connections that
// cannot be used any more.
func (w *worker) open(now time.Time, maxIdle time.Duration) *conn {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := len(w.shared) - 1; i >= 0; i-- {
		s := w.shared[i]
		if s.Err() != nil || s.streams == 0 && now.Sub(s.since) >= maxIdle {
			w.retire(s)
			continue
		}
		// A new connection takes any number of streams until the worker's settings arrive. Streams beyond the worker's
		// limit would then wait for others to end, so the limit of the connections before counts.
		if (w.limit == 0 || s.streams < w.limit) && s.Reserve() == nil {
			return w.streamOn(s)
		}
	}
	return nil
}

// streamOn returns a stream on s, as the connection of one exchange. w.mu is held, and a place on s is reserved.
func (w *worker) streamOn(s *shared) *conn {
	s.streams++
	k := newConn(w.newStream(s), nil, w)
	k.shared = s
	return k
}

// retire takes s out of the connections that get streams. The last stream closes it. w.mu is held.
func (w *worker) retire(s *shared) {
	s.retired = true
	if i := slices.Index(w.shared, s); i >= 0 {
		w.shared = slices.Delete(w.shared, i, i+1)
	}
	if s.streams == 0 {
		s.ClientConn.Close()
	}
}

// share makes an HTTP/2 connection of c, and opens the first stream on it.
func (w *worker) share(ctx context.Context, c net.Conn, cfg *Config) (*conn, error) {
	h, err := w.HTTP2Conn(ctx, c, cfg.MaxHeaderBytes)
	if err != nil {
		return nil, err
	}
	s := &shared{ClientConn: h}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shared = append(w.shared, s)
	return w.streamOn(s), nil
}

// leave ends the use of a stream. doubtful means that the connection may be dead, so it gets no further streams.
func (w *worker) leave(k *conn, doubtful bool) {
	k.Conn.(*stream).end()
	s := k.shared
	w.mu.Lock()
	defer w.mu.Unlock()
	s.streams--
	s.since = time.Now()
	if free := s.Available(); free > 0 { // a connection that goes away has no free places, which says nothing about the limit
		w.limit = free + s.InFlight()
	}
	if doubtful || s.retired || w.closed {
		w.retire(s)
	}
}

// reapShared retires connections that have had no stream since before the given time. w.mu is held.
func (w *worker) reapShared(before time.Time) {
	for _, s := range slices.Clone(w.shared) {
		if s.Err() != nil || s.streams == 0 && s.since.Before(before) {
			w.retire(s)
		}
	}
}
