package warmpath

import (
	"sync"

	"github.com/warmpath/warmpath/block"
)

// keyMemo keeps the keys of prompts' beginnings, so that the next turn of a conversation hashes only its new tokens.
// Turns that continue each other share one run of keys: a turn costs memory and copying only for its new keys. The
// memory is bounded; the least recently used entries leave first. It is safe for concurrent use. The keys that it
// returns are shared and must not be changed.
type keyMemo struct {
	mu      sync.Mutex
	entries map[memoName]*memoEntry // guarded by mu, and so is all below
	recent  memoEntry               // head of a ring: recent.next was used last
	bytes   int
}

// memoName holds all that the keys of a beginning depend on, except the block size, which is the same for the whole
// index.
type memoName struct {
	mark [2]uint64
	root block.Key
}

// memoEntry is a beginning: the first n keys of its run.
type memoEntry struct {
	prev, next *memoEntry
	name       memoName
	run        *keyRun
	n          int
}

// keyRun is the keys of the longest of several beginnings that continue each other. Keys are only appended, so that a
// slice of the first ones can be read without a lock.
type keyRun struct {
	keys    []block.Key
	entries int // beginnings that use the run
}

const (
	// memoBytes holds the keys of 16 million tokens in blocks of 16: twice what the default cache of token ids holds.
	memoBytes = 8 << 20
	// memoTokens is the shortest beginning that is kept: hashing a shorter one takes no longer than a lookup.
	memoTokens = 2048
	// memoOverhead is the bytes of an entry in addition to its keys.
	memoOverhead = 192
)

func newKeyMemo() *keyMemo {
	m := &keyMemo{entries: map[memoName]*memoEntry{}}
	m.recent.prev, m.recent.next = &m.recent, &m.recent
	return m
}

// appendKeys appends the keys of req's whole blocks. It takes the keys of a known beginning from memory.
func (x *modelIndex) appendKeys(dst []block.Key, root block.Key, req *Request) []block.Key {
	stable := req.Stable
	if stable.Tokens < memoTokens || stable.Tokens > len(req.Tokens) || len(req.Features) > 0 {
		return x.hasher.Append(dst, root, 0, req.Tokens, req.Features)
	}
	size, began := x.hasher.Size(), len(dst)
	kept := x.memo.get(memoName{stable.Mark, root})
	remember := kept == nil
	if kept == nil && req.Known.Tokens >= memoTokens {
		kept = x.memo.get(memoName{req.Known.Mark, root})
	}
	kept = kept[:min(len(kept), len(req.Tokens)/size)] // a longer beginning is another prompt's: the caller mixed marks up
	dst = append(dst, kept...)
	parent := root
	if len(kept) > 0 {
		parent = kept[len(kept)-1]
	}
	start := len(kept) * size
	dst = x.hasher.Append(dst, parent, start, req.Tokens[start:], nil)
	if remember {
		x.memo.put(memoName{stable.Mark, root}, memoName{req.Known.Mark, root}, dst[began:began+stable.Tokens/size])
	}
	return dst
}

func (m *keyMemo) get(name memoName) []block.Key {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[name]
	if e == nil {
		return nil
	}
	e.unlink()
	m.recent.link(e)
	return e.run.keys[:e.n:e.n]
}

// put keeps a copy of keys under name. before may name a beginning of them that is kept already.
func (m *keyMemo) put(name, before memoName, keys []block.Key) {
	if len(keys)*8 > memoBytes/8 {
		return // one prompt must not drive out all others
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entries[name] != nil {
		return
	}
	e := &memoEntry{name: name, n: len(keys)}
	if old := m.entries[before]; old != nil && old.n == len(old.run.keys) && old.n <= len(keys) {
		e.run = old.run
		m.bytes -= 8 * cap(e.run.keys)
		e.run.keys = append(e.run.keys, keys[old.n:]...)
	} else {
		e.run = &keyRun{keys: append(make([]block.Key, 0, len(keys)+len(keys)/8), keys...)}
	}
	e.run.entries++
	m.bytes += 8*cap(e.run.keys) + memoOverhead
	m.entries[name] = e
	m.recent.link(e)
	for m.bytes > memoBytes {
		m.drop(m.recent.prev)
	}
}

// drop removes an entry. m.mu is held.
func (m *keyMemo) drop(e *memoEntry) {
	e.unlink()
	delete(m.entries, e.name)
	m.bytes -= memoOverhead
	if e.run.entries--; e.run.entries == 0 {
		m.bytes -= 8 * cap(e.run.keys)
	}
}

func (e *memoEntry) unlink() { e.prev.next, e.next.prev = e.next, e.prev }

// link puts x behind e in the ring.
func (e *memoEntry) link(x *memoEntry) {
	x.prev, x.next = e, e.next
	e.next.prev = x
	e.next = x
}
