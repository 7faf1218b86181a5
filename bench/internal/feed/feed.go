// Package feed applies the records of a trace to a kvindex.Index, as the router applies an engine's events. A trace has
// hashes where an engine's events have tokens. So this package makes the tokens of a block from the block's local hash,
// and Apply hashes these tokens to keys. The hashes in the trace are used as engine hashes.
package feed

import (
	"github.com/warmpath/warmpath/bench/internal/trace"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// Event is a record of a trace that is prepared for Apply. Index.Event prepares it, so that a benchmark can leave the
// preparation out of the measured time.
type Event struct {
	holder       fleet.Holder
	kind         kind
	parent       uint64
	rooted       bool // the first block of the event begins a chain
	engineHashes []uint64
	tokens       []block.Token
	size         int // number of tokens in an engine block

	Blocks int // number of stored or removed blocks of the trace; an engine block may contain several
}

type kind uint8

const (
	store kind = iota
	remove
	forget
)

// Index is a kvindex.Index that applies the records of a trace. Only one goroutine may call Apply. Any number of
// goroutines may call Match.
type Index struct {
	*kvindex.Index

	size   int
	hasher *block.Hasher
	root   block.Key
	stored kvindex.Stored
}

// Budget is so large that the index never evicts, because the traces contain all removals.
const Budget = 256 << 30

// New returns an empty index for traces whose blocks have size tokens.
func New(size int) (*Index, error) {
	hasher, err := block.NewHasher(block.XXH3, size)
	if err != nil {
		return nil, err
	}
	x := &Index{size: size, hasher: hasher, root: hasher.Root(block.Scope{Model: "m"})}
	x.Index = kvindex.New(hasher, kvindex.Config{Bytes: Budget})
	return x, nil
}

// Writer returns another Index on the same kvindex.Index, so that another goroutine can call Event and Apply.
func (x *Index) Writer() *Index {
	w := *x
	w.stored = kvindex.Stored{}
	return &w
}

// tokens appends the tokens that stand for a local hash. Different local hashes have different tokens.
func (x *Index) tokens(dst []block.Token, local uint64) []block.Token {
	dst = append(dst, block.Token(local), block.Token(local>>32))
	for i := 2; i < x.size; i++ {
		dst = append(dst, block.Token(i))
	}
	return dst
}

// Event prepares a record for Apply. It keeps no reference to the record. If reuse is not nil, Event uses the memory of
// reuse again.
func (x *Index) Event(r *trace.Record, reuse *Event) Event {
	e := Event{holder: fleet.Holder(r.Worker), parent: r.Parent, rooted: !r.HasParent, size: r.Units * x.size}
	if reuse != nil {
		e.engineHashes, e.tokens = reuse.engineHashes[:0], reuse.tokens[:0]
	}
	switch {
	case r.IsStore():
		e.Blocks = len(r.Keys)
		e.engineHashes = append(e.engineHashes, r.EngineHashes...)
		for _, local := range r.Locals {
			e.tokens = x.tokens(e.tokens, local)
		}
	case r.Kind == trace.Removed:
		e.kind, e.Blocks = remove, len(r.EngineHashes)*r.Units
		e.engineHashes = append(e.engineHashes, r.EngineHashes...)
	default:
		e.kind = forget
	}
	return e
}

// Apply applies a prepared event to the index.
func (x *Index) Apply(e *Event) {
	switch {
	case e.kind == forget:
		x.Forget(e.holder)
	case e.kind == store:
		s := &x.stored
		s.Scope.Model = "m"
		s.Parent, s.HasParent = e.parent, !e.rooted
		s.Hashes, s.Tokens, s.BlockSize = e.engineHashes, e.tokens, e.size
		s.Origin = kvindex.OriginNew // each store in a trace adds a copy of the block
		x.Store(e.holder, s)
	default:
		x.Remove(e.holder, block.TierGPU, 0, e.engineHashes)
	}
}

// Split cuts e into events of at most n blocks, and calls f with each of them. If n is 0, or if engine blocks are
// longer than the trace's blocks, it calls f with e.
func (x *Index) Split(e Event, n int, f func(Event)) {
	length := len(e.engineHashes)
	if n <= 0 || length <= n || e.kind == forget || e.size != x.size {
		f(e)
		return
	}
	for from := 0; from < length; from += n {
		to := min(from+n, length)
		part := e
		part.Blocks = to - from
		part.engineHashes = e.engineHashes[from:to]
		if len(e.tokens) > 0 {
			part.tokens = e.tokens[from*x.size : to*x.size]
		}
		if from > 0 {
			part.rooted, part.parent = false, e.engineHashes[from-1]
		}
		f(part)
	}
}

// Question is a lookup whose keys are prepared.
type Question struct {
	keys   []block.Key
	locals []uint64
	tokens []block.Token
	Depths []uint16 // exact answer: the number of matched blocks of each worker
	Blocks int
}

// Question prepares a query for the first n blocks of a record. 0 means all blocks.
func (x *Index) Question(r *trace.Record, n int) Question {
	if n == 0 {
		n = len(r.Keys)
	}
	q := Question{Depths: append([]uint16(nil), r.Depths...), Blocks: n}
	for _, local := range r.Locals[:n] {
		q.tokens = x.tokens(q.tokens, local)
	}
	q.locals = x.hasher.Locals(nil, q.tokens)
	q.keys = x.hasher.Append(nil, x.root, 0, q.tokens, nil)
	return q
}

// Keys returns the question's keys.
func (q *Question) Keys() []block.Key { return q.keys }

// DropTokens drops the data that only Chain and Hash need, so that many questions fit in memory.
func (q *Question) DropTokens() { q.tokens, q.locals = nil, nil }

// Chain appends the question's keys to dst. It computes the keys from local hashes, as a lookup by local hashes must.
func (x *Index) Chain(q *Question, dst []block.Key) []block.Key {
	return x.hasher.Chain(dst, x.root, 0, q.locals)
}

// Hash appends the question's keys to dst. It computes the keys from tokens, as a lookup by tokens must.
func (x *Index) Hash(q *Question, dst []block.Key) []block.Key {
	return x.hasher.Append(dst, x.root, 0, q.tokens, nil)
}

// Depths fills depths with the number of matched blocks of each worker.
func Depths(matches []kvindex.Match, depths []uint16) {
	clear(depths)
	for i := range matches {
		if h := int(matches[i].Holder); h < len(depths) {
			depths[h] = uint16(matches[i].Blocks)
		}
	}
}
