package mockengine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/engine"
)

// Server is one mock engine. Its methods may be called from any goroutine, before, during and after Run.
type Server struct {
	cfg    Config
	wire   encoder
	faults *faultState
	ready  chan struct{}
	once   sync.Once // closes ready
	orders chan order
	ended  chan struct{} // closed when Run returns

	mu      sync.Mutex // guards the fields below
	begun   bool
	addr    string        // HTTP address, kept over restarts; "" before the first start
	sources []EventSource // event addresses, kept in the same way
	life    *life         // nil while dead
	starts  int
}

// EventSource holds the addresses of one rank's events.
type EventSource struct {
	Rank                    int
	Endpoint, Replay, Topic string // Replay "": none
}

// Stats counts the work of the mock engine since its last start.
type Stats struct {
	Ranks    []RankStats
	Requests uint64 // accepted generation requests
	Starts   int    // number of starts
}

// RankStats holds the model's gauges and totals of one rank, and the number of its event messages.
type RankStats struct {
	engine.Stats
	Published uint64 // event messages, dropped ones included: the next sequence number
}

// order asks Run to end the present life.
type order struct {
	restart bool
	down    time.Duration // of a restart
	done    chan struct{} // closed after the order is carried out
}

// errNotRunning is returned for an order while Run is not running.
var errNotRunning = errors.New("mock engine is not running")

// New returns a mock engine. It starts nothing; see Run.
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("make mock engine: %w", err)
	}
	wire, err := newEncoder(cfg.Wire)
	if err != nil {
		return nil, fmt.Errorf("make mock engine: %w", err)
	}
	if _, err := engine.New(engineConfig(&cfg)); err != nil {
		return nil, fmt.Errorf("make mock engine: %w", err)
	}
	return &Server{
		cfg:    cfg,
		wire:   wire,
		faults: newFaultState(cfg.Faults, cfg.Seed),
		ready:  make(chan struct{}),
		orders: make(chan order),
		ended:  make(chan struct{}),
	}, nil
}

// Run opens the addresses and serves until ctx ends, which is no error. When it returns, everything that it started has
// ended. It may be called once.
func (s *Server) Run(ctx context.Context) error {
	s.mu.Lock()
	if s.begun {
		s.mu.Unlock()
		return errors.New("run mock engine: was run before")
	}
	s.begun = true
	s.mu.Unlock()
	defer close(s.ended)
	for {
		l, err := s.begin(ctx)
		if ctx.Err() != nil && l == nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("run mock engine: %w", err)
		}
		s.once.Do(func() { close(s.ready) })
		var o order
		select {
		case <-ctx.Done():
			s.end(l)
			return nil
		case o = <-s.orders:
			s.end(l)
		case err := <-l.failed:
			s.end(l)
			return fmt.Errorf("run mock engine: %w", err)
		}
		if !s.stayDown(ctx, o) {
			return nil
		}
	}
}

// stayDown carries out o, and more orders while the engine is dead. It reports whether to start again.
func (s *Server) stayDown(ctx context.Context, o order) bool {
	for !o.restart {
		close(o.done)
		select {
		case <-ctx.Done():
			return false
		case o = <-s.orders:
		}
	}
	defer close(o.done)
	if o.down <= 0 {
		return true
	}
	timer := time.NewTimer(o.down)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Ready returns a channel that is closed when the addresses are open for the first time.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Addr returns the HTTP address, host:port; "" before Ready.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.addr
}

// URL returns the base URL of the HTTP API, http://host:port; "" before Ready.
func (s *Server) URL() string {
	if addr := s.Addr(); addr != "" {
		return "http://" + addr
	}
	return ""
}

// Sources returns the event addresses of each rank; nil before Ready and without events.
func (s *Server) Sources() []EventSource {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]EventSource(nil), s.sources...)
}

// Faults returns the current faults.
func (s *Server) Faults() Faults {
	f, _ := s.faults.get()
	return f
}

// SetFaults replaces all faults. They hold over restarts.
func (s *Server) SetFaults(f Faults) error {
	if err := f.validate(); err != nil {
		return fmt.Errorf("set faults: %w", err)
	}
	s.faults.set(f)
	if l := s.current(); l != nil {
		l.applyEventFaults(f)
	}
	return nil
}

// Die closes every socket at once, as when a process is killed, and returns after that. Restart starts the engine
// again.
func (s *Server) Die() error { return s.order(order{}) }

// Restart ends the engine at once and starts it again after down, at the same addresses, with an empty cache and event
// sequence 0. It returns at the end of down; ask /health to learn when the engine answers.
func (s *Server) Restart(down time.Duration) error { return s.order(order{restart: true, down: down}) }

func (s *Server) order(o order) error {
	o.done = make(chan struct{})
	s.mu.Lock()
	begun := s.begun
	s.mu.Unlock()
	if !begun {
		return errNotRunning
	}
	select {
	case s.orders <- o:
	case <-s.ended:
		return errNotRunning
	}
	select {
	case <-o.done:
		return nil
	case <-s.ended:
		return errNotRunning
	}
}

// KillEngine kills vLLM's EngineCore while the API server lives on: running streams get an error event, then [DONE] and
// a clean end. /health answers 503 and requests get 500, until a restart.
func (s *Server) KillEngine() {
	if l := s.current(); l != nil {
		l.killEngine()
	}
}

// DropNextEvents drops the next n event messages of a rank for subscribers; a replay has them.
func (s *Server) DropNextEvents(rank, n int) {
	if l := s.current(); l != nil && rank >= 0 && rank < len(l.ranks) && l.ranks[rank].publisher != nil {
		l.ranks[rank].publisher.DropNext(n)
	}
}

// ResetPrefixCache empties the accelerator's cache of every rank. It returns false if a rank was busy.
func (s *Server) ResetPrefixCache() bool {
	l := s.current()
	return l != nil && l.reset()
}

// CachedHashes returns the distinct engine hashes that a rank has on a tier now, in no order. It is nil while the
// engine is dead.
func (s *Server) CachedHashes(rank int, t block.Tier) []uint64 {
	l := s.current()
	if l == nil || rank < 0 || rank >= len(l.ranks) {
		return nil
	}
	return l.ranks[rank].cachedHashes(t)
}

// Stats returns the counters of the present life. It has no ranks while the engine is dead.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	st := Stats{Starts: s.starts}
	s.mu.Unlock()
	if l := s.current(); l != nil {
		for _, r := range l.ranks {
			rank := RankStats{Stats: r.stats()}
			if r.publisher != nil {
				rank.Published = r.publisher.Stats().Published
			}
			st.Ranks = append(st.Ranks, rank)
		}
		st.Requests = l.requests.Load()
	}
	return st
}

func (s *Server) current() *life {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.life
}
