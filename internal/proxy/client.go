package proxy

import (
	"context"
	"net/http"
)

// Client forwards requests to workers. It is safe for concurrent use.
type Client struct{ cfg Config }

// New returns a Client. It starts nothing.
func New(cfg Config) *Client { return &Client{cfg: cfg} }

// Run closes connections that have been idle for too long, until ctx is done; then it closes all idle ones.
func (c *Client) Run(ctx context.Context) error { <-ctx.Done(); return nil }

// Forget closes the idle connections to a worker.
func (c *Client) Forget(worker string) {}

// Forward sends the attempt to its worker and passes the answer to the client. PLACEHOLDER
func (c *Client) Forward(ctx context.Context, a *Attempt) Result { return Result{Class: BadAttempt} }

// WriteTo passes the answer on to the client.
func (a *Answer) WriteTo(w http.ResponseWriter) {}

// RequestID returns the client's X-Request-Id when it is fit to be passed on, else a new one.
func RequestID(h http.Header) string { return "" }
