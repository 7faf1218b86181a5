// Package feed turns a trace's records into calls of kvindex. A trace has hashes where engines send tokens, so there
// are three ways to feed it. Figures of different ways must not be compared:
//
//   - Keys: the event's hash is the key, and lookups have ready keys. The index maps no engine hashes. A router with
//     engines, or peers, that send chained keys works like that.
//   - Local: as Keys, but Warmpath's chain makes the keys from the local hashes (hashes of single blocks). A lookup may
//     begin with the local hashes and include the chain, to compare with peers that look up by local hashes.
//   - Handles: the full path. Sixteen tokens stand for each local hash. Applying an event hashes the tokens to keys,
//     and the trace's sequence hashes are opaque engine hashes, as with a real engine.
package feed

import (
	"fmt"

	"github.com/warmpath/warmpath/bench/internal/trace"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// Mode is a way to feed an index.
type Mode uint8

// The modes.
const (
	Keys Mode = iota
	Local
	Handles
)

var names = [...]string{Keys: "keys", Local: "local", Handles: "handles"}

// String returns the name that Parse reads.
func (m Mode) String() string { return names[m] }

// Parse reads a mode's name.
func Parse(s string) (Mode, error) {
	for m, name := range names {
		if name == s {
			return Mode(m), nil
		}
	}
	return 0, fmt.Errorf("unknown mode %q: give keys, local or handles", s)
}

// Event is a record that is ready to be applied, so that preparing it is not timed.
type Event struct {
	holder  fleet.Holder
	kind    kind
	parent  uint64
	rooted  bool // begins a chain
	handles []uint64
	keys    []block.Key
	tokens  []block.Token
	size    int // tokens of an engine block

	Blocks int // blocks stored or removed, in the trace's blocks
}

type kind uint8

const (
	store kind = iota
	remove
	forget
)

// Index is a kvindex.Index that is fed in one way. One goroutine may call Apply; any number may call Match.
type Index struct {
	*kvindex.Index
	Mode Mode

	size   int
	hasher *block.Hasher
	root   block.Key
	stored kvindex.Stored
	ours   map[uint64]block.Key // Local: the trace's keys → Warmpath's keys; only while events are made
	depth  map[block.Key]int    // Local: number of blocks up to each of Warmpath's keys
}

// Budget is so large that the index evicts nothing: the traces contain the removals.
const Budget = 256 << 30

// New returns an empty index for traces of blocks of size tokens.
func New(m Mode, size int) (*Index, error) {
	hasher, err := block.NewHasher(block.XXH3, size)
	if err != nil {
		return nil, err
	}
	x := &Index{Mode: m, size: size, hasher: hasher, root: hasher.Root(block.Scope{Model: "m"})}
	if m == Local {
		x.ours, x.depth = map[uint64]block.Key{}, map[block.Key]int{}
	}
	x.Index = kvindex.New(hasher, kvindex.Config{Bytes: Budget})
	return x, nil
}

// Writer returns the same index for Event and Apply in another goroutine. Local has no Writer: it makes keys in order.
func (x *Index) Writer() *Index {
	if x.Mode == Local {
		panic("bug: a second writer in mode local")
	}
	w := *x
	w.stored = kvindex.Stored{}
	return &w
}

// tokens appends the tokens that stand for a local hash. Different hashes have different tokens.
func (x *Index) tokens(dst []block.Token, local uint64) []block.Token {
	dst = append(dst, block.Token(local), block.Token(local>>32))
	for i := 2; i < x.size; i++ {
		dst = append(dst, block.Token(i))
	}
	return dst
}

// Event prepares a record for Apply. It keeps no reference to the record. It uses the memory of reuse if that is not
// nil.
func (x *Index) Event(r *trace.Record, reuse *Event) Event {
	e := Event{holder: fleet.Holder(r.Worker), parent: r.Parent, rooted: !r.HasParent, size: r.Units * x.size}
	if reuse != nil {
		e.handles, e.keys, e.tokens = reuse.handles[:0], reuse.keys[:0], reuse.tokens[:0]
	}
	switch {
	case r.IsStore():
		e.Blocks = len(r.Keys)
		x.fillStore(&e, r)
	case r.Kind == trace.Removed:
		e.kind, e.Blocks = remove, len(r.Handles)*r.Units
		e.handles = append(e.handles, r.Handles...)
		if x.Mode != Handles {
			e.keys = x.known(e.keys, r.Handles)
		}
	default:
		e.kind = forget
	}
	return e
}

func (x *Index) fillStore(e *Event, r *trace.Record) {
	if x.Mode == Handles {
		e.handles = append(e.handles, r.Handles...)
		for _, local := range r.Locals {
			e.tokens = x.tokens(e.tokens, local)
		}
		return
	}
	if x.Mode == Keys {
		for _, key := range r.Keys {
			e.keys = append(e.keys, block.Key(key))
		}
		return
	}
	parent, start := x.root, 0
	if r.HasParent {
		parent = x.ours[r.Parent]
		start = x.depth[parent]
	}
	e.parent = uint64(parent)
	e.keys = x.hasher.Chain(e.keys, parent, start*x.size, r.Locals)
	for i, key := range e.keys {
		x.ours[r.Keys[i]] = key
		x.depth[key] = start + i + 1
	}
}

// known appends the index's keys of engine hashes.
func (x *Index) known(dst []block.Key, handles []uint64) []block.Key {
	for _, handle := range handles {
		if x.Mode == Local {
			dst = append(dst, x.ours[handle])
		} else {
			dst = append(dst, block.Key(handle))
		}
	}
	return dst
}

// Made drops data that Event alone needs, so that it does not count as the index's memory.
func (x *Index) Made() { x.ours, x.depth = nil, nil }

// Apply applies a prepared event to the index.
func (x *Index) Apply(e *Event) {
	switch {
	case e.kind == forget:
		x.Forget(e.holder)
	case x.Mode != Handles && e.kind == store:
		x.StoreKeys(e.holder, block.TierGPU, 0, block.Key(e.parent), !e.rooted, e.keys)
	case x.Mode != Handles:
		x.RemoveKeys(e.holder, block.TierGPU, 0, e.keys)
	case e.kind == store:
		s := &x.stored
		s.Scope.Model = "m"
		s.Parent, s.HasParent = e.parent, !e.rooted
		s.Hashes, s.Tokens, s.BlockSize = e.handles, e.tokens, e.size
		s.Origin = kvindex.OriginNew // every store in a trace adds a copy
		x.Store(e.holder, s)
	default:
		x.Remove(e.holder, block.TierGPU, 0, e.handles)
	}
}

// Split cuts an event into events of at most n blocks; 0 leaves it whole. An event with engine blocks that are longer
// than the trace's blocks stays whole.
func (x *Index) Split(e Event, n int, f func(Event)) {
	length := max(len(e.handles), len(e.keys))
	if n <= 0 || length <= n || e.kind == forget || e.size != x.size {
		f(e)
		return
	}
	for from := 0; from < length; from += n {
		to := min(from+n, length)
		part := e
		part.Blocks = to - from
		if len(e.handles) > 0 {
			part.handles = e.handles[from:to]
		}
		if len(e.keys) > 0 {
			part.keys = e.keys[from:to]
		}
		if len(e.tokens) > 0 {
			part.tokens = e.tokens[from*x.size : to*x.size]
		}
		if from > 0 {
			part.rooted = false
			if x.Mode == Handles {
				part.parent = e.handles[from-1]
			} else {
				part.parent = uint64(e.keys[from-1])
			}
		}
		f(part)
	}
}

// Question is a prepared query.
type Question struct {
	keys   []block.Key
	locals []uint64
	tokens []block.Token
	Depths []uint16 // the exact answer
	Blocks int
}

// Question prepares a query of the first n blocks of a record, all of them when n is 0.
func (x *Index) Question(r *trace.Record, n int) Question {
	if n == 0 {
		n = len(r.Keys)
	}
	q := Question{Depths: append([]uint16(nil), r.Depths...), Blocks: n}
	switch x.Mode {
	case Keys:
		for _, key := range r.Keys[:n] {
			q.keys = append(q.keys, block.Key(key))
		}
	case Local:
		q.locals = append(q.locals, r.Locals[:n]...)
		q.keys = x.hasher.Chain(nil, x.root, 0, q.locals)
	case Handles:
		for _, local := range r.Locals[:n] {
			q.tokens = x.tokens(q.tokens, local)
		}
		q.locals = x.hasher.Locals(nil, q.tokens)
		q.keys = x.hasher.Append(nil, x.root, 0, q.tokens, nil)
	}
	return q
}

// Keys returns the question's keys.
func (q *Question) Keys() []block.Key { return q.keys }

// DropTokens drops data that Chain and Hash alone need, so that many questions fit into memory.
func (q *Question) DropTokens() { q.tokens, q.locals = nil, nil }

// Chain makes the question's keys in dst from the local hashes, as a lookup by local hashes has to. In mode Keys there
// is nothing to make.
func (x *Index) Chain(q *Question, dst []block.Key) []block.Key {
	return x.hasher.Chain(dst, x.root, 0, q.locals)
}

// Hash makes the question's keys in dst from the tokens, as a lookup by tokens has to. Only mode Handles has tokens.
func (x *Index) Hash(q *Question, dst []block.Key) []block.Key {
	return x.hasher.Append(dst, x.root, 0, q.tokens, nil)
}

// Depths sets depths to the number of matched blocks of each worker.
func Depths(matches []kvindex.Match, depths []uint16) {
	clear(depths)
	for i := range matches {
		if h := int(matches[i].Holder); h < len(depths) {
			depths[h] = uint16(matches[i].Blocks)
		}
	}
}
