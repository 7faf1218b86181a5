package gateway

import (
	"container/list"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/proxy"
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

// adapterTimeout is the default of AdapterConfig.Timeout. In this time a worker reads some gigabytes from a network
// drive.
const adapterTimeout = time.Minute

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
	unable  map[fleet.WorkerID]int64 // workers whose engine does not know these orders, and until when this counts, in Unix nanoseconds
	waiting list.List                // of *adapterWait: the requests that wait for an adapter, the newest last
	bytes   int64                    // memory of their bodies
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

func newAdapters(g *Gateway) *adapters {
	a := &adapters{
		g: g, uses: map[string]*adapterUse{}, loads: map[string]*adapterLoad{}, busy: map[fleet.WorkerID]bool{},
		failed: map[string]failedLoad{}, paths: map[fleet.WorkerID]map[string]string{},
		unable: map[fleet.WorkerID]int64{}, changed: make(chan struct{}),
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
	clear(a.unable)
	for name, u := range a.uses {
		if set.byName[name] == nil && u.requests == 0 {
			delete(a.uses, name)
		}
	}
	a.wake()
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
	for id := range a.unable {
		if snap.ByID(id) == nil {
			delete(a.unable, id)
		}
	}
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

// noteMissing asks for a probe of a worker that answered 404 to a request for an adapter that it lists, for example
// because somebody told the engine to unload it.
func (x *exchange) noteMissing(w *fleet.Worker, last *proxy.Result) {
	if last.Status != http.StatusNotFound || x.g.Outdated == nil {
		return
	}
	name := x.prepared.read.Model
	if slices.ContainsFunc(w.Facts.Models, func(m fleet.Model) bool { return m.ID == name && m.Parent != "" }) {
		x.g.Outdated(w.URL)
	}
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
