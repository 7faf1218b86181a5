package discovery

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/network"
)

// Config are the settings for checks and probes. A zero field means its default.
type Config struct {
	// Interval is the time between two checks of a worker that answers. Default 5 s.
	Interval time.Duration `yaml:"interval"`
	// Timeout is the time limit of one health check. Default 4 s: SGLang's /health runs a request of one token, which
	// takes a second even on an idle engine.
	Timeout time.Duration `yaml:"timeout"`
	// Misses is the number of checks in a row that must time out before a worker counts as unhealthy. Default 2: one
	// timeout can be a pause of the engine. After a refused connection or a bad status, a worker is unhealthy
	// immediately.
	Misses int `yaml:"misses"`
	// Refresh is the time between two probes of a healthy worker. A probe finds new and removed adapters. Default 60 s.
	Refresh time.Duration `yaml:"refresh"`
	// Retry is the pause before a worker that did not answer is asked again. The pause doubles after each failure, up to
	// Interval. Default 500 ms.
	Retry time.Duration `yaml:"retry"`
	// Peers, if set, gets how each worker is reached, before the worker joins the fleet.
	Peers *network.Peers `yaml:"-"`
}

// DefaultConfig returns the defaults. A zero Config has the same meaning.
func DefaultConfig() Config { return Config{}.withDefaults() }

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.Interval, 5 * time.Second}, {&c.Timeout, 4 * time.Second}, {&c.Refresh, time.Minute}, {&c.Retry, 500 * time.Millisecond},
	} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	if c.Misses <= 0 {
		c.Misses = 2
	}
	return c
}

// Watcher watches the workers that its sources list. Its methods may be called from any goroutine.
type Watcher struct {
	fleet  *fleet.Fleet
	client *http.Client
	config Config
	log    *slog.Logger

	claims *claims
	first  chan struct{} // has a value for each worker that is asked for the first time now, see turn

	mu      sync.Mutex // guards the fields below; never held during a question to a worker
	roster  roster
	targets []listed      // the watched workers, computed from roster
	changed chan struct{} // closed when targets are replaced
	notes   map[string][]string
	again   map[string]chan struct{} // by URL, for each watched worker; see ProbeAgain
}

// NewWatcher returns a watcher of targets. It starts nothing. A nil client means the client of [NewClient].
func NewWatcher(f *fleet.Fleet, targets []Target, c Config, client *http.Client, log *slog.Logger) (*Watcher, error) {
	if c.Peers == nil {
		c.Peers = new(network.Peers)
	}
	if client == nil {
		client = NewClient(nil, c.Peers)
	}
	s := &Watcher{fleet: f, client: client, config: c.withDefaults(), log: log, changed: make(chan struct{}), claims: newClaims(), first: make(chan struct{}, firstAtOnce), notes: map[string][]string{}, again: map[string]chan struct{}{},
		roster: roster{lists: map[Source][]Target{}, removed: map[string]bool{}, leaving: map[string]*leave{}, roles: map[string]string{}}}
	if err := s.Replace(targets); err != nil {
		return nil, err
	}
	return s, nil
}

// Replace makes targets the workers of the list: see [Watcher.Prepare]. If one target is not valid, nothing changes.
func (s *Watcher) Replace(targets []Target) error {
	apply, err := s.Prepare(SourceList, targets)
	if err != nil {
		return err
	}
	apply()
	return nil
}

// Notes returns, by URL, what the last probe of each worker could not learn or had to assume.
func (s *Watcher) Notes() map[string][]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.notes)
}

// ProbeAgain asks for a probe of the worker at url, because its facts may be outdated. A worker is probed at most once
// in Config.Interval for this reason. ProbeAgain never blocks.
func (s *Watcher) ProbeAgain(url string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case s.again[url] <- struct{}{}:
	default: // a probe was asked for already, or the worker left
	}
}

// listen sets whether the worker at url can be asked for by ProbeAgain. The result receives a value for each request.
func (s *Watcher) listen(url string, on bool) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !on {
		delete(s.again, url)
		return nil
	}
	s.again[url] = make(chan struct{}, 1)
	return s.again[url]
}

// note stores the notes of the worker at url. Without notes it deletes the entry.
func (s *Watcher) note(url string, notes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(notes) == 0 {
		delete(s.notes, url)
		return
	}
	s.notes[url] = notes
}

// Run watches the workers until ctx ends, and then returns nil. The workers stay in the fleet in their last state.
func (s *Watcher) Run(ctx context.Context) error {
	type watching struct {
		*worker
		stay uint64
		stop context.CancelFunc
		done chan struct{}
	}
	watched := map[string]*watching{}
	defer func() {
		for _, w := range watched {
			w.stop()
			<-w.done
		}
	}()
	for ctx.Err() == nil {
		s.mu.Lock()
		var look <-chan time.Time
		if s.endLeaves(time.Now()) {
			look = time.After(leaveEvery)
		}
		targets, changed := s.targets, s.changed
		s.mu.Unlock()
		for url, w := range watched {
			// A worker that left and joined again meanwhile is another worker.
			if slices.ContainsFunc(targets, func(l listed) bool { return l.URL == url && l.stay == w.stay }) {
				continue
			}
			w.stop()
			<-w.done
			delete(watched, url)
			s.claims.set(url, false, nil)
			s.fleet.Remove(w.id)
			s.note(url, nil)
			s.listen(url, false)
			s.log.Info("worker removed", "worker", url)
		}
		var expected []string
		for _, t := range targets {
			if watched[t.URL] == nil {
				expected = append(expected, t.URL)
			}
		}
		s.fleet.Expect(expected, "not probed yet")
		for _, t := range targets {
			w := &worker{of: s, target: t.Target}
			if old := watched[t.URL]; old == nil {
				w.begin()
			} else if old.target.Equal(t.Target) {
				continue
			} else {
				old.stop()
				<-old.done
				w = old.retarget(t.Target)
			}
			wctx, stop := context.WithCancel(ctx)
			entry := &watching{w, t.stay, stop, make(chan struct{})}
			watched[t.URL] = entry
			go func() {
				defer close(entry.done)
				w.watch(wctx)
			}()
		}
		select {
		case <-changed:
		case <-look:
		case <-ctx.Done():
		}
	}
	return nil
}

// worker watches one target. One goroutine uses it.
type worker struct {
	of     *Watcher
	target Target
	id     fleet.WorkerID

	last    *Report             // report of the last probe that succeeded
	events  []fleet.EventSource // event sources of the last probe, reported or guessed; other workers may claim some of them, see own
	logged  string              // the notes that were logged last
	misses  int                 // number of checks in a row that timed out
	healthy bool
	asleep  bool // the engine's last answer to the question whether it sleeps
	// sleepless is true if the engine does not say whether it sleeps.
	sleepless bool
	why       string          // error of the last check; "": the check succeeded
	again     <-chan struct{} // receives a value when ProbeAgain asks for a probe
	outdated  bool            // the last probe's list of models may be older than an order to load or unload an adapter
}

// begin prepares the first questions to a worker that the fleet expects.
func (w *worker) begin() {
	w.id, _ = w.of.fleet.Find(w.target.URL)
	w.again = w.of.listen(w.target.URL, true)
}

// retarget returns a worker with target t, which has the same URL and other settings. The worker keeps its facts and
// its health, so a reload disturbs no request. Only its labels change immediately; the next probe changes the rest.
func (w *worker) retarget(t Target) *worker {
	next := *w
	next.target = t
	if now := w.of.fleet.Snapshot().ByID(w.id); now != nil && w.last != nil {
		facts := now.Facts
		facts.Labels = t.Labels
		w.of.fleet.Put(t.URL, facts)
	}
	return &next
}

// How many workers are asked for the first time at once, and how long one of them can hold the others back. Without a
// bound, a router that starts in front of 1,000 workers asks all of them at once. On a busy machine most of the answers
// then come too late, and the questions are asked again.
const (
	firstAtOnce = 256
	firstTurn   = 500 * time.Millisecond
)

// turn waits until the worker may be asked for the first time. Call end when it has answered or failed.
func (w *worker) turn(ctx context.Context) (end func()) {
	select {
	case w.of.first <- struct{}{}:
	case <-ctx.Done():
		return func() {}
	}
	free := sync.OnceFunc(func() { <-w.of.first })
	late := time.AfterFunc(firstTurn, free)
	return func() {
		late.Stop()
		free()
	}
}

// watch probes the worker until it answers. After that it sends health checks and probes until ctx ends.
func (w *worker) watch(ctx context.Context) {
	asked := w.turn(ctx)
	defer asked()
	pause := w.of.config.Retry
	var probed, tried time.Time
	for ctx.Err() == nil {
		var err error
		moved := w.of.claims.change()
		// An unhealthy worker that comes back is probably a new process, perhaps of another version. So it is probed
		// again.
		due := !w.healthy || time.Since(probed) >= w.of.config.Refresh || len(w.own(nil)) != len(w.last.Facts.Events)
		err = w.check(ctx)
		if err == nil && due {
			tried = time.Now()
			if err = w.probe(ctx); err == nil {
				if !w.outdated {
					probed = time.Now()
				}
			} else if w.healthy && statusOf(err) == 0 {
				// The worker is alive but did not answer all questions. Its facts stay unchanged.
				w.of.log.Warn("worker could not be probed again", "worker", w.target.URL, "error", err)
				err, probed = nil, time.Now()
			}
		}
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			w.sleeps(ctx)
		}
		if w.live(err) {
			probed = time.Time{} // the worker may now run another version, with other models
		}
		w.report(err)
		asked()
		wait := w.of.config.Interval
		if !w.healthy {
			wait, pause = pause, min(2*pause, w.of.config.Interval)
		} else {
			pause = w.of.config.Retry
		}
		again := w.again
		if time.Since(tried) < w.of.config.Interval {
			again = nil
		}
		select {
		case <-time.After(wait):
		case <-again:
			probed = time.Time{}
		case <-moved:
		case <-ctx.Done():
		}
	}
}

// sleeps asks an engine whether it sleeps, and passes the answer to the fleet. Engines without an answer are asked
// again only after the next probe: vLLM has /is_sleeping only in its development mode, SGLang does not have it.
func (w *worker) sleeps(ctx context.Context) {
	if w.sleepless || w.last == nil {
		return
	}
	var state struct {
		Asleep *bool `json:"is_sleeping"`
	}
	a := asker{client: w.of.client, target: w.target, timeout: w.of.config.Timeout}
	err := a.getJSON(ctx, "/is_sleeping", &state)
	switch {
	case err == nil && state.Asleep != nil:
		// An answer that stays the same says nothing new: the gateway may just have told the engine to fall asleep.
		if *state.Asleep != w.asleep {
			w.asleep = *state.Asleep
			w.of.fleet.SetAsleep(w.id, w.asleep)
		}
	case err == nil || statusOf(err) != 0:
		w.sleepless = true
	}
}

// live passes the result of a check to the fleet. unprobed is true if the check shows a new process that was not probed
// yet.
func (w *worker) live(err error) (unprobed bool) {
	if err != nil {
		if refused(err) {
			w.of.fleet.Refused(w.id)
		}
		return false
	}
	restarted := w.of.fleet.Answered(w.id, fleet.Signs{Version: w.last.Facts.Version, Blocks: w.last.Facts.BlocksPerRank, Seed: w.last.Seed})
	return restarted && w.healthy
}

// own returns the event sources that belong only to this worker. If r is not nil, own adds a note to r about the other
// sources.
func (w *worker) own(r *Report) []fleet.EventSource {
	var own []fleet.EventSource
	for _, e := range w.events {
		mine, rival := w.of.claims.owns(w.target.URL, e.Endpoint)
		if mine {
			own = append(own, e)
		} else if r != nil {
			r.note("events at %s may be those of %s: give events=ENDPOINT (or events=none) for one of them, or list the engine once if both URLs are its",
				e.Endpoint, rival)
		}
	}
	return own
}

func (w *worker) check(ctx context.Context) error {
	a := asker{client: w.of.client, target: w.target, timeout: w.of.config.Timeout}
	path := "/health"
	// SGLang computes a token for /health [SGLang 0.5.23, srt/entrypoints/http_server.py]. It cannot while it sleeps,
	// because its weights and its cache are gone.
	if now := w.of.fleet.Snapshot().ByID(w.id); now != nil && now.Asleep && now.Facts.Engine == fleet.EngineSGLang {
		path = "/v1/models"
	}
	err := a.ask(ctx, http.MethodGet, path, nil, maxJSON, discard)
	// A proxy in front of the engine may answer 404 for /health. In that case the probe decides whether the worker is
	// healthy.
	if NotServed(err) {
		return nil
	}
	return err
}

func (w *worker) probe(ctx context.Context) error {
	orders := w.modelOrders()
	r, err := Probe(ctx, w.of.client, w.target)
	if err != nil {
		return err
	}
	w.events = r.Facts.Events
	var endpoints []string
	for _, e := range w.events {
		endpoints = append(endpoints, e.Endpoint)
	}
	w.of.claims.set(w.target.URL, r.Guessed, endpoints)
	r.Facts.Events = w.own(r)
	facts := r.Facts
	// Events may have corrected the block size. Only an answer that differs from the previous answer replaces the
	// correction.
	if w.last != nil && w.healthy && facts.BlockSize == w.last.Facts.BlockSize {
		if now := w.of.fleet.Snapshot().ByID(w.id); now != nil && now.Facts.BlockSize > 0 {
			facts.BlockSize = now.Facts.BlockSize
		}
	}
	known := w.of.fleet.Snapshot().ByID(w.id)
	if w.outdated = known != nil && (known.ModelOrders != orders || orders%2 == 1); w.outdated {
		facts.Models = known.Facts.Models
	}
	// The gateway changes the list of models when it loads an adapter; a restarted engine no longer has that adapter.
	others := known != nil && !slices.Equal(facts.Models, known.Facts.Models)
	if w.last == nil || !w.healthy || others || !reflect.DeepEqual(r.Facts, w.last.Facts) {
		// The fleet keeps the slices that it is given, so the report gets copies.
		r.Facts.Models, r.Facts.Events = slices.Clone(r.Facts.Models), slices.Clone(r.Facts.Events)
		r.Facts.Origins = slices.Clone(r.Facts.Origins)
		w.id = w.of.fleet.Put(w.target.URL, facts)
		w.describe(facts)
	}
	w.sleepless = r.Facts.Engine != fleet.EngineVLLM
	if notes := strings.Join(r.Notes, "; "); notes != w.logged {
		w.logged = notes
		w.of.note(w.target.URL, r.Notes)
		for _, n := range r.Notes {
			w.of.log.Warn("worker probe", "worker", w.target.URL, "note", n)
		}
	}
	w.last = r
	return nil
}

// modelOrders returns the number of the worker's orders, as in fleet.Worker.
func (w *worker) modelOrders() uint32 {
	if known := w.of.fleet.Snapshot().ByID(w.id); known != nil {
		return known.ModelOrders
	}
	return 0
}

func (w *worker) describe(f fleet.Facts) {
	var events []string
	for _, e := range f.Events {
		events = append(events, e.Endpoint)
	}
	var models []string
	for _, m := range f.Models {
		models = append(models, m.ID)
	}
	about := []any{"worker", w.target.URL, "engine", f.Engine.String(), "version", f.Version, "models", models,
		"block_size", f.BlockSize, "blocks_per_rank", f.BlocksPerRank, "ranks", f.UsedRanks(), "events", events}
	if f.Role != fleet.RoleBoth || f.Transfer.Connector != "" {
		about = append(about, "role", f.Role.String(), "connector", f.Transfer.Connector)
	}
	w.of.log.Info("worker found", about...)
}

// report passes the result of the check to the fleet, and logs the result if it changed.
func (w *worker) report(err error) {
	if network.Local(err) {
		if why := err.Error(); why != w.why {
			w.why = why
			w.of.log.Warn("worker could not be checked: this machine has no connection left", "worker", w.target.URL, "why", why)
		}
		return
	}
	if errors.Is(err, errNoAnswer) {
		w.misses++
		if w.healthy && w.misses < w.of.config.Misses {
			return
		}
	} else {
		w.misses = 0
	}
	why := ""
	if err != nil {
		why = err.Error()
	}
	if healthy := err == nil; healthy != w.healthy {
		w.healthy = healthy
		if healthy {
			w.of.log.Info("worker is healthy", "worker", w.target.URL)
		} else {
			w.of.log.Warn("worker is unhealthy", "worker", w.target.URL, "why", why)
		}
	} else if why != w.why && why != "" {
		msg := "worker is still unhealthy"
		switch {
		case refusesUs(err) && w.target.APIKey != "":
			msg = "worker refuses the api_key: it gets no requests until it takes the router's questions"
		case refusesUs(err):
			msg = "worker refuses the router's questions: it gets no requests until the router has its api_key"
		case w.last == nil:
			msg = "worker does not answer yet: it is asked until it does"
		}
		w.of.log.Warn(msg, "worker", w.target.URL, "why", why)
	}
	w.why = why
	w.of.fleet.SetHealth(w.id, err == nil, why)
}

// Target returns the target with that URL; the zero Target if there is none.
func (s *Watcher) Target(url string) Target {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, _ := s.find(url)
	return l.Target
}
