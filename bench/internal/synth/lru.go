// Package synth makes workload files. LRU makes the files for the comparison with other projects: conversations that
// share prefixes, on workers that evict their least recently used blocks, so that children are evicted before parents.
// The bytes of these files are fixed. Hard makes traces with behaviours of real engines that the files of LRU do not
// have.
package synth

import (
	"io"

	"github.com/warmpath/warmpath/bench/internal/trace"
)

// LRUConfig describes a trace of workers with LRU caches. Start from DefaultLRU.
type LRUConfig struct {
	Seed          uint64
	Workers       int
	Conversations int
	Capacity      int // largest number of blocks that a worker may hold; 0: no limit
	// Stored is the number of stored blocks at which the trace ends. With Same, it counts distinct blocks.
	Stored         int
	MinLen, MaxLen int  // smallest and largest length of a chain, in blocks
	Same           bool // true: every worker stores all chains
	Probes         int  // largest number of probes of each length
}

// DefaultLRU is the configuration of the file main.trace.
var DefaultLRU = LRUConfig{
	Seed: 42, Workers: 16, Conversations: 2000, Capacity: 20000, Stored: 3_000_000, MinLen: 64, MaxLen: 512, Probes: 2000,
}

// ProbeLengths has the lengths of the prefixes that probes look up, in blocks.
var ProbeLengths = []int{64, 256, 512}

const blockSize = 16

type lru struct {
	forest
	config  LRUConfig
	workers []*recency
	out     *trace.Writer
	rec     trace.Record
}

// LRU writes a trace and returns its header. The order of random numbers is fixed, because it determines the bytes of
// the file: conversation, length, source, share, a number for each new block, place in the history, worker.
func LRU(to io.WriteSeeker, c LRUConfig) (trace.Header, error) {
	l := &lru{config: c, forest: forest{rng: rng{c.Seed}}}
	l.out = trace.NewWriter(to, trace.Header{Version: trace.Version1, Workers: uint32(c.Workers), BlockSize: blockSize, Seed: c.Seed})
	for range c.Workers {
		l.workers = append(l.workers, newRecency())
	}
	history := make([][][]int32, c.Conversations)
	for !l.done() {
		conversation, chain := l.request(history)
		history[conversation] = l.remember(history[conversation], chain)
		// Take the worker of the conversation with a probability of 3/4, otherwise a random worker.
		worker := conversation % c.Workers
		if l.rng.n(4) == 0 {
			worker = l.rng.n(c.Workers)
		}
		l.ask(trace.Query, chain)
		if !c.Same {
			l.store(worker, chain)
			continue
		}
		for w := range l.workers {
			l.store(w, chain)
		}
	}
	l.probe(history)
	return l.out.Header(), l.out.Close()
}

func (l *lru) done() bool {
	if l.config.Same {
		return len(l.nodes) >= l.config.Stored
	}
	return l.out.Header().Stored >= uint64(l.config.Stored)
}

// request returns a conversation's next chain.
func (l *lru) request(history [][][]int32) (conversation int, chain []int32) {
	c := &l.config
	conversation = l.rng.n(c.Conversations)
	// With the default lengths, about one chain in eight has the largest length.
	length := min(c.MinLen+l.rng.n(c.MaxLen-c.MinLen+1+64), c.MaxLen)
	if h := history[conversation]; len(h) > 0 {
		source := h[l.rng.n(len(h))]
		share := l.rng.n(min(len(source), length-1) + 1)
		chain = append(chain, source[:share]...)
	}
	return conversation, l.extend(chain, length)
}

func (l *lru) ask(kind trace.Kind, chain []int32) {
	l.rec = trace.Record{Kind: kind, Depths: l.rec.Depths[:0], Locals: l.rec.Locals[:0], Keys: l.rec.Keys[:0]}
	for _, w := range l.workers {
		l.rec.Depths = append(l.rec.Depths, uint16(w.depth(chain)))
	}
	l.fill(chain)
	l.out.Write(&l.rec)
}

func (l *lru) fill(chain []int32) {
	for _, b := range chain {
		l.rec.Locals = append(l.rec.Locals, l.nodes[b].local)
		l.rec.Keys = append(l.rec.Keys, l.nodes[b].key)
	}
}

func (l *lru) store(w int, chain []int32) {
	worker := l.workers[w]
	if held := worker.depth(chain); held < len(chain) {
		l.rec = trace.Record{Kind: trace.Stored, Worker: uint32(w), Locals: l.rec.Locals[:0], Keys: l.rec.Keys[:0], Depths: l.rec.Depths}
		if held > 0 {
			l.rec.HasParent, l.rec.Parent = true, l.nodes[chain[held-1]].key
		}
		l.fill(chain[held:])
		l.out.Write(&l.rec)
	}
	// Touch the blocks from the end of the chain to its start, so that the oldest block never has a child.
	for i := len(chain) - 1; i >= 0; i-- {
		worker.touch(chain[i])
	}
	if c := l.config.Capacity; c > 0 && worker.len() > c {
		gone := trace.Record{Kind: trace.Removed, Worker: uint32(w)}
		for worker.len() > c {
			gone.EngineHashes = append(gone.EngineHashes, l.nodes[worker.drop()].key)
		}
		l.out.Write(&gone)
	}
}

// probe writes probes for prefixes of which at least one worker holds all blocks at the end of the trace.
func (l *lru) probe(history [][][]int32) {
	for _, length := range ProbeLengths {
		var held [][]int32
		seen := map[int32]bool{}
		for _, chains := range history {
			for _, chain := range chains {
				if len(chain) < length || seen[chain[length-1]] || !l.anyHas(chain[length-1]) {
					continue
				}
				seen[chain[length-1]] = true
				held = append(held, chain[:length])
			}
		}
		for i := len(held) - 1; i > 0; i-- {
			j := l.rng.n(i + 1)
			held[i], held[j] = held[j], held[i]
		}
		for _, chain := range held[:min(len(held), l.config.Probes)] {
			l.ask(trace.Probe, chain)
		}
	}
}

func (l *lru) anyHas(block int32) bool {
	for _, w := range l.workers {
		if w.has(block) {
			return true
		}
	}
	return false
}
