package sharedindex

import (
	"slices"
	"sync"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// mirror collects the changes of the indexes of one process, for the writer. The indexes call it under their locks, so
// it does nothing but copy. Its own lock is below theirs.
type mirror struct {
	most int // the limit of pending

	mu      sync.Mutex // guards the fields below, and the books
	books   map[bookKey]*book
	newest  map[string]uint64 // the newest generation of each model's index
	pending []op
	queued  uint64 // how many changes were ever added to pending
	stats   writerCounts
	wake    chan struct{} // has an element if there is something new
	changed bool          // what is said of a holder changed
	stale   bool          // a slot was retired since take was called last
	retired []uint32      // slots that are not used any more and are not yet known to the writer
}

// writerCounts are the counters that the mirror changes.
type writerCounts struct {
	resyncs int64 // times that a holder got a slot, to be written as a whole
	dropped int64 // changes that were dropped
}

type bookKey struct {
	generation uint64
	holder     fleet.Holder
}

// book is one holder of one index, as the writer knows it. The holder's blocks are under one slot. When the writer can
// not say any more what is under the slot, it retires the slot: readers stop counting it at the next description, and
// the entries end with their TTL. Under a new slot, the writer writes everything again. So a holder is forgotten by one
// word, and an entry that was lost or came twice does no harm.
type book struct {
	key   bookKey
	made  warmpath.MadeIndex
	slot  uint32 // 0: none, changes are dropped
	next  int    // where TellAgain continues; -1: everything was told
	after uint64 // mirror.queued when everything was told: the slot is whole when so many changes are written
	whole bool   // everything that the index claims was written under the slot
	empty bool   // the index claims nothing of the holder, so a new slot is whole at once
	full  bool   // the server was full and refused some blocks, since the blocks were told from the start
	lacks bool   // blocks that the server refused were not written again yet

	groups       []kvindex.GroupStats
	anyTierOrder bool
	unprovable   bool
}

func newMirror(most int) *mirror {
	return &mirror{most: most, books: map[bookKey]*book{}, newest: map[string]uint64{}, wake: make(chan struct{}, 1)}
}

// listen returns the function that is told of the changes of a new index.
func (m *mirror) listen(made warmpath.MadeIndex) func(*kvindex.Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.newest[made.Model] = made.Generation
	for key, b := range m.books {
		if b.made.Model == made.Model {
			m.retire(b)
			delete(m.books, key)
		}
	}
	return func(c *kvindex.Change) { m.hear(made, c) }
}

// hear takes one change of an index.
func (m *mirror) hear(made warmpath.MadeIndex, c *kvindex.Change) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.newest[made.Model] != made.Generation {
		return // another index took the place of this one
	}
	key := bookKey{made.Generation, c.Holder}
	b := m.books[key]
	if b == nil {
		b = &book{key: key, made: made, empty: true}
		m.books[key] = b
	}
	switch c.Kind {
	case kvindex.Regrouped:
		b.groups = slices.Clone(c.Groups)
		b.anyTierOrder, b.unprovable = c.AnyTierOrder, c.Unprovable
		m.changed = true
	case kvindex.Forgotten:
		m.retire(b)
		b.groups, b.anyTierOrder, b.unprovable, b.empty, b.lacks = nil, false, false, true, false
	case kvindex.Cleared:
		m.retire(b) // the other tiers are written again, which is rare
	case kvindex.Added, kvindex.Dropped:
		m.enqueue(b, c)
	}
	m.poke()
}

// enqueue adds the changes of rows to the queue. If the queue is full, it retires the holder's slot.
func (m *mirror) enqueue(b *book, c *kvindex.Change) {
	b.empty = false
	place := slices.IndexFunc(b.groups, func(g kvindex.GroupStats) bool { return g.Group == c.Group })
	if b.slot == 0 || place < 0 || len(c.Keys) == 0 {
		return
	}
	next := op{slot: b.slot, plane: uint8(4*place) + uint8(c.Tier), add: c.Kind == kvindex.Added, n: uint8(len(c.Before)), from: uint8(len(c.Before))}
	copy(next.keys[:], c.Before)
	for i, key := range c.Keys {
		next.keys[next.n] = key
		if next.n++; next.n < rowLength && i+1 < len(c.Keys) {
			continue
		}
		if len(m.pending) >= m.most {
			m.stats.dropped++
			m.retire(b)
			return
		}
		m.pending = append(m.pending, next)
		m.queued++
		next.n, next.from = 0, 0
	}
}

// retire takes a holder's slot away. Changes that wait for this slot are dropped when they are taken.
func (m *mirror) retire(b *book) {
	if b.slot != 0 {
		m.retired = append(m.retired, b.slot)
		m.changed, m.stale = true, true
	}
	b.slot, b.next, b.whole, b.full = 0, 0, false, false
}

// retireAll takes the slots of all holders away, and forgets what waits: the server lost something.
func (m *mirror) retireAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.books {
		m.retire(b)
	}
	m.stats.dropped += int64(len(m.pending))
	m.pending = m.pending[:0]
}

func (m *mirror) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// wrote notes that the first upTo changes were written. It returns whether what is said of a holder changed since the
// last call.
func (m *mirror) wrote(upTo uint64) (changed bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.books {
		if b.slot != 0 && !b.whole && b.next < 0 && b.after <= upTo {
			b.whole, m.changed = true, true
			b.lacks = b.lacks && b.full
		}
	}
	changed, m.changed = m.changed, false
	return changed
}

// copies returns what is known of each holder.
func (m *mirror) copies() map[fleet.Holder]book {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make(map[fleet.Holder]book, len(m.books))
	for _, b := range m.books {
		if old := all[b.key.holder]; old.slot == 0 || b.slot != 0 && b.key.generation > old.key.generation {
			all[b.key.holder] = *b
		}
	}
	return all
}

// wanting returns how many holders need a slot.
func (m *mirror) wanting() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.books {
		if b.slot == 0 && !b.idle() {
			n++
		}
	}
	return n
}

// idle reports whether a holder needs no slot: nothing is known of it.
func (b *book) idle() bool { return b.empty && len(b.groups) == 0 }

// assign gives the slots from first on to holders that need one.
func (m *mirror) assign(first uint32, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, b := range m.books {
		if b.slot == 0 && b.idle() {
			delete(m.books, key) // it comes back with its next change
		}
		if b.slot != 0 || b.idle() || n == 0 {
			continue
		}
		b.slot, b.next, b.after, b.whole = first, 0, m.queued, false
		if b.empty {
			b.next = -1
		} else {
			m.stats.resyncs++
		}
		first, n = first+1, n-1
		m.changed = true
	}
}

// take returns all changes that wait, and the value of queued after the last one. spare becomes the memory of the next
// changes. Changes of slots that were retired are left out.
func (m *mirror) take(spare []op) (ops []op, upTo uint64) {
	m.mu.Lock()
	ops, upTo = m.pending, m.queued
	m.pending = spare[:0]
	var used map[uint32]bool
	if m.stale && len(ops) > 0 {
		used = make(map[uint32]bool, len(m.books))
		for _, b := range m.books {
			used[b.slot] = true
		}
	}
	m.stale = false
	m.mu.Unlock()
	if used != nil {
		ops = slices.DeleteFunc(ops, func(o op) bool { return !used[o.slot] })
	}
	return ops, upTo
}

// retireTaken retires the slots that other writers use, too: a server of a cluster that failed may have given a slot
// twice.
func (m *mirror) retireTaken(others map[uint32]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.books {
		if others[b.slot] {
			m.retire(b)
			m.poke()
		}
	}
}

// takeRetired returns the slots that were retired since the last call.
func (m *mirror) takeRetired() (slots []uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	slots, m.retired = m.retired, nil
	return slots
}

// waiting returns how many changes wait.
func (m *mirror) waiting() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.pending)
}

// untold returns a holder whose blocks were not all told, and where TellAgain continues.
func (m *mirror) untold() (key bookKey, slot uint32, next int, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, b := range m.books {
		if b.slot != 0 && b.next >= 0 {
			return key, b.slot, b.next, true
		}
	}
	return bookKey{}, 0, 0, false
}

// told notes how far the blocks of a holder were told, unless its slot was retired meanwhile.
func (m *mirror) told(key bookKey, slot uint32, next int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b := m.books[key]; b != nil && b.slot == slot {
		if b.next = next; next < 0 {
			b.after = m.queued
		}
	}
}

// tellAgain begins to tell the blocks of all holders again, under their present slots, so that their entries live on.
func (m *mirror) tellAgain() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.books {
		if b.slot != 0 && b.next < 0 {
			b.next, b.whole, b.full = 0, b.whole && !b.full, false
		}
	}
}

// tellRefused begins to tell the holders again of which the server refused blocks.
func (m *mirror) tellRefused() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.books {
		if b.full && b.slot != 0 && b.next < 0 {
			b.next, b.full, b.whole = 0, false, false
		}
	}
}

// refused notes that the server was full, so that blocks of these slots are missing there.
func (m *mirror) refused(ops []op) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.books {
		if slices.ContainsFunc(ops, func(o op) bool { return o.slot == b.slot }) {
			b.full, b.lacks, m.changed = true, true, true
		}
	}
}

// lacking reports whether the server lacks blocks of some holder because it was full.
func (m *mirror) lacking() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range m.books {
		if b.lacks {
			return true
		}
	}
	return false
}
