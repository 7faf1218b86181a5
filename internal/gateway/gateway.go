package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/proxy"
	"github.com/warmpath/warmpath/internal/queue"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/internal/tokens"
)

// Parts are the components that a Gateway uses; all but Tenants, Issuer, Certificates, Queue, MaxRequests,
// Connections, ShadowSample, Outdated, Stalled, AccessLog, DecisionLog, Tracer and Version are required.
type Parts struct {
	Router    *warmpath.Router
	Fleet     *fleet.Fleet
	Tokens    *tokens.Source
	Client    *proxy.Client
	Bodies    *proxy.Bodies
	Telemetry *telemetry.Telemetry
	Log       *slog.Logger
	// Tenants are the tenants that may use the gateway. If Tenants is nil or has none, everybody may.
	Tenants *tenant.Registry
	// Queue says whether requests wait for a worker (see UseQueue). MaxRequests is the number of requests at which a
	// holder is saturated; 0 is no limit.
	Queue       queue.Config
	MaxRequests int
	// Issuer makes tokens that name a tenant; nil: only keys and the tenant header do.
	Issuer *tenant.Issuer
	// Certificates are those of the listener; nil: clients speak HTTP without TLS.
	Certificates *network.Certificates
	// Connections bounds the connections of clients.
	Connections ConnectionLimit
	// ShadowSample is the share of requests about which the shadow policy is asked, 0 to 1.
	ShadowSample float64
	// Scoped is called before a request with a cache salt or an extra key is sent to a rank of a worker. If the events of
	// the worker's engine do not contain salts and extra keys, the worker's blocks must not be trusted for such requests.
	Scoped func(url string, rank int, salt, extra string)
	// Index is asked for the matches of each request, if the router has no index of its own
	// (warmpath.Options.RemoteIndex); nil: it has one. A request waits for the answer at most for IndexTimeout, which is
	// required then: index.max_wait or index.valkey.lookup_timeout.
	Index        RemoteIndex
	IndexTimeout time.Duration
	// Outdated, if not nil, is called when a worker does not serve an adapter that it listed at its last probe. It must
	// not block.
	Outdated func(url string)
	// Stalled returns the reason of a stall, or "" when there is none. If Stalled is nil, stalls are not watched.
	Stalled func() string
	// AccessLog and DecisionLog get lines about requests; nil: none.
	AccessLog, DecisionLog *telemetry.Journal
	// Tracer records the traces of requests; nil: none.
	Tracer *telemetry.Tracer
	// Version is the router's version, which /version shows; empty is unknown.
	Version string
}

// Gateway is the HTTP front. It is an http.Handler, safe for concurrent use.
type Gateway struct {
	Parts
	cfg        Config
	identity   identity
	allowed    atomic.Pointer[allowed]
	levels     atomic.Pointer[levels]
	names      atomic.Pointer[ModelNames]
	waiting    *waiting
	hold       *hold
	adapters   *adapters
	shadow     atomic.Pointer[shadow]
	draining   atomic.Bool
	reporting  sync.Map // fleet.WorkerID → struct{}: the workers that have reported cached tokens
	exchanges  sync.Pool
	evidence   evidence
	scopeNames scopeNames
	opinions   *budget // budget for second opinions on refusals
	rescues    *budget // budget for moving requests away from workers that seem to be frozen
	responses  madeResponses
	turns      turns         // what decode workers keep for the next turns of conversations
	changed    atomic.Int64  // when the log named the changing line last, in Unix nanoseconds
	rosters    sync.Map      // fleet.WorkerID → *roster
	ordered    sync.Map      // fleet.WorkerID → the path of the order /sleep or /wake_up that is under way there
	settle     time.Duration // settleTime, shorter in tests

	shadowLookups atomic.Int32   // lookups under way for shadow policies, at most maxShadowLookups
	lookingUp     sync.WaitGroup // the goroutines of these lookups
	aborts        aborts
}

// New returns a Gateway. It starts nothing. Requests may not choose their policy until AllowPolicies lists policies.
// They have no service levels until UseServiceLevels is called.
func New(cfg Config, parts Parts) *Gateway {
	if parts.Index != nil && parts.IndexTimeout <= 0 {
		panic("bug: a remote index without a limit for its answers")
	}
	g := &Gateway{Parts: parts, cfg: cfg, identity: newIdentity(&cfg), opinions: newBudget(), rescues: newBudget(), settle: settleTime}
	g.SampleShadow(parts.ShadowSample)
	g.AllowPolicies(nil)
	g.UseServiceLevels(ServiceLevels{})
	g.UseModelNames(ModelNames{})
	g.waiting = newWaiting(g, parts.Queue, parts.MaxRequests)
	g.hold = newHold(g, cfg.Hold)
	g.adapters = newAdapters(g)
	if parts.Tokens != nil {
		parts.Tokens.Loads = g.loads
	}
	g.exchanges.New = func() any { return newExchange(g) }
	return g
}

// Drain makes /readiness answer 503, and refuses the requests that wait in the queue or are held. All other requests
// are still served. Serve calls Drain when its context ends.
func (g *Gateway) Drain() {
	g.draining.Store(true)
	g.waiting.flush()
	g.hold.flush()
}

// Serve answers requests on l until ctx ends. Then it drains. First readiness turns to 503. After DrainDelay, Serve
// accepts no more connections. Requests in flight may end within DrainTimeout. After that, Serve cuts them: a stream
// gets an error event. Serve returns when all requests have ended. Its error is the reason why listening failed, or
// says that requests had to be cut.
func (g *Gateway) Serve(ctx context.Context, l net.Listener) error {
	base, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	server := &http.Server{
		Handler:           g,
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: g.cfg.ReadHeaderTimeout,
		IdleTimeout:       g.cfg.IdleTimeout,
		MaxHeaderBytes:    g.cfg.MaxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(g.Log.Handler(), slog.LevelDebug),
	}
	server.Protocols = new(http.Protocols)
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(g.cfg.HTTP2)
	server.Protocols.SetHTTP2(true) // with TLS, where the client and the server agree on it [RFC 7301]
	var requests sync.WaitGroup     // Close does not wait for handlers, so Serve waits for them
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		defer requests.Done()
		g.ServeHTTP(w, r)
	})
	turns, stop := context.WithCancel(ctx)
	var giving sync.WaitGroup
	giving.Go(func() { g.waiting.run(turns) })
	giving.Go(func() { g.hold.run(turns) })
	giving.Go(func() { g.rescue(turns) })
	defer giving.Wait()
	defer stop()
	l = LimitConnections(l, server, g.Connections, g.refuseConnection)
	failed := make(chan error, 1)
	go func() { failed <- g.Certificates.Serve(server, l) }() // this goroutine ends when the server is shut down or closed, below
	select {
	case err := <-failed:
		return fmt.Errorf("serve on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	g.Drain()
	g.Log.Info("draining", "delay", g.cfg.DrainDelay, "timeout", g.cfg.DrainTimeout)
	pause(g.cfg.DrainDelay)
	limit, cancel := context.WithTimeout(base, g.cfg.DrainTimeout)
	defer cancel()
	err := server.Shutdown(limit)
	<-failed
	if err != nil {
		cut(api.Cut()) // ends the contexts of the requests in flight: each request leaves its worker and answers its client
		last, stop := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
		_ = server.Shutdown(last) // waits for the error events; Close ends the rest
		stop()
		_ = server.Close()
		err = fmt.Errorf("drain: requests were cut after %v: %w", g.cfg.DrainTimeout, err)
	}
	requests.Wait()
	g.adapters.close()
	g.lookingUp.Wait()
	g.aborts.running.Wait()
	return err
}

// lastWords is how long a request that is cut may take to send its error event. The event fits into the socket's
// buffer, unless the client stopped reading.
const lastWords = time.Second

func pause(d time.Duration) {
	if d > 0 {
		time.Sleep(d)
	}
}

// lastRead is how long a client of HTTP/2 may take to read the end of its answer. It allows any number of bytes, also
// none, so that even the shortest answer waits in the router until the client reads.
const lastRead = 2 * time.Minute

// limitRead gives a client of HTTP/2 lastRead more than after to read what is written now or later.
func limitRead(w http.ResponseWriter, r *http.Request, after time.Duration) {
	if r.ProtoMajor == 2 {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(after + lastRead)) // not every writer has deadlines
	}
}

// ServeHTTP answers one request. A panic ends only the request in which it happened.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		cause := recover()
		if cause == nil {
			return
		}
		if err, ok := cause.(error); ok && errors.Is(err, http.ErrAbortHandler) {
			panic(http.ErrAbortHandler) // on purpose: the client must see that its answer was cut
		}
		g.Telemetry.Panicked()
		g.Log.Error("request panicked", "path", api.Bounded(r.URL.Path), "cause", cause, "stack", string(debug.Stack()))
		panic(http.ErrAbortHandler)
	}()
	defer limitRead(w, r, 0) // net/http writes the last bytes after ServeHTTP
	if n := g.note(w, r); n != nil {
		defer n.end()
		w = n
	}
	if r.ProtoMajor == 1 && len(r.TransferEncoding) > 0 {
		// A request may have both chunks and a Content-Length. net/http reads the chunks and drops the length silently.
		// A proxy in front may use the length, and take the bytes after the chunks for a part of this body. Such a
		// connection must end [RFC 9112 §6.1]. The handler cannot see the dropped length, so it ends the connection
		// after every body in chunks.
		w.Header().Set("Connection", "close")
	}
	if fieldsOf(r.Header) > g.cfg.MaxHeaders {
		g.refuse(w, dialectAt(r.URL.Path), "headers", tooManyHeaders(g.cfg.MaxHeaders))
		return
	}
	g.answer(w, r)
}

// refuse answers with err before any worker was asked. reason is the label in the metric of refused requests.
func (g *Gateway) refuse(w http.ResponseWriter, d api.Dialect, reason string, err error) {
	g.Telemetry.Refused(reason)
	if n, ok := w.(*note); ok {
		n.line.Refused = api.AsError(err).Code
	}
	api.WriteError(w, d, err)
}

// fieldsOf counts header fields. A name that occurs several times counts each time.
func fieldsOf(h http.Header) int {
	n := 0
	for _, values := range h {
		n += len(values)
	}
	return n
}

func tooManyHeaders(limit int) *api.Error {
	return &api.Error{Status: http.StatusRequestHeaderFieldsTooLarge, Type: "invalid_request_error", Code: "headers_too_large",
		Message: fmt.Sprintf("the request has more than %d header fields", limit)}
}
