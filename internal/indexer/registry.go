package indexer

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/zmtp"
)

const (
	// maxRegistered bounds the registered workers: ten times the largest known fleets.
	maxRegistered = 20000
	// maxModels bounds the models and adapters of one worker.
	maxModels = 1024
)

// Errors that become statuses of HTTP and gRPC: see statusOf.
var (
	errConflict = errors.New("the worker is there already")
	errAbsent   = errors.New("no such worker is registered")
	errFull     = errors.New("there is no room for the worker")
	errNoModel  = errors.New("no worker serves the model")
	errBusy     = errors.New("the service is busy")
)

// registry puts the workers that programs register into the fleet. It is safe for concurrent use.
type registry struct {
	fleet *fleet.Fleet
	log   *slog.Logger
	// listed returns where else a worker is listed, "" if it is not, and listedAll returns that of all workers.
	listed    func(worker string) string
	listedAll func() map[string]string

	// gone has, by the worker's name in the fleet, the ranks between others that are not registered, or no longer, as an
	// immutable []int: the fleet knows only ranges of ranks. gaps is the number of such workers, nearly always 0: then
	// nobody looks into gone.
	gone sync.Map
	gaps atomic.Int32

	mu        sync.Mutex        // guards the fields below
	entries   map[string]*entry // by the worker's name in the fleet
	endpoints endpoints
	total     weight // of all entries
}

// entry is a registered worker of a group.
type entry struct {
	id    fleet.WorkerID
	model string // the name of the base model in the fleet
	facts fleet.Facts
	// parts are the ranks and adapters that were registered by calls of their own. whole says that the worker was
	// registered by one call.
	parts map[part]bool
	whole bool
	until time.Time // when the lease ends; zero: never
}

// part is a rank of a worker, and the adapter with which it was registered; "" is none.
type part struct {
	rank int
	lora string
}

// check returns what is wrong with a registration.
func (r *registration) check() error {
	var problems []error
	r.worker = strings.TrimRight(r.worker, "/")
	if r.worker == "" {
		problems = append(problems, errors.New("instance_id is missing: give the worker's name or URL"))
	}
	if len(r.models) == 0 || r.models[0].ID == "" {
		problems = append(problems, errors.New("model_name is missing: give the model that the worker serves"))
	}
	if r.blockSize > block.MaxSize {
		problems = append(problems, fmt.Errorf("block_size %d is not within 0..%d tokens", r.blockSize, block.MaxSize))
	}
	if _, err := engineOf(r.engine); err != nil {
		problems = append(problems, err)
	}
	names := []string{r.worker, r.group, r.version}
	for _, m := range r.models {
		names = append(names, m.ID, m.Root, m.Parent)
	}
	for _, s := range r.sources {
		names = append(names, s.Endpoint, s.Replay, s.Topic)
		if s.Rank > fleet.MaxRank {
			problems = append(problems, fmt.Errorf("dp_rank %d is not within 0..%d", s.Rank, fleet.MaxRank))
		}
		for what, endpoint := range map[string]string{"endpoint": s.Endpoint, "replay_endpoint": s.Replay} {
			if endpoint == "" && what == "replay_endpoint" {
				continue
			}
			if e, err := zmtp.ParseEndpoint(endpoint); err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", what, err))
			} else if e.Path == "" && (e.Port == 0 || e.Wildcard()) {
				problems = append(problems, fmt.Errorf("%s: %q names no host and port to connect to", what, endpoint))
			}
		}
	}
	for _, name := range names {
		if err := named("a name", name); err != nil {
			problems = append(problems, err)
		}
	}
	if r.firstRank > 0 && r.ranks == 0 {
		problems = append(problems, errors.New("dp_start (first_rank) needs dp_size (ranks), the number of ranks; without them dp_rank says which rank has the endpoint"))
	}
	if r.firstRank > fleet.MaxRank || r.ranks > fleet.MaxRanks {
		problems = append(problems, fmt.Errorf("%d ranks from %d on: at most %d ranks, up to number %d", r.ranks, r.firstRank, fleet.MaxRanks, fleet.MaxRank))
	}
	return errors.Join(problems...)
}

// engineOf returns the kind of an engine by a name of any of the dialects.
func engineOf(name string) (fleet.Engine, error) {
	switch strings.ToLower(name) {
	case "", "vllm", "unknown": // a router says unknown
		return fleet.EngineVLLM, nil
	case "sglang":
		return fleet.EngineSGLang, nil
	case "trtllm", "tensorrt-llm", "tensorrt_llm":
		return fleet.EngineTRTLLM, nil
	case "other":
		return fleet.EngineOther, nil
	case "mooncake":
		return 0, errors.New("type Mooncake: the events of a Mooncake store name blocks only by hashes, without token ids, so no prompt can be found by them; " +
			"register the engines (vLLM, SGLang), whose events have token ids")
	}
	return 0, fmt.Errorf("type %s is not known: use vLLM, SGLang, TensorRT-LLM, or other for an engine whose events have vLLM's form", api.Quoted(name))
}

// register adds a worker or changes it. listed is true if nothing changes, because the worker is in another list, or
// because r has a lease and the worker was registered without one: a router that comes and goes must not end or narrow
// what a program registered for good. The error wraps errConflict or errFull, or says what is wrong with r.
func (g *registry) register(r *registration, now time.Time) (listed bool, err error) {
	if err := r.check(); err != nil {
		return false, err
	}
	name := pooled(r.worker, r.group)
	if g.listed(name) != "" {
		return true, nil
	}
	listed, changed, err := g.note(name, r, now)
	if err != nil || listed {
		return listed, err
	}
	if changed != nil {
		g.log.Info("worker registered", "worker", r.worker, "model", r.models[0].ID, "group", groupOf(name), "ranks", changed.Ranks, "sources", len(changed.Events))
	}
	if r.warning != "" {
		g.warnShared(r.worker, r.warning)
	}
	g.fleet.Show() // g.mu is not held, so that registrations that come together share a snapshot
	return false, nil
}

// note adds a worker or changes it, and stages that in the fleet. changed is what the fleet is told; nil: nothing
// changes. The other results are those of register.
func (g *registry) note(name string, r *registration, now time.Time) (listed bool, changed *fleet.Facts, err error) {
	model := pooled(r.models[0].ID, r.group)
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.entries[name]
	switch {
	case e == nil && len(g.entries) >= maxRegistered:
		return false, nil, fmt.Errorf("%w: %d workers are registered already", errFull, maxRegistered)
	case e != nil && e.model != model:
		known, group := unpooled(e.model)
		return false, nil, fmt.Errorf("%w: %s serves %s in group %s; unregister it first", errConflict, api.Quoted(r.worker), api.Quoted(known), api.Quoted(group))
	}
	if e != nil && e.until.IsZero() && r.lease > 0 {
		return true, nil, nil
	}
	next, err := r.facts(e)
	if err != nil {
		return false, nil, err
	}
	var before weight
	if e != nil {
		before = weightOf(&e.facts)
	}
	if err := g.total.room(before, weightOf(&next)); err != nil {
		return false, nil, err
	}
	fresh := e == nil
	if fresh {
		e = &entry{model: model}
		g.entries[name] = e
	}
	e.add(r)
	if until := now.Add(r.lease); r.lease == 0 {
		e.until = time.Time{}
	} else if until.After(e.until) { // of several leases the one counts that ends last
		e.until = until
	}
	if fresh || !reflect.DeepEqual(e.facts, next) {
		r.warning = g.endpoints.add(name, next.Events)
		g.put(name, e, next)
		changed = &next
	}
	g.findGone(name, e)
	return false, changed, nil
}

// add notes what a registration names.
func (e *entry) add(r *registration) {
	if r.ranks > 0 {
		e.parts, e.whole = nil, true
	}
	if e.parts == nil {
		e.parts = map[part]bool{}
	}
	for _, s := range r.sources {
		e.parts[part{s.Rank, r.lora}] = true
	}
}

// put stages a worker in the fleet: the caller shows it when g.mu is no longer held. g.mu is held.
func (g *registry) put(name string, e *entry, f fleet.Facts) {
	g.total.change(weightOf(&e.facts), weightOf(&f))
	g.endpoints.keep(name, &e.facts, &f)
	e.facts = f
	f.Events, f.Models = slices.Clone(f.Events), slices.Clone(f.Models)
	e.id = g.fleet.Stage(name, f)
}

// findGone sets the ranks of a worker in g.gone. A nil e is a worker that left. g.mu is held.
func (g *registry) findGone(name string, e *entry) {
	var gone []int
	if e != nil && !e.whole {
		gone = e.missing()
	}
	if len(gone) == 0 {
		if _, had := g.gone.LoadAndDelete(name); had {
			g.gaps.Add(-1)
		}
		return
	}
	if _, had := g.gone.Swap(name, gone); !had {
		g.gaps.Add(1)
	}
}

// missing returns the ranks of the worker without a source of events. Sources ascend by rank.
func (e *entry) missing() (ranks []int) {
	f, at := &e.facts, 0
	for rank := f.FirstRank; rank < f.FirstRank+f.Ranks; rank++ {
		if at < len(f.Events) && f.Events[at].Rank == rank {
			at++
		} else {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// isGone reports whether a rank of a worker of the fleet is not registered.
func (g *registry) isGone(name string, rank int) bool {
	if g.gaps.Load() == 0 {
		return false
	}
	gone, has := g.gone.Load(name)
	return has && slices.Contains(gone.([]int), rank)
}

// facts returns what the fleet is told of the worker. known is what was registered of it before; nil is nothing.
func (r *registration) facts(known *entry) (fleet.Facts, error) {
	engine, err := engineOf(r.engine)
	if err != nil {
		return fleet.Facts{}, err
	}
	f := fleet.Facts{Engine: engine, Version: r.version, BlockSize: r.blockSize}
	for _, m := range r.models {
		m.ID = pooled(m.ID, r.group)
		if m.Parent != "" {
			m.Parent = pooled(m.Parent, r.group)
		}
		f.Models = append(f.Models, m)
	}
	sources := map[int]fleet.EventSource{}
	if known != nil {
		for _, s := range known.facts.Events {
			sources[s.Rank] = s
		}
		if r.blockSize == 0 {
			f.BlockSize = known.facts.BlockSize
		}
	}
	if r.ranks > 0 { // a whole worker
		clear(sources)
	} else if known != nil { // one more rank, or one more adapter
		f.Models = joined(known.facts.Models, f.Models)
	}
	if len(f.Models) > maxModels {
		return f, fmt.Errorf("the worker has more than %d models and adapters", maxModels)
	}
	for _, s := range r.sources {
		sources[s.Rank] = s
	}
	first, last := r.firstRank, r.firstRank+max(r.ranks, 1)-1
	if r.ranks == 0 && len(sources) > 0 {
		first, last = rangeOf(sources)
	}
	if last-first >= fleet.MaxRanks {
		return f, fmt.Errorf("the ranks of the worker go from %d to %d: a worker has at most %d", first, last, fleet.MaxRanks)
	}
	return f, setSources(&f, sources, first, last)
}

// joined returns the models of a and those of b that a lacks.
func joined(a, b []fleet.Model) []fleet.Model {
	out := slices.Clone(a)
	for _, m := range b {
		if i := slices.IndexFunc(out, func(has fleet.Model) bool { return has.ID == m.ID }); i >= 0 {
			out[i] = m
		} else {
			out = append(out, m)
		}
	}
	return out
}

// rangeOf returns the first and the last rank of event sources.
func rangeOf(sources map[int]fleet.EventSource) (first, last int) {
	all := slices.Sorted(maps.Keys(sources))
	return all[0], all[len(all)-1]
}

// setSources sets the ranks of a worker, and their event sources.
func setSources(f *fleet.Facts, sources map[int]fleet.EventSource, first, last int) error {
	f.FirstRank, f.Ranks, f.DeclaredRanks, f.Events = first, last-first+1, last-first+1, nil
	for _, rank := range slices.Sorted(maps.Keys(sources)) {
		if rank < first || rank > last {
			return fmt.Errorf("an event source of rank %d, the worker has the ranks %d to %d", rank, first, last)
		}
		f.Events = append(f.Events, sources[rank])
	}
	return nil
}

// unregister removes a worker, one of its ranks, or one of its adapters. The error wraps errAbsent.
func (g *registry) unregister(r *removal) error {
	defer g.fleet.Show() // what shrink stages; g.mu is no longer held
	g.mu.Lock()
	defer g.mu.Unlock()
	worker := strings.TrimRight(r.worker, "/")
	name := pooled(worker, r.group)
	e := g.entries[name]
	switch from := g.listed(name); {
	case from != "": // also if there is still an entry of its registration: removeEnded removes that
		return fmt.Errorf("%w: the service lists it itself (%s): %s in group %s", errAbsent, from, api.Quoted(r.worker), api.Quoted(groupOf(name)))
	case e == nil:
		return fmt.Errorf("%w: %s in group %s", errAbsent, api.Quoted(r.worker), api.Quoted(groupOf(name)))
	}
	if model, _ := unpooled(e.model); r.model != "" && r.model != model {
		return fmt.Errorf("%w: %s serves %s", errAbsent, api.Quoted(r.worker), api.Quoted(model))
	}
	if r.rankPlusOne == 0 && r.lora == "" {
		g.remove(name, e)
		return nil
	}
	removed := false
	for p := range e.parts {
		if (r.rankPlusOne == 0 || p.rank == r.rankPlusOne-1) && (r.lora == "" || p.lora == r.lora) {
			delete(e.parts, p)
			removed = true
		}
	}
	switch {
	case !removed && r.lora != "":
		return fmt.Errorf("%w: %s was not registered with the adapter %s", errAbsent, api.Quoted(r.worker), api.Quoted(r.lora))
	case !removed:
		return fmt.Errorf("%w: %s has no event source of rank %d", errAbsent, api.Quoted(r.worker), r.rankPlusOne-1)
	case len(e.parts) == 0:
		g.remove(name, e)
		return nil
	}
	return g.shrink(name, e, r)
}

// shrink stages in the fleet what is left of a worker after a removal. g.mu is held.
func (g *registry) shrink(name string, e *entry, r *removal) error {
	ranks, loras := map[int]bool{}, map[string]bool{}
	for p := range e.parts {
		ranks[p.rank], loras[p.lora] = true, true
	}
	sources := map[int]fleet.EventSource{}
	for _, s := range e.facts.Events {
		if ranks[s.Rank] {
			sources[s.Rank] = s
		}
	}
	next := e.facts
	if r.lora != "" && !loras[r.lora] {
		next.Models = slices.DeleteFunc(slices.Clone(next.Models), func(m fleet.Model) bool { return m.ID == pooled(r.lora, r.group) && m.Parent != "" })
	}
	first, last := rangeOf(sources)
	if err := setSources(&next, sources, first, last); err != nil {
		return err
	}
	if r.rankPlusOne > 0 {
		e.whole = false
	}
	g.put(name, e, next)
	g.findGone(name, e)
	return nil
}

// remove removes a worker from the fleet. g.mu is held.
func (g *registry) remove(worker string, e *entry) {
	g.forget(worker, e)
	g.fleet.Remove(e.id)
	g.log.Info("worker unregistered", "worker", bare(worker), "group", groupOf(worker))
}

// expire removes the workers whose lease has ended, and those that another list has meanwhile. When a router ends, the
// leases of all its workers end together: the fleet removes these with one snapshot.
func (g *registry) expire(now time.Time) {
	for _, worker := range g.removeEnded(now) {
		g.log.Warn("no router renewed the registration of a worker: it is removed", "worker", bare(worker), "group", groupOf(worker))
	}
	g.compareListed()
}

// removeEnded does the work of expire, and returns the workers whose lease has ended.
func (g *registry) removeEnded(now time.Time) (ended []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var ids []fleet.WorkerID
	for worker, e := range g.entries {
		switch {
		case g.listed(worker) != "": // discovery put its own facts in place of the registered ones: the fleet keeps them
			g.forget(worker, e)
		case !e.until.IsZero() && now.After(e.until):
			g.forget(worker, e)
			ended, ids = append(ended, worker), append(ids, e.id)
		}
	}
	if len(ids) > 0 {
		g.fleet.Remove(ids...)
	}
	return ended
}

// forget removes an entry. g.mu is held.
func (g *registry) forget(worker string, e *entry) {
	delete(g.entries, worker)
	g.findGone(worker, nil)
	g.total.change(weightOf(&e.facts), weight{})
	g.endpoints.keep(worker, &e.facts, &fleet.Facts{})
}

// has reports whether a worker is registered.
func (g *registry) has(worker string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.entries[worker] != nil
}

// groupOf returns the group of a worker of the fleet.
func groupOf(worker string) string {
	_, group := unpooled(worker)
	return group
}

// len returns the number of registered workers.
func (g *registry) len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.entries)
}
