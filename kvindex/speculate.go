package kvindex

import (
	"math/bits"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// entry is a block that is believed on some holder. 16 bytes.
type entry struct {
	key   block.Key
	specs uint32 // head of the list of holders that are believed to have it, ascending
	_     uint32
}

// enter returns the entry of key and makes it if it is new. It needs tableMu.
func (x *Index) enter(key block.Key) uint32 {
	e := x.keys.get(uint64(key))
	if e == 0 {
		e = x.entries.alloc()
		*x.entries.at(e) = entry{key: key}
		x.keys.put(uint64(key), e)
		x.hint(key, 1)
	}
	return e
}

// leave drops an entry that nobody is believed to have. It needs tableMu.
func (x *Index) leave(e uint32) {
	if en := x.entries.at(e); en.specs == 0 {
		x.hint(en.key, ^uint32(0))
		x.keys.del(uint64(en.key))
		x.entries.release(e)
	}
}

// hints counts the entries by a part of their keys, so that readers learn without a lock that nobody is believed to have
// a block.
type hints struct {
	counts []atomic.Uint32
	shift  uint8
}

func (h *hints) of(key block.Key) *atomic.Uint32 { return &h.counts[mixKey(key)>>h.shift] }

// hintCount returns how many counters an index has: one for 16 KiB of its budget, 2^10 to 2^16, a power of two.
func (x *Index) hintCount() int {
	return 1 << min(max(bits.Len64(uint64(x.config.Bytes)>>14)-1, 10), 16)
}

func (x *Index) hint(key block.Key, n uint32) {
	h := x.hints.Load()
	if h == nil {
		counts := make([]atomic.Uint32, x.hintCount())
		h = &hints{counts, uint8(64 - bits.Len(uint(len(counts)-1)))}
		x.hints.Store(h)
	}
	h.of(key).Add(n)
}

// spec is one holder's believed possession of a block, until it is confirmed or expires. 40 bytes.
type spec struct {
	until  int64 // unix nanoseconds; believed while now is before it
	entry  uint32
	holder fleet.Holder
	next   uint32 // in the entry's list, ascending by holder
	item   uint32 // place in the queue
	before uint32 // neighbours in the holder's list
	after  uint32
}

// Speculate makes the index believe until the given time (unix nanoseconds) that a holder has the blocks of keys, which
// begin at the chain's first block: because a request for them was just sent there, or because the holder sends no
// events. A later time wins over an earlier one. What is confirmed replaces what is believed.
func (x *Index) Speculate(id fleet.Holder, keys []block.Key, until int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(keys) == 0 {
		return
	}
	h := x.meet(id)
	if h == nil {
		return
	}
	x.advance()
	for from := 0; from < len(keys); from += stretch {
		to := min(from+stretch, len(keys))
		if !x.makeRoom(need{handles: to - from, tokens: (to - from) * int(x.size), size: int(x.size)}) {
			x.counts.refused++
			return
		}
		x.tableMu.Lock()
		for at := from; at < to; at += lookahead {
			// Look some keys up at once: the processor then waits for their cache misses together.
			ahead := keys[at:min(at+lookahead, to)]
			var entries [lookahead]uint32
			var held [lookahead]uint64
			for i, key := range ahead {
				entries[i] = x.keys.get(uint64(key))
			}
			for i, key := range ahead {
				held[i] = x.held(key, h.id)
			}
			for i, key := range ahead {
				if !x.proven(h, held[i]) {
					x.believe(h, entries[i], key, until)
				}
			}
		}
		x.expire(to - from)
		x.tableMu.Unlock()
	}
}

// believe makes the holder believed to have the block of key, whose entry is e; 0 is a new one. It needs tableMu.
func (x *Index) believe(h *holder, e uint32, key block.Key, until int64) {
	if e == 0 {
		e = x.enter(key)
	}
	link := &x.entries.at(e).specs
	for *link != 0 && x.specs.at(*link).holder < h.id {
		link = &x.specs.at(*link).next
	}
	if *link != 0 && x.specs.at(*link).holder == h.id {
		s := x.specs.at(*link)
		s.until = max(s.until, until)
		if 2*x.speculative.n > x.config.MaxSpeculative {
			x.speculative.remove(s.item) // places in the queue matter when the oldest may have to go; else see expire
			s.item = x.speculative.push(*link)
		}
		return
	}
	i := x.specs.alloc()
	*x.specs.at(i) = spec{until: until, entry: e, holder: h.id, next: *link, item: x.speculative.push(i), after: h.specs}
	if h.specs != 0 {
		x.specs.at(h.specs).before = i
	}
	h.specs = i
	*link = i
}

// proven reports whether a mask is as good as what is believed of a block.
func (x *Index) proven(h *holder, mask uint64) bool {
	v := x.view(h.id)
	if mask == 0 || v.unknown {
		return false
	}
	full := v.full
	if full == 0 {
		return true
	}
	for t := range block.NumTiers {
		if mask>>t&full == full {
			return true
		}
	}
	return false
}

// confirm replaces what is believed of a holder's block by its mask.
func (x *Index) confirm(h *holder, e uint32, mask uint64) {
	for s := x.entries.at(e).specs; s != 0; s = x.specs.at(s).next {
		if x.specs.at(s).holder == h.id {
			if x.proven(h, mask) {
				x.disbelieve(s)
			}
			return
		}
	}
}

// reconfirm replaces what is believed of a holder by what it has, after its groups have changed.
func (x *Index) reconfirm(h *holder) {
	for s := h.specs; s != 0; {
		next := x.specs.at(s).after
		if x.proven(h, x.held(x.entries.at(x.specs.at(s).entry).key, h.id)) {
			x.tableMu.Lock()
			x.disbelieve(s)
			x.tableMu.Unlock()
		}
		s = next
	}
}

// disbelieve drops a speculative entry. It needs tableMu.
func (x *Index) disbelieve(i uint32) {
	s := x.specs.at(i)
	link := &x.entries.at(s.entry).specs
	for *link != i {
		link = &x.specs.at(*link).next
	}
	*link = s.next
	if s.before != 0 {
		x.specs.at(s.before).after = s.after
	} else {
		x.holders[s.holder].specs = s.after
	}
	if s.after != 0 {
		x.specs.at(s.after).before = s.before
	}
	x.speculative.remove(s.item)
	e := s.entry
	x.specs.release(i)
	x.leave(e)
}

// expire drops the entries whose time has passed, looking at the oldest n and some more, and the oldest while there
// are too many.
func (x *Index) expire(n int) {
	now := x.now.Load()
	// Entries of longer life, and those believed again since they were queued, stand before others: let them go to the
	// end. A few at a time: mostly all that is left is alive, and moving n of them would cost more than believing n.
	alive := n/8 + 8
	for n += 8; n > 0 && alive > 0; n-- {
		i := x.speculative.oldest()
		if i == 0 {
			break
		}
		s := x.specs.at(i)
		if s.until <= now {
			x.disbelieve(i)
			continue
		}
		if x.speculative.n > x.config.MaxSpeculative {
			x.disbelieve(i)
			x.counts.speculativeDropped++
			continue
		}
		alive--
		x.speculative.remove(s.item)
		s.item = x.speculative.push(i)
	}
	for x.speculative.n > x.config.MaxSpeculative {
		x.disbelieve(x.speculative.oldest())
		x.counts.speculativeDropped++
	}
}

// forgetSpeculation drops all that is believed of a holder.
func (x *Index) forgetSpeculation(id fleet.Holder) {
	h := x.holders[id]
	for h.specs != 0 {
		x.tableMu.Lock()
		for n := 0; h.specs != 0 && n < stretch; n++ {
			x.disbelieve(h.specs)
		}
		x.tableMu.Unlock()
	}
}
