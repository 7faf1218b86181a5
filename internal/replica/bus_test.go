package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/tenant"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/test/testenv"
)

// bus connects routers in memory. It can lose, repeat, delay and reorder packets, and cut connections.
type bus struct {
	mu     sync.Mutex // guards the fields below
	random *rand.Rand
	links  []*busLink
	loss   float64
	repeat float64
	fixed  time.Duration                       // packets take this time
	late   time.Duration                       // packets take up to this time, so later ones overtake them
	change func(packet []byte) []byte          // changes each packet
	lost   func(packet []byte, to uint64) bool // loses single packets
	policy policy.Spec                         // of routers that join

	approximate time.Duration // the TTL of workers of routers that join; 0: these have events
}

// busLink is the connection of one router. It implements link.
type busLink struct {
	bus *bus
	s   *Sync
	off bool

	thawed chan struct{} // not nil: the process stands still, until it is closed
	unread [][]byte      // what came meanwhile
}

// cut ends the connection, or restores it if off is false, and the router notices at once.
func (l *busLink) cut(off bool) {
	l.bus.set(func() { l.off = off })
	wake(l.s.changes)
}

// freeze makes the router's process stand still: it sends nothing, reads nothing, and looks at nothing. The function
// that freeze returns lets it go on. The process then reads what came meanwhile, before its next look or after it.
func (l *busLink) freeze() (thaw func(readFirst bool)) {
	l.bus.set(func() { l.thawed = make(chan struct{}) })
	return func(readFirst bool) {
		var unread [][]byte
		l.bus.set(func() {
			unread = l.unread
			l.unread = nil
			if !readFirst {
				close(l.thawed)
				l.thawed = nil
			}
		})
		if !readFirst {
			testenv.Pass(2*lookInterval - time.Millisecond)
		}
		for _, packet := range unread {
			l.s.take(packet, time.Now())
		}
		if readFirst {
			l.bus.set(func() {
				close(l.thawed)
				l.thawed = nil
			})
		}
	}
}

var (
	errOff  = errors.New("the connection is cut")
	discard = slog.New(slog.DiscardHandler)
)

func (l *busLink) run(ctx context.Context, s *Sync) error {
	<-ctx.Done()
	return nil
}

func (l *busLink) connected() bool {
	l.bus.mu.Lock()
	defer l.bus.mu.Unlock()
	return !l.off
}

func (l *busLink) fault() fault {
	return fault{servers: "the bus", problem: errOff.Error(), advice: "switch it on"}
}

func (l *busLink) publish(to uint64, packet []byte) error {
	b := l.bus
	var thawed chan struct{}
	if b.set(func() { thawed = l.thawed }); thawed != nil {
		<-thawed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if l.off {
		return errOff
	}
	packet = slices.Clone(packet)
	if b.change != nil {
		packet = b.change(packet)
	}
	if b.lost != nil && b.lost(packet, to) {
		return nil
	}
	for _, other := range b.links {
		if other == l || other.off || to != 0 && other.s.id != to {
			continue
		}
		for range 1 + b.times(b.repeat) {
			if b.times(b.loss) == 1 {
				continue
			}
			b.deliver(other, packet)
		}
	}
	return nil
}

func (b *bus) times(probability float64) int {
	if b.random.Float64() < probability {
		return 1
	}
	return 0
}

func (b *bus) deliver(to *busLink, packet []byte) {
	if to.thawed != nil {
		to.unread = append(to.unread, packet)
		return
	}
	deliver := func() { to.s.take(packet, time.Now()) }
	if b.fixed > 0 {
		time.AfterFunc(b.fixed, deliver)
		return
	}
	if b.late == 0 {
		deliver()
		return
	}
	time.AfterFunc(time.Duration(b.random.Int64N(int64(b.late))), deliver)
}

// set changes the bus.
func (b *bus) set(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

// member is a router on a bus.
type member struct {
	t      testing.TB
	trust  fleet.Trust
	router *warmpath.Router
	fleet  *fleet.Fleet
	sync   *Sync
	link   *busLink
	ended  chan error
	stop   context.CancelFunc
	placed atomic.Pointer[[2]int] // what SetReplicas was told
}

// place returns the router's place among the live routers, and their number.
func (m *member) place() [2]int { return *m.placed.Load() }

// join starts a router with workers on the bus. It runs until stop is called, or the test ends.
func (b *bus) join(t testing.TB, cfg Config, workers int, tenants *tenant.Registry) *member {
	t.Helper()
	cfg.NATS = "nats://bus"
	m := &member{t: t, trust: fleet.TrustExact, fleet: fleet.New(fleet.Config{}), ended: make(chan error, 1)}
	var peer func() *warmpath.Peer
	number := func(own, count int) {
		m.placed.Store(&[2]int{own, count})
		m.router.SetReplicas(own, count)
	}
	m.sync = New(cfg, Parts{NewPeer: func() *warmpath.Peer { return peer() }, Fleet: m.fleet, SetReplicas: number, Tenants: tenants, Log: discard, Name: fmt.Sprint("router ", len(b.links))})
	var err error
	m.router, err = warmpath.New(warmpath.Options{Fleet: m.fleet, Policy: b.policy, ApproximateTTL: b.approximate, Observer: m.sync.Observer()})
	if err != nil {
		t.Fatal(err)
	}
	peer = m.router.NewPeer
	if b.approximate > 0 {
		m.trust = fleet.TrustApproximate
	}
	for i := range workers {
		m.worker(i)
	}
	m.link = &busLink{bus: b, s: m.sync}
	m.sync.link = m.link
	b.set(func() { b.links = append(b.links, m.link) })
	ctx, cancel := context.WithCancel(context.Background())
	stopped := false
	m.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-m.ended; err != nil {
			t.Error(err)
		}
		b.set(func() { b.links = slices.DeleteFunc(b.links, func(l *busLink) bool { return l == m.link }) })
	}
	go func() { m.ended <- m.sync.Run(ctx) }() // ends with ctx; stop waits
	t.Cleanup(m.stop)
	return m
}

// worker adds the worker number i.
func (m *member) worker(i int) {
	m.fleet.Put(fmt.Sprintf("http://w%d", i), fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "llama"}}, BlockSize: 16})
	for h := range fleet.Holder(m.fleet.Snapshot().Holders()) {
		m.fleet.SetTrust(h, m.trust, "test")
	}
}

// route places a request. The caller ends it.
func (m *member) route(text, tokens int, session string) *warmpath.Decision {
	m.t.Helper()
	req := warmpath.Request{Model: "llama", Now: time.Now().UnixNano(), Session: policy.Session{Key: session}}
	for i := range tokens {
		req.Tokens = append(req.Tokens, uint32(text*100_000+i))
	}
	d, err := m.router.Route(context.Background(), &req)
	if err != nil {
		m.t.Fatal(err)
	}
	return d
}

// loads returns the load of each worker. PrefillTokens is left out while requests wait: how much of a prompt others
// will have computed before it depends on the order in which a router hears of requests.
func (m *member) loads() (all []fleet.Load) {
	snap := m.fleet.Snapshot()
	for h := range fleet.Holder(snap.Holders()) {
		l := snap.Load(h)
		kept := fleet.Load{Requests: l.Requests, Waiting: l.Waiting, ContextBlocks: l.ContextBlocks}
		if l.Waiting == 0 {
			kept.PrefillTokens = l.PrefillTokens
		}
		all = append(all, kept)
	}
	return all
}

// requests returns the number of requests under way at all workers.
func (m *member) requests() (n int64) {
	for _, l := range m.loads() {
		n += l.Requests
	}
	return n
}

func newBus(seed uint64) *bus {
	return &bus{random: rand.New(rand.NewPCG(seed, 1)), policy: policy.DefaultKVAware().Spec("kv_aware")}
}

// done ends a request.
func done(d *warmpath.Decision) { d.Done(fleet.OutcomeServed, time.Now().UnixNano()) }
