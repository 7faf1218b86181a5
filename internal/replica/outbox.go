package replica

import (
	"sync"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
)

const (
	// maxUnderWay bounds the requests under way that are told, and that are followed of one peer. It is far above what one
	// router can serve at a time.
	maxUnderWay = 1 << 16
	// maxPending bounds the records that wait to be sent, in bytes. A router that places 1,000 long requests a second
	// writes 10 MB/s, so this is some hundred milliseconds.
	maxPending = 1 << 20
	// maxRecent and recentBytes bound the requests that have ended and are still told to a router that joins.
	maxRecent   = 4096
	recentBytes = 4 << 20
	// promptOld is how long the prompt of a request that has ended is told to a router that joins. Routers that see no
	// events expect a prompt at its worker for two minutes.
	promptOld = 2 * time.Minute
)

var (
	// wholePrompt is what a packet tells of a prompt. heldPrompt is what the router keeps in memory for answers to asks:
	// each request under way then takes 4 KB of keys at most, and 8 KB where a policy learns from texts.
	wholePrompt = extent{mostKeys, mostText}
	heldPrompt  = extent{512, 8 << 10}
)

// told is a request under way that the peers were told of. The record does not change.
type told struct {
	record   []byte // the content of a recordAdd
	recent   int    // how many bytes of record are of use after the end of the request; 0: none
	prefills bool   // the prefill has not ended
	placed   time.Time
}

// recent is a request that has ended.
type recent struct {
	content       []byte // the beginning of the content of a recordAdd
	placed, ended time.Time
	prompt        bool // content has the prompt
}

// outbox has what the peers are told. The request path writes into it, and the sender takes from it. It is safe for
// concurrent use, and nothing is called while mu is held.
//
// Records that do not fit are dropped, but the requests under way are kept whole. So the digest of the next packet
// differs from the digests of the peers, and they ask for all requests under way.
type outbox struct {
	urgent chan struct{} // with one element: a request was placed
	ended  *time.Timer   // fires endedDelay after the first end of a prefill or request that waits to be sent

	mu       sync.Mutex // guards the fields below
	waiting  bool       // ended is set
	underWay map[uint64]told
	digest   uint64
	pending  []byte // whole records
	recents  []recent
	oldest   int // index of the oldest entry of recents, once there are maxRecent
	bytes    int // bytes of the contents of recents
	dropped  uint64
	untold   uint64 // requests above maxUnderWay

	scratch sync.Pool // *scratch
}

// scratch is memory for one call of placed.
type scratch struct {
	placement warmpath.Placement
	record    []byte
}

func newOutbox() *outbox {
	ended := time.NewTimer(time.Hour)
	ended.Stop()
	return &outbox{urgent: make(chan struct{}, 1), ended: ended, underWay: map[uint64]told{},
		scratch: sync.Pool{New: func() any { return new(scratch) }}}
}

// placed notes that d's request is sent.
func (o *outbox) placed(d *warmpath.Decision) {
	s := o.scratch.Get().(*scratch)
	d.Placement(&s.placement)
	o.add(s, time.Now())
	o.scratch.Put(s)
}

// add notes that the request of s.placement is sent.
func (o *outbox) add(s *scratch, now time.Time) {
	p := &s.placement
	promptAt := 0
	s.record = appendRecord(s.record[:0], recordAdd, func(to []byte) []byte {
		to, promptAt = appendPlacement(to, p, wholePrompt)
		return to
	})
	promptAt -= recordHead
	t := told{prefills: !p.PrefillCompleted, placed: now}
	if len(p.Keys) <= heldPrompt.keys && len(p.AheadKeys) <= heldPrompt.keys && len(p.Text)+4*len(p.Tokens) <= heldPrompt.text {
		t.record = append([]byte(nil), s.record[recordHead:]...)
	} else {
		t.record, _ = appendPlacement(nil, p, heldPrompt)
	}
	switch {
	case p.FromText || p.Trust == fleet.TrustApproximate || len(p.Text)+len(p.Tokens) > 0:
		t.recent = len(t.record) // nothing but the routers' memory says what the worker has
	case p.Session.Key != "":
		t.recent = promptAt
	}
	o.mu.Lock()
	if _, twice := o.underWay[p.ID]; twice || len(o.underWay) >= maxUnderWay {
		o.untold++
		o.mu.Unlock()
		return
	}
	o.underWay[p.ID] = t
	o.digest ^= digestOf(p.ID, !t.prefills)
	o.append(s.record)
	o.mu.Unlock()
	wake(o.urgent)
}

// prefilled notes that the prefill of a request has ended.
func (o *outbox) prefilled(id uint64) {
	o.mu.Lock()
	t, ok := o.underWay[id]
	if !ok || !t.prefills {
		o.mu.Unlock()
		return
	}
	t.prefills = false
	o.underWay[id] = t
	o.digest ^= digestOf(id, false) ^ digestOf(id, true)
	o.appendID(recordPrefilled, id)
	o.wait()
	o.mu.Unlock()
}

// freed notes that a request has ended.
func (o *outbox) freed(id uint64, e warmpath.Ending, now time.Time) {
	o.mu.Lock()
	t, ok := o.underWay[id]
	if !ok {
		o.mu.Unlock()
		return
	}
	delete(o.underWay, id)
	o.digest ^= digestOf(id, !t.prefills)
	if !e.Unsent {
		o.remember(t, now)
	}
	if end := (ending{id, e}); len(o.pending)+recordHead+endingBytes <= maxPending {
		o.pending = end.append(o.pending)
	} else {
		o.dropped++
	}
	o.wait()
	o.mu.Unlock()
}

// wait sets the timer, so that the sender is woken once for the ends of some time. Callers hold mu.
func (o *outbox) wait() {
	if !o.waiting {
		o.waiting = true
		o.ended.Reset(endedDelay)
	}
}

// taken notes that nothing waits any more. Callers hold mu.
func (o *outbox) taken() {
	if o.waiting {
		o.waiting = false
		o.ended.Stop()
	}
}

// append appends a record to the pending ones. Callers hold mu.
func (o *outbox) append(record []byte) {
	if len(o.pending)+len(record) > maxPending {
		o.dropped++
		return
	}
	o.pending = append(o.pending, record...)
}

func (o *outbox) appendID(kind byte, id uint64) {
	if len(o.pending)+12 > maxPending {
		o.dropped++
		return
	}
	o.pending = appendID(o.pending, kind, id)
}

// remember keeps a request that has ended for routers that join. Callers hold mu.
func (o *outbox) remember(t told, now time.Time) {
	if t.recent == 0 {
		return
	}
	r := recent{t.record[:t.recent], t.placed, now, t.recent == len(t.record)}
	if t.recent < len(t.record) {
		// The copy lets the prompt go.
		r.content = append(append(make([]byte, 0, t.recent+len(noPrompt)), r.content...), noPrompt...)
	}
	if len(o.recents) < maxRecent && o.oldest == 0 && o.bytes+len(r.content) <= recentBytes {
		o.recents = append(o.recents, r)
		o.bytes += len(r.content)
		return
	}
	// The ring is full. Several entries may have to go for a long one; their places stay empty.
	for n := 0; n < len(o.recents); n++ {
		at := (o.oldest + n) % len(o.recents)
		o.bytes -= len(o.recents[at].content)
		o.recents[at] = recent{}
		if o.bytes+len(r.content) <= recentBytes {
			break
		}
	}
	o.recents[o.oldest] = r
	o.bytes += len(r.content)
	o.oldest = (o.oldest + 1) % len(o.recents)
}

// take returns the pending records and the digest after them. Later records go into the memory of into.
func (o *outbox) take(into []byte) (records []byte, digest uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	records, digest = o.pending, o.digest
	o.pending = into[:0]
	o.taken()
	return records, digest
}

// state returns the pending records, and all requests under way after them. It leaves no records.
func (o *outbox) state(into []byte, withRecent bool) (records []byte, digest uint64, all []told, ended []recent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	records, digest = o.pending, o.digest
	o.pending = into[:0]
	o.taken()
	all = make([]told, 0, len(o.underWay))
	for _, t := range o.underWay {
		all = append(all, t)
	}
	if withRecent {
		ended = make([]recent, 0, len(o.recents))
		for n := range o.recents {
			if r := o.recents[(o.oldest+n)%len(o.recents)]; r.content != nil {
				ended = append(ended, r)
			}
		}
	}
	return records, digest, all, ended
}

// counts returns the requests under way, the records that were dropped, and the requests that were never told.
func (o *outbox) counts() (underWay int, dropped, untold uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.underWay), o.dropped, o.untold
}

// wake wakes the sender, if it is not woken already.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
