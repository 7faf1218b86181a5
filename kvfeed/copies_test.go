package kvfeed

import (
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/test/testenv"
)

// pool is a model of vLLM's cache. All blocks have one size, and several blocks may have the same content. When the
// pool needs room, it evicts the least recently used block.
type pool struct {
	size, blocks int
	manner       string // which removals the pool announces: "each" copy, the "last" copy (vllm#55092), or the number left, "counted" (#48933)
	copies       map[kvevent.Hash]int
	order        []kvevent.Hash // hashes of all copies, the least recently used first
}

func (p *pool) hit(tokens []block.Token) int {
	n := 0
	for (n+1)*p.size < len(tokens) && p.copies[hashOf(tokens, (n+1)*p.size)] > 0 {
		n++
	}
	return n * p.size
}

func hashOf(tokens []block.Token, end int) kvevent.Hash {
	return (&aheadEngine{}).hashOf(tokens, end)
}

// run computes prompts in one step, so that no prompt finds the blocks of another. It returns the message that
// announces what the step stored and removed.
func (p *pool) run(prompts ...[]block.Token) []byte {
	var removed [][2]int // pairs: index in gone, number of copies left
	var gone []kvevent.Hash
	var stored []kvevent.Event
	var fresh []kvevent.Hash
	for _, tokens := range prompts {
		from, to := p.hit(tokens)/p.size, len(tokens)/p.size
		for i := range from { // these blocks are cached already, and are used once more
			p.touch(hashOf(tokens, (i+1)*p.size))
		}
		if from == to {
			continue
		}
		e := (&aheadEngine{size: p.size}).stored(tokens, from, to)
		stored = append(stored, e)
		fresh = append(fresh, e.Hashes...)
	}
	for len(p.order)+len(fresh) > p.blocks {
		h := p.order[0]
		p.order = p.order[1:]
		p.copies[h]--
		removed = append(removed, [2]int{len(gone), p.copies[h]})
		gone = append(gone, h)
	}
	for _, h := range fresh {
		p.copies[h]++
		p.order = append(p.order, h)
	}
	var events []any
	for _, r := range removed {
		e := map[string]any{"type": "BlockRemoved", "block_hashes": []kvevent.Hash{gone[r[0]]}, "medium": "GPU", "group_idx": 0}
		switch {
		case p.manner == "last" && r[1] > 0:
			continue
		case p.manner == "counted":
			e["remaining_copy_counts"] = []int{r[1]}
		}
		events = append(events, e)
	}
	for _, e := range stored {
		m := map[string]any{
			"type": "BlockStored", "block_hashes": e.Hashes, "parent_block_hash": nil, "token_ids": e.Tokens,
			"block_size": p.size, "lora_id": nil, "medium": "GPU", "lora_name": nil, "extra_keys": make([]any, len(e.Hashes)), "group_idx": 0,
		}
		if e.HasParent {
			m["parent_block_hash"] = e.Parent
		}
		events = append(events, m)
	}
	if len(events) == 0 {
		return nil
	}
	return pack([]any{1763700000.5, events, 0})
}

// touch makes a copy of a block the most recently used.
func (p *pool) touch(h kvevent.Hash) {
	for i := len(p.order) - 1; i >= 0; i-- {
		if p.order[i] == h {
			p.order = append(append(p.order[:i:i], p.order[i+1:]...), h)
			return
		}
	}
}

// Two prompts with the same beginning, computed in one step, leave two copies of this beginning. Whatever a removal
// means, no removed block is claimed for ever. If the meaning of a removal is known, no cached block is missed.
func TestTheStreamShowsTheMeaningOfRemovals(t *testing.T) {
	for _, c := range []struct {
		version, manner string
		room            bool // the router knows the number of the engine's blocks
		exact           bool // at every step the router's match equals the engine's hit
		over            int  // number of steps during which the match may be too long: until the router finds the meaning
	}{
		{"0.33.0", "each", true, true, 0},
		{"0.32.0", "each", false, true, 0},
		{"0.34.0", "last", true, true, 0},
		{"0.34.0", "counted", true, true, 0},
		{"0.34.0", "each", true, false, 0},
		{"", "each", true, false, 0},
		{"0.33.0", "last", true, false, 40},    // unlike the real 0.33.0, which announces each copy: the router learns this by the cache's size
		{"0.33.0", "counted", true, false, 40}, // unlike the real 0.33.0: the router learns this by the first removal, which contains a number
	} {
		t.Run(fmt.Sprint(c.version, c.manner, c.room), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const size, blocks = 16, 64
				steps := 1500
				if testing.Short() {
					steps = 300
				}
				rng := rand.New(rand.NewPCG(7, uint64(len(c.manner))))
				r := newRig(t, Config{})
				f := facts(fleet.EngineVLLM, size)
				if f.Version = c.version; c.room {
					f.BlocksPerRank = blocks
				}
				s := r.stream(f)
				p := &pool{size: size, blocks: blocks, manner: c.manner, copies: map[kvevent.Hash]int{}}
				var prompts [][]block.Token
				over, under, hits, lastOver, seq := 0, 0, 0, 0, uint64(0)
				for step := range steps {
					testenv.Pass(time.Second)
					base := prompt(rng.IntN(12), size*(1+rng.IntN(6)))
					one := append(base[:len(base):len(base)], prompt(100+step, size*(1+rng.IntN(3))+3)...)
					together := [][]block.Token{one}
					for rng.IntN(3) == 0 && len(together) < 4 {
						together = append(together, append(base[:len(base):len(base)], prompt(10_000+5*step+len(together), size*(1+rng.IntN(3))+3)...))
					}
					if payload := p.run(together...); payload != nil {
						s.Message(seq, payload)
						seq++
					}
					s.look(time.Now())
					prompts = append(prompts, together...)
					prompts = prompts[max(0, len(prompts)-40):]
					for _, tokens := range prompts {
						got, want := r.match(tokens), p.hit(tokens)
						switch {
						case got > want:
							over++
							lastOver = step
						case got < want:
							under++
						case want > 0:
							hits++
						}
					}
				}
				if lastOver > 0 && lastOver >= c.over {
					t.Errorf("at step %d the index claims a removed block (%d times in all), which is allowed only until step %d", lastOver, over, c.over)
				}
				if c.exact && under > 0 {
					t.Errorf("%d times the index claims fewer blocks than the cache has", under)
				}
				if hits < 1000 {
					t.Errorf("only %d matches, too few for this test", hits)
				}
				t.Logf("%d exact, %d too low, %d too high (until step %d)", hits, under, over, lastOver)
			})
		})
	}
}

// A process is replaced by one with more blocks, smaller ones. The worker's facts describe the old process until the
// next probe. The blocks of the new process must not be compared with the old number of blocks.
func TestTheCacheOfTheProcessBeforeDoesNotBoundTheNewOne(t *testing.T) {
	for _, how := range []string{"connects before its first message", "follows messages of the old process", "connects at the second attempt"} {
		for _, probed := range []bool{true, false} {
			t.Run(fmt.Sprint(how, ", probed ", probed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r := newRig(t, Config{})
					f := facts(fleet.EngineVLLM, 64)
					f.Version, f.BlocksPerRank = "0.32.0", 2
					s := r.stream(f)
					switch how {
					case "follows messages of the old process":
						s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 64, 64))))
						s.Restarted("message 0 is another")
					case "connects at the second attempt":
						s = r.feed.newStream(r.fleet.Snapshot().ByID(s.worker), s.holder, s.source)
						s.wire = func() StreamStats { return StreamStats{} }
						s.State(false, io.EOF)
						s.State(true, nil)
					default:
						s.State(false, nil)
						s.State(true, nil)
					}
					s.Complete()
					s.Message(0, wire(t, "vllm-0.32.0", batch(stored(2, 0, 320, 16))))
					testenv.Pass(time.Minute)
					s.look(time.Now())
					r.trust(s.holder, fleet.TrustExact, "")
					if f.BlockSize, f.BlocksPerRank = 16, 1000; probed {
						r.fleet.Put(workerURL, f)
					}
					testenv.Pass(factsDelay)
					s.look(time.Now())
					if probed {
						r.trust(s.holder, fleet.TrustExact, "")
					} else {
						r.trust(s.holder, fleet.TrustDegraded, "of last copies")
					}
				})
			})
		}
	}
}

func TestAnEngineThatRemovesEachCopyIsSeenToDoSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		f := facts(fleet.EngineVLLM, 16)
		f.Version = "0.40.0"
		s := r.stream(f)
		twice := func(seq uint64) {
			s.Message(seq, wire(t, "vllm-0.33.0", batch(stored(1, 0, 32, 16))))
			s.look(time.Now())
			other := stored(1, 0, 48, 16) // another prompt, computed in the same step
			s.Message(seq+1, wire(t, "vllm-0.33.0", batch(other)))
			s.look(time.Now())
		}
		twice(0)
		s.Message(2, wire(t, "vllm-0.33.0", batch(removed(1, 0, 1))))
		s.look(time.Now())
		if got := r.match(prompt(1, 100)); got != 0 || s.removals != unproven {
			t.Errorf("after one removal of two copies %d tokens match, want 0 while the meaning of a removal is not known", got)
		}
		s.Message(3, wire(t, "vllm-0.33.0", batch(removed(1, 0, 1))))
		s.look(time.Now())
		if s.removals != perCopy {
			t.Error("a second removal did not show that the engine announces the removal of each copy")
		}
		s.Message(4, wire(t, "vllm-0.33.0", batch(kvevent.Event{Kind: kvevent.Cleared, Group: -1})))
		twice(5)
		s.Message(7, wire(t, "vllm-0.33.0", batch(removed(1, 0, 1))))
		if got := r.match(prompt(1, 100)); got != 48 {
			t.Errorf("after one removal of two copies %d tokens match, want 48: the engine announces the removal of each copy", got)
		}
		r.trust(s.holder, fleet.TrustExact, "")
	})
}

func TestVersionsAreKnownToRemoveEachCopyUpTo033(t *testing.T) {
	for version, want := range map[string]removals{
		"0.9.0": perCopy, "0.32.0": perCopy, "0.33.0": perCopy, "0.33": perCopy, "v0.32.1": perCopy, "0.12.0rc1": perCopy,
		"0.33.0+cpu": perCopy, "0.33.1": unproven, "0.33.1.dev7+gabc": unproven, "0.34.0rc1": unproven, "1.0.0": unproven,
		"": unproven, "main": unproven, "99999999999999999999.1": unproven, "-1.2": unproven,
	} {
		if got := removalsOf(fleet.EngineVLLM, version); got != want {
			t.Errorf("removals of vLLM %q are %d, want %d", version, got, want)
		}
	}
	if removalsOf(fleet.EngineSGLang, "1.0") != perCopy {
		t.Error("the router expects several copies of a block in SGLang, which has each block once")
	}
}

// vLLM's tier KVCR stores and removes copies of blocks independently of the engine's own copies. If an event names
// another owner of the copies, the copies count for no holder.
func TestTheOwnerOfACopyDecidesWhetherItCounts(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 16))
	own := stored(1, 0, 64, 16)
	below := func(owner string, k kvevent.Kind) kvevent.Event {
		e := stored(1, 0, 64, 16)
		if k == kvevent.Removed {
			e = removed(1, 0, 4)
		}
		e.Medium, e.Owner = "CPU", owner
		return e
	}
	seq := uint64(0)
	step := func(want int, what string, events ...kvevent.Event) {
		t.Helper()
		s.Message(seq, wire(t, "vllm-0.33.0", batch(events...)))
		seq++
		if got := r.match(prompt(1, 100)); got != want {
			t.Errorf("%s: %d tokens match, want %d", what, got, want)
		}
	}
	step(64, "on the GPU, in the engine's host memory and the tier's", own, below("", kvevent.Stored), below("kvcr", kvevent.Stored))
	step(64, "the GPU's is gone", removed(1, 0, 4))
	step(64, "the tier's is gone, the engine's is not", below("kvcr", kvevent.Removed))
	step(64, "another owner's removal", below("somebody", kvevent.Removed))
	step(0, "the engine's is gone", below("", kvevent.Removed))
	step(64, "on the GPU again", own)
	step(0, "gone, with another owner's copy", below("somebody", kvevent.Stored), removed(1, 0, 4))
}
