package kvindex

import (
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// later is what came to be believed while the index was being changed. Whoever changes it takes that in, in order, at
// its next pause: a decision never waits for events to be applied. What does not fit is dropped: it would have saved a
// prefill at most.
type later struct {
	some      atomic.Bool // there may be something in list
	mu        sync.Mutex  // guards what follows
	list      []expectation
	keys      []block.Key
	spare     []expectation // list's memory, the next time
	spareKeys []block.Key   // keys' memory, the next time

	dropped atomic.Int64 // blocks
}

// expectation is what a holder is to be believed to have, or is not any more: see Speculate and Doubt.
type expectation struct {
	holder fleet.Holder
	n      int // of its keys in later.keys
	until  int64
	doubt  bool
	known  int // of Doubt
}

// mostLater is how many blocks may wait for being believed: half a second of 200 requests a second of 650 new blocks,
// where a writer takes half a second for one change. In a small index it is so many that what they take is 1/32 of the
// budget. An expectation takes as much memory as expectationKeys blocks.
const (
	mostLater       = 1 << 16
	expectationKeys = 6
)

// put notes what is to be believed. A doubt that does not fit whole is not noted: what it is of is believed until its
// time.
func (l *later) put(e expectation, keys []block.Key, most int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.n = max(min(len(keys), most-len(l.keys)-expectationKeys*(len(l.list)+1)), 0)
	if e.doubt && e.n < len(keys) {
		return
	}
	l.dropped.Add(int64(len(keys) - e.n))
	if e.n > 0 {
		l.keys = append(l.keys, keys[:e.n]...)
		l.list = append(l.list, e)
		l.some.Store(true)
	}
}

// take returns the stored expectations and removes them. They are valid until the next take.
func (l *later) take() ([]expectation, []block.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	list, keys := l.list, l.keys
	l.list, l.spare = l.spare[:0], list
	l.keys, l.spareKeys = l.spareKeys[:0], keys
	l.some.Store(false)
	return list, keys
}

// lock locks mu, and applies the expectations stored meanwhile.
func (x *Index) lock() {
	x.mu.Lock()
	x.catchUp()
}

// unlock applies the expectations stored meanwhile, and unlocks mu.
func (x *Index) unlock() {
	x.catchUp()
	x.blocks.compact(false)
	x.mu.Unlock()
	for x.later.some.Load() && x.mu.TryLock() { // it came between
		x.catchUp()
		x.mu.Unlock()
	}
}

// tell applies an expectation: at once if no writer has the lock, otherwise at the writer's next pause.
func (x *Index) tell(e expectation, keys []block.Key) {
	if !x.mu.TryLock() {
		x.later.put(e, keys, int(min(mostLater, x.config.Bytes>>9)))
		if x.mu.TryLock() { // that change ended meanwhile, and may not have seen it
			x.unlock()
		}
		return
	}
	x.catchUp()
	x.heed(e, keys)
	x.unlock()
}

// catchUp takes in what came to be believed meanwhile.
func (x *Index) catchUp() {
	if !x.later.some.Load() {
		return
	}
	list, keys := x.later.take()
	for _, e := range list {
		x.heed(e, keys[:e.n])
		keys = keys[e.n:]
	}
}

// heed takes one expectation in.
func (x *Index) heed(e expectation, keys []block.Key) {
	if e.doubt {
		x.doubt(e.holder, keys, e.known, e.until)
	} else {
		x.expect(e.holder, keys, e.until)
	}
}
