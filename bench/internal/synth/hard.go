package synth

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/bench/internal/naive"
	"github.com/warmpath/warmpath/bench/internal/trace"
)

// Trouble is a set of behaviours of real engines that the traces of LRU do not have.
type Trouble uint8

// The values of Trouble.
const (
	Holes      Trouble = 1 << iota // parents are removed before their children, and stored again later
	Double                         // held blocks are stored again, which makes a second copy; each copy has its own removal
	Recut                          // an engine block of some workers has two or four of the trace's blocks
	Forget                         // a worker loses all its blocks; with Recut it may return with another block size
	AllTrouble = Holes | Double | Recut | Forget
)

var troubleNames = []struct {
	name string
	t    Trouble
}{{"holes", Holes}, {"double", Double}, {"recut", Recut}, {"forget", Forget}}

// ParseTrouble reads a list of names, separated by commas.
func ParseTrouble(s string) (Trouble, error) {
	var t Trouble
	for name := range strings.SplitSeq(s, ",") {
		i := slices.IndexFunc(troubleNames, func(n struct {
			name string
			t    Trouble
		}) bool {
			return n.name == name
		})
		if i < 0 {
			return 0, fmt.Errorf("unknown trouble %q: give some of holes, double, recut, forget", name)
		}
		t |= troubleNames[i].t
	}
	return t, nil
}

// HardConfig describes a trace with behaviours of real engines (Trouble). Start from DefaultHard.
type HardConfig struct {
	Seed           uint64
	Workers        int
	Conversations  int
	Capacity       int // largest number of engine blocks that a worker may hold; each copy counts
	Stored         int // number of stored blocks at which the trace ends
	MinLen, MaxLen int
	Trouble        Trouble
	// Version1 writes the trace in version 1 of the format, which the peers' programs can read, too. A record of an
	// engine block becomes a record of the blocks in it. A record of a forgotten worker becomes removals of all its
	// blocks. The right answers stay the same, because a worker holds a block as long as the block was stored more
	// often than removed.
	Version1 bool
}

// DefaultHard is small enough for CI. In its trace workers forget their blocks about 70 times, and each other behaviour
// in AllTrouble occurs hundreds or thousands of times.
var DefaultHard = HardConfig{
	Seed: 45, Workers: 16, Conversations: 100, Capacity: 6000, Stored: 400_000, MinLen: 8, MaxLen: 256, Trouble: AllTrouble,
}

type hard struct {
	forest
	config  HardConfig
	workers []hardWorker
	set     *naive.Set // gives the exact answers
	out     *trace.Writer
}

type hardWorker struct {
	units  int // number of blocks of the trace in an engine block
	held   int // number of held engine blocks; each copy counts
	chains [][]int32

	// parents has, for each engine block that the worker has held since its last restart, the engine hash of the block
	// before it; 0: the block begins a chain.
	parents map[uint64]uint64
	kids    map[uint64]int // by engine hash: number of held blocks that directly follow the block; kept up to date only without Holes
}

func newHardWorker(units int) hardWorker {
	return hardWorker{units: units, parents: map[uint64]uint64{}, kids: map[uint64]int{}}
}

// Hard writes a trace with trouble and returns its header. When a block is stored, the worker always holds its parent.
func Hard(to io.WriteSeeker, c HardConfig) (trace.Header, error) {
	version := uint32(trace.Version2)
	if c.Version1 {
		version = trace.Version1
	}
	h := &hard{config: c, forest: forest{rng: rng{c.Seed}}, set: naive.New(c.Workers), workers: make([]hardWorker, c.Workers)}
	h.out = trace.NewWriter(to, trace.Header{Version: version, Workers: uint32(c.Workers), BlockSize: blockSize, Seed: c.Seed})
	for w := range h.workers {
		h.workers[w] = newHardWorker(h.units())
	}
	history := make([][][]int32, c.Conversations)
	for h.out.Header().Stored < uint64(c.Stored) {
		conversation := h.rng.n(c.Conversations)
		chain := h.request(history[conversation])
		history[conversation] = h.remember(history[conversation], chain)
		h.ask(trace.Query, chain)
		w := conversation % c.Workers
		if h.rng.n(3) == 0 {
			w = h.rng.n(c.Workers)
		}
		if c.Trouble&Forget != 0 && h.rng.n(60) == 0 {
			h.forget(w)
		}
		h.serve(w, chain)
		for h.workers[w].held > c.Capacity || c.Trouble&Holes != 0 && h.rng.n(3) == 0 {
			h.evict(w)
		}
	}
	for _, chains := range history {
		for _, chain := range chains {
			h.ask(trace.Probe, chain)
		}
	}
	return h.out.Header(), h.out.Close()
}

func (h *hard) units() int {
	if h.config.Trouble&Recut == 0 {
		return 1
	}
	return []int{1, 1, 2, 4}[h.rng.n(4)]
}

// request returns the next chain. One request in three repeats an earlier chain, so that lookups find the holes in the
// chain, and stores fill them.
func (h *hard) request(history [][]int32) []int32 {
	length := h.config.MinLen + h.rng.n(h.config.MaxLen-h.config.MinLen+1)
	if len(history) == 0 {
		return h.extend(nil, length)
	}
	source := history[h.rng.n(len(history))]
	if h.rng.n(3) == 0 {
		return source
	}
	share := h.rng.n(min(len(source), length-1) + 1)
	return h.extend(slices.Clone(source[:share]), length)
}

func (h *hard) ask(kind trace.Kind, chain []int32) {
	r := trace.Record{Kind: kind}
	h.fill(&r, chain)
	r.Depths = h.set.Depths(r.Keys, nil)
	h.out.Write(&r)
}

func (h *hard) fill(r *trace.Record, chain []int32) {
	for _, b := range chain {
		r.Locals = append(r.Locals, h.nodes[b].local)
		r.Keys = append(r.Keys, h.nodes[b].key)
	}
}

// engineHash returns the engine hash of the i-th engine block of a chain: the key of its last block.
func (h *hard) engineHash(w int, chain []int32, i int) uint64 {
	return h.nodes[chain[(i+1)*h.workers[w].units-1]].key
}

// serve stores the missing blocks of a chain at a worker. With Double it may also store blocks that the worker holds:
// all blocks after the first missing block, because an engine does not find blocks after a hole; or the whole chain.
func (h *hard) serve(w int, chain []int32) {
	n := len(chain) / h.workers[w].units
	lacks := func(i int) bool { return h.set.Copies(w, h.engineHash(w, chain, i)) == 0 }
	if h.config.Trouble&Double != 0 {
		switch h.rng.n(8) {
		case 0:
			h.store(w, chain, 0, n)
		case 1, 2, 3:
			for i := range n {
				if lacks(i) {
					h.store(w, chain, i, n)
					break
				}
			}
		}
	}
	for i := 0; i < n; i++ {
		from := i
		for i < n && lacks(i) {
			i++
		}
		if from < i {
			h.store(w, chain, from, i)
		}
	}
	h.workers[w].chains = append(h.workers[w].chains, chain)
}

// store announces the engine's blocks [from, to) of a chain.
func (h *hard) store(w int, chain []int32, from, to int) {
	if from == to {
		return
	}
	units := h.workers[w].units
	r := trace.Record{Kind: trace.StoredCut, Worker: uint32(w), Units: units}
	if from > 0 {
		r.HasParent, r.Parent = true, h.engineHash(w, chain, from-1)
	}
	h.fill(&r, chain[from*units:to*units])
	before := r.Parent
	for i := from; i < to; i++ {
		engineHash := h.engineHash(w, chain, i)
		if h.set.Copies(w, engineHash) == 0 {
			h.workers[w].parents[engineHash] = before
			h.workers[w].kids[before]++
		}
		r.EngineHashes = append(r.EngineHashes, engineHash)
		before = engineHash
	}
	h.set.Apply(&r)
	h.workers[w].held += to - from
	if units == 1 || h.config.Version1 {
		r.Kind, r.Units, r.EngineHashes = trace.Stored, 1, nil
	}
	h.out.Write(&r)
}

// evict removes a chain, or a part of it, from a worker. Without Holes it removes blocks from the end of the chain, up
// to a block that another chain needs.
func (h *hard) evict(w int) {
	worker := &h.workers[w]
	if len(worker.chains) == 0 {
		return
	}
	// Remove the oldest chain, as an engine does, or a random chain. A random chain is often young, and young chains are
	// requested again sooner.
	pick := 0
	if h.rng.n(2) == 0 {
		pick = h.rng.n(len(worker.chains))
	}
	chain := worker.chains[pick]
	done := false // true: all blocks of the chain that are still held also belong to other chains of this worker
	if h.config.Trouble&Holes == 0 {
		done = h.evictLeaves(w, chain)
	} else {
		gone := h.choose(w, chain)
		for part := range slices.Chunk(gone, 64) {
			h.remove(w, part)
		}
		done = !slices.ContainsFunc(h.engineHashes(w, chain), func(engineHash uint64) bool { return h.set.Copies(w, engineHash) > 0 })
	}
	if done {
		worker.chains = slices.Delete(worker.chains, pick, pick+1)
	}
}

// engineHashes returns the engine hashes of a chain's engine blocks.
func (h *hard) engineHashes(w int, chain []int32) []uint64 {
	var all []uint64
	for i := range len(chain) / h.workers[w].units {
		all = append(all, h.engineHash(w, chain, i))
	}
	return all
}

// choose returns the held blocks of a chain that are to be removed, in the order of removal.
func (h *hard) choose(w int, chain []int32) []uint64 {
	all := h.engineHashes(w, chain)
	switch h.rng.n(4) {
	case 0: // children before parents
		slices.Reverse(all)
	case 1: // parents before children
	case 2: // a hole in the middle
		from := h.rng.n(len(all) + 1)
		all = all[from : from+h.rng.n(len(all)-from+1)]
	case 3: // blocks at random places
		all = slices.DeleteFunc(all, func(uint64) bool { return h.rng.n(3) > 0 })
	}
	return slices.DeleteFunc(all, func(engineHash uint64) bool { return h.set.Copies(w, engineHash) == 0 })
}

// evictLeaves removes copies of blocks, beginning at the end of a chain, as long as this makes no hole. It returns true
// if all remaining blocks belong to other chains, so that the worker can forget the chain.
func (h *hard) evictLeaves(w int, chain []int32) bool {
	worker := &h.workers[w]
	all := h.engineHashes(w, chain)
	var gone []uint64
	done := true
	for _, engineHash := range slices.Backward(all) {
		copies := h.set.Copies(w, engineHash)
		if copies == 0 {
			continue
		}
		if worker.kids[engineHash] > 0 {
			break
		}
		gone = append(gone, engineHash)
		if copies > 1 {
			done = false
			break
		}
		worker.kids[worker.parents[engineHash]]--
	}
	for part := range slices.Chunk(gone, 64) {
		h.remove(w, part)
	}
	return done
}

// remove removes one copy of each engine block.
func (h *hard) remove(w int, engineHashes []uint64) {
	r := trace.Record{Kind: trace.Removed, Worker: uint32(w), Units: h.workers[w].units, EngineHashes: engineHashes}
	if h.config.Version1 {
		written := trace.Record{Kind: trace.Removed, Worker: uint32(w), Units: 1}
		for _, engineHash := range engineHashes {
			written.EngineHashes = append(written.EngineHashes, h.set.Blocks(w, engineHash)...)
		}
		h.out.Write(&written)
	} else {
		h.out.Write(&r)
	}
	h.set.Apply(&r)
	h.workers[w].held -= len(engineHashes)
}

// forget removes all blocks of a worker and restarts it.
func (h *hard) forget(w int) {
	if h.config.Version1 {
		for part := range slices.Chunk(h.set.Holdings(w), 64) {
			h.remove(w, part)
		}
	} else {
		r := trace.Record{Kind: trace.Forgotten, Worker: uint32(w)}
		h.set.Apply(&r)
		h.out.Write(&r)
	}
	h.workers[w] = newHardWorker(h.units())
}
