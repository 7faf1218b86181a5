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
	// each request under way then takes 4 KB of keys at most, and 8 KB where a policy learns from text or tokens.
	wholePrompt = extent{warmpath.MaxPlacementKeys, warmpath.MaxPlacementText, warmpath.MaxPlacementTokens}
	heldPrompt  = extent{512, 8 << 10, 2 << 10}
)

// told is a request under way that the peers were told of. The record does not change.
type told struct {
	record   []byte // the content of a recordAdd
	promptAt int    // the offset in record of what tells of the prompt
	prompt   bool   // the prompt is of use after the end of the request
	session  bool   // the session is
	prefills bool   // the prefill has not ended
	placed   time.Time
	process  process // that got the request
}

// recent is a request that has ended.
type recent struct {
	content       []byte // of a recordAdd
	promptAt      int    // the offset in content of what tells of the prompt
	placed, ended time.Time
	prompt        bool // content has the prompt
	session       bool // content has a session
	process       process
}

// present returns what a router that joins is told of t now. What an earlier process has computed is in no cache, but
// the request counts as load until its end.
func (t *told) present(snap *fleet.Snapshot) []byte {
	if t.process.runs(snap) {
		return t.record
	}
	return withoutPrompt(t.record, t.promptAt)
}

// present returns what a router that joins is told of r now; nil: nothing. A session stays at a worker whose process
// was replaced, as it does at routers that run.
func (r *recent) present(snap *fleet.Snapshot, now time.Time) []byte {
	switch {
	case snap.ByID(r.process.worker) == nil:
		return nil
	case !r.prompt, r.process.runs(snap) && now.Sub(r.ended) <= promptOld:
		return r.content
	case r.session:
		return withoutPrompt(r.content, r.promptAt)
	}
	return nil
}

// withoutPrompt returns a copy of the content of a recordAdd that tells of no prompt.
func withoutPrompt(content []byte, promptAt int) []byte {
	return append(append(make([]byte, 0, promptAt+len(noPrompt)), content[:promptAt]...), noPrompt...)
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
	o.add(s, processOf(d.Worker), time.Now())
	o.scratch.Put(s)
}

// add notes that the request of s.placement is sent to a process.
func (o *outbox) add(s *scratch, to process, now time.Time) {
	p := &s.placement
	promptAt := 0
	s.record = appendRecord(s.record[:0], recordAdd, func(to []byte) []byte {
		to, promptAt = appendPlacement(to, p, wholePrompt)
		return to
	})
	// Only the memory of the routers says what a worker without events has.
	t := told{promptAt: promptAt - recordHead, prefills: !p.PrefillCompleted, placed: now, process: to, session: p.Session.Key != "",
		prompt: p.FromText || p.Trust == fleet.TrustApproximate || len(p.Text)+len(p.Tokens) > 0}
	if len(p.Keys) <= heldPrompt.keys && len(p.AheadKeys) <= heldPrompt.keys && len(p.Text) <= heldPrompt.text && len(p.Tokens) <= heldPrompt.tokens {
		t.record = append([]byte(nil), s.record[recordHead:]...)
	} else {
		t.record, _ = appendPlacement(nil, p, heldPrompt)
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
	if !t.prompt && !t.session {
		return
	}
	r := recent{content: t.record, promptAt: t.promptAt, placed: t.placed, ended: now, prompt: t.prompt, session: t.session, process: t.process}
	if !t.prompt {
		r.content = withoutPrompt(t.record, t.promptAt) // the copy lets the prompt go
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
