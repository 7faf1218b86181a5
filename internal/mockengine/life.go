package mockengine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/internal/network"
)

// life is the mock engine from a start to its next end: the sockets, ranks and requests. A restart begins a new life.
type life struct {
	server   *Server
	cfg      *Config
	ctx      context.Context // ends when the life ends
	cancel   context.CancelFunc
	ranks    []*rank
	http     *http.Server
	failed   chan error
	work     sync.WaitGroup // counts ranks, publishers, the loop that accepts HTTP connections, and orders of setFault
	gate     gate           // counts HTTP handlers
	dead     chan struct{}  // closed when the EngineCore is killed, while the HTTP server still answers
	deadOnce sync.Once
	began    time.Time
	next     atomic.Uint64 // counter for request ids
	turns    atomic.Uint64 // counter for the turns of ranks with equal load
	requests atomic.Uint64
	active   atomic.Int64 // number of generation requests under way
	salt     uint64       // makes the request ids of different lives differ

	responses responses
	adapters  adapters
	abortable abortable
	asleep    atomic.Bool

	exchange *exchange // nil: the engine moves no KV

	restarted bool // the Server had an earlier life
}

// begin opens all sockets and starts the goroutines. After a restart it uses the addresses of the earlier life.
func (s *Server) begin(parent context.Context) (*life, error) {
	ctx, cancel := context.WithCancel(parent)
	l := &life{server: s, cfg: &s.cfg, ctx: ctx, cancel: cancel, failed: make(chan error, 1), dead: make(chan struct{}),
		began: time.Now()}
	s.mu.Lock()
	addr, sources, side := s.addr, s.sources, s.side
	l.salt = s.cfg.Seed<<8 + uint64(s.starts)
	l.restarted = s.starts > 0
	s.mu.Unlock()
	if addr == "" {
		addr = s.cfg.Listen
	}
	for _, name := range s.cfg.LoRA {
		l.adapters.add(name, adapterPath(name))
	}
	listener, err := l.listen(addr)
	if err != nil {
		cancel()
		return nil, err
	}
	if l.cfg.Transfer.Connector != "" {
		if err := l.openExchange(side); err != nil {
			listener.Close()
			l.stop()
			return nil, err
		}
		side = l.exchange.listeners[0].Addr().String()
	}
	if sources, err = l.startRanks(sources); err != nil {
		listener.Close()
		l.stop()
		return nil, err
	}
	l.http = &http.Server{
		Handler:           l.handler(),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 30 * time.Second,
		MaxHeaderBytes:    1 << 20,
		// By default net/http logs the errors of single connections, and faults cause such errors on purpose.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	s.mu.Lock() // locked before the first answer is sent, so that a client with an answer finds this life in s.life
	s.addr, s.sources, s.side, s.life = listener.Addr().String(), sources, side, l
	s.starts++
	s.mu.Unlock()
	if l.exchange != nil {
		l.exchange.serve()
	}
	l.work.Add(1)
	go func() { // ends when stop calls http.Server.Close
		defer l.work.Done()
		if err := l.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			l.fail(fmt.Errorf("serve HTTP: %w", err))
		}
	}()
	return l, nil
}

// listen opens the HTTP address.
func (l *life) listen(addr string) (listener net.Listener, err error) {
	err = patiently(l.ctx, l.restarted, func() error {
		listener, err = network.Of(l.cfg.Network).Listen("tcp", addr)
		return err
	})
	return listener, err
}

// patiently calls open to open a socket. If patient is true, it tries again for one second, because after a restart the
// kernel may still hold the address.
func patiently(ctx context.Context, patient bool, open func() error) error {
	for try := 0; ; try++ {
		err := open()
		if err == nil || !patient || try == 20 {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

func (l *life) fail(err error) {
	select {
	case l.failed <- err:
	default:
	}
}

// end ends a life, and waits until all goroutines of the life have ended.
func (s *Server) end(l *life) {
	s.mu.Lock()
	s.life = nil
	s.mu.Unlock()
	l.stop()
}

func (l *life) stop() {
	l.cancel()
	if l.http != nil {
		l.http.Close()
	}
	if l.exchange != nil {
		l.exchange.close()
	}
	l.gate.close()
	l.work.Wait()
}

func (l *life) killEngine() { l.deadOnce.Do(func() { close(l.dead) }) }

func (l *life) isDead() bool {
	select {
	case <-l.dead:
		return true
	default:
		return false
	}
}

func (l *life) reset() bool {
	ok := true
	for _, r := range l.ranks {
		ok = r.reset() && ok
	}
	return ok
}

func (l *life) applyEventFaults(f Faults) {
	for _, r := range l.ranks {
		if r.publisher != nil {
			r.publisher.SetFaults(PublisherFaults{
				Drop: f.DropEvents, ReplayLoss: f.LoseReplay, ReplayEndLoss: f.LoseReplay, ReplayLimit: f.ReplayLimit,
			})
		}
	}
}

// gate counts running handlers. close lets no more handlers in and waits until the last handler ends.
type gate struct {
	mu     sync.Mutex
	inside int
	shut   bool
	empty  chan struct{}
}

func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut {
		return false
	}
	g.inside++
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside--; g.inside == 0 && g.empty != nil {
		close(g.empty)
	}
}

func (g *gate) close() {
	g.mu.Lock()
	g.shut = true
	if g.inside > 0 {
		g.empty = make(chan struct{})
	}
	empty := g.empty
	g.mu.Unlock()
	if empty != nil {
		<-empty
	}
}
