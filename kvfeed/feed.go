package kvfeed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
)

// Feed follows the events of every holder of a router's fleet. Make it with [New]. Run is called once. The other
// methods may be called from any goroutine, before, during and after Run. A router has one Feed: two Feeds would apply
// each event twice.
type Feed struct {
	router   *warmpath.Router
	fleet    *fleet.Fleet
	config   Config
	log      *slog.Logger
	listener *listener               // nil: the feed does not listen for engines
	used     sync.Map                // place → kvevent.Keys that requests may carry, as *atomic.Uint32
	extras   sync.Map                // place → values of extra_key that requests carried, as *extras
	present  map[fleet.Holder]uint64 // holders of the last snapshot → their workers' incarnations; only reconcile uses it

	reconciled atomic.Uint64 // generation of the last fleet snapshot to which the streams were adapted

	// changed points to the channel that is closed when a stream may have caught up; nil: no call of Ready waits.
	changed atomic.Pointer[chan struct{}]

	warm warming // for checkpoints of holders, see offer.go

	began atomic.Int64 // when the present check or reconciliation began or last made progress, Unix nanoseconds; 0: none is running

	mu      sync.Mutex // guards the fields below; never held while waiting
	streams map[fleet.Holder]*follower
	turns   map[fleet.WorkerID]*sync.Mutex // see turnOf
	offered map[place]*Checkpoint          // checkpoints of holders that have no stream yet
}

// place names a rank at a URL. When a worker leaves and comes back, its rank has the same place. The ids of workers and
// holders cannot be used for this: a worker that comes back gets others.
type place struct {
	url  string
	rank int
}

// follower is a stream together with its goroutines.
type follower struct {
	*stream
	stop  context.CancelFunc
	done  chan struct{} // closed when all goroutines of the stream have ended
	bound bool          // the engine connected to the router; false: the router dials the engine

	sequence *sequence
	asked    asked // when a checkpoint was asked for last; Feed.mu guards it
}

// New returns a Feed that applies events to router, for the holders of router's fleet. It starts nothing. Each log line
// about a stream names the worker and its rank. With a nil log nothing is logged.
func New(router *warmpath.Router, c Config, log *slog.Logger) *Feed {
	c = c.withDefaults()
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	feed := &Feed{router: router, fleet: router.Fleet(), config: c, log: log, present: map[fleet.Holder]uint64{}, streams: map[fleet.Holder]*follower{}, turns: map[fleet.WorkerID]*sync.Mutex{}, offered: map[place]*Checkpoint{}}
	feed.warm.lacking, feed.warm.released = make(chan struct{}, 1), make(chan struct{}, 1)
	if c.Listen != "" {
		feed.listener = newListener(feed)
	}
	return feed
}

// ListenEndpoint returns the endpoint of [Config.Listen], with its real port once Run has opened it. "" means that no
// endpoint is configured.
func (feed *Feed) ListenEndpoint() string {
	if feed.listener == nil {
		return ""
	}
	return feed.listener.endpoint()
}

// Scoped records that a request with this cache_salt and extra_key will be sent to a rank of the worker at url. ""
// means that the request has no such key. Call it between [warmpath.Router.Route] and the sending of the request. Some
// engines do not announce which keys belong to a block. After the call, no request matches a block by its tokens if
// such a key matters and is unknown. A call costs at most two map lookups and a search among 16 values of extra_key.
func (feed *Feed) Scoped(url string, rank int, salt, extra string) {
	at := place{url, rank}
	var keys kvevent.Keys
	if salt != "" {
		keys |= kvevent.KeySalt
	}
	if extra != "" {
		keys |= kvevent.KeyExtra
		feed.extrasOf(at).add(extra)
	}
	if keys != 0 {
		feed.keysOf(at).Or(uint32(keys))
	}
}

// keysOf returns the keys that requests to a rank may carry: the keys that were seen, the assumed keys of the
// configuration, and the LoRA name if the worker has served adapters.
func (feed *Feed) keysOf(at place) *atomic.Uint32 {
	if v, ok := feed.used.Load(at); ok {
		return v.(*atomic.Uint32)
	}
	fresh := &atomic.Uint32{}
	fresh.Store(uint32(feed.config.assumed()))
	v, _ := feed.used.LoadOrStore(at, fresh)
	return v.(*atomic.Uint32)
}

// extrasOf returns the values of extra_key that requests to a rank carried lately.
func (feed *Feed) extrasOf(at place) *extras {
	if v, ok := feed.extras.Load(at); ok {
		return v.(*extras)
	}
	v, _ := feed.extras.LoadOrStore(at, &extras{})
	return v.(*extras)
}

// checkEvery is the time between two checks of all streams. A time limit that has passed is found at the next check.
const checkEvery = time.Second

// Run follows the fleet until ctx ends, and returns nil then. If [Config.Listen] cannot be opened or stops listening,
// Run returns an error. If an engine cannot be reached, Run does not return: the holder's trust shows the failure, and
// the feed dials again. When Run returns, all its goroutines have ended; the index and the trust stay as they were.
func (feed *Feed) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan error, 1)
	var listening sync.WaitGroup
	if feed.listener != nil {
		if err := feed.listener.open(); err != nil {
			return fmt.Errorf("listen for KV events: %w", err)
		}
		listening.Go(func() { failed <- feed.listener.run(ctx) })
	}
	defer listening.Wait()
	defer feed.stopAll()
	defer cancel()

	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		snap := feed.fleet.Snapshot()
		feed.began.Store(time.Now().UnixNano())
		feed.reconcile(ctx, snap)
		feed.reconciled.Store(snap.Generation())
		feed.noteChange()
		feed.began.Store(0)
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
		case <-feed.warm.released:
		case <-ticker.C:
			now := time.Now()
			feed.began.Store(now.UnixNano())
			feed.look(now)
			feed.began.Store(0)
		}
	}
}

// stuck is how long one stream may make no progress while other streams do. Such a stream may wait for its turn to
// change the index, or for one large operation. Each of the two takes less than 20 s, so a longer time is a stall.
const stuck = 20 * time.Second

// Oldest returns for how long the application of events, or the feed's check of its streams, has made no progress at
// time now. The text names the holder that waits, or says that the check waits. Oldest is for health checks. It returns
// 0 if no events are being applied and no check is running. While other streams make progress, a stream without
// progress counts only after 20 s. Oldest takes no lock that is held while events are applied, so it returns
// immediately even during a stall.
func (feed *Feed) Oldest(now time.Time) (age time.Duration, who string) {
	var moved int64
	age, who = ageOf(&feed.began, now), "the follower of all streams"
	for _, f := range feed.list() {
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

// step records that the present check or reconciliation makes progress.
func (feed *Feed) step() {
	if feed.began.Load() != 0 { // began is 0 only when a test calls reconcile directly
		feed.began.Store(time.Now().UnixNano())
	}
}

// look lets each stream check its time limits.
func (feed *Feed) look(now time.Time) {
	for _, f := range feed.list() {
		f.look(now)
		feed.step()
	}
	feed.forgetKeys()
}

func (feed *Feed) list() []*follower {
	feed.mu.Lock()
	defer feed.mu.Unlock()
	all := make([]*follower, 0, len(feed.streams))
	for _, f := range feed.streams {
		all = append(all, f)
	}
	return all
}

// reconcile starts, stops and replaces streams so that they match the snapshot.
func (feed *Feed) reconcile(ctx context.Context, snap *fleet.Snapshot) {
	feed.forgetAbsent(snap)
	wanted := map[fleet.Holder]fleet.EventSource{}
	for _, w := range snap.Workers() {
		adapters := false
		for _, model := range w.Facts.Models {
			adapters = adapters || model.Parent != ""
		}
		for _, h := range w.Holders {
			if adapters {
				feed.keysOf(place{w.URL, snap.Rank(h)}).Or(uint32(kvevent.KeyLoRA))
			}
		}
		for _, e := range w.Facts.Events {
			if h, ok := w.Rank(e.Rank); ok && !feed.config.Elsewhere {
				wanted[h] = e
			}
		}
	}
	for _, f := range feed.list() {
		feed.step()
		w := snap.Worker(f.holder)
		source, ok := wanted[f.holder]
		switch {
		case w == nil:
			feed.end(f, "the worker left")
			// The stream may have set the holder's trust after the fleet forgot the worker. If the worker comes back
			// without events, that trust would be wrong.
			feed.fleet.ResetTrust(f.holder)
		case f.bound:
			if f.outdated(w) || f.renew.Load() || f.generation.Load() != feed.router.Generation(f.holder) {
				feed.end(f, "the worker or the index changed")
			}
		case !ok:
			feed.end(f, "the worker publishes no events")
			feed.fleet.ResetTrust(f.holder)
		case source != f.source || f.outdated(w) || f.renew.Load() || f.generation.Load() != feed.router.Generation(f.holder):
			feed.end(f, "the worker or the index changed")
		}
	}
	for h, source := range wanted {
		feed.step()
		feed.mu.Lock()
		_, running := feed.streams[h]
		feed.mu.Unlock()
		// A worker that serves no model has no index, so there is nothing to apply events to.
		if w := snap.Worker(h); !running && feed.router.Generation(h) != 0 && !feed.waits(place{w.URL, snap.Rank(h)}, source) {
			feed.begin(ctx, feed.newStream(w, h, source))
		}
	}
}

// forgetAbsent forgets the holders that left since the last snapshot. If a worker's process is new, forgetAbsent
// forgets what was learned from requests to its holders. Both rules include holders without events: the router and the
// policies estimate their caches from requests.
func (feed *Feed) forgetAbsent(snap *fleet.Snapshot) {
	for h := range feed.present {
		if snap.Worker(h) == nil {
			delete(feed.present, h)
			feed.router.Forget(h)
			feed.step()
		}
	}
	feed.mu.Lock()
	maps.DeleteFunc(feed.turns, func(id fleet.WorkerID, _ *sync.Mutex) bool { return snap.ByID(id) == nil })
	feed.mu.Unlock()
	for _, w := range snap.Workers() {
		for _, h := range w.Holders {
			if was, known := feed.present[h]; known && was != w.Incarnation {
				feed.forgetLearned(h)
				feed.log.Info("another process serves there: everything learned from requests is forgotten", "worker", w.URL, "rank", snap.Rank(h))
			}
			feed.present[h] = w.Incarnation
		}
	}
}

// forgetKeys forgets the keys of requests to workers that the fleet forgot. The keys of other absent workers stay: a
// worker that comes back may still cache blocks of those requests. A call for 4,096 absent workers takes 1 ms, so
// forgetKeys runs once per check, not for each snapshot.
func (feed *Feed) forgetKeys() {
	for _, places := range []*sync.Map{&feed.used, &feed.extras} {
		places.Range(func(key, _ any) bool {
			if !feed.fleet.Known(key.(place).url) {
				places.Delete(key)
			}
			return true
		})
	}
}

// forgetLearned forgets what was learned from requests to the holder. If the holder has an event stream, its announced
// blocks stay: the stream shows a restart by itself, and may have learned blocks of the new process already.
func (feed *Feed) forgetLearned(h fleet.Holder) {
	feed.mu.Lock()
	f := feed.streams[h]
	feed.mu.Unlock()
	if f == nil {
		feed.router.Forget(h)
		return
	}
	f.forgetLearned()
}

// outdated reports whether the worker's facts have changed since the stream was made from them.
func (s *stream) outdated(w *fleet.Worker) bool {
	return s.engine != w.Facts.Engine || s.ranks != w.Facts.Ranks || s.version != w.Facts.Version
}

func (feed *Feed) newStream(w *fleet.Worker, h fleet.Holder, source fleet.EventSource) *stream {
	rank := feed.fleet.Snapshot().Rank(h)
	s := &stream{
		router: feed.router, fleet: feed.fleet, config: &feed.config, noteChange: feed.noteChange,
		log:    feed.log.With("worker", w.URL, "rank", rank, "endpoint", source.Endpoint),
		holder: h, worker: w.ID, url: w.URL, rank: rank, ranks: w.Facts.Ranks, engine: w.Facts.Engine, version: w.Facts.Version,
		source: source, used: feed.keysOf(place{w.URL, rank}), extras: feed.extrasOf(place{w.URL, rank}), turn: feed.turnOf(w.ID),
		checkpoints: &feed.warm.counters,
		state:       state{started: time.Now(), processedThen: feed.fleet.Snapshot().Load(h).Processed, trust: fleet.TrustApproximate, logged: fleet.TrustApproximate},
	}
	s.removals = removalsOf(s.engine, s.version)
	s.generation.Store(feed.router.Generation(h))
	return s
}

// turnOf returns the mutex that a worker's streams take to change the index, so that only one of these streams waits
// for the index at a time. The index's lock serves writers that have waited for a millisecond in order. Without the
// mutex, each event of another worker could wait for 256 events of a worker with 256 ranks. A routing decision whose
// version check failed 16 times takes the same lock, so it could wait as long.
func (feed *Feed) turnOf(id fleet.WorkerID) *sync.Mutex {
	feed.mu.Lock()
	defer feed.mu.Unlock()
	turn := feed.turns[id]
	if turn == nil {
		turn = &sync.Mutex{}
		feed.turns[id] = turn
	}
	return turn
}

// begin follows a holder at its engine's endpoint: the router dials the engine.
func (feed *Feed) begin(ctx context.Context, s *stream) {
	sub := NewSubscriber(s.source, feed.config.wire(s.ranks), s)
	s.wire = sub.Stats
	sctx, cancel := context.WithCancel(ctx)
	stop := func() {
		s.closing.Store(true)
		cancel()
	}
	f := &follower{stream: s, stop: stop, done: make(chan struct{}), sequence: sub.stream}
	feed.supply(f)
	if !feed.insert(f) { // meanwhile the engine connected to the router
		cancel()
		return
	}
	s.mu.Lock()
	s.assess(time.Now())
	s.mu.Unlock()
	feed.useOffered(f)
	go func() {
		defer close(f.done)
		if err := sub.Run(sctx); err != nil {
			s.log.Error("KV events cannot be followed", "error", err)
			s.State(false, err)
		}
	}()
}

// insert makes f the follower of its holder. If the holder already has a follower, insert changes nothing and returns
// false: nothing would end a replaced follower.
func (feed *Feed) insert(f *follower) bool {
	feed.mu.Lock()
	defer feed.mu.Unlock()
	if feed.streams[f.holder] != nil {
		return false
	}
	feed.streams[f.holder] = f
	feed.warm.streams.Store(int64(len(feed.streams)))
	return true
}

// end stops a stream, waits until it has ended, and forgets its holder. If the engine has a replay endpoint, the
// holder's next stream reads the whole history. The next stream begins only after this Forget, so Forget removes none
// of its blocks.
func (feed *Feed) end(f *follower, why string) {
	f.stop()
	<-f.done
	feed.router.Forget(f.holder)
	feed.mu.Lock()
	if feed.streams[f.holder] == f {
		delete(feed.streams, f.holder)
		feed.warm.streams.Store(int64(len(feed.streams)))
	}
	feed.mu.Unlock()
	f.log.Info("stopped following KV events", "why", why)
}

// stopAll stops all streams. The index keeps its content, because the process ends.
func (feed *Feed) stopAll() {
	all := feed.list()
	for _, f := range all {
		f.stop()
	}
	for _, f := range all {
		<-f.done
	}
}
