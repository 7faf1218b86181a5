package replica

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/tenant"
)

// Parts are what a Sync needs in addition to its configuration.
type Parts struct {
	NewPeer func() *warmpath.Peer // required: makes the place for the requests of one peer
	Fleet   *fleet.Fleet          // required: the router's
	// SetReplicas is told this router's place among the live routers, whenever these change: see
	// [warmpath.Router.SetReplicas]. nil: nobody is told. It is called with a lock held.
	SetReplicas func(own, count int)
	Tenants     *tenant.Registry // whose limits hold for all routers together; nil: limits are not shared
	Log         *slog.Logger     // required
	Name        string           // the router's name if the configuration has none
	Version     string           // the router's version
	NoIndex     bool             // the router has no index of its own, so its peers cannot read it
}

// Sync tells the other routers of this router's requests, and takes theirs. Its methods may be called from any
// goroutine. Run may be called once.
type Sync struct {
	cfg     Config
	parts   Parts
	id      uint64
	started uint64
	began   time.Time // for the clock of echoes: a time with a monotonic reading
	out     *outbox
	link    link
	admin   atomic.Pointer[adminListener]
	machine string
	counts  counts
	lines   lines
	orders  chan order    // what the receiver wants the sender to send
	greet   chan struct{} // a heartbeat is to be sent soon
	changes chan struct{} // the connection changed
	joined  chan struct{} // closed when the connection came about first
	found   chan struct{} // an address for Admins is new

	manySubscriptions int // the constant of this name; tests lower it

	mu       sync.Mutex // guards the fields below, and what the peers point at
	receiver receiver
	peers    map[uint64]*peer
	gone     map[uint64]goneRouter // the last packet of routers that are gone, so that a recording of them is not taken for them
	over     bool                  // Run has ended
}

// goneRouter is a router that is gone.
type goneRouter struct {
	started        uint64
	number, direct uint64    // of its last packet to all, and of its last packet to this router
	heard          time.Time // when its last packet came
}

// link is the connection to the other routers. NATS is one; tests have another.
type link interface {
	// run keeps the connection until ctx ends. It calls s.take with each message, and wakes s.changes when the connection
	// changes.
	run(ctx context.Context, s *Sync) error
	// publish sends a packet to one router, or to all (0). It may block for a second, and keeps no data.
	publish(to uint64, packet []byte) error
	// connected reports whether other routers can be reached, as far as the link knows.
	connected() bool
	// fault returns why other routers cannot be reached.
	fault() fault
}

// order is a packet that the receiver wants to be sent.
type order struct {
	kind byte   // recordAsk or recordState
	to   uint64 // the router that is asked, or is answered
	ask  ask    // the question to send, or the question to answer
}

// maxOrders bounds the orders that wait. A router that is asked by all its peers at once gets one from each.
const maxOrders = maxPeers

// New returns a Sync. cfg has passed Validate, and is on. New opens nothing.
func New(cfg Config, parts Parts) *Sync {
	now := time.Now()
	s := &Sync{cfg: cfg, parts: parts, id: random(), started: uint64(now.UnixNano()), began: now, out: newOutbox(), machine: machine(),
		orders: make(chan order, maxOrders), greet: make(chan struct{}, 1), changes: make(chan struct{}, 1), joined: make(chan struct{}), found: make(chan struct{}, 1),
		peers: map[uint64]*peer{}, gone: map[uint64]goneRouter{}}
	s.receiver = receiver{s: s, open: newSigner(cfg.Key, cfg.Group), names: map[string]string{}, looked: now, budget: defaultWaiting}
	if cfg.Name != "" {
		s.parts.Name = cfg.Name
	}
	s.manySubscriptions = manySubscriptions
	s.link = newNATS(cfg, s.id, parts.Log)
	return s
}

// random returns a random number that is not 0.
func random() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:]) | 1
}

// Observer returns what the router tells of its own requests. Its methods take microseconds, and never wait for NATS.
func (s *Sync) Observer() warmpath.Observer { return observer{s.out} }

// observer is a warmpath.Observer.
type observer struct{ out *outbox }

func (o observer) Placed(d *warmpath.Decision)        { o.out.placed(d) }
func (o observer) PrefillCompleted(id uint64)         { o.out.prefilled(id) }
func (o observer) Freed(id uint64, e warmpath.Ending) { o.out.freed(id, e, time.Now()) }

// Run shares requests until ctx ends. Then it says goodbye, and the load of the peers is dropped. It returns an error
// if the embedded server cannot start. Other faults of NATS are no errors: the router serves alone, and connects again.
func (s *Sync) Run(ctx context.Context) error {
	s.warnHidden()
	if s.parts.Tenants != nil {
		s.warnUnsigned()
		s.parts.Tenants.Share(true)
		defer s.parts.Tenants.Share(false)
	}
	linked, unlink := context.WithCancel(context.WithoutCancel(ctx))
	defer unlink()
	own, stop := context.WithCancel(ctx)
	defer stop()
	var wg sync.WaitGroup // waited for below
	var failed error
	wg.Go(func() {
		defer stop()
		failed = s.link.run(linked, s)
	})
	s.share(own)
	unlink()
	wg.Wait()
	s.dropAll()
	if failed != nil {
		return fmt.Errorf("share requests with other routers: %w", failed)
	}
	return nil
}

// counts are the counts of a Sync.
type counts struct {
	sent, sentBytes, received, receivedBytes atomic.Uint64
	asks, answers, repairs, failed           atomic.Uint64
	reconnects                               atomic.Uint64
	dropped                                  [16]atomic.Uint64 // by index in reasons
}

// drop counts something that was dropped.
func (s *Sync) drop(why reason, n uint64) {
	for i, r := range reasons {
		if r == why {
			s.counts.dropped[i].Add(n)
			return
		}
	}
}
