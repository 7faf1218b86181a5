package engine

import (
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/test/testenv"
)

// traceEvent is an event in the part block_pool_traces of the engine vectors. It has the fields that a pool with one
// cache group uses.
type traceEvent struct {
	Type      string        `json:"type"`
	Hashes    []string      `json:"block_hashes_u64"`
	Parent    *string       `json:"parent_block_hash_u64"`
	Tokens    []block.Token `json:"token_ids"`
	BlockSize int           `json:"block_size"`
	Medium    *string       `json:"medium"`
	LoRA      *string       `json:"lora_name"`
}

type trace struct {
	ID     string `json:"id"`
	Blocks int    `json:"pool_blocks"` // with vLLM's null block
	Steps  []struct {
		Step   string       `json:"step"`
		Events []traceEvent `json:"events"`
		Cached []string     `json:"still_cached_external_u64"`
	} `json:"steps"`
}

func readTraces(t *testing.T) map[string]trace {
	t.Helper()
	var file struct {
		Traces []trace `json:"block_pool_traces"`
	}
	testenv.Vectors(t, &file)
	traces := map[string]trace{}
	for _, tr := range file.Traces {
		traces[tr.ID] = tr
	}
	return traces
}

// The traces are recordings of small scenarios with vLLM's own BlockPool. The test makes the operations that the steps
// of a trace name. It takes the hashes from vLLM's events.
func TestPoolReproducesVLLMsTraces(t *testing.T) {
	traces := readTraces(t)
	for id, play := range map[string]func(*tracePlayer){
		"duplicate_blocks_and_eviction": playDuplicates,
		"null_blocks_skipped":           playNullBlocks,
		"coarse_and_partial_blocks":     playCoarse,
		"lora_salt_mm_and_reannounce":   playReannounce,
	} {
		t.Run(id, func(t *testing.T) {
			tr, ok := traces[id]
			if !ok {
				t.Fatalf("trace %s is not in the vectors", id)
			}
			play(&tracePlayer{t: t, trace: tr, pool: newPool(tr.Blocks)})
		})
	}
	if len(traces) != 4 {
		t.Errorf("the vectors have %d traces, 4 are played", len(traces))
	}
}

type tracePlayer struct {
	t     *testing.T
	trace trace
	pool  *pool
	step  int
}

// check compares the pool's events with the events of the trace's next step.
func (p *tracePlayer) check() {
	p.t.Helper()
	step := p.trace.Steps[p.step]
	var got []traceEvent
	for i := range p.pool.events {
		got = append(got, asTrace(&p.pool.events[i]))
	}
	var want []traceEvent
	for _, e := range step.Events {
		if len(e.Tokens) == 0 {
			e.Tokens = nil
		}
		want = append(want, e)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		p.t.Fatalf("step %d %q (-want +got):\n%s", p.step, step.Step, diff)
	}
	if step.Cached != nil {
		cached := map[string]bool{}
		for _, at := range p.pool.cached.places {
			if at.id != nullBlock {
				cached[strconv.FormatUint(uint64(at.hash), 10)] = true
			}
		}
		if len(cached) != len(step.Cached) {
			p.t.Fatalf("step %d: %d hashes are cached, want %d", p.step, len(cached), len(step.Cached))
		}
		for _, h := range step.Cached {
			if !cached[h] {
				p.t.Fatalf("step %d: %s is not cached", p.step, h)
			}
		}
	}
	p.pool.events, p.pool.hashes = nil, nil
	p.step++
}

// stored returns the event with the given index in the current step, and its hashes, so that the pool can store the
// same blocks.
func (p *tracePlayer) stored(index int) (Event, []Hash) {
	e := p.trace.Steps[p.step].Events[index]
	out := Event{Tokens: e.Tokens, BlockSize: e.BlockSize}
	if e.LoRA != nil {
		out.LoRA = *e.LoRA
	}
	if e.Parent != nil {
		out.Parent, out.HasParent = parseHash(p.t, *e.Parent), true
	}
	var hashes []Hash
	for _, h := range e.Hashes {
		hashes = append(hashes, parseHash(p.t, h))
	}
	return out, hashes
}

func parseHash(t *testing.T, s string) Hash {
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return Hash(v)
}

func asTrace(e *Event) traceEvent {
	out := traceEvent{Type: [...]string{"BlockStored", "BlockRemoved", "AllBlocksCleared"}[e.Kind]}
	if e.Kind == Cleared {
		return out
	}
	medium := "GPU"
	out.Medium = &medium
	for _, h := range e.Hashes {
		out.Hashes = append(out.Hashes, strconv.FormatUint(uint64(h), 10))
	}
	if e.Kind == Removed {
		return out
	}
	if e.HasParent {
		parent := strconv.FormatUint(uint64(e.Parent), 10)
		out.Parent = &parent
	}
	if e.LoRA != "" {
		out.LoRA = &e.LoRA
	}
	out.Tokens, out.BlockSize = e.Tokens, e.BlockSize
	return out
}

func playDuplicates(p *tracePlayer) {
	a := p.pool.allocate(nil, 3) // the pool has six usable blocks, which A and B use completely
	e, hashes := p.stored(0)
	p.pool.store(a, hashes, e)
	p.check()
	b := p.pool.allocate(nil, 3)
	e, hashes = p.stored(0)
	p.pool.store(b, hashes, e)
	p.check()
	p.pool.release(a)
	p.pool.release(b)
	p.check()
	c := p.pool.allocate(nil, 1)
	p.check()
	c = p.pool.allocate(c, 2)
	p.check()
	if p.pool.reset() {
		p.t.Fatal("reset succeeded while blocks are in use")
	}
	p.pool.release(c)
	if !p.pool.reset() {
		p.t.Fatal("reset refused on an idle pool")
	}
	p.check()
}

func playNullBlocks(p *tracePlayer) {
	blocks := p.pool.allocate([]int32{nullBlock, nullBlock}, 2)
	e, hashes := p.stored(0)
	p.pool.store(blocks, append([]Hash{1, 2}, hashes...), e)
	p.check()
	p.check()
}

func playCoarse(p *tracePlayer) {
	e, hashes := p.stored(0)
	p.pool.store(p.pool.allocate(nil, 2), hashes, e)
	p.check()
	partial := p.pool.allocate(nil, 1)
	e, hashes = p.stored(0)
	p.pool.store(partial, hashes, e)
	p.check()
	e, hashes = p.stored(1)
	p.pool.store(partial, hashes, e)
	p.check()
}

func playReannounce(p *tracePlayer) {
	e, hashes := p.stored(0)
	first := p.pool.allocate(nil, 1)
	p.pool.store(first, hashes, e)
	p.check()
	e, hashes = p.stored(0)
	second := p.pool.allocate(nil, 1)
	p.pool.store(second, hashes, e)
	p.check()
	e, hashes = p.stored(0)
	p.pool.emit(e, hashes...)
	p.check()
	p.pool.drop(second[0])
	p.check()
}
