package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

// pool is the workers and the routers of a run.
type pool struct {
	views   []*view // by router
	workers []worker
	ranks   []int // by holder (a router's number of a rank, equal in all routers): index of the rank in world.ranks
}

// worker is the state of one worker. Each of its ranks is an engine.
type worker struct {
	url   string
	first int // index of the worker's first rank in world.ranks
	ranks int
	state presence
}

type presence uint8

const (
	present presence = iota
	draining
	gone
)

// view is one router with its own knowledge of the fleet.
type view struct {
	fleet        *fleet.Fleet
	router       *warmpath.Router
	peers        []*warmpath.Peer // by router; nil for the router itself, and if routers tell each other nothing
	stored       kvindex.Stored
	engineHashes []uint64
}

func (p *pool) rank(w *world, h fleet.Holder) *rank { return w.ranks[p.ranks[h]] }

// fill makes the pool's routers and workers.
func (w *world) fill(p *pool, groups []Group) error {
	for i := range w.cfg.Routers {
		var observer warmpath.Observer
		if w.cfg.Sync {
			observer = &crier{world: w, from: i}
		}
		v := &view{fleet: fleet.New(fleet.Config{})}
		var err error
		v.router, err = warmpath.New(warmpath.Options{
			Fleet: v.fleet, Policy: w.cfg.Policy, SpeculativeTTL: w.cfg.Speculative, MaxRequests: w.cfg.MaxRequests,
			ServiceLevels: w.cfg.Levels, Legs: w.legs(), Observer: observer,
		})
		if err != nil {
			return err
		}
		p.views = append(p.views, v)
	}
	w.connect(p)
	for i := range groups {
		for range groups[i].Count {
			if err := w.addWorker(p, &groups[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// legs returns the routers' setting of which requests are divided.
func (w *world) legs() warmpath.Legs {
	d := w.cfg.Disaggregation
	if d == nil {
		return warmpath.Legs{}
	}
	legs := d.Legs
	if d.Rule.Name != "" {
		legs.Mode = policy.ModeAlways // what the rule does not divide has Request.Undivided
	}
	return legs
}

// addWorker adds a worker with empty engines to a pool and to every router's fleet.
func (w *world) addWorker(p *pool, g *Group) error {
	n := len(p.workers)
	url := fmt.Sprintf("http://worker-%d", n+1)
	wk := worker{url: url, first: len(w.ranks), ranks: g.used()}
	front, wire := new(apiServer), new(link)
	if d := w.cfg.Disaggregation; d != nil {
		wire.speed = d.linkSpeed(g)
	}
	for i := range g.used() {
		e, err := engine.New(w.engineConfig(g))
		if err != nil {
			return err
		}
		r := &rank{
			index: len(w.ranks), pool: p, holder: fleet.Holder(len(p.ranks)), worker: fleet.WorkerID(n), group: g, engine: e,
			lines: make([]line, w.cfg.Routers), apiServer: front, link: wire,
		}
		front.ranks = append(front.ranks, r)
		p.ranks = append(p.ranks, r.index)
		w.ranks = append(w.ranks, r)
		name := fmt.Sprintf("worker %d", n+1)
		if g.Role != fleet.RoleBoth {
			name = fmt.Sprintf("%s worker %d", g.Role, n+1)
		}
		if g.Ranks > 1 {
			name += fmt.Sprintf(" rank %d", i)
		}
		w.rec.Name(r.index, name)
	}
	p.workers = append(p.workers, wk)
	for _, v := range p.views {
		v.put(w, url, g)
		for i := range g.used() {
			v.fleet.SetTrust(w.ranks[wk.first+i].holder, fleet.TrustExact, "simulated events")
		}
	}
	return nil
}

// put adds a worker to the view's fleet, with the facts that a probe of the gateway would find.
func (v *view) put(w *world, url string, g *Group) fleet.WorkerID {
	facts := fleet.Facts{
		Engine: fleet.EngineVLLM, BlockSize: g.BlockSize, BlocksPerRank: g.KVTokens / g.BlockSize, Ranks: g.Ranks, DeclaredRanks: g.Declared,
		Models: w.models(g), ReportsCachedTokens: true, Role: g.Role,
	}
	if d := w.cfg.Disaggregation; d != nil {
		facts.Transfer = fleet.Transfer{Connector: "nixl", Fetches: d.Fetch, TokenBytes: int(g.Profile.KVBytes)}
	}
	return v.fleet.Put(url, facts)
}

// models returns the models that a worker reports: the served model under every model name of the workload, and all
// LoRA adapters of the workload.
func (w *world) models(g *Group) []fleet.Model {
	models := []fleet.Model{{ID: model, Root: model, MaxModelLen: g.Profile.MaxModelLen}}
	seen := map[string]bool{"": true, model: true}
	for i := range w.requests {
		r := &w.requests[i]
		if !seen[r.Model] {
			seen[r.Model] = true
			models = append(models, fleet.Model{ID: r.Model, Root: model, MaxModelLen: g.Profile.MaxModelLen})
		}
		if !seen[r.LoRA] {
			seen[r.LoRA] = true
			models = append(models, fleet.Model{ID: r.LoRA, Root: r.LoRA, Parent: model})
		}
	}
	return models
}

// batch is a copy of the KV events of one pass, on its way to the routers.
type batch struct {
	rank   *rank
	life   int
	events []engine.Event
	hashes []engine.Hash
	tokens []block.Token
	users  int // number of routers that have not applied the batch yet
}

// publish sends the KV events of r's last pass to every router.
func (w *world) publish(r *rank) {
	events := r.step.Events
	for i := range events {
		if e := &events[i]; e.Kind == engine.Removed && e.Tier == block.TierGPU {
			w.rec.Evicted(len(e.Hashes))
		}
	}
	w.describe(events)
	if w.cfg.Lag == 0 && w.cfg.LagJitter == 0 && w.cfg.Loss == 0 {
		for _, v := range r.pool.views {
			v.apply(r.holder, events)
			w.rec.Events(len(events), 0)
		}
		return
	}
	b := w.copyEvents(r)
	b.users = len(r.pool.views)
	for i := range r.pool.views {
		at := w.now + w.cfg.Lag
		if w.cfg.LagJitter > 0 {
			at += time.Duration(w.random.Int64N(int64(w.cfg.LagJitter)))
		}
		line := &r.lines[i]
		line.last = max(line.last, at)
		if w.cfg.Loss > 0 && w.random.Float64() < w.cfg.Loss {
			line.lost = append(line.lost, b)
			w.rec.Events(0, len(b.events))
			continue
		}
		w.agenda.plan(moment{at: line.last, kind: atDelivery, a: int32(i), with: b})
	}
}

// describe puts the block tokens into events, if the engine itself has only zero tokens (see sequence). The tokens are
// valid until the next call of describe or prompt.
func (w *world) describe(events []engine.Event) {
	if !w.runs {
		return
	}
	w.tokens = w.tokens[:0]
	for i := range events {
		e := &events[i]
		f, ok := e.Owner.(*flight)
		if !ok {
			continue
		}
		began := len(w.tokens)
		w.tokens = f.req.AppendSpan(w.tokens, e.Start, len(e.Tokens))
		e.Tokens = w.tokens[began:]
	}
}

func (w *world) copyEvents(r *rank) *batch {
	var b *batch
	if n := len(w.spareBatches); n > 0 {
		b, w.spareBatches = w.spareBatches[n-1], w.spareBatches[:n-1]
	} else {
		b = &batch{}
	}
	*b = batch{rank: r, life: r.life, events: append(b.events[:0], r.step.Events...), hashes: b.hashes[:0], tokens: b.tokens[:0]}
	hashes, tokens := 0, 0
	for i := range b.events {
		hashes, tokens = hashes+len(b.events[i].Hashes), tokens+len(b.events[i].Tokens)
	}
	b.hashes, b.tokens = slices.Grow(b.hashes, hashes), slices.Grow(b.tokens, tokens)
	for i := range b.events {
		e := &b.events[i]
		h, t := len(b.hashes), len(b.tokens)
		b.hashes, b.tokens = append(b.hashes, e.Hashes...), append(b.tokens, e.Tokens...)
		e.Hashes, e.Tokens = b.hashes[h:], b.tokens[t:]
	}
	return b
}

func (w *world) done(b *batch) {
	if b.users--; b.users == 0 {
		w.spareBatches = append(w.spareBatches, b)
	}
}

// deliver applies a batch that has arrived at a router. If earlier batches of the same stream were lost, the router
// notices the gap now.
func (w *world) deliver(b *batch, router int) {
	r := b.rank
	line := &r.lines[router]
	v := r.pool.views[router]
	if len(line.lost) > 0 {
		if !w.cfg.Replay && b.life == r.life {
			v.router.Forget(r.holder)
			v.fleet.SetTrust(r.holder, fleet.TrustDegraded, "events were lost")
		}
		for _, lost := range line.lost {
			if w.cfg.Replay && lost.life == r.life {
				v.apply(r.holder, lost.events)
				w.rec.Events(len(lost.events), 0)
			}
			w.done(lost)
		}
		line.lost = line.lost[:0]
	}
	if b.life == r.life {
		v.apply(r.holder, b.events)
		w.rec.Events(len(b.events), 0)
	}
	w.done(b)
}

// apply applies events to the router's index, as package kvfeed does after decoding. Consecutive removals from one tier
// become one call.
func (v *view) apply(h fleet.Holder, events []engine.Event) {
	for i := 0; i < len(events); i++ {
		e := &events[i]
		v.engineHashes = appendEngineHashes(v.engineHashes[:0], e.Hashes)
		switch e.Kind {
		case engine.Stored:
			s := &v.stored
			s.Tier, s.Hashes, s.Tokens, s.BlockSize = e.Tier, v.engineHashes, e.Tokens, e.BlockSize
			s.Parent, s.HasParent = uint64(e.Parent), e.HasParent
			s.Scope = block.Scope{LoRA: e.LoRA, Salt: e.Salt}
			s.RootUnknown = e.Tier != block.TierGPU // events of the CPU tier do not contain the cache salt
			v.router.Store(h, s)
		case engine.Removed:
			for ; i+1 < len(events) && events[i+1].Kind == engine.Removed && events[i+1].Tier == e.Tier; i++ {
				v.engineHashes = appendEngineHashes(v.engineHashes, events[i+1].Hashes)
			}
			v.router.Remove(h, warmpath.Removed{Tier: e.Tier, Hashes: v.engineHashes})
		case engine.Cleared:
			v.router.Clear(h, e.Tier)
		}
	}
}

func appendEngineHashes(dst []uint64, hashes []engine.Hash) []uint64 {
	for _, h := range hashes {
		dst = append(dst, uint64(h))
	}
	return dst
}
