package gateway

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
)

const (
	// loadAttempts is how many workers that can load adapters are told to load one before its requests get an error.
	loadAttempts = 3
	// loadPause is the time after a failed load in which its adapter is not loaded again, and its requests get the same
	// error. Without it, each request would let up to three engines read a broken file.
	loadPause = 5 * time.Second
	// unablePause is how long a worker whose engine does not know the orders about adapters is told last. It is told
	// again later, because the engine may have been started anew with other flags.
	unablePause = time.Minute
)

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

// adapterWait is the wait of a request for a load.
type adapterWait struct {
	guest
	load *adapterLoad
	at   *list.Element // guarded by adapters.mu; nil when the request waits no longer
	shed chan struct{} // closed when the place is needed for another tenant
}

// failedLoad is a load that failed.
type failedLoad struct {
	err   *api.Error
	until time.Time // the adapter is not loaded before
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
	who := guest{bytes: int64(body)}
	if p.tenant != nil {
		who.tenant = p.tenant.Name
	}
	outcome, err := a.await(ctx, p, model, who)
	p.held += time.Since(began)
	a.g.Telemetry.WaitedForAdapter(outcome, time.Since(began))
	return err
}

// await waits until a worker has the adapter. outcome is the label of a metric.
func (a *adapters) await(ctx context.Context, p *prepared, name string, who guest) (outcome string, err error) {
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
		wait, err := a.join(one, p.route.Exclude, who)
		if err != nil {
			return "failed", err
		}
		select {
		case <-wait.load.done:
			a.quit(wait)
			if wait.load.err != nil {
				return "failed", wait.load.err
			}
		case <-wait.shed:
			return "failed", api.HoldFull()
		case <-ctx.Done():
			a.quit(wait)
			return "client_gone", ctx.Err()
		case <-timer.C:
			return "timeout", api.AdapterNotLoaded(name, "it was not loaded within "+patience.String()+": "+a.quit(wait), loadPause)
		}
		if loadedAt(a.g.Fleet.Snapshot(), name, p.route.Exclude, time.Now().UnixNano()) {
			return "loaded", nil
		}
	}
}

// join lets a request wait for the load of an adapter, which begins unless it is under way.
func (a *adapters) join(one *Adapter, exclude []fleet.WorkerID, who guest) (*adapterWait, error) {
	wait := &adapterWait{guest: who, shed: make(chan struct{})}
	a.mu.Lock()
	defer a.mu.Unlock()
	f, failed := a.failed[one.Name]
	switch {
	case a.over:
		return nil, errDraining
	case failed && time.Now().Before(f.until):
		return nil, f.err
	}
	shed, ok := makeRoom(a.g, &a.waiting, a.bytes, &wait.guest, func(v any) *guest { return &v.(*adapterWait).guest })
	if !ok {
		return nil, api.HoldFull()
	}
	for _, v := range shed {
		b := v.(*adapterWait)
		a.remove(b)
		close(b.shed)
	}
	wait.at = a.waiting.PushBack(wait)
	a.bytes += wait.bytes
	a.g.Telemetry.Holding(1, wait.bytes)
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
	wait.load = l
	return wait, nil
}

// quit ends the wait of a request. It returns what the load waits for.
func (a *adapters) quit(wait *adapterWait) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.remove(wait)
	return wait.load.why
}

// remove undoes join, unless the request was shed meanwhile. a.mu is held.
func (a *adapters) remove(wait *adapterWait) {
	if wait.at == nil {
		return
	}
	a.waiting.Remove(wait.at)
	wait.at = nil
	a.bytes -= wait.bytes
	a.g.Telemetry.Holding(-1, -wait.bytes)
	if wait.load.waiters--; wait.load.waiters == 0 {
		a.wake()
	}
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
		wanted, unable := l.waiters > 0, a.cannotLoad(step.worker.ID, time.Now().UnixNano())
		a.mu.Unlock()
		if err == nil {
			return nil
		}
		last = err
		tried = append(tried, step.worker.ID)
		if !unable {
			attempts++
		}
		if attempts == loadAttempts || !wanted || ctx.Err() != nil {
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
	a.noteUnable(w, err)
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

// noteUnable remembers for a minute that the engine of w does not know the order.
func (a *adapters) noteUnable(w *fleet.Worker, err *orderFailure) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil && err.unable {
		a.unable[w.ID] = time.Now().Add(unablePause).UnixNano()
	} else {
		delete(a.unable, w.ID)
	}
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
