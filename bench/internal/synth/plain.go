// Package synth makes workload files. Plain makes the files for the comparison with other projects: conversations that
// share prefixes, on workers that evict children before parents. The bytes of these files are fixed. Hard makes traces
// with behaviours of real engines that the files of Plain do not have.
package synth

import (
	"io"

	"github.com/warmpath/warmpath/bench/internal/trace"
)

// PlainConfig describes a plain trace. Start from DefaultPlain.
type PlainConfig struct {
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

// DefaultPlain is the configuration of the file main.trace.
var DefaultPlain = PlainConfig{
	Seed: 42, Workers: 16, Conversations: 2000, Capacity: 20000, Stored: 3_000_000, MinLen: 64, MaxLen: 512, Probes: 2000,
}

// ProbeLengths has the lengths of the prefixes that probes look up, in blocks.
var ProbeLengths = []int{64, 256, 512}

const blockSize = 16

type plain struct {
	forest
	config  PlainConfig
	workers []*recency
	out     *trace.Writer
	rec     trace.Record
}

// Plain writes a trace and returns its header. The order of random numbers is fixed, because it determines the bytes of
// the file: conversation, length, source, share, a number for each new block, place in the history, worker.
func Plain(to io.WriteSeeker, c PlainConfig) (trace.Header, error) {
	p := &plain{config: c, forest: forest{rng: rng{c.Seed}}}
	p.out = trace.NewWriter(to, trace.Header{Version: trace.Plain, Workers: uint32(c.Workers), BlockSize: blockSize, Seed: c.Seed})
	for range c.Workers {
		p.workers = append(p.workers, newRecency())
	}
	history := make([][][]int32, c.Conversations)
	for !p.done() {
		conversation, chain := p.request(history)
		history[conversation] = p.remember(history[conversation], chain)
		// Take the worker of the conversation with a probability of 3/4, otherwise a random worker.
		worker := conversation % c.Workers
		if p.rng.n(4) == 0 {
			worker = p.rng.n(c.Workers)
		}
		p.ask(trace.Query, chain)
		if !c.Same {
			p.store(worker, chain)
			continue
		}
		for w := range p.workers {
			p.store(w, chain)
		}
	}
	p.probe(history)
	return p.out.Header(), p.out.Close()
}

func (p *plain) done() bool {
	if p.config.Same {
		return len(p.nodes) >= p.config.Stored
	}
	return p.out.Header().Stored >= uint64(p.config.Stored)
}

// request returns a conversation's next chain.
func (p *plain) request(history [][][]int32) (conversation int, chain []int32) {
	c := &p.config
	conversation = p.rng.n(c.Conversations)
	// With the default lengths, about one chain in eight has the largest length.
	length := min(c.MinLen+p.rng.n(c.MaxLen-c.MinLen+1+64), c.MaxLen)
	if h := history[conversation]; len(h) > 0 {
		source := h[p.rng.n(len(h))]
		share := p.rng.n(min(len(source), length-1) + 1)
		chain = append(chain, source[:share]...)
	}
	return conversation, p.extend(chain, length)
}

func (p *plain) ask(kind trace.Kind, chain []int32) {
	p.rec = trace.Record{Kind: kind, Depths: p.rec.Depths[:0], Locals: p.rec.Locals[:0], Keys: p.rec.Keys[:0]}
	for _, w := range p.workers {
		p.rec.Depths = append(p.rec.Depths, uint16(w.depth(chain)))
	}
	p.fill(chain)
	p.out.Write(&p.rec)
}

func (p *plain) fill(chain []int32) {
	for _, b := range chain {
		p.rec.Locals = append(p.rec.Locals, p.nodes[b].local)
		p.rec.Keys = append(p.rec.Keys, p.nodes[b].key)
	}
}

func (p *plain) store(w int, chain []int32) {
	worker := p.workers[w]
	if held := worker.depth(chain); held < len(chain) {
		p.rec = trace.Record{Kind: trace.Stored, Worker: uint32(w), Locals: p.rec.Locals[:0], Keys: p.rec.Keys[:0], Depths: p.rec.Depths}
		if held > 0 {
			p.rec.HasParent, p.rec.Parent = true, p.nodes[chain[held-1]].key
		}
		p.fill(chain[held:])
		p.out.Write(&p.rec)
	}
	// Touch the blocks from the end of the chain to its start, so that the oldest block never has a child.
	for i := len(chain) - 1; i >= 0; i-- {
		worker.touch(chain[i])
	}
	if c := p.config.Capacity; c > 0 && worker.len() > c {
		gone := trace.Record{Kind: trace.Removed, Worker: uint32(w)}
		for worker.len() > c {
			gone.EngineHashes = append(gone.EngineHashes, p.nodes[worker.drop()].key)
		}
		p.out.Write(&gone)
	}
}

// probe writes probes for prefixes of which at least one worker holds all blocks at the end of the trace.
func (p *plain) probe(history [][][]int32) {
	for _, length := range ProbeLengths {
		var held [][]int32
		seen := map[int32]bool{}
		for _, chains := range history {
			for _, chain := range chains {
				if len(chain) < length || seen[chain[length-1]] || !p.anyHas(chain[length-1]) {
					continue
				}
				seen[chain[length-1]] = true
				held = append(held, chain[:length])
			}
		}
		for i := len(held) - 1; i > 0; i-- {
			j := p.rng.n(i + 1)
			held[i], held[j] = held[j], held[i]
		}
		for _, chain := range held[:min(len(held), p.config.Probes)] {
			p.ask(trace.Probe, chain)
		}
	}
}

func (p *plain) anyHas(block int32) bool {
	for _, w := range p.workers {
		if w.has(block) {
			return true
		}
	}
	return false
}
