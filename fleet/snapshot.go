package fleet

import "sync/atomic"

// Snapshot is the fleet after its last change. The workers, their models and their holders never change in it; Load,
// Trust and Available are read live. It is safe for concurrent use. Its methods take no lock and do not allocate,
// unless they say so.
type Snapshot struct {
	generation uint64
	superseded chan struct{}

	workers []*Worker // the workers in the fleet, by ascending id
	holders []holder  // by Holder; a holder keeps its entry after its worker was removed
	pools   map[string]*Pool
	models  []Model
	only    *Pool // set when the whole fleet serves one base model
	links   *links
}

// holder is a snapshot's entry for one Holder.
type holder struct {
	worker *Worker // nil after the worker was removed
	rank   int
	state  *holderState // nil when the id was retired
}

// Pool is the workers that serve one model name. It is immutable; its slices must not be changed.
type Pool struct {
	Name      string      // the model name in requests
	Leg       Leg         // LegWhole, or the leg of a request that Workers serve
	Model     string      // the base model; the index is kept for base models
	LoRA      string      // the adapter's name, "" for the base model itself
	Others    []CacheName // what some of Workers call the model instead of Model and LoRA; at most maxOthers
	Workers   []*Worker   // by ascending id, ready or not
	Holders   []Holder    // all holders of Workers, ascending
	BlockSize int         // tokens of the engine block of all workers; 0 if they differ or none is known
	Smallest  int         // the smallest known engine block size in tokens; 0 when none is known

	// Whole is the pool of the workers that serve whole requests: the pool itself if all its workers do. Prefill and
	// Decode are the pools of the workers that serve the legs of divided requests. They are nil if no worker has a role
	// or a connector.
	Whole, Prefill, Decode *Pool

	positions []int32 // by Holder: its index in Holders, plus 1; 0 if it is not in Holders
	turns     *turns  // see Turn; the fleet keeps them for all later pools of this name
}

// turns counts the turns of a model name by leg.
type turns [legs]atomic.Uint64

// CacheName says under which names the index keeps a model's blocks: the base model, and the adapter or "".
type CacheName struct{ Model, LoRA string }

// maxOthers bounds Pool.Others, because a request's prompt is hashed once for each entry. A fleet needs one entry while
// its workers get a further name for their model. Each worker can add an entry, so there must be a bound.
const maxOthers = 3

// Position returns the index of h in Holders, or -1.
func (p *Pool) Position(h Holder) int {
	if int(h) >= len(p.positions) {
		return -1
	}
	return int(p.positions[h]) - 1
}

// Pairs reports whether a worker of the pool, other than w, exchanges KV blocks with w.
func (p *Pool) Pairs(w *Worker) bool {
	for _, o := range p.Workers {
		if o.ID != w.ID && w.Facts.Transfer.Pairs(&o.Facts.Transfer) {
			return true
		}
	}
	return false
}

// Turn returns how many turns were taken for this model name so far. If take is set, it also takes a turn, so that the
// count grows by one. Round robin chooses by this count. All snapshots of a fleet share the count.
func (p *Pool) Turn(take bool) uint64 {
	if take {
		return p.turns[p.Leg].Add(1) - 1
	}
	return p.turns[p.Leg].Load()
}

// Generation counts the changes of the fleet; it grows with each snapshot.
func (s *Snapshot) Generation() uint64 { return s.generation }

// Superseded returns a channel that is closed when a newer snapshot exists. To follow the fleet: take a snapshot, act
// on it, wait for its channel, take the next snapshot.
func (s *Snapshot) Superseded() <-chan struct{} { return s.superseded }

// Workers returns the workers by ascending id. The slice must not be changed.
func (s *Snapshot) Workers() []*Worker { return s.workers }

// Models returns every model name the fleet serves, each once, in the order of the workers. The slice must not be
// changed.
func (s *Snapshot) Models() []Model { return s.models }

// Pool returns the pool of the model of that name. If the fleet serves only one base model, an empty name means this
// model, because engines accept requests without a model name.
func (s *Snapshot) Pool(model string) (*Pool, bool) {
	if model == "" {
		return s.only, s.only != nil
	}
	p, ok := s.pools[model]
	return p, ok
}

// Holders returns a number that is greater than the id of every holder, also of holders that left.
func (s *Snapshot) Holders() int { return len(s.holders) }

// ByID returns the worker of that id, or nil when no worker in the fleet has that id.
func (s *Snapshot) ByID(id WorkerID) *Worker {
	i, ok := position(s.workers, id)
	if !ok {
		return nil
	}
	return s.workers[i]
}

// Worker returns the worker of h, or nil when this worker is not in the fleet.
func (s *Snapshot) Worker(h Holder) *Worker {
	if int(h) >= len(s.holders) {
		return nil
	}
	return s.holders[h].worker
}

// Rank returns the global data-parallel rank of h.
func (s *Snapshot) Rank(h Holder) int {
	if int(h) >= len(s.holders) {
		return 0
	}
	return s.holders[h].rank
}

// Trust returns how far h's entries can be believed now, and the reason.
func (s *Snapshot) Trust(h Holder) (Trust, string) {
	st := s.state(h)
	if st == nil {
		return TrustNone, "unknown holder"
	}
	t := st.trust.Load()
	return t.level, t.why
}

// Available reports whether a request may be sent to h at now: its worker is ready, and its breaker lets a request
// pass.
func (s *Snapshot) Available(h Holder, now int64) bool {
	if int(h) >= len(s.holders) {
		return false
	}
	x := &s.holders[h]
	return x.worker != nil && x.worker.Ready && now >= x.state.blockedUntil.Load()
}

// BlockedUntil returns the time before which h's breaker lets no request pass; 0 when the breaker is closed.
func (s *Snapshot) BlockedUntil(h Holder) int64 {
	st := s.state(h)
	if st == nil {
		return 0
	}
	return st.blockedUntil.Load()
}

// Hash returns a number that depends only on h's worker URL and rank: it is the same in every router of a fleet.
func (s *Snapshot) Hash(h Holder) uint64 {
	st := s.state(h)
	if st == nil {
		return 0
	}
	return st.hash
}

func (s *Snapshot) state(h Holder) *holderState {
	if int(h) >= len(s.holders) {
		return nil
	}
	return s.holders[h].state
}
