package kvfeed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvevent/zmq"
)

// Manager follows the events of every holder of a router's fleet. Run is called once; the other methods may be called
// from any goroutine.
type Manager struct {
	router   *warmpath.Router
	fleet    *fleet.Fleet
	config   Config
	log      *slog.Logger
	listener *zmq.Listener           // nil: none
	used     sync.Map                // fleet.Holder → *atomic.Uint32 of kvevent.Keys
	extras   sync.Map                // fleet.Holder → *extras
	present  map[fleet.Holder]uint64 // of the last snapshot, with their workers' incarnations; reconcile's alone

	began atomic.Int64 // when the present check or reconciliation began, Unix nanoseconds; 0: none is running

	mu      sync.Mutex // guards what follows; never held while waiting
	streams map[fleet.Holder]*follower
	turns   map[fleet.WorkerID]*sync.Mutex // see turnOf
}

// follower is a stream with its goroutines.
type follower struct {
	*stream
	stop  context.CancelFunc
	done  chan struct{} // closed when all goroutines of the stream have ended
	bound bool          // the engine connected to the router
}

// New returns a Manager that feeds router. It starts nothing.
func New(router *warmpath.Router, c Config, log *slog.Logger) *Manager {
	c = c.withDefaults()
	m := &Manager{router: router, fleet: router.Fleet(), config: c, log: log, present: map[fleet.Holder]uint64{}, streams: map[fleet.Holder]*follower{}, turns: map[fleet.WorkerID]*sync.Mutex{}}
	if c.Listen != "" {
		m.listener = zmq.NewListener(c.Listen, c.ZMQ, m.accept)
	}
	return m
}

// ListenEndpoint returns the endpoint that engines may connect to, with its real port after Run opened it; "" is none.
func (m *Manager) ListenEndpoint() string {
	if m.listener == nil {
		return ""
	}
	return m.listener.Endpoint()
}

// Scoped notes that a request with this cache_salt and extra_key will be sent to h. From then on, stored events without
// such keys are not believed where the keys matter. So it must be called before the request is sent. It costs a map
// lookup.
func (m *Manager) Scoped(h fleet.Holder, salt, extra string) {
	var keys kvevent.Keys
	if salt != "" {
		keys |= kvevent.KeySalt
	}
	if extra != "" {
		keys |= kvevent.KeyExtra
		m.extrasOf(h).add(extra)
	}
	if keys != 0 {
		m.keysOf(h).Or(uint32(keys))
	}
}

// keysOf returns the keys that requests to h were seen to carry.
func (m *Manager) keysOf(h fleet.Holder) *atomic.Uint32 {
	if v, ok := m.used.Load(h); ok {
		return v.(*atomic.Uint32)
	}
	fresh := &atomic.Uint32{}
	fresh.Store(uint32(m.config.assumed()))
	v, _ := m.used.LoadOrStore(h, fresh)
	return v.(*atomic.Uint32)
}

// extrasOf returns the values of extra_key that requests to h carried lately.
func (m *Manager) extrasOf(h fleet.Holder) *extras {
	if v, ok := m.extras.Load(h); ok {
		return v.(*extras)
	}
	v, _ := m.extras.LoadOrStore(h, &extras{})
	return v.(*extras)
}

// checkEvery is the time between two checks of all streams. A passed time limit is found at most so much later.
const checkEvery = time.Second

// Run follows the fleet until ctx ends; that is no error. A configured listener that cannot be opened is an error.
func (m *Manager) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	var listening sync.WaitGroup
	if m.listener != nil {
		if err := m.listener.Listen(); err != nil {
			return fmt.Errorf("listen for KV events: %w", err)
		}
		listening.Go(func() { failed <- m.listener.Run(ctx) })
	}
	defer listening.Wait()
	defer m.stopAll()
	defer cancel()

	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		snap := m.fleet.Snapshot()
		m.began.Store(time.Now().UnixNano())
		m.reconcile(ctx, snap)
		m.began.Store(0)
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			if err == nil && ctx.Err() == nil {
				err = errors.New("the listener ended")
			}
			if err != nil {
				return fmt.Errorf("listen for KV events: %w", err)
			}
			return nil
		case <-snap.Superseded():
		case <-ticker.C:
			now := time.Now()
			m.began.Store(now.UnixNano())
			m.look(now)
			m.began.Store(0)
		}
	}
}

// stuck is how long one stream may make no progress while others do. It may wait for its turn at the index, or for one
// large operation. Both take less than 20 s; a longer time is a stall.
const stuck = 20 * time.Second

// Oldest returns for how long the application of events has made no progress, and the holder that waits; 0 if no events
// are being applied. While other streams make progress, a stream without progress counts only after the time stuck.
// Oldest takes no lock that is held while events are applied.
func (m *Manager) Oldest(now time.Time) (age time.Duration, who string) {
	var moved int64
	age, who = ageOf(&m.began, now), "the follower of all streams"
	for _, f := range m.list() {
		moved = max(moved, f.moved.Load())
		if a := ageOf(&f.began, now); a >= age && a > 0 {
			age, who = a, fmt.Sprintf("%s, rank %d", f.url, f.rank)
		}
	}
	if age < stuck {
		age = min(age, max(time.Duration(now.UnixNano()-moved), 0))
	}
	return age, who
}

func ageOf(began *atomic.Int64, now time.Time) time.Duration {
	if t := began.Load(); t != 0 {
		return max(time.Duration(now.UnixNano()-t), 0)
	}
	return 0
}

// step notes that the present check or reconciliation makes progress.
func (m *Manager) step() {
	if m.began.Load() != 0 { // otherwise a test calls it directly
		m.began.Store(time.Now().UnixNano())
	}
}

// look checks the time limits of each stream.
func (m *Manager) look(now time.Time) {
	for _, f := range m.list() {
		f.look(now)
		m.step()
	}
}

func (m *Manager) list() []*follower {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]*follower, 0, len(m.streams))
	for _, f := range m.streams {
		all = append(all, f)
	}
	return all
}

// reconcile starts, stops and replaces streams so that they match the snapshot.
func (m *Manager) reconcile(ctx context.Context, snap *fleet.Snapshot) {
	m.forgetAbsent(snap)
	wanted := map[fleet.Holder]zmq.Source{}
	for _, w := range snap.Workers() {
		adapters := false
		for _, model := range w.Facts.Models {
			adapters = adapters || model.Parent != ""
		}
		for _, h := range w.Holders {
			if adapters {
				m.keysOf(h).Or(uint32(kvevent.KeyLoRA))
			}
		}
		for _, e := range w.Facts.Events {
			if h, ok := w.Rank(e.Rank); ok {
				wanted[h] = zmq.Source{Endpoint: e.Endpoint, Replay: e.Replay, Topic: e.Topic}
			}
		}
	}
	for _, f := range m.list() {
		m.step()
		w := snap.Worker(f.holder)
		source, ok := wanted[f.holder]
		switch {
		case w == nil:
			m.end(f, "the worker left")
			// The stream may have set the trust after the fleet forgot the worker, which may come back without events.
			m.fleet.ResetTrust(f.holder)
		case f.bound:
			if f.outdated(w) || f.renew.Load() || f.generation.Load() != m.router.Generation(f.holder) {
				m.end(f, "the worker or the index changed")
			}
		case !ok:
			m.end(f, "the worker publishes no events")
			m.fleet.ResetTrust(f.holder)
		case source != f.source || f.outdated(w) || f.renew.Load() || f.generation.Load() != m.router.Generation(f.holder):
			m.end(f, "the worker or the index changed")
		}
	}
	for h, source := range wanted {
		m.mu.Lock()
		_, running := m.streams[h]
		m.mu.Unlock()
		// A worker that serves no model has no index.
		if w := snap.Worker(h); !running && m.router.Generation(h) != 0 {
			m.begin(ctx, m.newStream(w, h, source))
		}
	}
}

// forgetAbsent forgets the holders that left since the last snapshot, and what was learned from requests about holders
// with a new process. This concerns holders without events, too: the index and policies have guesses about them.
func (m *Manager) forgetAbsent(snap *fleet.Snapshot) {
	for h := range m.present {
		if snap.Worker(h) == nil {
			delete(m.present, h)
			m.router.Forget(h)
			m.step()
		}
	}
	for _, w := range snap.Workers() {
		for _, h := range w.Holders {
			if was, known := m.present[h]; known && was != w.Incarnation {
				m.forgetLearned(h)
				m.log.Info("another process serves there: everything learned from requests is forgotten", "worker", w.URL, "rank", snap.Rank(h))
			}
			m.present[h] = w.Incarnation
		}
	}
}

// forgetLearned forgets what was learned from requests. A holder with an event stream keeps the announced blocks: the
// stream shows a restart by itself, and may have learned the new process already.
func (m *Manager) forgetLearned(h fleet.Holder) {
	m.mu.Lock()
	f := m.streams[h]
	m.mu.Unlock()
	if f != nil && f.hasEvents() {
		m.router.ForgetLearned(h)
		return
	}
	m.router.Forget(h)
}

// outdated reports whether the worker's facts that the stream was made from have changed.
func (s *stream) outdated(w *fleet.Worker) bool {
	return s.engine != w.Facts.Engine || s.ranks != w.Facts.Ranks || s.version != w.Facts.Version
}

func (m *Manager) newStream(w *fleet.Worker, h fleet.Holder, source zmq.Source) *stream {
	rank := m.fleet.Snapshot().Rank(h)
	s := &stream{
		router: m.router, fleet: m.fleet, config: &m.config,
		log:    m.log.With("worker", w.URL, "rank", rank, "endpoint", source.Endpoint),
		holder: h, worker: w.ID, url: w.URL, rank: rank, ranks: w.Facts.Ranks, engine: w.Facts.Engine, version: w.Facts.Version,
		source: source, used: m.keysOf(h), extras: m.extrasOf(h), turn: m.turnOf(w.ID),
		state: state{started: time.Now(), processedThen: m.fleet.Snapshot().Load(h).Processed, trust: fleet.TrustApproximate, logged: fleet.TrustApproximate},
	}
	s.removals = removalsOf(s.engine, s.version)
	s.generation.Store(m.router.Generation(h))
	return s
}

// turnOf returns the mutex that a worker's streams take to change the index, so that only one of them waits for the
// index at a time. The index serves its writers, decisions included, in order: otherwise each decision could wait for
// 256 events of a worker with 256 ranks.
func (m *Manager) turnOf(id fleet.WorkerID) *sync.Mutex {
	m.mu.Lock()
	defer m.mu.Unlock()
	turn := m.turns[id]
	if turn == nil {
		turn = &sync.Mutex{}
		m.turns[id] = turn
	}
	return turn
}

// begin follows a holder's own endpoint.
func (m *Manager) begin(ctx context.Context, s *stream) {
	sub := zmq.NewSubscriber(s.source, m.config.wire(s.ranks), s)
	s.wire = sub.Stats
	sctx, cancel := context.WithCancel(ctx)
	stop := func() {
		s.closing.Store(true)
		cancel()
	}
	f := &follower{stream: s, stop: stop, done: make(chan struct{})}
	m.mu.Lock()
	m.streams[s.holder] = f
	m.mu.Unlock()
	s.mu.Lock()
	s.assess(time.Now())
	s.mu.Unlock()
	go func() {
		defer close(f.done)
		if err := sub.Run(sctx); err != nil {
			s.log.Error("KV events cannot be followed", "error", err)
			s.State(false, err)
		}
	}()
}

// end stops a stream, waits for it, and forgets its holder. The next stream of the holder begins with its history.
func (m *Manager) end(f *follower, why string) {
	f.stop()
	<-f.done
	m.mu.Lock()
	if m.streams[f.holder] == f {
		delete(m.streams, f.holder)
	}
	m.mu.Unlock()
	m.router.Forget(f.holder)
	f.log.Info("stopped following KV events", "why", why)
}

// stopAll stops all streams. The index keeps its content, since the process ends.
func (m *Manager) stopAll() {
	all := m.list()
	for _, f := range all {
		f.stop()
	}
	for _, f := range all {
		<-f.done
	}
}
