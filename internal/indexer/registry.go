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
	errFull     = fmt.Errorf("%d workers are registered already", maxRegistered)
	errNoModel  = errors.New("no worker serves the model")
	errBusy     = errors.New("the service is busy")
)

// registry puts the workers that programs register into the fleet. It is safe for concurrent use.
type registry struct {
	fleet *fleet.Fleet
	log   *slog.Logger
	// listed returns where else a worker is listed; "" if it is not.
	listed func(worker string) string

	mu      sync.Mutex // guards entries
	entries map[string]*entry
}

// entry is a registered worker.
type entry struct {
	id    fleet.WorkerID
	model string // the name of the base model in the fleet
	facts fleet.Facts
	until time.Time // when the lease ends; zero: never
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
	if r.firstRank > fleet.MaxRank || r.ranks > fleet.MaxRanks {
		problems = append(problems, fmt.Errorf("%d ranks from %d on: at most %d ranks, up to number %d", r.ranks, r.firstRank, fleet.MaxRanks, fleet.MaxRank))
	}
	return errors.Join(problems...)
}

// engineOf returns the kind of an engine by a name of any of the dialects.
func engineOf(name string) fleet.Engine {
	switch strings.ToLower(name) {
	case "", "vllm", "mooncake": // Mooncake's store publishes events in vLLM's form
		return fleet.EngineVLLM
	case "sglang":
		return fleet.EngineSGLang
	case "trtllm", "tensorrt-llm", "tensorrt_llm":
		return fleet.EngineTRTLLM
	}
	return fleet.EngineOther
}

// register adds a worker or changes it. listed is true if the worker is in another list; then nothing changes. The
// error wraps errConflict or errFull, or says what is wrong with r.
func (g *registry) register(r *registration, now time.Time) (listed bool, err error) {
	if err := r.check(); err != nil {
		return false, err
	}
	if g.listed(r.worker) != "" {
		return true, nil
	}
	model := pooled(r.models[0].ID, r.group)
	g.mu.Lock()
	defer g.mu.Unlock()
	e := g.entries[r.worker]
	switch {
	case e == nil && len(g.entries) >= maxRegistered:
		return false, errFull
	case e != nil && e.model != model:
		known, group := unpooled(e.model)
		return false, fmt.Errorf("%w: %s serves %s in group %s; unregister it first", errConflict, api.Quoted(r.worker), api.Quoted(known), api.Quoted(group))
	}
	next, err := r.facts(e)
	if err != nil {
		return false, err
	}
	fresh := e == nil
	if fresh {
		e = &entry{model: model}
		g.entries[r.worker] = e
	}
	e.until = time.Time{}
	if r.lease > 0 {
		e.until = now.Add(r.lease)
	}
	if fresh || !reflect.DeepEqual(e.facts, next) {
		e.facts = next
		own := next
		own.Events, own.Models = slices.Clone(next.Events), slices.Clone(next.Models)
		e.id = g.fleet.Put(r.worker, own)
		g.log.Info("worker registered", "worker", r.worker, "model", r.models[0].ID, "group", r.group, "ranks", next.Ranks, "sources", len(next.Events))
	}
	return false, nil
}

// facts returns what the fleet is told of the worker. known is what was registered of it before; nil is nothing.
func (r *registration) facts(known *entry) (fleet.Facts, error) {
	f := fleet.Facts{Engine: engineOf(r.engine), Version: r.version, BlockSize: r.blockSize}
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
	}
	for _, s := range r.sources {
		sources[s.Rank] = s
	}
	first, last := r.firstRank, r.firstRank+max(r.ranks, 1)-1
	if r.ranks == 0 && len(sources) > 0 {
		all := slices.Sorted(maps.Keys(sources))
		first, last = all[0], all[len(all)-1]
	}
	if last-first >= fleet.MaxRanks {
		return f, fmt.Errorf("the ranks of the worker go from %d to %d: a worker has at most %d", first, last, fleet.MaxRanks)
	}
	f.FirstRank, f.Ranks, f.DeclaredRanks = first, last-first+1, last-first+1
	for _, rank := range slices.Sorted(maps.Keys(sources)) {
		if rank < first || rank > last {
			return f, fmt.Errorf("an event source of rank %d, the worker has the ranks %d to %d", rank, first, last)
		}
		f.Events = append(f.Events, sources[rank])
	}
	return f, nil
}

// unregister removes a worker or one of its ranks. The error wraps errAbsent.
func (g *registry) unregister(r *removal) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	worker := strings.TrimRight(r.worker, "/")
	e := g.entries[worker]
	if e == nil {
		why := errAbsent
		if from := g.listed(worker); from != "" {
			why = fmt.Errorf("%w: the service lists it itself (%s)", errAbsent, from)
		}
		return fmt.Errorf("%w: %s", why, api.Quoted(r.worker))
	}
	if model, group := unpooled(e.model); r.model != "" && r.model != model || r.group != "" && r.group != group {
		return fmt.Errorf("%w: %s serves %s in group %s", errAbsent, api.Quoted(r.worker), api.Quoted(model), api.Quoted(group))
	}
	if r.rankPlusOne == 0 {
		g.remove(worker, e)
		return nil
	}
	rank := r.rankPlusOne - 1
	left := slices.DeleteFunc(slices.Clone(e.facts.Events), func(s fleet.EventSource) bool { return s.Rank == rank })
	switch len(left) {
	case len(e.facts.Events):
		return fmt.Errorf("%w: %s has no event source of rank %d", errAbsent, api.Quoted(r.worker), rank)
	case 0:
		g.remove(worker, e)
		return nil
	}
	e.facts.Events = left
	e.facts.FirstRank = left[0].Rank
	e.facts.Ranks = left[len(left)-1].Rank - left[0].Rank + 1
	e.facts.DeclaredRanks = e.facts.Ranks
	next := e.facts
	next.Events, next.Models = slices.Clone(left), slices.Clone(e.facts.Models)
	g.fleet.Put(worker, next)
	return nil
}

// remove removes a worker from the fleet. g.mu is held.
func (g *registry) remove(worker string, e *entry) {
	delete(g.entries, worker)
	g.fleet.Remove(e.id)
	g.log.Info("worker unregistered", "worker", worker)
}

// expire removes the workers whose lease has ended, and those that another list has meanwhile.
func (g *registry) expire(now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for worker, e := range g.entries {
		switch {
		case !e.until.IsZero() && now.After(e.until):
			g.log.Warn("no router renewed the registration of a worker: it is removed", "worker", worker)
			g.remove(worker, e)
		case g.listed(worker) != "": // discovery put its own facts in place of the registered ones
			delete(g.entries, worker)
		}
	}
}

// has reports whether a worker is registered.
func (g *registry) has(worker string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.entries[worker] != nil
}

// len returns the number of registered workers.
func (g *registry) len() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.entries)
}
