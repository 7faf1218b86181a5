package warmpath

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// Peer holds what one other router told of its requests. Their load counts as the load of requests of this router,
// their prompts are expected in the holders' caches, and policies learn from them as if they had decided: so several
// routers place as one would. Nothing is learned from their times, and the health of workers does not depend on them.
//
// The methods may be called from any goroutine. The argument now is the present time of this router in Unix
// nanoseconds, and not a time that the peer told.
type Peer struct {
	router *Router

	// Lock order: a lock that callers hold (Sync.mu of internal/replica), then mu, then the locks of the fleet's ledgers,
	// of the router, of its stores of prompts and of policies. None of the latter is held when a Peer is called.
	mu        sync.Mutex // guards the fields below
	requests  map[uint64]*told
	most      int   // requests, at most, since the memory of the map was made: see forget
	first     *told // the requests by the time of Add, the oldest first
	last      *told
	keyed     *told // the oldest request that may hold keys
	keys      int   // keys that the requests hold
	dropped   uint64
	forgotten uint64
	spare     []*told
	spareKeys int                  // keys for which spare has room
	levels    []fleet.ServiceLevel // of the last request

	delay                time.Duration // see SetDelay
	lastAt               int64         // when the last placement came, Unix nanoseconds; 0 is never
	gap                  float64       // mean nanoseconds between two placements; 0 is not known
	uncached             float64       // mean uncached tokens of a placement
	unseen, unseenTokens int64         // the part of the router's herd that comes from this peer

	urls       map[string]fleet.WorkerID // workers by the addresses that the peer used, in the fleet of that generation
	generation uint64

	// Scratch: policies get these through interfaces.
	query     policy.Query
	candidate policy.Candidate
	finished  policy.Finished
}

// told is one request of a peer.
type told struct {
	id             uint64
	reservation    fleet.Reservation
	holder         fleet.Holder
	policy, shadow *policy.Policy // that were told that the request is routed; may be nil
	leg            fleet.Leg
	base           string
	class          uint64
	uncached       int
	routed         int64 // when it was added, Unix nanoseconds
	firstToken     int64 // when this router heard of its first token, Unix nanoseconds; 0 is not yet
	keys           []block.Key
	ahead          []block.Key
	marks          []fleet.Mark
	levels         []fleet.ServiceLevel // not changed, also after the end of the request: see [fleet.Work.Levels]
	learned        []learnedPrompt      // entries that an unsent request removes
	previous, next *told
}

// Bounds of a peer's memory.
const (
	// maxTold is the number of requests of a peer. One router serves some hundred workers, and few engines run more than
	// 256 requests at the same time. If a peer tells of more, the oldest request is forgotten: it is the nearest to its
	// end, and if the messages about ends were lost, it has most probably ended.
	maxTold = 1 << 16
	// maxAllTold bounds the requests of all peers together. Without its prompt a request takes 0.7 KB: 0.4 GB. Beyond it
	// a peer that tells of a further request loses its oldest one, unless it has maxToldShare at most. So a peer that
	// tells of too many takes nothing from the others. 256 peers have room for their shares: with these, there are 2^20
	// requests at most.
	maxAllTold, maxToldShare = 1 << 19, 1 << 11
	// maxToldKeys bounds the keys that the requests of a peer hold: 16 MiB. They are enough for 4,000 requests of 8,192
	// tokens. maxAllToldKeys is the same for all peers together: 128 MiB. The keys are only of use if the worker computed
	// nothing of a request, so that its prompt is no longer expected. Beyond the bounds the oldest requests lose theirs.
	maxToldKeys, maxAllToldKeys = 1 << 21, 1 << 24
	// maxSpare and maxSpareKeys bound the memory of ended requests that is kept for the next ones: 512 KiB of keys.
	maxSpare, maxSpareKeys = 256, 1 << 16
	// maxToldTokens bounds the length of a prompt that a peer tells of, so that sums do not overflow.
	maxToldTokens = 1 << 30
)

// NewPeer returns a peer that has told of nothing yet.
func (r *Router) NewPeer() *Peer {
	return &Peer{router: r, requests: map[uint64]*told{}, urls: map[string]fleet.WorkerID{}}
}

// Add takes a request that the peer placed. It returns false, and changes nothing, if the worker or its rank is unknown
// here, if the worker has not answered yet, or if pl makes no sense. A request that is known already is not added
// again; only PrefillCompleted counts then. Add does not keep pl. It cuts what is longer than the bounds of a
// placement.
//
// If a policy panics, Add releases the load, and passes the panic on.
func (p *Peer) Add(pl *Placement, now int64) (ok bool) {
	if pl.ID == 0 || pl.Leg > fleet.LegDecode {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.requests[pl.ID]; t != nil {
		if pl.PrefillCompleted {
			t.complete(now)
		}
		return true
	}
	snap := p.router.fleet.Snapshot()
	w, h := p.find(snap, pl)
	if w == nil {
		return false
	}
	t := p.begin(pl, h, now)
	c := p.describe(snap, pl, w, h, now)
	if !p.router.fleet.Reserve(&t.reservation, h, t.work(pl, c.BlockSize, now), now) {
		p.recycle(t)
		return false
	}
	notified := false
	defer func() {
		if !notified {
			t.reservation.Release(now)
			p.forget(t)
		}
	}()
	p.insert(t)
	p.arrived(t.uncached, now)
	p.route(t, pl, c)
	notified = true
	if pl.PrefillCompleted {
		t.complete(now)
	}
	p.boundKeys()
	for n := len(p.requests); n > maxTold || n > maxToldShare && p.router.told.Load() > maxAllTold; n = len(p.requests) {
		p.forgotten++
		p.end(p.first, Ending{}, now)
	}
	return true
}

// boundKeys lets the keys of the oldest requests go, if the requests hold too many. At the limit of all peers together,
// the peer that adds a request loses keys of its own, also if another peer holds more: peers have different locks.
func (p *Peer) boundKeys() {
	for p.keyed != nil && (p.keys > maxToldKeys || p.router.toldKeys.Load() > maxAllToldKeys) {
		t := p.keyed
		p.keyed = t.next
		if n := t.held(); n > 0 {
			p.hold(-n)
			p.dropped++
			clear(t.learned) // its entries hold the keys, too
			t.keys, t.ahead, t.learned = nil, nil, t.learned[:0]
		}
	}
}

// held returns the number of keys that t holds.
func (t *told) held() int { return len(t.keys) + len(t.ahead) }

// hold counts n more keys that the requests hold.
func (p *Peer) hold(n int) {
	p.keys += n
	p.router.toldKeys.Add(int64(n))
}

// find returns the worker and the holder of pl; nil if this router does not know them. It knows a worker once the
// worker has answered: until then a prompt cannot be expected there.
func (p *Peer) find(snap *fleet.Snapshot, pl *Placement) (*fleet.Worker, fleet.Holder) {
	if g := snap.Generation(); g != p.generation {
		clear(p.urls)
		p.generation = g
	}
	id, known := p.urls[pl.URL]
	if !known {
		if id, known = p.router.fleet.Find(pl.URL); !known {
			return nil, fleet.NoHolder
		}
	}
	w := snap.ByID(id)
	if w == nil || len(w.Facts.Models) == 0 {
		return nil, fleet.NoHolder
	}
	if len(p.urls) < len(snap.Workers()) {
		p.urls[w.URL] = id
	}
	at := pl.Rank - w.Facts.FirstRank
	if at < 0 || at >= len(w.Holders) {
		return nil, fleet.NoHolder
	}
	return w, w.Holders[at]
}

// begin returns an entry with the facts of pl that outlive the call of Add.
func (p *Peer) begin(pl *Placement, h fleet.Holder, now int64) *told {
	var t *told
	if n := len(p.spare); n > 0 {
		t, p.spare = p.spare[n-1], p.spare[:n-1]
		p.spareKeys -= cap(t.keys) + cap(t.ahead)
	} else {
		t = &told{}
	}
	t.id, t.holder, t.leg, t.base, t.class, t.routed = pl.ID, h, pl.Leg, pl.Base, pl.Class, now
	t.uncached = min(max(pl.UncachedTokens, 0), maxToldTokens)
	if pl.BlockSize > 0 && pl.BlockSize <= block.MaxSize {
		t.keys = append(t.keys, pl.Keys[:min(len(pl.Keys), MaxPlacementKeys)]...)
		t.ahead = append(t.ahead, pl.AheadKeys[:min(len(pl.AheadKeys), MaxPlacementKeys)]...)
	}
	t.levels = p.keepLevels(pl.Levels)
	return t
}

// keepLevels returns a copy of the valid ones of levels. Requests in a row that have the same levels share the copy.
func (p *Peer) keepLevels(levels []fleet.ServiceLevel) []fleet.ServiceLevel {
	valid := make([]fleet.ServiceLevel, 0, fleet.MaxServiceLevels)
	for _, l := range levels[:min(len(levels), fleet.MaxServiceLevels)] {
		if l.Validate() == nil {
			valid = append(valid, l)
		}
	}
	if !slices.Equal(valid, p.levels) {
		p.levels = slices.Clone(valid)
	}
	return p.levels
}

// work returns the load of t. size is the number of tokens of a block of the holder's engine.
func (t *told) work(pl *Placement, size int, now int64) fleet.Work {
	prompt := min(max(pl.PromptTokens, 0), maxToldTokens)
	t.marks = appendMarks(t.marks[:0], t.keys, pl.BlockSize, size)
	return fleet.Work{
		UncachedTokens: min(t.uncached, prompt),
		PromptTokens:   prompt,
		ContextBlocks:  min(max(pl.ContextBlocks, 0), prompt+1),
		Peer:           true,
		Whole:          pl.Whole,
		MostTokens:     max(pl.MostTokens, 0),
		Class:          pl.Class,
		Choices:        min(max(pl.Choices, 0), maxToldTokens),
		Guess:          pl.Guess || !pl.TokensKnown,
		Levels:         t.levels,
		Arrived:        now - int64(min(max(pl.Waited, 0), time.Hour)+min(pl.age(), time.Hour)),
		Trust:          min(pl.Trust, fleet.TrustExact),
		Marks:          t.marks,
	}
}

// age returns how long ago the request was placed.
func (pl *Placement) age() time.Duration { return min(max(pl.Age, 0), MaxPlacementAge) }

// describe returns what policies may read of the holder: its load is that before the request.
func (p *Peer) describe(snap *fleet.Snapshot, pl *Placement, w *fleet.Worker, h fleet.Holder, now int64) *policy.Candidate {
	trust, _ := snap.Trust(h)
	size := w.Facts.BlockSize
	if size <= 0 {
		size = minBlockSize
	}
	p.candidate = policy.Candidate{
		Worker: w, Holder: h, Rank: pl.Rank, Hash: snap.Hash(h), Trust: trust, Available: snap.Available(h, now), BlockSize: size,
		Load: snap.LoadAt(h, now), Predicted: max(pl.PromptTokens-pl.UncachedTokens, 0),
	}
	return &p.candidate
}

// route tells the policies of t, and notes that its prompt is expected in the holder's cache.
func (p *Peer) route(t *told, pl *Placement, c *policy.Candidate) {
	r := p.router
	table := r.table.Load()
	decided := table.all[pl.Policy]
	p.query = policy.Query{
		PromptTokens: min(max(pl.PromptTokens, 0), maxToldTokens), Known: pl.TokensKnown || pl.FromText, Rank: -1,
		Turn: p.turn(pl), Model: pl.Base, LoRA: pl.LoRA, Session: pl.Session, Tenant: pl.Tenant, Now: t.routed, Age: pl.age(),
		Levels: t.levels, Class: pl.Class, Leg: pl.Leg, MaxRequests: r.options.MaxRequests,
		Prompt: policy.Prompt{
			Tokens: pl.Tokens[:min(len(pl.Tokens), MaxPlacementTokens)], Keys: t.keys, BlockSize: pl.BlockSize,
			Text: pl.Text[:min(len(pl.Text), MaxPlacementText)], TextBytes: max(pl.TextBytes, 0),
		},
	}
	defer func() { p.query, p.candidate = policy.Query{}, policy.Candidate{} }()
	if t.policy = decided; decided != nil {
		decided.Routed(&p.query, c)
	}
	if t.shadow = table.shadow; t.shadow == decided {
		t.shadow = nil
	}
	if t.shadow != nil {
		t.shadow.Routed(&p.query, c)
	}
	p.expect(t, pl, c.Trust)
}

// turn takes the turn of the request among those of its model, for round robin.
func (p *Peer) turn(pl *Placement) uint64 {
	pool, ok := p.router.fleet.Snapshot().Pool(pl.Model)
	switch {
	case ok && pl.Leg == fleet.LegPrefill:
		pool = pool.Prefill
	case ok && pl.Leg == fleet.LegDecode:
		pool = pool.Decode
	}
	if pool == nil {
		return 0
	}
	return pool.Turn(true)
}

// expect notes in the stores of prompts that t's prompt is sent to its holder. trust is this router's own trust of the
// holder: what this router knows of its cache decides how long the prompt is expected there.
func (p *Peer) expect(t *told, pl *Placement, trust fleet.Trust) {
	snap := p.router.fleet.Snapshot()
	if len(t.keys) == 0 {
		return
	}
	if _, served := snap.Pool(pl.Base); !served {
		return
	}
	x := p.router.index(snap, pl.Base)
	if x.hasher.Size() != pl.BlockSize {
		return
	}
	s := sending{
		holder: t.holder, keys: t.keys, onHolder: t.keys, trust: trust, policy: t.policy, shadow: t.shadow, now: t.routed, age: pl.age(),
		approximate: pl.FromText || trust == fleet.TrustApproximate,
	}
	if a := x.aheads.Load(); a != nil && a.of[t.holder] > 0 {
		s.onHolder = nil
		if a.of[t.holder] == pl.Ahead {
			s.onHolder = t.ahead
		}
	}
	t.learned = p.router.expectSent(x, &s, t.learned)
}

// insert adds t to the requests of p.
func (p *Peer) insert(t *told) {
	p.requests[t.id] = t
	p.most = max(p.most, len(p.requests))
	p.router.told.Add(1)
	p.hold(t.held())
	if p.keyed == nil {
		p.keyed = t
	}
	if t.previous = p.last; p.last != nil {
		p.last.next = t
	} else {
		p.first = t
	}
	p.last = t
}

// forget removes t from the requests of p.
func (p *Peer) forget(t *told) {
	delete(p.requests, t.id)
	// A map never gives memory back. Without a new one, a peer keeps the memory of all requests that it ever had.
	if n := len(p.requests); p.most > maxToldShare && n < p.most/2 {
		smaller := make(map[uint64]*told, n)
		maps.Copy(smaller, p.requests)
		p.requests, p.most = smaller, n
	}
	p.router.told.Add(-1)
	p.hold(-t.held())
	if p.keyed == t {
		p.keyed = t.next
	}
	if t.previous != nil {
		t.previous.next = t.next
	} else {
		p.first = t.next
	}
	if t.next != nil {
		t.next.previous = t.previous
	} else {
		p.last = t.previous
	}
	t.previous, t.next = nil, nil
}

// recycle keeps the memory of t for another request.
func (p *Peer) recycle(t *told) {
	room := cap(t.keys) + cap(t.ahead)
	if len(p.spare) >= maxSpare || p.spareKeys+room > maxSpareKeys {
		return
	}
	p.spareKeys += room
	clear(t.learned)
	t.policy, t.shadow, t.base, t.firstToken, t.levels = nil, nil, "", 0, nil
	t.keys, t.ahead, t.marks, t.learned = t.keys[:0], t.ahead[:0], t.marks[:0], t.learned[:0]
	p.spare = append(p.spare, t)
}

// complete notes that t's prompt is computed.
func (t *told) complete(now int64) {
	if t.firstToken == 0 {
		t.firstToken = now
		t.reservation.FirstToken(now)
	}
}

// PrefillCompleted takes that the first token of a request has come. An unknown id has no effect.
func (p *Peer) PrefillCompleted(id uint64, now int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.requests[id]; t != nil {
		t.complete(now)
	}
}

// Free takes that a request has ended. An unknown id has no effect. If the worker computed nothing of it, its prompt is
// no longer expected in the holder's cache.
func (p *Peer) Free(id uint64, e Ending, now int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.requests[id]; t != nil {
		p.end(t, e, now)
	}
}

// end releases the load of t, and tells its policies.
func (p *Peer) end(t *told, e Ending, now int64) {
	p.forget(t)
	t.reservation.Release(now)
	if e.Unsent {
		unlearn(t.learned, t.holder)
	}
	p.finished = policy.Finished{
		Holder: t.holder, Model: t.base, Class: t.class, Outcome: e.Outcome, RoutedAt: t.routed, FirstTokenAt: t.firstToken,
		Now: now, UncachedTokens: t.uncached, OutputTokens: min(max(e.OutputTokens, 0), maxToldTokens),
	}
	if t.policy != nil {
		t.policy.Finished(&p.finished)
	}
	if t.shadow != nil {
		t.shadow.Finished(&p.finished)
	}
	p.recycle(t)
}

// Retain keeps the requests for which keep returns true, ends the others with an unknown outcome, and returns how many
// it ended. It is for a list of all requests that the peer has under way. For [fleet.Fleet.Expire] it is a sign of life
// of the kept requests. keep is called with a lock held: it must not call methods of p.
func (p *Peer) Retain(keep func(id uint64) bool, now int64) (dropped int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for t := p.first; t != nil; {
		next := t.next
		if !keep(t.id) || !t.reservation.Alive(now) {
			p.end(t, Ending{}, now)
			dropped++
		}
		t = next
	}
	if len(p.requests) == 0 {
		p.expectUnseen(0)
	} else if p.gap > 0 {
		p.expectUnseen(max(p.gap, float64(now-p.lastAt)))
	}
	return dropped
}

// Len returns the number of the peer's requests under way.
func (p *Peer) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.requests)
}

// Has reports whether a request of this id is under way.
func (p *Peer) Has(id uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.requests[id] != nil
}

// Forgotten returns how many requests were forgotten before their end, because the peer, or all peers together, told of
// too many.
func (p *Peer) Forgotten() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.forgotten
}

// KeysDropped returns how many requests lost their keys, because the requests of the peer, or of all peers, held too
// many. If the worker computed nothing of such a request, its prompt stays expected for its time.
func (p *Peer) KeysDropped() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped
}

// Close ends all requests of the peer with an unknown outcome: the peer has left or died. The peer may tell of requests
// again afterwards.
func (p *Peer) Close(now int64) {
	p.Retain(func(uint64) bool { return false }, now)
}
