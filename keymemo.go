package warmpath

import (
	"sync"

	"github.com/warmpath/warmpath/block"
)

// keyMemo caches the keys of the beginnings of prompts. So the router hashes only the new tokens of the next turn of a
// conversation. The beginnings of a conversation share one slice of keys (keyRun), so a turn needs memory only for its
// new keys. The memory is bounded: the least recently used entry is evicted first. A keyMemo is safe for concurrent
// use. The keys that it returns are shared and must not be changed.
type keyMemo struct {
	mu      sync.Mutex              // guards the fields below
	entries map[memoName]*memoEntry // the beginnings by name
	recent  memoEntry               // the head of a ring: recent.next was used last
	bytes   int                     // the memory of all entries
}

// memoName identifies a beginning. An index has one block size, so equal names mean equal keys.
type memoName struct {
	mark [2]uint64 // the Mark of the block.Prefix: a hash of the tokens of the beginning
	root block.Key // the parent of the first key: a hash of model, LoRA name, salt and extra key
}

// memoEntry is a beginning: the first n keys of its run.
type memoEntry struct {
	prev, next *memoEntry
	name       memoName
	run        *keyRun
	n          int
}

// keyRun holds the keys of several beginnings of one prompt: the keys of a shorter beginning are the first keys of a
// longer one. Keys are only appended, so a slice of the first keys can be read without a lock.
type keyRun struct {
	keys    []block.Key
	entries int // the number of entries that use the run
}

const (
	// memoBytes is the limit of the memory, in bytes. It has room for the keys of 16 million tokens in blocks of 16.
	// The gateway's default cache of token ids holds as many tokens.
	memoBytes = 8 << 20
	// memoTokens is the length of the shortest beginning that is kept, in tokens. Hashing fewer tokens takes no longer
	// than a lookup.
	memoTokens = 2048
	// memoOverhead is the memory of an entry in addition to its keys, in bytes.
	memoOverhead = 192
)

func newKeyMemo() *keyMemo {
	m := &keyMemo{entries: map[memoName]*memoEntry{}}
	m.recent.prev, m.recent.next = &m.recent, &m.recent
	return m
}

// appendKeys appends the keys of req's whole blocks to dst. It takes the keys of a known beginning from the memo.
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
	kept = kept[:min(len(kept), len(req.Tokens)/size)] // kept is longer than the prompt only if the caller gave the mark of another prompt
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

// put keeps a copy of keys under name. before may be the name of a shorter beginning of the same prompt. If the memo
// has this shorter beginning, and no longer beginning shares its run, put appends only the new keys to the run.
func (m *keyMemo) put(name, before memoName, keys []block.Key) {
	if len(keys)*8 > memoBytes/8 {
		return // one prompt must not evict all others
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

// drop removes an entry. The caller holds m.mu.
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
