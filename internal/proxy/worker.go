package proxy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/internal/network"
)

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

// dialing is a dial to a worker that speaks HTTP/2. Exchanges that need a connection meanwhile wait for it.
type dialing struct {
	done chan struct{} // closed when the dial has ended
	err  error         // why the worker could not be reached; set before done is closed
}

// dialOnce dials the worker. If the worker speaks HTTP/2 and another exchange dials it already, dialOnce waits for that
// connection.
func (w *worker) dialOnce(ctx context.Context, cfg *Config) (*conn, error) {
	for w.http2.Load() {
		w.mu.Lock()
		d := w.dialing
		if d == nil {
			d = &dialing{done: make(chan struct{})}
			w.dialing = d
			w.mu.Unlock()
			k, err := w.dial(ctx, cfg)
			if ctx.Err() == nil {
				d.err = err // otherwise only this exchange ended
			}
			w.mu.Lock()
			w.dialing = nil
			w.mu.Unlock()
			close(d.done)
			return k, err
		}
		w.mu.Unlock()
		select {
		case <-d.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if d.err != nil {
			return nil, d.err
		}
		if k := w.open(time.Now(), cfg.IdleTimeout); k != nil {
			return k, nil
		}
	}
	return w.dial(ctx, cfg)
}
