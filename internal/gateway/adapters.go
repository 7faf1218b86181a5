package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
)

// Adapter is a LoRA adapter that the router loads when a request names it and no worker has it.
type Adapter struct {
	// Name is the name in requests.
	Name string `yaml:"name"`
	// Base is the name of the base model: the adapter is loaded only at workers that serve it.
	Base string `yaml:"base"`
	// Path is the place of the adapter's files, as the engines see it: a folder, or a name on a hub.
	Path string `yaml:"path"`
}

// AdapterConfig says which adapters are loaded on demand. The zero value loads none.
type AdapterConfig struct {
	List []Adapter // no two have the same name
	// Slots is the greatest number of adapters that a worker may have loaded. Adapters that the router did not load
	// count, too. 0 means the number that the engine reports, or unknownSlots if it reports none.
	Slots int
	// Timeout is how long a worker may take to load or unload an adapter. 0: a minute.
	Timeout time.Duration
}

const (
	// unknownSlots is the number of slots of an engine that reports none: vLLM reports its number with its first
	// request. By default vLLM computes 1 adapter and SGLang 8 at the same time. With more loaded, both swap them
	// between the memory of the machine and that of the accelerator.
	unknownSlots = 4
	// loadAttempts is how many workers are told to load an adapter before its requests get an error.
	loadAttempts = 3
	// loadPause is the time after a failed load in which its adapter is not loaded again, and its requests get the same
	// error. Without it, each request would let up to three engines read a broken file.
	loadPause = 5 * time.Second
	// adapterTimeout is the default of AdapterConfig.Timeout. In this time a worker reads some gigabytes from a network
	// drive.
	adapterTimeout = time.Minute
)

// adapters loads adapters on demand. It is safe for concurrent use.
//
// One goroutine loads one adapter, while requests wait for it. It ends by itself: when the adapter is loaded, when the
// load failed, or when no request waits any more and no order to a worker is under way.
type adapters struct {
	g   *Gateway
	cfg atomic.Pointer[adapterSet]

	working sync.WaitGroup // the goroutines that load

	mu      sync.Mutex // guards the fields below; a goroutine that holds it must not lock hold.mu
	uses    map[string]*adapterUse
	loads   map[string]*adapterLoad // the loads under way, by adapter
	busy    map[fleet.WorkerID]bool // the workers that carry out an order
	failed  map[string]failedLoad   // the last load of an adapter, if it failed
	paths   map[fleet.WorkerID]map[string]string
	waiting int   // number of requests that wait for an adapter
	bytes   int64 // memory of their bodies
	clock   uint64
	changed chan struct{} // closed and replaced when a load could go on
	over    bool          // the process ends: nothing is loaded any more
}

// adapterSet is an AdapterConfig with an index of its list.
type adapterSet struct {
	AdapterConfig
	byName map[string]*Adapter
}

// adapterUse counts the requests of an adapter. Its fields are guarded by adapters.mu.
type adapterUse struct {
	of       *adapters
	requests int
	last     uint64 // the reading of adapters.clock at the last beginning or end of a request
}

// adapterLoad is a load under way. Its fields are guarded by adapters.mu, but for those that never change.
type adapterLoad struct {
	adapter Adapter
	exclude []fleet.WorkerID   // workers that do not help the request that began the load
	cancel  context.CancelFunc // ends the order under way
	done    chan struct{}      // closed when the load has ended
	err     error              // set before done is closed; ready for api.WriteError
	waiters int
	why     string // what the load waits for, in words
}

// failedLoad is a load that failed.
type failedLoad struct {
	err   *api.Error
	until time.Time // the adapter is not loaded before
}

func newAdapters(g *Gateway) *adapters {
	a := &adapters{
		g: g, uses: map[string]*adapterUse{}, loads: map[string]*adapterLoad{}, busy: map[fleet.WorkerID]bool{},
		failed: map[string]failedLoad{}, paths: map[fleet.WorkerID]map[string]string{}, changed: make(chan struct{}),
	}
	a.cfg.Store(&adapterSet{})
	return a
}

// UseAdapters applies cfg to requests that come from now on; cfg has passed the checks of package config. Adapters that
// are loaded stay loaded, also those that cfg no longer has.
func (g *Gateway) UseAdapters(cfg AdapterConfig) {
	if cfg.Timeout <= 0 {
		cfg.Timeout = adapterTimeout
	}
	set := &adapterSet{AdapterConfig: cfg, byName: make(map[string]*Adapter, len(cfg.List))}
	for i := range cfg.List {
		set.byName[cfg.List[i].Name] = &cfg.List[i]
	}
	a := g.adapters
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cfg.Store(set)
	clear(a.failed) // the operator may have mended the reason
	for name, u := range a.uses {
		if set.byName[name] == nil && u.requests == 0 {
			delete(a.uses, name)
		}
	}
	a.wake()
}

// wake lets the loads under way look again. a.mu is held.
func (a *adapters) wake() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// close ends the loads under way. It returns when their goroutines have ended.
func (a *adapters) close() {
	a.mu.Lock()
	a.over = true
	for _, l := range a.loads {
		l.cancel()
	}
	a.mu.Unlock()
	a.working.Wait()
}

// forgetAbsent drops what is known about workers that left the fleet.
func (a *adapters) forgetAbsent(snap *fleet.Snapshot) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for id := range a.paths {
		if snap.ByID(id) == nil {
			delete(a.paths, id)
		}
	}
}

// available reports whether a worker may take requests now.
func available(snap *fleet.Snapshot, w *fleet.Worker, now int64) bool {
	return slices.ContainsFunc(w.Holders, func(h fleet.Holder) bool { return snap.Available(h, now) })
}

// loadedAt reports whether an available worker has the adapter, or serves the model. Workers of exclude do not count.
func loadedAt(snap *fleet.Snapshot, model string, exclude []fleet.WorkerID, now int64) bool {
	pool, ok := snap.Pool(model)
	return ok && slices.ContainsFunc(pool.Workers, func(w *fleet.Worker) bool {
		return !slices.Contains(exclude, w.ID) && available(snap, w, now)
	})
}

// loadable reports whether a model is an adapter that could be loaded now at an available worker outside of exclude.
func (a *adapters) loadable(snap *fleet.Snapshot, model string, exclude []fleet.WorkerID, now int64) bool {
	one := a.cfg.Load().byName[model]
	if one == nil || !loadedAt(snap, one.Base, exclude, now) {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	f, failed := a.failed[model]
	return !failed || now >= f.until.UnixNano()
}

// takes reports whether a worker may take requests for the model now, after it has loaded it if it is an adapter.
func (g *Gateway) takes(snap *fleet.Snapshot, model string, now int64) bool {
	return loadedAt(snap, model, nil, now) || g.adapters.loadable(snap, model, nil, now)
}

// enter counts a request of an adapter, from now until it leaves. It returns nil for a model that is no configured
// adapter.
func (a *adapters) enter(model string) *adapterUse {
	if a.cfg.Load().byName[model] == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	u := a.uses[model]
	if u == nil {
		u = &adapterUse{of: a}
		a.uses[model] = u
	}
	u.requests++
	a.clock++
	u.last = a.clock
	return u
}

// leave ends the use of an adapter. It does nothing for nil.
func (u *adapterUse) leave() {
	if u == nil {
		return
	}
	a := u.of
	a.mu.Lock()
	defer a.mu.Unlock()
	u.requests--
	a.clock++
	u.last = a.clock
	if u.requests == 0 && len(a.loads) > 0 {
		a.wake() // the adapter may be unloaded now
	}
}

// loadFor makes sure that a worker has the model of the request, if it is a configured adapter. It waits while the
// adapter is loaded. The error is ready for api.WriteError, or is ctx's error.
func (a *adapters) loadFor(ctx context.Context, p *prepared, model string, body int) error {
	if p.explains {
		return nil
	}
	if p.adapter = a.enter(model); p.adapter == nil || p.pinned {
		return nil
	}
	began := time.Now()
	if loadedAt(a.g.Fleet.Snapshot(), model, p.route.Exclude, began.UnixNano()) {
		return nil
	}
	outcome, err := a.await(ctx, p, model, int64(body))
	p.held += time.Since(began)
	a.g.Telemetry.WaitedForAdapter(outcome, time.Since(began))
	return err
}

// await waits until a worker has the adapter. outcome is the label of a metric.
func (a *adapters) await(ctx context.Context, p *prepared, name string, body int64) (outcome string, err error) {
	patience := a.g.hold.cfg.Load().MaxWait
	if patience == 0 { // requests are not held, but a load takes its time
		patience = a.cfg.Load().Timeout
	}
	if p.patience > 0 {
		patience = min(patience, p.patience)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		one := a.cfg.Load().byName[name]
		if one == nil { // a reload removed the adapter just now
			return "failed", api.UnknownModel(name)
		}
		l, err := a.join(one, p.route.Exclude, body)
		if err != nil {
			return "failed", err
		}
		select {
		case <-l.done:
			a.quit(l, body)
			if l.err != nil {
				return "failed", l.err
			}
		case <-ctx.Done():
			a.quit(l, body)
			return "client_gone", ctx.Err()
		case <-timer.C:
			return "timeout", api.AdapterNotLoaded(name, "it was not loaded within "+patience.String()+": "+a.quit(l, body), loadPause)
		}
		if loadedAt(a.g.Fleet.Snapshot(), name, p.route.Exclude, time.Now().UnixNano()) {
			return "loaded", nil
		}
	}
}

// join lets a request wait for the load of an adapter, which begins unless it is under way.
func (a *adapters) join(one *Adapter, exclude []fleet.WorkerID, body int64) (*adapterLoad, error) {
	held := a.g.hold.cfg.Load()
	a.mu.Lock()
	defer a.mu.Unlock()
	f, failed := a.failed[one.Name]
	switch {
	case a.over:
		return nil, errDraining
	case failed && time.Now().Before(f.until):
		return nil, f.err
	case a.waiting >= held.MaxRequests || a.bytes+body > held.MaxBytes:
		return nil, api.HoldFull()
	}
	a.waiting++
	a.bytes += body
	a.g.Telemetry.Holding(1, body)
	l := a.loads[one.Name]
	if l == nil {
		ctx, cancel := context.WithCancel(context.Background()) // not the request's: a load goes on when its client leaves
		l = &adapterLoad{adapter: *one, exclude: slices.Clone(exclude), cancel: cancel, done: make(chan struct{})}
		a.loads[one.Name] = l
		a.working.Go(func() { // close waits for it
			defer cancel()
			a.end(l, a.load(ctx, l))
		})
	}
	l.waiters++
	return l, nil
}

// quit ends the wait of a request. It returns what the load waits for.
func (a *adapters) quit(l *adapterLoad, body int64) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.waiting--
	a.bytes -= body
	a.g.Telemetry.Holding(-1, -body)
	if l.waiters--; l.waiters == 0 {
		a.wake()
	}
	return l.why
}

// end records the end of a load.
func (a *adapters) end(l *adapterLoad, err *api.Error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	name := l.adapter.Name
	if a.loads[name] == l {
		delete(a.loads, name)
	}
	delete(a.failed, name)
	if err != nil {
		l.err = err
		if err.Code == api.CodeAdapterNotLoaded {
			a.failed[name] = failedLoad{err, time.Now().Add(loadPause)}
		}
	}
	close(l.done)
	a.wake()
}

// load lets one worker after another load the adapter, until it is loaded.
func (a *adapters) load(ctx context.Context, l *adapterLoad) *api.Error {
	tried := slices.Clone(l.exclude)
	var last *api.Error
	for attempts := 0; ; {
		step := a.next(l, tried, a.g.hold.expected(l.adapter.Base))
		switch {
		case step.ended:
			return nil
		case step.err != nil && last != nil:
			return last
		case step.err != nil:
			return step.err
		case step.worker == nil:
			if !a.pause(ctx, &step) {
				return errDraining
			}
			continue
		}
		err := a.carryOut(ctx, l, &step)
		a.mu.Lock()
		delete(a.busy, step.worker.ID)
		a.wake()
		wanted := l.waiters > 0
		a.mu.Unlock()
		if err == nil {
			return nil
		}
		last = err
		tried = append(tried, step.worker.ID)
		if attempts++; attempts == loadAttempts || !wanted || ctx.Err() != nil {
			return last
		}
	}
}

// loadStep is the next step of a load: an order to a worker, a pause, or the end.
type loadStep struct {
	worker  *fleet.Worker // tell this worker; it is marked as busy
	unload  string        // the adapter that it unloads first; "": none. The fleet no longer has it at the worker
	snap    *fleet.Snapshot
	changed chan struct{} // without a worker: look again when it is closed, or when there is a later snapshot
	err     *api.Error    // no worker can be told
	ended   bool          // another way loaded the adapter, or nobody waits for it any more
}

// next chooses the next step of a load. expected is true if workers of the base model may come.
func (a *adapters) next(l *adapterLoad, tried []fleet.WorkerID, expected bool) (step loadStep) {
	a.mu.Lock()
	defer a.mu.Unlock()
	snap, now := a.g.Fleet.Snapshot(), time.Now().UnixNano() // under a.mu: it has the results of all orders that ended
	if l.waiters == 0 || loadedAt(snap, l.adapter.Name, l.exclude, now) {
		if a.loads[l.adapter.Name] == l {
			delete(a.loads, l.adapter.Name) // a later request begins another load
		}
		return loadStep{ended: true}
	}
	_, ok := snap.Pool(l.adapter.Base)
	if !ok && !expected {
		return loadStep{err: api.AdapterNotLoaded(l.adapter.Name, "no worker serves its base model "+api.Quoted(l.adapter.Base), loadPause)}
	}
	place := a.place(snap, &l.adapter, tried, now)
	switch {
	case place.worker != nil:
		step.worker, step.unload = place.worker, place.unload
	case !place.present && len(tried) > 0, !place.present && a.g.hold.cfg.Load().MaxWait == 0:
		return loadStep{err: api.NoWorker(warmpath.ErrNoWorker)}
	default:
		l.why = "no worker of " + l.adapter.Base + " can be used now"
		if place.present {
			l.why = "all adapter slots of the workers are in use"
		}
		return loadStep{snap: snap, changed: a.changed}
	}
	l.why = "the worker is still loading it"
	a.busy[step.worker.ID] = true
	if step.unload != "" {
		a.notePath(step.worker, step.unload)
	}
	// Under a.mu: a request for the adapter that is unloaded enters before, and keeps it, or sees the fleet without it.
	a.g.Fleet.BeginModelOrder(step.worker.ID, step.unload)
	return step
}

// place is where an adapter can be loaded now.
type place struct {
	worker  *fleet.Worker // nil: nowhere
	unload  string        // the adapter that the worker has to unload first; "": none
	present bool          // a worker is available
}

// place chooses where an adapter is loaded. Among the available workers with a free slot it takes the worker with the
// fewest adapters, then with the fewest requests. If no worker has a free slot, it takes the worker with the adapter
// that was not used for the longest time. It takes no worker of tried, and no worker that carries out an order. a.mu is
// held.
func (a *adapters) place(snap *fleet.Snapshot, one *Adapter, tried []fleet.WorkerID, now int64) (out place) {
	pool, ok := snap.Pool(one.Base)
	if !ok || pool.LoRA != "" {
		return out
	}
	var crowded *fleet.Worker
	var unload string
	var oldest uint64
	full := true
	for _, w := range pool.Workers {
		if slices.Contains(tried, w.ID) || !available(snap, w, now) {
			continue
		}
		out.present = true
		free := a.slots(w) > loadedAdapters(w)
		full = full && !free
		if a.busy[w.ID] {
			continue
		}
		if free {
			if out.worker == nil || lighter(snap, w, out.worker) {
				out.worker = w
			}
		} else if name, last := a.leastUsed(w); name != "" && (crowded == nil || last < oldest) {
			crowded, oldest, unload = w, last, name
		}
	}
	if full {
		out.worker, out.unload = crowded, unload
	}
	return out
}

// plan says what a request for the model would do first, if the model is an adapter that no available worker has.
func (a *adapters) plan(model string) (one *Adapter, what string) {
	one = a.cfg.Load().byName[model]
	snap, now := a.g.Fleet.Snapshot(), time.Now().UnixNano()
	if one == nil || loadedAt(snap, model, nil, now) {
		return nil, ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	f, failed := a.failed[model]
	place := a.place(snap, one, nil, now)
	switch {
	case failed && now < f.until.UnixNano():
		return one, f.err.Message
	case place.worker == nil && place.present:
		return one, "the adapter is not loaded: a request would wait until a worker of " + one.Base + " has a free slot for it"
	case place.worker == nil:
		return one, "the adapter is not loaded: a request would wait for a worker of " + one.Base
	case place.unload != "":
		return one, "the adapter is not loaded: a request would first unload " + place.unload + " at " + place.worker.URL + ", and load it there"
	}
	return one, "the adapter is not loaded: a request would first load it at " + place.worker.URL
}

// slots returns the greatest number of adapters that a worker may have loaded; see AdapterConfig.Slots.
func (a *adapters) slots(w *fleet.Worker) int {
	switch configured := a.cfg.Load().Slots; {
	case configured > 0:
		return configured
	case w.Facts.AdapterSlots > 0:
		return w.Facts.AdapterSlots
	}
	return unknownSlots
}

func loadedAdapters(w *fleet.Worker) (n int) {
	for i := range w.Facts.Models {
		if w.Facts.Models[i].Parent != "" {
			n++
		}
	}
	return n
}

// lighter reports whether x is the better place for an adapter than y.
func lighter(snap *fleet.Snapshot, x, y *fleet.Worker) bool {
	if n, m := loadedAdapters(x), loadedAdapters(y); n != m {
		return n < m
	}
	return requestsAt(snap, x) < requestsAt(snap, y)
}

func requestsAt(snap *fleet.Snapshot, w *fleet.Worker) (n int64) {
	for _, h := range w.Holders {
		n += snap.Load(h).Requests
	}
	return n
}

// leastUsed returns the adapter of w that may be unloaded and was not used for the longest time; "" if there is none.
// Adapters that are not configured stay: the router could not load them again. a.mu is held.
func (a *adapters) leastUsed(w *fleet.Worker) (name string, last uint64) {
	set := a.cfg.Load()
	for i := range w.Facts.Models {
		m := &w.Facts.Models[i]
		if m.Parent == "" || set.byName[m.ID] == nil {
			continue
		}
		var used uint64
		if u := a.uses[m.ID]; u != nil {
			if u.requests > 0 {
				continue
			}
			used = u.last
		}
		if name == "" || used < last {
			name, last = m.ID, used
		}
	}
	return name, last
}

// notePath remembers the path of an adapter that w has. a.mu is held.
func (a *adapters) notePath(w *fleet.Worker, name string) {
	for i := range w.Facts.Models {
		if m := &w.Facts.Models[i]; m.ID == name && m.Root != "" {
			if a.paths[w.ID] == nil {
				a.paths[w.ID] = map[string]string{}
			}
			a.paths[w.ID][name] = m.Root
		}
	}
}

// pause waits until a step may be possible. It returns false when ctx has ended.
func (a *adapters) pause(ctx context.Context, step *loadStep) bool {
	var trial <-chan time.Time
	if next := nextTrial(step.snap); next > 0 {
		timer := time.NewTimer(time.Until(time.Unix(0, next)))
		defer timer.Stop()
		trial = timer.C
	}
	select {
	case <-ctx.Done():
		return false
	case <-step.snap.Superseded():
	case <-step.changed:
	case <-trial:
	}
	return true
}

// moved reports whether w had an adapter of that name under another path before. vLLM's hashes of blocks contain the
// path, but its events name the adapter alone. So the index would match the blocks of the other path.
func (a *adapters) moved(w *fleet.Worker, one *Adapter) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.paths[w.ID][one.Name]
	return was != "" && was != one.Path
}

// carryOut lets the worker of a step unload the adapter of the step, if any, and load that of l.
func (a *adapters) carryOut(ctx context.Context, l *adapterLoad, step *loadStep) *api.Error {
	w := step.worker
	if step.unload != "" {
		began := time.Now()
		err := a.order(ctx, w, unloadOrder, &Adapter{Name: step.unload})
		a.report(w, unloadOrder, step.unload, time.Since(began), err)
		if err != nil {
			a.g.Fleet.EndModelOrder(w.ID, a.still(w, step.unload, err))
			return api.AdapterNotLoaded(l.adapter.Name, "no slot could be freed: "+err.words, loadPause)
		}
	}
	began := time.Now()
	err := a.order(ctx, w, loadOrder, &l.adapter)
	a.report(w, loadOrder, l.adapter.Name, time.Since(began), err)
	if err != nil {
		a.g.Fleet.EndModelOrder(w.ID, fleet.Model{})
		return api.AdapterNotLoaded(l.adapter.Name, err.words, loadPause)
	}
	if a.moved(w, &l.adapter) {
		for _, h := range w.Holders {
			for tier := range block.Tier(block.NumTiers) {
				a.g.Router.Clear(h, tier)
			}
		}
	}
	a.g.Fleet.EndModelOrder(w.ID, fleet.Model{ID: l.adapter.Name, Root: l.adapter.Path, Parent: l.adapter.Base})
	a.mu.Lock()
	if known := a.g.Fleet.Snapshot().ByID(w.ID); known != nil {
		a.notePath(known, l.adapter.Name)
	}
	a.mu.Unlock()
	return nil
}

// still returns the model of an adapter that w refused to unload. If w gave no answer, nobody knows whether it has the
// adapter; then the model is empty, and the next probe shows it.
func (a *adapters) still(w *fleet.Worker, name string, err *orderFailure) fleet.Model {
	if err.status != 0 {
		for _, m := range w.Facts.Models {
			if m.ID == name {
				return m
			}
		}
	}
	return fleet.Model{}
}

func (a *adapters) report(w *fleet.Worker, order, name string, took time.Duration, err *orderFailure) {
	a.g.Telemetry.OrderedAdapter(order, err == nil)
	if err != nil {
		a.g.Log.Warn("worker did not "+order+" an adapter", "worker", w.URL, "adapter", name, "status", err.status, "error", err.words, "cause", err.cause)
		return
	}
	a.g.Log.Info("adapter was "+order+"ed", "worker", w.URL, "adapter", name, "seconds", fmt.Sprintf("%.3f", took.Seconds()))
}

// mayLoad reports whether the request's adapter can be loaded at a worker that the request has not tried, while no
// untried worker has it.
func (x *exchange) mayLoad() bool {
	p := &x.prepared
	if p.adapter == nil || p.pinned || x.rec.Attempts >= x.most || x.recovery != nil && x.recovery.again != none {
		return false
	}
	snap, now := x.g.Fleet.Snapshot(), time.Now().UnixNano()
	return !loadedAt(snap, p.read.Model, p.route.Exclude, now) && x.g.adapters.loadable(snap, p.read.Model, p.route.Exclude, now)
}

// loadElsewhere loads the request's adapter at a worker that the request has not tried, and prepares the request again.
// It returns false if that cannot help: then err stands, the reason why the request could not be routed.
func (x *exchange) loadElsewhere(ctx context.Context, err error) bool {
	unrouted := errors.Is(err, warmpath.ErrNoWorker) || errors.Is(err, warmpath.ErrUnknownModel)
	if !unrouted || ctx.Err() != nil || !x.mayLoad() {
		return false
	}
	p := &x.prepared
	name := p.read.Model
	if err := x.prepareAgain(ctx, p.choice, slices.Clone(p.route.Exclude)); err != nil {
		x.g.Log.Warn("an adapter could not be loaded at another worker", "adapter", name, "error", err)
		return false
	}
	x.noteHeld()
	return true
}

// noteHeld puts the time for which the request waited for its adapter into the record and the answer's header.
func (x *exchange) noteHeld() {
	p := &x.prepared
	if p.held == 0 {
		return
	}
	x.rec.HeldMS += milliseconds(p.held)
	p.held = 0
	x.showHeld()
}

// lines returns the lines of /v1/models for the adapters that no ready worker has, and that a ready worker could load.
func (a *adapters) lines(snap *fleet.Snapshot) map[string]model {
	lines := map[string]model{}
	for _, one := range a.cfg.Load().List {
		base, ok := snap.Pool(one.Base)
		if !ok || !anyReady(base.Workers) {
			continue
		}
		if pool, ok := snap.Pool(one.Name); !ok || !anyReady(pool.Workers) {
			lines[one.Name] = lineOf(&fleet.Model{ID: one.Name, Root: one.Path, Parent: one.Base})
		}
	}
	return lines
}
