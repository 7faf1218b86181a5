package fleet

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Config tunes a [Fleet]. The zero value is the default.
type Config struct {
	Breaker BreakerConfig
	// Timing is the assumed timing of holders before it is measured. Default: DefaultTiming.
	Timing Timing
	// Expiry is how long a request may give no sign of life before [Fleet.Expire] counts it as lost. Default:
	// DefaultExpiry.
	Expiry time.Duration
	// BlockSizes gives the engine block size in tokens by base model, for models whose workers report no block size or
	// a wrong one. These sizes replace the sizes that probes and events report. Default: nil, none.
	BlockSizes map[string]int
}

// Fleet is all workers. It is safe for concurrent use: writers exclude each other, build the next snapshot aside and
// swap it in; readers never wait for writers. A method that changes the fleet, other than Stage, returns when the
// snapshot shows the change. Changes that are made at the same time share a snapshot.
type Fleet struct {
	config  Config
	current atomic.Pointer[Snapshot]

	shown    atomic.Uint64     // how many changes the current snapshot shows
	building sync.Mutex        // guards turns; held while a snapshot is built; comes before mu
	turns    map[string]*turns // by model name

	// mu guards the fields below, which only writers touch.
	mu      sync.Mutex
	changes uint64              // how many changes there were
	byURL   map[string]WorkerID // the last worker at each URL
	known   map[WorkerID]*known // present workers, and workers that left: see forgetPlace
	former  []WorkerID          // known workers that left and whose ranks all lost their ids, the oldest first
	next    WorkerID            // the id that the next new worker gets
	present []*Worker           // by ascending id
	byPlace map[place]Holder
	holders []holder
	gone    map[Holder]int64 // by holder that left: the time of the first Retire after it left, Unix nanoseconds
	free    []Holder         // ids for future holders
	kinds   []*kind          // the kinds of the present workers, in the order of first sight

	links *links // has a lock of its own, which may be taken while mu is held, but not the other way round
}

// known is what the fleet keeps of a worker that is present or left lately.
type known struct {
	url     string
	life    life
	scopes  scopes
	holders int // number of holder ids that the worker's ranks have
}

// place is the identity of a holder. A worker's id belongs to one stay of the worker, so a place never returns.
type place struct {
	worker WorkerID
	rank   int
}

// holderState holds the facts about a holder that change without a new snapshot. It stays when the worker is removed,
// so that the reservations on the holder can still be released.
type holderState struct {
	work         ledger
	others       others
	pressure     pressure
	blockedUntil atomic.Int64 // breaker.until, for readers
	trust        atomic.Pointer[trustState]
	hash         uint64
	ramp         ramp
	servedAt     atomic.Int64 // when the last good answer came while limit was not nil, Unix nanoseconds
	limit        atomic.Pointer[limit]
	suspect      atomic.Int64 // when the suspicion began that the worker is frozen, Unix nanoseconds; 0: no suspicion
	scopes       *scopes      // the scopes of the holder's worker

	mu      sync.Mutex // guards breaker; nests inside Fleet.mu
	breaker Breaker
}

// New returns an empty fleet.
func New(c Config) *Fleet {
	c.Breaker = c.Breaker.withDefaults()
	if c.Timing == (Timing{}) {
		c.Timing = DefaultTiming
	}
	if c.Expiry <= 0 {
		c.Expiry = DefaultExpiry
	}
	f := &Fleet{
		config:  c,
		byURL:   map[string]WorkerID{},
		known:   map[WorkerID]*known{},
		byPlace: map[place]Holder{},
		gone:    map[Holder]int64{},
		turns:   map[string]*turns{},
		links:   newLinks(),
	}
	f.current.Store(&Snapshot{superseded: make(chan struct{}), pools: map[string]*Pool{}, links: f.links})
	return f
}

// Snapshot returns the fleet as it is now, without a lock.
func (f *Fleet) Snapshot() *Snapshot { return f.current.Load() }

const (
	// DefaultRanks is how many data-parallel ranks of a worker are used at most, unless the operator declares another
	// number. Eight is the usual number of GPUs of a machine. A worker cannot raise the number by its own report,
	// because each rank attracts requests.
	DefaultRanks = 8
	// MaxRanks is the greatest number of ranks that can be declared for a worker. Each rank has an event stream, a
	// share of the memory, and a line in metrics. The largest published deployments have 144 ranks [DeepSeek-V3/R1
	// inference system overview: decode units of EP144] and 72 ranks [SGLang on 96 GPUs].
	MaxRanks = 256
	// MaxRank is the greatest number that a rank may have. It exceeds MaxRanks because the workers of a model may
	// number their ranks across all workers.
	MaxRank = 4095
)

// Put adds the worker at url, or replaces its facts. A new worker counts as healthy, because the caller has just probed
// it. If the worker has not answered yet, the caller puts it with empty facts: then it serves nothing and gets no
// request. If the worker no longer has a rank, the holder of the rank leaves the fleet.
//
// A worker that was removed is not the worker that is put at its URL later, because platforms give an address that is
// free to another machine. The new worker gets an id and holders of its own, and nothing counts for it that the fleet
// learned of the earlier one: load, pace, failures. Only Incarnation goes on counting for the URL.
//
// Put does not check url: the fleet only compares it, and gives it back in [Worker]. A slash at the end is removed.
// Give the URL to which the program sends requests, with its scheme: http://gpu-1:8000.
func (f *Fleet) Put(url string, facts Facts) WorkerID {
	f.mu.Lock()
	defer f.release()
	return f.put(url, facts, "")
}

// Stage is [Fleet.Put] without the wait for the snapshot: call [Fleet.Show] after it. A caller that keeps records of
// its own under a lock stages under this lock, so that the fleet gets the changes in the same order, and shows after
// the lock. Then changes of several goroutines share a snapshot, as those of Put do.
func (f *Fleet) Stage(url string, facts Facts) WorkerID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.put(url, facts, "")
}

// Show returns when the current snapshot shows all changes that were made before the call.
func (f *Fleet) Show() {
	f.mu.Lock()
	f.release()
}

// Expect adds workers that have not answered yet: they serve nothing, and they are not healthy for the reason why. One
// snapshot shows all of them, while each [Fleet.Put] makes a snapshot of the whole fleet. A worker that is present
// already stays as it is. Expect returns the ids in the order of urls.
func (f *Fleet) Expect(urls []string, why string) []WorkerID {
	f.mu.Lock()
	defer f.release()
	ids := make([]WorkerID, len(urls))
	for i, url := range urls {
		id, known := f.byURL[strings.TrimRight(url, "/")]
		if !known || f.worker(id) == nil {
			id = f.put(url, Facts{}, why)
		}
		ids[i] = id
	}
	return ids
}

// put adds a worker or replaces its facts. With a reason why, a new worker is not healthy. f.mu is held.
func (f *Fleet) put(url string, facts Facts, why string) WorkerID {
	url = strings.TrimRight(url, "/")
	facts.Ranks = min(max(facts.Ranks, 1), MaxRanks)
	facts.BlockSize = max(facts.BlockSize, 0)
	used := facts.UsedRanks()

	if static := f.StaticBlockSize(facts.BaseModel()); static > 0 {
		if facts.BlockSize > 0 { // the size of the cache in tokens stays
			facts.BlocksPerRank = int(int64(facts.BlocksPerRank) * int64(facts.BlockSize) / int64(static))
		}
		facts.BlockSize = static
	}

	id, reused := f.byURL[url]
	var old *Worker
	if reused {
		old = f.worker(id)
	}
	if old == nil {
		fresh := &known{url: url}
		if reused {
			fresh.life.incarnation = f.known[id].life.incarnation + 1
		}
		id = f.next
		f.next++
		f.byURL[url], f.known[id] = id, fresh
	}
	w := &Worker{ID: id, URL: url, Healthy: why == "", Why: why, Incarnation: f.known[id].life.incarnation}
	if old != nil {
		w.Healthy, w.Draining, w.Asleep, w.Why, w.ModelOrders = old.Healthy, old.Draining, old.Asleep, old.Why, old.ModelOrders
		for _, h := range old.Holders {
			if rank := f.holders[h].rank; rank < facts.FirstRank || rank >= facts.FirstRank+used {
				f.left(h)
			}
		}
	}
	w.Facts, w.longest = facts, facts.MaxModelLen()
	w.Holders = make([]Holder, used)
	for i := range w.Holders {
		w.Holders[i] = f.intern(id, facts.FirstRank+i)
	}
	f.joinKind(w)
	f.replace(w)
	return id
}

// Find returns the id of the present worker at url. It takes a lock for a moment.
func (f *Fleet) Find(url string) (WorkerID, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id, known := f.byURL[strings.TrimRight(url, "/")]
	if !known || f.worker(id) == nil {
		return 0, false
	}
	return id, true
}

// intern returns the holder for a rank of a worker. f.mu is held.
func (f *Fleet) intern(id WorkerID, rank int) Holder {
	p := place{id, rank}
	if h, ok := f.byPlace[p]; ok {
		delete(f.gone, h)
		return h
	}
	h := f.newHolder()
	k := f.known[id]
	k.holders++
	s := &holderState{hash: hashPlace(k.url, rank), scopes: &k.scopes}
	s.trust.Store(&initialTrust)
	f.byPlace[p] = h
	f.holders[h] = holder{rank: rank, state: s}
	return h
}

// SetHealth stores the result of an active check. If the check failed, the argument why gives the reason in words. A
// worker that becomes healthy again is most likely a new process: so the breakers of its holders close, and the holders
// start slowly.
func (f *Fleet) SetHealth(id WorkerID, healthy bool, why string) {
	f.mu.Lock()
	defer f.release()
	old := f.worker(id)
	if old == nil || (old.Healthy == healthy && (healthy || old.Why == why)) {
		return
	}
	w := *old
	w.Healthy, w.Why = healthy, why
	if healthy && !old.Healthy {
		for _, h := range w.Holders {
			f.holders[h].state.reset()
		}
	}
	f.replace(&w)
}

// SetDraining stops or resumes new requests to a worker.
func (f *Fleet) SetDraining(id WorkerID, draining bool) {
	f.mu.Lock()
	defer f.release()
	old := f.worker(id)
	if old == nil || old.Draining == draining {
		return
	}
	w := *old
	w.Draining = draining
	f.replace(&w)
}

// SetAsleep records that a worker's engine fell asleep or woke up. A worker that is asleep has no weights and no cache
// in its accelerator's memory. It gets no requests until it wakes up, or until another process answers at its URL.
func (f *Fleet) SetAsleep(id WorkerID, asleep bool) {
	f.mu.Lock()
	defer f.release()
	old := f.worker(id)
	if old == nil || old.Asleep == asleep {
		return
	}
	w := *old
	w.Asleep = asleep
	f.replace(&w)
}

// StaticBlockSize returns the engine block size in tokens that is configured for a base model. It returns 0 if no size
// is configured: then the workers' own reports count.
func (f *Fleet) StaticBlockSize(model string) int { return max(f.config.BlockSizes[model], 0) }

// SetBlockSize sets the engine block size that a worker's events show, because a probe may report no size or a wrong
// one. SetBlockSize does nothing if the model has a static block size.
func (f *Fleet) SetBlockSize(id WorkerID, tokens int) {
	f.mu.Lock()
	defer f.release()
	old := f.worker(id)
	if old == nil || tokens <= 0 || old.Facts.BlockSize == tokens || f.StaticBlockSize(old.Facts.BaseModel()) > 0 {
		return
	}
	w := *old
	w.Facts.BlockSize = tokens
	f.joinKind(&w)
	f.replace(&w)
}

// Remove removes workers from the fleet, with one snapshot for all of them. Their holders keep their ids until
// [Fleet.Retire], so that the load of their requests under way can still be released. If a URL is put again, it is the
// URL of a new worker: see [Fleet.Put].
func (f *Fleet) Remove(ids ...WorkerID) {
	f.mu.Lock()
	for _, id := range ids {
		f.remove(id)
	}
	f.release()
	for _, id := range ids {
		f.links.drop(id) // after the snapshot is there, so that no transfer that ends now adds a pair of this worker again
	}
}

// remove removes a worker, if it is present. f.mu is held.
func (f *Fleet) remove(id WorkerID) {
	at, present := f.position(id)
	if !present {
		return
	}
	old := f.present[at]
	f.present = slices.Delete(f.present, at, at+1)
	f.known[id].scopes.clear()
	for _, h := range old.Holders {
		f.left(h)
	}
	f.changes++
}

// left resets h when it leaves the fleet. A rank that the worker no longer reports may return with the same holder; it
// then starts anew. f.mu is held.
func (f *Fleet) left(h Holder) {
	s := f.holders[h].state
	s.trust.Store(&initialTrust)
	s.reset()
	s.others.reset()
	s.pressure.bits.Store(0)
	f.leaveKind(&s.work)
}

// joinKind adds w's holders to the kind of w. f.mu is held.
func (f *Fleet) joinKind(w *Worker) {
	key := w.Facts.kind()
	for _, h := range w.Holders {
		l := &f.holders[h].state.work
		old := l.kind.Load()
		if next := f.kindOf(key, old); next != old || !l.member {
			l.become(next)
			l.member = true
			f.prune(old)
		}
	}
}

// leaveKind removes a holder that left the fleet from its kind. The ledger keeps a pointer to the kind, and so the
// learned times, for the return of a rank. f.mu is held.
func (f *Fleet) leaveKind(l *ledger) {
	k := l.kind.Load()
	k.leave(&l.pace)
	l.member = false
	f.prune(k)
}

// kindOf returns the kind with that key. old is the holder's kind so far, or nil for a new holder. If there is no kind
// with that key, kindOf makes one. The new kind starts with the times of another kind of the same model, the one with
// the most measurements, because measured times are better than assumed times. f.mu is held.
func (f *Fleet) kindOf(key kindKey, old *kind) *kind {
	for _, k := range f.kinds {
		if k.key == key {
			return k
		}
	}
	next := old
	if old == nil || old.key != key {
		assumed := f.config.Timing
		consider := func(k *kind) {
			if t := k.times.load(); k.key.model == key.model && t.Samples > assumed.Samples {
				assumed = t
			}
		}
		for _, k := range f.kinds {
			consider(k)
		}
		if old != nil {
			consider(old)
		}
		next = newKind(key, assumed)
	}
	f.kinds = append(f.kinds, next)
	return next
}

// prune drops a kind without present workers. Otherwise kinds would pile up if a worker reports another version at each
// probe. f.mu is held.
func (f *Fleet) prune(k *kind) {
	if k != nil && k.empty() {
		f.kinds = slices.DeleteFunc(f.kinds, func(x *kind) bool { return x == k })
	}
}

// SetTrust stores how far h's index entries can be believed from now on, and the reason in words. It makes no new
// snapshot: trust is read live.
func (f *Fleet) SetTrust(h Holder, t Trust, why string) {
	if s := f.Snapshot().state(h); s != nil {
		s.trust.Store(&trustState{level: t, why: why})
	}
}

// ResetTrust gives h the trust of a holder without events. Call it if h publishes no events, or if its stream is no
// longer read.
func (f *Fleet) ResetTrust(h Holder) {
	f.SetTrust(h, initialTrust.level, initialTrust.why)
}

// Observe records how a request to h ended, at now, in Unix nanoseconds. The passive health of h follows from these
// records.
func (f *Fleet) Observe(h Holder, o Outcome, now int64) {
	s := f.Snapshot().state(h)
	if s == nil {
		return
	}
	if o == OutcomeServed {
		s.work.heard.Store(now)
	}
	s.mu.Lock()
	observe(&s.breaker, &s.ramp, f.config.Breaker, o, now)
	s.blockedUntil.Store(s.breaker.until)
	s.mu.Unlock()
}

// begin records that a request in a scope is sent. If a breaker is half open, the request is the breaker's trial.
func (s *holderState) begin(c BreakerConfig, scope Scope, now int64) {
	s.scopes.begin(c, scope, now)
	if s.blockedUntil.Load() == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.breaker.Begin(c, now)
	s.blockedUntil.Store(s.breaker.until)
}

// reset forgets the health that was learned from requests, except the health in scopes: otherwise one failed check and
// the recovery after it would clear the health in scopes, too. If the holder had requests before, its slow start
// begins.
func (s *holderState) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.breaker = Breaker{}
	s.blockedUntil.Store(0)
	s.limit.Store(nil)
	s.suspect.Store(0)
	s.returned()
}

// worker returns the present worker of that id, or nil. f.mu is held.
func (f *Fleet) worker(id WorkerID) *Worker {
	at, ok := f.position(id)
	if !ok {
		return nil
	}
	return f.present[at]
}

// position returns the index of a worker in present. If ok is false, the worker is not present, and the index is the
// place where it would be inserted. f.mu is held.
func (f *Fleet) position(id WorkerID) (at int, ok bool) { return position(f.present, id) }

func position(workers []*Worker, id WorkerID) (at int, ok bool) {
	return slices.BinarySearchFunc(workers, id, func(w *Worker, id WorkerID) int { return cmp.Compare(w.ID, id) })
}

// replace makes w the record of its worker. f.mu is held; w is not changed afterwards.
func (f *Fleet) replace(w *Worker) {
	switch {
	case !w.Healthy:
		w.Ready = false
		if w.Why == "" {
			w.Why = "unhealthy"
		}
	case w.Draining:
		w.Ready, w.Why = false, "draining"
	case w.Asleep:
		w.Ready, w.Why = false, "asleep"
	case len(w.Facts.Models) == 0:
		w.Ready, w.Why = false, "serves no model that we know of"
	default:
		w.Ready, w.Why = true, ""
	}
	if at, ok := f.position(w.ID); ok {
		f.present[at] = w
	} else {
		f.present = slices.Insert(f.present, at, w)
	}
	f.changes++
}

// release unlocks mu after a change, and returns when the current snapshot shows the change.
func (f *Fleet) release() {
	change := f.changes
	f.mu.Unlock()
	if f.shown.Load() >= change {
		return
	}
	f.building.Lock()
	defer f.building.Unlock()
	if f.shown.Load() < change { // otherwise another writer built a snapshot while this one waited
		f.publish()
	}
}

// publish builds the next snapshot and swaps it in. It takes time in proportion to the fleet's size, some 0.5 ms with
// 1,000 workers. When a router starts with many workers, they change faster than this. So writers wait outside mu, and
// one snapshot shows the changes of all who wait. f.building is held.
func (f *Fleet) publish() {
	last := f.current.Load()
	s := &Snapshot{
		generation: last.generation + 1,
		superseded: make(chan struct{}),
		pools:      map[string]*Pool{},
		links:      f.links,
	}
	f.mu.Lock()
	changes := f.changes
	s.holders = slices.Clone(f.holders)
	s.workers = slices.Clone(f.present)
	f.mu.Unlock()
	for _, w := range s.workers {
		for _, h := range w.Holders {
			s.holders[h].worker = w
		}
		for i := range w.Facts.Models {
			f.serve(s, w, &w.Facts.Models[i])
		}
	}
	bases := 0
	for _, p := range s.pools {
		p.finish(s)
		p.divide(s)
		if p.LoRA == "" && p.Name == p.Model {
			bases++
			s.only = p
		}
	}
	if bases != 1 {
		s.only = nil
	}
	f.current.Store(s)
	f.shown.Store(changes)
	close(last.superseded)
}

// serve adds w to the pool of its model m. f.building is held.
func (f *Fleet) serve(s *Snapshot, w *Worker, m *Model) {
	p := s.pools[m.ID]
	base, lora := w.Facts.resolve(m)
	if p == nil {
		t := f.turns[m.ID]
		if t == nil {
			t = new(turns)
			f.turns[m.ID] = t
		}
		p = &Pool{Name: m.ID, Model: base, LoRA: lora, turns: t}
		s.pools[m.ID] = p
		s.models = append(s.models, *m)
	}
	if n := len(p.Workers); n > 0 && p.Workers[n-1] == w {
		return // the worker lists the same name twice
	}
	p.Workers = append(p.Workers, w)
	other := CacheName{base, lora}
	if other != (CacheName{p.Model, p.LoRA}) && len(p.Others) < maxOthers && !slices.Contains(p.Others, other) {
		p.Others = append(p.Others, other)
	}
}

// finish computes the holders, their positions and the block sizes of the pool from its workers.
func (p *Pool) finish(s *Snapshot) {
	p.positions = make([]int32, len(s.holders))
	for _, w := range p.Workers {
		for _, h := range w.Holders {
			p.positions[h] = 1
		}
	}
	for h := range p.positions {
		if p.positions[h] != 0 {
			p.Holders = append(p.Holders, Holder(h))
			p.positions[h] = int32(len(p.Holders))
		}
	}
	same := true
	for _, w := range p.Workers {
		size := w.Facts.BlockSize
		same = same && size == p.Workers[0].Facts.BlockSize
		if size > 0 && (p.Smallest == 0 || size < p.Smallest) {
			p.Smallest = size
		}
	}
	if same {
		p.BlockSize = p.Smallest
	}
}

// divide makes the pools of the legs, if the workers have roles or connectors.
func (p *Pool) divide(s *Snapshot) {
	p.Whole = p
	if !slices.ContainsFunc(p.Workers, func(w *Worker) bool { return w.Facts.Role != RoleBoth || w.Facts.Transfer.Connector != "" }) {
		return
	}
	of := func(leg Leg, serves func(*Facts) bool) *Pool {
		part := &Pool{Name: p.Name, Leg: leg, Model: p.Model, LoRA: p.LoRA, Others: p.Others, turns: p.turns}
		for _, w := range p.Workers {
			if serves(&w.Facts) {
				part.Workers = append(part.Workers, w)
			}
		}
		part.finish(s)
		part.Whole = part
		return part
	}
	p.Prefill, p.Decode = of(LegPrefill, (*Facts).Prefills), of(LegDecode, (*Facts).Decodes)
	if slices.ContainsFunc(p.Workers, func(w *Worker) bool { return !w.Facts.Answers() }) {
		p.Whole = of(LegWhole, (*Facts).Answers)
	}
}

// hashPlace returns FNV-1a of the URL and the rank, with a finaliser: without it, URLs that differ in one digit would
// have similar hashes.
func hashPlace(url string, rank int) uint64 {
	sum := fnv.New64a()
	_, _ = fmt.Fprintf(sum, "%s %d", url, rank)
	h := sum.Sum64()
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return h ^ h>>33
}
