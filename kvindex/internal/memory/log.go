package memory

import (
	"cmp"
	"sync/atomic"
	"unsafe"
)

// Log keeps runs of pairs of words. Each run has one owner, and only the owner's [Run] refers to it. New runs are
// written one after another into chunks of one size. When much of a chunk is garbage, its live runs are moved and the
// chunk is given back: runs of different lengths leave no gaps. There is one writer at a time. Readers may read the
// first words of a run at the same time, as many as the writer has published. Memory that readers may still read is
// left to the garbage collector.
type Log struct {
	// Words is the size of a chunk in words; 0 means 2,048. It must be set while the log is empty.
	Words int

	chunks  []*logChunk // chunks by number; nil: given back
	holes   []uint32    // numbers of chunks that were given back
	open    uint32      // the chunk that is being filled
	hand    uint32      // the last chunk at which Compact looked
	words   int         // the number of words in all chunks
	garbage int         // the number of words that no run uses and that new runs cannot use
	// patience is the number of words of garbage below which Compact does nothing unless hard is set. Compact sets it
	// when it found no chunk to empty.
	patience int
}

type logChunk struct {
	words []uint64
	next  int // the index of the first free word
	live  int // the number of words of runs in use
}

// logWords is the size of a chunk when Log.Words is 0: 16 KiB. A longer run has a chunk of its own.
const logWords = 1 << 11

// mostSpare bounds the spare room of a run, in pairs. A run that grows gets a quarter of its length, but at most
// mostSpare, and 2 more.
const mostSpare = 128

// Run refers to a run. The zero value is an empty run.
type Run struct {
	// words points at a header of two words. The first words of all pairs follow, then the second words of all pairs.
	// The header's first word has the owner in its upper half, and the room in pairs in its lower half. The header's
	// second word is the chunk's number.
	words atomic.Pointer[uint64]
}

const runHeader = 2

func (r *Run) all() []uint64 {
	p := r.words.Load()
	if p == nil {
		return nil
	}
	return unsafe.Slice(p, runHeader+2*uint32(*p))
}

// Words is the memory that a run had at one moment.
type Words struct{ at *uint64 }

// Words returns the memory that the run has now. It reports false if the run has no memory.
func (r *Run) Words() (Words, bool) {
	p := r.words.Load()
	return Words{p}, p != nil
}

// Firsts returns the first words of n pairs. It does not check n: the writer must have published n pairs for this
// memory, or for the memory that this memory replaced.
func (w Words) Firsts(n uint32) []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Add(unsafe.Pointer(w.at), runHeader*8)), n)
}

// Firsts returns the first words of all pairs for which the run has room.
func (r *Run) Firsts() []uint64 {
	w := r.all()
	if w == nil {
		return nil
	}
	return w[runHeader : runHeader+uint32(w[0])]
}

// Seconds returns the second words of all pairs for which the run has room. Only the writer may read them.
func (r *Run) Seconds() []uint64 {
	w := r.all()
	if w == nil {
		return nil
	}
	return w[runHeader+uint32(w[0]):]
}

// Append writes pairs after the first n pairs of a run. The second words of the new pairs are 0.
func (l *Log) Append(r *Run, owner uint32, n int, firsts []uint64) {
	room := r.Firsts()
	if n+len(firsts) <= len(room) {
		for i, v := range firsts {
			atomic.StoreUint64(&room[n+i], v) // a reader may read the word if it loaded the length before a Cut
		}
		clear(r.Seconds()[n : n+len(firsts)])
		return
	}
	more := n + len(firsts)
	if n > 0 {
		more += min(more/4, mostSpare) + 2
	}
	l.move(r, owner, n, more, firsts)
}

// Cut keeps the first n pairs of a run.
func (l *Log) Cut(r *Run, owner uint32, n int) {
	if n == 0 {
		l.release(r.all())
		r.words.Store(nil)
	} else if len(r.Firsts()) > 2*n+8 {
		l.move(r, owner, n, n, nil)
	}
}

// move gives a run new memory with room for a number of pairs. It copies the first n pairs, and adds pairs whose first
// words are firsts. Readers see the new memory when it is complete.
func (l *Log) move(r *Run, owner uint32, n, room int, firsts []uint64) {
	old := r.all()
	w := l.alloc(owner, room)
	copy(w[runHeader:], r.Firsts()[:n])
	copy(w[runHeader+room:], r.Seconds()[:n])
	copy(w[runHeader+n:], firsts)
	r.words.Store(&w[0])
	l.release(old)
}

func (l *Log) alloc(owner uint32, room int) []uint64 {
	need := runHeader + 2*room
	i := l.open
	if need > l.size() {
		i = l.add(need)
	} else if len(l.chunks) == 0 || l.chunks[i] == nil || l.chunks[i].next+need > len(l.chunks[i].words) {
		was := i
		i = l.add(l.size())
		l.open = i
		if i != was && l.chunks[was] != nil { // if the old chunk was given back, the new chunk may have its number
			c := l.chunks[was]
			l.garbage += len(c.words) - c.next // the free words at the end stay unused
			c.next, c.words = len(c.words), c.words[:c.next]
			l.settle(was)
		}
	}
	c := l.chunks[i]
	w := c.words[c.next : c.next+need]
	w[0], w[1] = uint64(owner)<<32|uint64(room), uint64(i)
	c.next += need
	c.live += need
	return w
}

// add makes a chunk and returns its number.
func (l *Log) add(size int) uint32 {
	c := &logChunk{words: make([]uint64, size)}
	l.words += size
	if n := len(l.holes); n > 0 {
		i := l.holes[n-1]
		l.holes, l.chunks[i] = l.holes[:n-1], c
		return i
	}
	l.chunks = append(l.chunks, c)
	return uint32(len(l.chunks) - 1)
}

func (l *Log) release(w []uint64) {
	if w == nil {
		return
	}
	i := uint32(w[1])
	l.chunks[i].live -= len(w)
	l.garbage += len(w)
	l.settle(i)
}

// settle gives a chunk back if no run in it is in use, and if new runs are not written into it.
func (l *Log) settle(i uint32) {
	c := l.chunks[i]
	if c.live > 0 || i == l.open && cap(c.words) == l.size() {
		return
	}
	l.words -= cap(c.words)
	l.garbage -= cap(c.words)
	l.chunks[i] = nil
	l.holes = append(l.holes, i)
}

// Compact empties at most four chunks: it moves their runs and gives the chunks back. It begins when the garbage is a
// sixth of the log and eight chunks together. It chooses chunks of which a third is garbage, so it moves at most two
// words for each word of garbage. If memory is short, the caller sets hard: then Compact begins at any garbage, and
// chooses chunks of which an eighth is garbage. owned returns an owner's run and its number of pairs, or nil if the
// owner has no run.
func (l *Log) Compact(hard bool, owned func(owner uint32) (*Run, int)) {
	if !hard && (l.garbage < l.patience || l.garbage*6 < l.words+8*l.size()) {
		return
	}
	moved := 0
	for looks := 0; looks < min(len(l.chunks), 32) && moved < 4 && l.garbage > 0; looks++ {
		if l.hand++; int(l.hand) >= len(l.chunks) {
			l.hand = 0
		}
		c := l.chunks[l.hand]
		if c == nil || l.hand == l.open || cap(c.words) > l.size() || c.live*3 > cap(c.words)*2 && !(hard && c.live*8 <= cap(c.words)*7) {
			continue
		}
		moved++
		for at := 0; at < len(c.words); {
			owner, size := uint32(c.words[at]>>32), runHeader+2*int(uint32(c.words[at]))
			if r, n := owned(owner); r != nil && r.words.Load() == &c.words[at] {
				l.move(r, owner, n, n, nil)
			}
			at += size
		}
	}
	if l.patience = 0; moved == 0 {
		l.patience = l.garbage + l.size()/2
	}
}

// Clear gives all memory back. The runs must not be used afterwards.
func (l *Log) Clear() { *l = Log{Words: l.Words} }

func (l *Log) size() int { return cmp.Or(l.Words, logWords) }

// Bytes returns how much memory the log takes.
func (l *Log) Bytes() int64 {
	return int64(l.words)*8 + int64(cap(l.chunks))*8 + int64(len(l.chunks)-len(l.holes))*48 + int64(cap(l.holes))*4
}

// Growth returns an upper bound of the memory that n more pairs take, in at most the given number of runs. One of these
// runs may exist already.
func (l *Log) Growth(n, runs int) int64 {
	words := 5*n/2 + runs*(runHeader+4) + 2*mostSpare
	if words > l.size()/2 {
		words += words / 4 // the words at the ends of full chunks that stay unused
	}
	chunks := (words + l.size() - 1) / l.size()
	return int64(chunks+1)*int64(l.size()*8+48) + 16*int64(len(l.chunks)/4)
}
