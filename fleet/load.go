package fleet

import "sync/atomic"

// Work is what one request puts on a holder.
type Work struct {
	UncachedTokens int // prompt tokens the holder has to compute: outstanding until the first token
	ContextBlocks  int // engine blocks of the prompt: resident until the end
}

// Load is the work outstanding on a holder, counted when a request is dispatched. It is what this router put there:
// other routers' requests are not in it.
type Load struct {
	Requests      int64  // dispatched and not ended
	PrefillTokens int64  // uncached prompt tokens of those without a first token
	ContextBlocks int64  // engine blocks of the prompts of all of them
	Processed     uint64 // requests ever dispatched; breaks ties so that an idle fleet is used in turn
	OutputTokens  int64  // tokens of the answers under way, as far as they were told
	Reported      Reported
}

// Reported is what an engine last said of itself. It includes what this router put there.
type Reported struct {
	At      int64   // when it was read, Unix nanoseconds; 0 is never
	Running int64   // requests being computed
	Waiting int64   // requests in the engine's queue
	KVUsed  float64 // share of the KV cache that running requests hold, 0 to 1
}

// Reservation is one request's share of a holder's load. It is filled by [Fleet.Reserve]; the zero value holds nothing
// and may be released. All methods may be called from any goroutine, in any order, any number of times: each share is
// given back exactly once. It must not be copied while it holds something.
type Reservation struct {
	state *holderState
	work  Work
	held  atomic.Uint32 // the shares not given back yet
}

// Shares of a reservation.
const (
	heldPrefill = 1 << iota
	heldContext
)

// Reserve puts w on holder h and fills r, which must hold nothing. A request that goes to a holder whose breaker waits
// for a trial is that trial. Work for a holder nobody has heard of is a bug of the caller.
//
// It allocates nothing, and takes a lock only while the holder's breaker is open.
func (f *Fleet) Reserve(r *Reservation, h Holder, w Work, now int64) {
	s := f.Snapshot().state(h)
	if s == nil {
		panic("bug: reserve on a holder that does not exist")
	}
	if r.held.Load() != 0 {
		panic("bug: reserve with a reservation that is not released")
	}
	r.state, r.work = s, w
	s.requests.Add(1)
	s.prefill.Add(int64(w.UncachedTokens))
	s.context.Add(int64(w.ContextBlocks))
	s.processed.Add(1)
	r.held.Store(heldPrefill | heldContext)
	if s.blockedUntil.Load() != 0 {
		s.begin(f.config.Breaker, now)
	}
}

// FirstToken gives the prompt tokens back: they are computed.
func (r *Reservation) FirstToken() {
	if r.held.And(^uint32(heldPrefill))&heldPrefill != 0 {
		r.state.prefill.Add(-int64(r.work.UncachedTokens))
	}
}

// Release gives back all that is still held.
func (r *Reservation) Release() {
	held := r.held.Swap(0)
	if held&heldPrefill != 0 {
		r.state.prefill.Add(-int64(r.work.UncachedTokens))
	}
	if held&heldContext != 0 {
		r.state.context.Add(-int64(r.work.ContextBlocks))
		r.state.requests.Add(-1)
	}
}

// Held reports whether the reservation still holds a request on its holder.
func (r *Reservation) Held() bool { return r.held.Load()&heldContext != 0 }
