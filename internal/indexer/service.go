package indexer

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/kvindex"
)

// Parts are the components from which a service answers. Metrics, Tokens, Certificates and Scoped may be nil, and so
// may Listed together with ListedAll.
type Parts struct {
	Router    *warmpath.Router
	Fleet     *fleet.Fleet
	Telemetry *telemetry.Telemetry
	Log       *slog.Logger
	// Changes are the changes of the router's indexes: the router's Options.IndexChanged is its Made.
	Changes *Changes
	// Metrics answers GET /metrics.
	Metrics http.Handler
	// More answers further paths, by GET and with the key: the snapshot of a warm start.
	More map[string]http.Handler
	// Tokens finds the token ids of texts and chats; nil: only token ids and keys are answered.
	Tokens *tokens.Source
	// Certificates are those of both listeners; nil: clients speak without TLS.
	Certificates *network.Certificates
	// Scoped is told that requests with a cache salt or an extra key will be sent to a rank of a worker.
	Scoped func(url string, rank int, salt, extra string)
	// Listed returns which list of this process has a worker, "" for none, and ListedAll returns that of all workers.
	Listed    func(worker string) string
	ListedAll func() map[string]string
	// Routes says that this process sends requests to the workers of Fleet. Then only its own lists may add workers.
	Routes bool
	// Connections bounds the connections of the listeners.
	Connections Connections
}

// Service answers which worker has how much of a prompt. It is safe for concurrent use; Run may be called once.
type Service struct {
	Parts
	config    Config
	key       [sha256.Size]byte // the digest of the key: comparing digests takes the same time for each wrong key
	registry  *registry
	routes    http.Handler
	questions sync.Pool     // *question
	bodies    budget        // of HTTP
	calls     budget        // of gRPC, with one answer
	streams   budget        // of gRPC
	callLimit time.Duration // how long a call with one answer over gRPC may take
	dumping   chan struct{}
	grpcPort  atomic.Int32 // 0 without gRPC
	process   uint64       // a random number, by which clients know this process
	scoping   scopes
	listing   listingCache
	scored    func(status int, took time.Duration) // counts calls of Score over gRPC
}

// New returns a service. cfg has passed Validate, and cfg.Key has been read. It starts nothing.
func New(cfg Config, parts Parts) *Service {
	if parts.Listed == nil {
		parts.Listed, parts.ListedAll = func(string) string { return "" }, func() map[string]string { return nil }
	}
	s := &Service{Parts: parts, config: cfg, key: sha256.Sum256([]byte(cfg.Key)), dumping: make(chan struct{}, 1), callLimit: callTimeout, process: rand.Uint64()}
	s.bodies.most, s.bodies.spare, s.calls.most, s.streams.most = maxBodies, keptForShort, maxUnary, maxStreams*callBytes
	if n := parts.Connections.Readers; n > 0 {
		s.Changes.most = min(n, maxReaders)
	}
	s.registry = &registry{fleet: parts.Fleet, log: parts.Log, listed: parts.Listed, listedAll: parts.ListedAll, entries: map[string]*entry{}, endpoints: endpoints{registered: map[string]string{}}}
	s.questions.New = func() any { return &question{wanted: map[string]struct{}{}} }
	s.scored = parts.Telemetry.IndexEndpoint("grpc_Score")
	s.routes = s.handler()
	return s
}

// Serve answers HTTP on front and gRPC on rpc, which may be nil, until ctx ends. It then waits at most 2 s for running
// requests. Its error says why a listener failed.
func (s *Service) Serve(ctx context.Context, front, rpc net.Listener) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	defer all.Wait()
	run := func(what string, serve func(context.Context) error) {
		all.Go(func() {
			if err := serve(ctx); err != nil {
				stop(fmt.Errorf("serve the index over %s: %w", what, err))
			}
		})
	}
	run("HTTP", func(ctx context.Context) error { return s.serveHTTP(ctx, front) })
	if rpc != nil {
		if at, is := rpc.Addr().(*net.TCPAddr); is {
			s.grpcPort.Store(int32(at.Port))
		}
		run("gRPC", func(ctx context.Context) error { return s.serveRPC(ctx, rpc) })
	}
	run("leases", s.expire)
	<-ctx.Done()
	all.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// endLimit is how long running requests may take after the end of the service. Streams end at once.
const endLimit = 2 * time.Second

// idleLimit is how long a connection may have no request.
const idleLimit = 5 * time.Minute

// maxHeader bounds the header of a request in bytes.
const maxHeader = 64 << 10

func (s *Service) serveHTTP(ctx context.Context, l net.Listener) error {
	requests, end := context.WithCancelCause(context.WithoutCancel(ctx))
	defer end(nil)
	server := &http.Server{
		Protocols:         new(http.Protocols),
		Handler:           s.routes,
		BaseContext:       func(net.Listener) context.Context { return requests },
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       time.Minute,
		IdleTimeout:       idleLimit,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 1000, MaxReceiveBufferPerConnection: connWindow, MaxReceiveBufferPerStream: streamWindow},
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)            // with TLS
	server.Protocols.SetUnencryptedHTTP2(true) // without TLS, for clients that know it beforehand (RFC 9113 §3.3)
	l = s.Connections.boundHTTP(l, server, warnFull(s.Log, "HTTP"))
	failed := make(chan error, 1)
	go func() { failed <- s.Certificates.Serve(server, l) }() // ends when the server is shut down or closed, below
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	end(errStopping) // ends streams, which say why
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
	defer cancel()
	if err := server.Shutdown(limit); err != nil {
		_ = server.Close()
	}
	<-failed
	return nil
}

func (s *Service) serveRPC(ctx context.Context, l net.Listener) error {
	answers := newRPC(ctx, s)
	server := grpc.NewServer(answers.options()...)
	defer answers.running.Wait()
	server.RegisterService(&serviceDesc, answers)
	failed := make(chan error, 1)
	l = s.Connections.boundGRPC(l, warnFull(s.Log, "gRPC"))
	go func() { failed <- server.Serve(l) }() // ends when the server is stopped, below
	select {
	case err := <-failed:
		server.Stop() // ends the streams
		return err
	case <-ctx.Done():
	}
	limit := time.AfterFunc(endLimit, server.Stop)
	defer limit.Stop()
	server.GracefulStop()
	<-failed
	return nil
}

// expire removes registered workers whose lease has ended, until ctx ends.
func (s *Service) expire(ctx context.Context) error {
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticks.C:
			s.registry.expire(now)
			s.Telemetry.IndexRegistered(s.registry.len())
		}
	}
}

// allowed reports whether authorization, the value of that header, has the key.
func (s *Service) allowed(authorization string) bool {
	if s.config.Key == "" {
		return true
	}
	given, ok := strings.CutPrefix(authorization, "Bearer ")
	digest := sha256.Sum256([]byte(given))
	return subtle.ConstantTimeCompare(digest[:], s.key[:]) == 1 && ok
}

var errKey = errors.New("the key is missing or wrong: send the header Authorization: Bearer KEY, where KEY is WARMPATH_INDEX_KEY, index_service.key_file or index_service.key of the service")

// errCertificate means that a client sent no certificate, which index_service.tls.client_ca_file requires.
var errCertificate = errors.New("the client certificate is missing: the service requires one (index_service.tls.client_ca_file); a router has it in index.tls")

// register adds a worker.
func (s *Service) register(r *registration) (listed bool, err error) {
	if s.Routes && s.Listed(strings.TrimRight(r.worker, "/")) == "" {
		return false, errors.New("this process also routes requests, so it must know more of a worker than its events: add the worker to its configuration, or by POST /admin/workers at its admin listener")
	}
	return s.registry.register(r, time.Now())
}

// score fills in q.answer.
func (s *Service) score(ctx context.Context, q *question) error {
	if err := q.check(); err != nil {
		return err
	}
	snap := s.Fleet.Snapshot()
	pool, err := poolOf(snap, q.model, q.group)
	if err != nil {
		return err
	}
	a := &q.answer
	a.model, a.group = unpooled(pool.Model)
	if err := s.find(ctx, q, pool); err != nil {
		return err
	}
	s.scope(snap, pool, q.salt, q.extra) // only now: a chat may have them
	if q.hasKeys {
		algorithm, err := block.ParseAlgorithm(cmp.Or(q.algorithm, block.XXH3.String()))
		if err != nil {
			return fmt.Errorf("algorithm: %w", err)
		}
		l := &q.lookup
		l.Model, l.BlockSize, l.Algorithm, l.Keys = pool.Model, q.blockSize, algorithm, q.keys
		if err := s.Router.Match(l); err != nil {
			return err
		}
		a.blockSize = q.blockSize
		s.take(q, snap, pool, l.Matches)
		return nil
	}
	req := &q.request
	req.Model, req.Salt, req.Extra, req.Now = pool.Name, q.salt, q.extra, time.Now().UnixNano()
	if req.Tokens == nil {
		req.Tokens = q.tokens
	}
	adapter := q.lora
	if of := bare(pool.LoRA); adapter == "" && of != pool.LoRA { // events know the adapter without its group
		req.Model, adapter = pool.Model, of
	}
	p := s.Router.Prepare(req)
	defer p.Recycle()
	size, matches, err := p.Matches(adapter)
	if err != nil {
		return err
	}
	a.blockSize, a.tokens = size, len(req.Tokens)
	s.take(q, snap, pool, matches)
	return nil
}

// take sets the scores of q's answer from matches, which ascend by holder.
func (s *Service) take(q *question, snap *fleet.Snapshot, pool *fleet.Pool, matches []kvindex.Match) {
	a, gone := &q.answer, s.registry.isGone
	whole := !q.hasKeys // a router that sends keys rounds by itself
	if len(q.workers) == 0 {
		for i := range matches {
			if w := snap.Worker(matches[i].Holder); w != nil && !gone(w.URL, snap.Rank(matches[i].Holder)) {
				a.add(w, snap, &matches[i], whole)
			}
		}
		return
	}
	for _, name := range q.workers {
		q.wanted[strings.TrimRight(name, "/")] = struct{}{}
	}
	for _, w := range pool.Workers {
		if _, wanted := q.wanted[bare(w.URL)]; !wanted {
			continue
		}
		delete(q.wanted, bare(w.URL))
		for _, h := range w.Holders {
			if gone(w.URL, snap.Rank(h)) {
				continue
			}
			m := kvindex.Match{Holder: h}
			if i, has := slices.BinarySearchFunc(matches, h, func(m kvindex.Match, h fleet.Holder) int { return cmp.Compare(m.Holder, h) }); has {
				m = matches[i]
			}
			a.add(w, snap, &m, whole)
		}
	}
	for _, name := range q.workers {
		if _, left := q.wanted[strings.TrimRight(name, "/")]; left {
			delete(q.wanted, strings.TrimRight(name, "/"))
			a.unknown = append(a.unknown, name)
		}
	}
}

// add adds the score of one rank. whole says that only whole engine blocks count.
func (a *answer) add(w *fleet.Worker, snap *fleet.Snapshot, m *kvindex.Match, whole bool) {
	trust, _ := snap.Trust(m.Holder)
	out := score{worker: bare(w.URL), rank: snap.Rank(m.Holder), trust: trust}
	if trust != fleet.TrustNone {
		tokens := func(blocks uint32) int {
			n := int(blocks) * a.blockSize
			if whole && w.Facts.BlockSize > 0 {
				n -= n % w.Facts.BlockSize
			}
			return n
		}
		out.matched, out.full = tokens(m.Blocks), tokens(m.Full)
		left := out.matched
		for t := range m.Tier {
			out.tier[t] = min(int(m.Tier[t])*a.blockSize, left)
			left -= out.tier[t]
		}
	}
	a.scores = append(a.scores, out)
}

// scopes remembers for which models Parts.Scoped was told of cache salts, so that the next question costs one look.
type scopes struct {
	mu   sync.Mutex
	told map[string]uint64 // by model: the fleet's generation at that time; bounded by the models of the fleet
}

// scope tells Parts.Scoped that requests with such keys will be sent to the workers of a pool. It does not know to
// which of them. A value of extra_key is told each time, because the feed remembers only the last ones.
func (s *Service) scope(snap *fleet.Snapshot, pool *fleet.Pool, salt, extra string) {
	if s.Scoped == nil || salt == "" && extra == "" {
		return
	}
	s.scoping.mu.Lock()
	known := s.scoping.told[pool.Name] == snap.Generation()
	s.scoping.mu.Unlock()
	if known && extra == "" {
		return
	}
	for _, w := range pool.Workers {
		for _, h := range w.Holders {
			s.Scoped(w.URL, snap.Rank(h), salt, extra)
		}
	}
	if salt == "" {
		return
	}
	s.scoping.mu.Lock()
	defer s.scoping.mu.Unlock()
	if len(s.scoping.told) > len(snap.Models()) || s.scoping.told == nil {
		s.scoping.told = map[string]uint64{}
	}
	s.scoping.told[pool.Name] = snap.Generation()
}

// listingCache keeps the encoded list of workers for a moment: each router asks for it once a second, and the list of a
// large fleet has megabytes.
type listingCache struct {
	mu    sync.Mutex // guards the fields below; held while the list is encoded
	at    time.Time
	bytes []byte
}

// listingAge is how old a list may be.
const listingAge = 100 * time.Millisecond

// encodedList returns all workers as a message. The caller must not change it.
func (s *Service) encodedList() []byte {
	c := &s.listing
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bytes == nil || time.Since(c.at) > listingAge {
		c.at, c.bytes = time.Now(), s.list().appendTo(make([]byte, 0, len(c.bytes)))
	}
	return c.bytes
}

// list returns all workers.
func (s *Service) list() *listing {
	snap, listed := s.Fleet.Snapshot(), s.ListedAll()
	out := &listing{grpcPort: int(s.grpcPort.Load()), process: s.process, workers: make([]listedWorker, 0, len(snap.Workers()))}
	for _, w := range snap.Workers() {
		base := w.Facts.BaseModel()
		l := listedWorker{worker: bare(w.URL), engineBlockSize: w.Facts.BlockSize, source: cmp.Or(listed[w.URL], "registered")}
		l.model, l.group = unpooled(base)
		if a, size, ok := s.Router.Keying(base); ok {
			l.algorithm, l.blockSize = a.String(), size
		}
		for _, h := range w.Holders {
			if s.registry.isGone(w.URL, snap.Rank(h)) {
				continue
			}
			trust, why := snap.Trust(h)
			if !s.Routes {
				why = unlearned(why)
			}
			r := listedRank{rank: snap.Rank(h), trust: trust, why: why, ahead: s.Router.Ahead(h)}
			for _, e := range w.Facts.Events {
				if e.Rank == r.rank {
					r.endpoint = e.Endpoint
				}
			}
			l.ranks = append(l.ranks, r)
		}
		out.workers = append(out.workers, l)
	}
	return out
}
