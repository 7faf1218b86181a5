package proxy

import (
	"context"
	"sync"
	"time"

	"github.com/warmpath/warmpath/internal/network"
)

// Client forwards requests to workers over pooled connections. It is safe for concurrent use.
type Client struct {
	cfg Config

	mu      sync.RWMutex
	workers map[string]*worker // the workers by URL, until Keep drops them; guarded by mu
	closed  bool               // Run has ended; guarded by mu
}

// New returns a Client. It starts nothing. While Run does not run, idle connections may stay open longer than
// IdleTimeout.
func New(cfg Config) *Client {
	return &Client{cfg: cfg, workers: make(map[string]*worker)}
}

// Run closes connections that were idle for too long, until ctx ends. After that it closes all idle connections, and
// the Client keeps no further connections. It returns nil.
func (c *Client) Run(ctx context.Context) error {
	tick := time.NewTicker(max(c.cfg.IdleTimeout/2, 10*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			c.mu.Lock()
			c.closed = true
			c.mu.Unlock()
			for _, w := range c.all() {
				w.shut()
			}
			return nil
		case now := <-tick.C:
			for _, w := range c.all() {
				w.reap(now.Add(-c.cfg.IdleTimeout))
			}
		}
	}
}

// Keep drops every worker whose URL is not served, and closes its idle connections. A request that is at such a worker
// continues, and its connection is closed at its end. If a later request names the URL again, the worker is new.
func (c *Client) Keep(served func(url string) bool) {
	for _, w := range c.all() {
		if served(w.url) {
			continue
		}
		c.mu.Lock()
		if c.workers[w.url] == w { // a concurrent Keep may have dropped w, and a request may have made a new worker
			delete(c.workers, w.url)
		}
		c.mu.Unlock()
		w.shut()
	}
}

// shed closes all idle connections.
func (c *Client) shed() {
	now := time.Now()
	for _, w := range c.all() {
		w.reap(now)
	}
}

func (c *Client) all() []*worker {
	c.mu.RLock()
	defer c.mu.RUnlock()
	list := make([]*worker, 0, len(c.workers))
	for _, w := range c.workers {
		list = append(list, w)
	}
	return list
}

// worker returns the worker at url. It parses url the first time. If the worker's settings changed, the worker is new.
func (c *Client) worker(url string) (*worker, error) {
	c.mu.RLock()
	old := c.workers[url]
	c.mu.RUnlock()
	if old != nil && !old.Gone() {
		return old, nil
	}
	p, err := c.cfg.Peers.Of(url)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	w := c.workers[url]
	if w == nil || w.Gone() {
		w = &worker{Peer: p, url: url, closed: c.closed}
		w.http2.Store(p.Protocol == network.ProtocolHTTP2)
		c.workers[url] = w
	}
	c.mu.Unlock()
	if old != nil && old != w {
		old.shut()
	}
	return w, nil
}

// Forward sends the attempt to its worker and forwards the answer to the client. The caller ends ctx when the client is
// gone or the request's time is over. When ctx ends, Forward closes the worker's connection immediately, so that the
// engine drops the request. After Forward has returned, it does not use the Attempt or its Writer.
func (c *Client) Forward(ctx context.Context, a *Attempt) Result {
	x := exchanges.Get().(*exchange)
	x.begin(c, a)
	x.run(ctx)
	res := x.res
	x.end()
	return res
}
