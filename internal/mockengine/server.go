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

// Server is one mock engine. Its methods may be called from any goroutine, before, during and after Run. Run itself may
// be called once.
type Server struct {
	cfg    Config
	wire   encoder
	faults *faultState
	ready  chan struct{}
	once   sync.Once // makes Run close ready only once
	orders chan order
	ended  chan struct{} // closed when Run returns

	mu      sync.Mutex // guards the fields below
	begun   bool
	addr    string        // HTTP address, which restarts do not change; "" before the first start
	sources []EventSource // addresses of events, which restarts do not change
	side    string        // address of the side channel, which restarts do not change; "": none, or before the first start
	life    *life         // nil while the engine is dead
	starts  int
}

// EventSource has the addresses of one rank's events.
type EventSource struct {
	Rank                    int
	Endpoint, Replay, Topic string // an empty Replay means that no replay is served
}

// Stats counts the work of the mock engine from its last start on.
type Stats struct {
	Ranks    []RankStats
	Requests uint64 // number of accepted generation requests
	Starts   int    // number of starts of the engine since New, the first one included
}

// RankStats has the engine model's gauges and totals for one rank, and the number of its event messages.
type RankStats struct {
	engine.Stats
	Published uint64 // number of event messages, including messages that a fault drops; also the next sequence number
}

// order is a message to Run: end the current life, and begin a new one if restart is set.
type order struct {
	restart bool
	down    time.Duration // if restart is set: time from the end of the old life to the beginning of the new life
	done    chan struct{} // Run closes it when the order is carried out
}

// errNotRunning says that an order cannot be carried out, because Run is not running.
var errNotRunning = errors.New("mock engine is not running")

// New returns a mock engine. It opens nothing and starts nothing; see Run.
func New(cfg Config) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("make mock engine: %w", err)
	}
	wire, err := newEncoder(cfg.Wire)
	if err != nil {
		return nil, fmt.Errorf("make mock engine: %w", err)
	}
	wire.skew = cfg.ClockSkew
	if _, err := engine.New(engineConfig(&cfg)); err != nil {
		return nil, err // the error's text already begins with "make engine"
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

// Run opens the addresses and serves until ctx ends, and then returns nil. It returns an error if an address cannot be
// opened or a socket fails. When Run returns, all goroutines that it started have ended. Run may be called once.
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

// stayDown carries out o. While the engine is dead, it also carries out further orders. It returns true if the engine
// must start again, and false if ctx has ended.
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

// Ready returns a channel that Run closes when all addresses are open for the first time.
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

// SideChannel returns the address at which other engines read blocks, host:port. A vLLM with several ranks has
// one address for each, at consecutive ports from this one on. The address is "" before Ready, and if the engine
// moves no KV.
func (s *Server) SideChannel() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.side
}

// Sources returns the event addresses of each rank. The result is empty before Ready, and if the engine publishes no
// events.
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

// SetFaults replaces all faults. A restart does not change the faults.
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

// Die closes every socket without warning, as if the process were killed. Die returns when all sockets are closed.
// Restart starts a dead engine again.
func (s *Server) Die() error { return s.order(order{}) }

// Restart ends the engine without warning. After the time down it starts the engine again, at the same addresses, with
// an empty cache and event sequence 0. Restart returns at the end of the time down. The engine may need longer until it
// answers: ask /health.
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

// KillEngine kills vLLM's EngineCore, but the API server still runs. Streams under way get an error event and [DONE],
// and their responses end normally. Until a restart, /health answers 503, and generation requests are answered with
// 500.
func (s *Server) KillEngine() {
	if l := s.current(); l != nil {
		l.killEngine()
	}
}

// DropNextEvents makes subscribers miss the next n event messages of a rank. A replay contains these messages.
func (s *Server) DropNextEvents(rank, n int) {
	if l := s.current(); l != nil && rank >= 0 && rank < len(l.ranks) && l.ranks[rank].publisher != nil {
		l.ranks[rank].publisher.DropNext(n)
	}
}

// ResetPrefixCache empties the accelerator's cache of every rank. It returns false if the engine is dead or a rank was
// busy; the caches of busy ranks are not emptied.
func (s *Server) ResetPrefixCache() bool {
	l := s.current()
	return l != nil && l.reset()
}

// CachedHashes returns the distinct engine hashes of the blocks that a rank now has on a tier, in no particular order.
// The result is nil while the engine is dead.
func (s *Server) CachedHashes(rank int, t block.Tier) []uint64 {
	l := s.current()
	if l == nil || rank < 0 || rank >= len(l.ranks) {
		return nil
	}
	return l.ranks[rank].cachedHashes(t)
}

// Stats returns the counters of the time since the last start. While the engine is dead, the result has only Starts.
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
