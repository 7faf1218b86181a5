package sim

import (
	"time"

	"github.com/warmpath/warmpath/internal/engine"
)

// transfer is a way of KV blocks from one rank to another. The sender keeps the blocks in its memory until the transfer
// has ended.
//
// Each worker has one link, which sends at a speed and receives at the same speed, at the same time. Transfers that a
// link sends share its speed equally, and so do transfers that it receives. A transfer is as fast as the slower of its
// two shares; what it leaves of the other share is not used.
type transfer struct {
	flight   *flight
	from, to *rank
	tokens   int
	left     float64 // bytes that have not arrived
	speed    float64 // bytes per nanosecond, since changed
	changed  time.Duration
	began    time.Duration
	gen      uint32 // number of the last planned end; ends with a smaller number are void
	kept     *engine.Request
}

// link is the network interface of a worker.
type link struct {
	out, in []*transfer
	speed   float64 // bytes per nanosecond in each direction
}

// await begins the transfers of the requests that took their blocks in r's present pass.
func (w *world) await(r *rank) {
	for _, q := range r.step.Awaiting {
		f := q.Owner.(*flight)
		f.leases++
		t := &transfer{flight: f, to: r, from: f.source, tokens: q.External, changed: w.now, began: w.now, kept: &f.prefill}
		if q == &f.prefill || f.decision.Prefill == nil { // a fetch
			t.kept = &f.held
			f.held.Recycle()
			size := r.group.BlockSize
			want := q.Hashes()[:min(q.Received/size, len(q.Hashes()))]
			t.tokens = max(min(q.External, f.source.engine.Hold(&f.held, want)*size-q.Computed()), 0)
			f.fetched = t.tokens
		}
		t.left = float64(t.tokens) * r.group.Profile.KVBytes
		t.from.link.out = append(t.from.link.out, t)
		t.to.link.in = append(t.to.link.in, t)
		w.share(t.from.link, t.to.link)
	}
}

// share sets the speeds of all transfers of the two links after one transfer began or ended.
func (w *world) share(a, b *link) {
	for _, list := range [][]*transfer{a.out, b.in} {
		for _, t := range list {
			speed := min(t.from.link.speed/float64(len(t.from.link.out)), t.to.link.speed/float64(len(t.to.link.in)))
			if speed == t.speed {
				continue
			}
			t.left = max(t.left-t.speed*float64(w.now-t.changed), 0)
			t.speed, t.changed = speed, w.now
			t.gen++
			w.agenda.plan(moment{at: w.now + time.Duration(t.left/speed), kind: atTransferred, gen: t.gen, with: t})
		}
	}
}

// transferred ends a transfer: the reader goes on, and the sender may use the memory again.
func (w *world) transferred(t *transfer) {
	t.from.link.out, t.to.link.in = without(t.from.link.out, t), without(t.to.link.in, t)
	w.share(t.from.link, t.to.link)
	f := t.flight
	w.rec.Handover(t.tokens, w.now-t.began)
	t.to.engine.Arrive(f.current(), t.tokens)
	w.notify(t.to)
	w.let(t.from, t.kept)
}

// lease is how long a prefill worker keeps the blocks of a prompt for a decode worker that has no memory to read them:
// vLLM's NIXL connector ends a lease after 30 s. Without an end, workers whose blocks wait for each other's memory
// would wait for ever.
const lease = 30 * time.Second

// expire gives up a divided request whose transfer has not begun. One worker serves it then, as in the gateway.
func (w *world) expire(f *flight) {
	r := f.rank
	if f.place >= len(r.live) || r.live[f.place] != f {
		return // it is still on its way to the decode worker
	}
	f.leases++
	r.engine.Cancel(&f.engine)
	r.remove(f)
	w.let(f.source, &f.prefill)
	f.decision.TransferFailed(epoch + int64(w.now))
	f.undivided = true
	w.notify(r)
	w.retry(f)
}

// let lets go of blocks that rank r keeps for another rank. Requests that wait for memory at r may go on.
func (w *world) let(r *rank, kept *engine.Request) {
	r.engine.Release(kept)
	if _, waiting, _ := r.engine.Load(); waiting > 0 {
		w.notify(r)
	}
}

func without(list []*transfer, t *transfer) []*transfer {
	for i := range list {
		if list[i] == t {
			return append(list[:i], list[i+1:]...)
		}
	}
	return list
}
