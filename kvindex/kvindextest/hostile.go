package kvindextest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// Hostile runs [Truth] in an index that is at its limit from the start, together with holders that announce harmful
// events: circles, blocks that are their own parents, unknown parents, giant blocks, the same content under new hashes,
// floods, and the hashes of honest engines with other tokens. After every operation the index must be within its
// budget, and the operation must have taken no more steps than [StepBudget]. The index must not claim more blocks than
// the honest engines have. If the index calls a holder whole (HolderStats.Whole), it must not claim fewer blocks
// either, with the exceptions of Truth.
func Hostile(t *testing.T, make Maker, effort Effort) {
	t.Helper()
	runTruths(t, effort, func(r *rand.Rand) error { return runHostile(make, r, effort.Steps) })
}

// StepBudget returns how many steps an operation on a number of blocks may take: see the package comment of kvindex.
func StepBudget(s *kvindex.Stats, blocks int) int64 {
	return int64(blocks+1)*(3*block.MaxSize+s.Budget/128) + 40*s.Budget/16
}

// hostile is an attacker that acts as one or more holders.
type hostile struct {
	*rand.Rand
	door   *Door
	size   int
	texts  []text
	next   uint64   // the last hash that was drawn
	recent []uint64 // some of the hashes that were drawn last
	blocks int      // the number of blocks of the last operation
}

const (
	firstHostile = 10
	hostiles     = 3
)

func runHostile(make Maker, r *rand.Rand, steps int) error {
	m := newModel(&seeded{r})
	size := m.hasher.Size()
	budget := []int64{1, 1, 1, 1, 1, 2, 2, 2, 4, 8}[r.IntN(10)] << 20
	if r.IntN(200) == 0 {
		budget = 64 << 20
	}
	cfg := kvindex.Config{Bytes: budget}
	if r.IntN(3) == 0 {
		cfg.WaitingBytes = budget / 4
	}
	door := make(m.hasher, cfg)
	var engines []*engine
	for h := range fleet.Holder(2) {
		e := &engine{holder: h, door: door, size: []int{size, size, 2 * size, max(1, size/2), size + 1}[r.IntN(5)], room: 24 + r.IntN(40), hostRoom: 1 + r.IntN(30)}
		e.room = max(e.room, modelBlocks*size/e.size+1)
		engines = append(engines, e)
	}
	h := &hostile{Rand: r, door: door, size: size, texts: m.texts, next: 1 << 32}
	before := door.Stats()
	check := func(what string) error {
		s := door.Stats()
		if s.Bytes > s.Budget {
			return fmt.Errorf("after %s: %d bytes of %d", what, s.Bytes, s.Budget)
		}
		if n := s.Steps - before.Steps; n > StepBudget(&s, h.blocks) {
			return fmt.Errorf("%s of %d blocks took %d steps, more than %d", what, h.blocks, n, StepBudget(&s, h.blocks))
		}
		before = s
		return nil
	}
	for full := 0; before.Evictions == 0 && before.Refused == 0 && full < 20_000; full++ {
		h.flood(firstHostile, 1000, size)
		if err := check("filling"); err != nil {
			return err
		}
	}
	for step := range steps {
		what := "an honest operation"
		if r.IntN(8) == 0 {
			e := engines[r.IntN(len(engines))]
			e.live(r, m)
			h.blocks = 8 * modelBlocks * size
		} else {
			what = h.act(fleet.Holder(firstHostile + r.IntN(hostiles)))
		}
		if err := check(what); err != nil {
			return fmt.Errorf("after %d steps: %w", step+1, err)
		}
		if step%16 != 0 {
			continue
		}
		for i := range m.texts {
			for _, e := range engines {
				at := slices.IndexFunc(before.Holders, func(s kvindex.HolderStats) bool { return s.Holder == e.holder })
				lost := at < 0 || !before.Holders[at].Whole
				if err := e.compare(m, &m.texts[i], lost); err != nil {
					return fmt.Errorf("after %d steps, the last %s, text %d, holder %d with blocks of %d for %d: %w", step+1, what, i, e.holder, e.size, size, err)
				}
			}
		}
	}
	return nil
}

// live does the next operation of an engine.
func (e *engine) live(r *rand.Rand, m *model) {
	t := m.texts[r.IntN(len(m.texts))]
	t.tokens = t.tokens[:e.size+r.IntN(len(t.tokens)-e.size)]
	t.features = slices.DeleteFunc(slices.Clone(t.features), func(f block.Feature) bool { return f.Offset >= len(t.tokens) })
	switch r.IntN(30) {
	case 0:
		e.pool, e.reported = nil, false
		e.ambiguous = e.ambiguous && len(e.host) > 0 // an offload event may have named a block that the index had lost
		e.door.Clear(e.holder, block.TierGPU)
	case 1:
		e.pool, e.host, e.ambiguous, e.reported = nil, nil, false, false
		e.door.Forget(e.holder)
	default:
		e.serve(r, &t, 1+r.IntN(8)/7, r.IntN(6) == 0)
	}
}

// words returns n random tokens.
func (h *hostile) words(n int) []block.Token {
	out := make([]block.Token, n)
	for i := range out {
		out[i] = h.Uint32()
	}
	return out
}

// hashes returns n hashes that were never used before.
func (h *hostile) hashes(n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		h.next++
		out[i] = h.next
	}
	if h.recent = append(h.recent, out[:min(n, 4)]...); len(h.recent) > 64 {
		h.recent = h.recent[len(h.recent)-64:]
	}
	return out
}

// known returns a hash that may name a block that the index knows, or a waiting block.
func (h *hostile) known() uint64 {
	if len(h.recent) == 0 || h.IntN(4) == 0 {
		return uint64(h.IntN(40)) + 1
	}
	return h.recent[h.IntN(len(h.recent))]
}

func (h *hostile) store(id fleet.Holder, s *kvindex.Stored) {
	h.blocks += len(s.Hashes)
	h.door.Store(id, s)
}

func (h *hostile) flood(id fleet.Holder, n, size int) {
	h.store(id, &kvindex.Stored{Hashes: h.hashes(n), Tokens: h.words(n * size), BlockSize: size})
}

// act does one harmful operation and returns a name for the operation.
func (h *hostile) act(id fleet.Holder) string {
	h.blocks = 0
	size := []int{h.size, h.size, h.size, 1, 2*h.size + 1, 24}[h.IntN(6)]
	tier := block.Tier(h.IntN(2))
	switch h.IntN(18) {
	case 0:
		ring := h.hashes(2 + h.IntN(6))
		for i, hash := range ring {
			h.store(id, &kvindex.Stored{Tier: tier, Hashes: []uint64{hash}, Tokens: h.words(size), BlockSize: size, Parent: ring[(i+1)%len(ring)], HasParent: true})
		}
		return "a circle"
	case 1:
		hash := h.known()
		h.store(id, &kvindex.Stored{Tier: tier, Hashes: []uint64{hash}, Tokens: h.words(size), BlockSize: size, Parent: hash, HasParent: true})
		return "a block that is its own parent"
	case 2, 3:
		n := 1 + h.IntN(60)
		h.store(id, &kvindex.Stored{Tier: tier, Hashes: h.hashes(n), Tokens: h.words(n * size), BlockSize: size, Parent: h.next + 1<<40, HasParent: true})
		return "a chain with an unknown parent"
	case 4:
		h.store(id, &kvindex.Stored{Tier: tier, Hashes: h.hashes(1 + 2000>>h.IntN(32)), BlockSize: 1 << h.IntN(21)})
		return "giant blocks without tokens"
	case 5:
		if h.IntN(20) > 0 {
			return "nothing"
		}
		n := 1 << h.IntN(17)
		h.store(id, &kvindex.Stored{Hashes: h.hashes(1), Tokens: h.words(n), BlockSize: n, RootUnknown: h.IntN(4) == 0})
		return "a giant block"
	case 6, 7:
		t := &h.texts[h.IntN(len(h.texts))]
		n := len(t.tokens) / size
		h.store(id, &kvindex.Stored{Tier: tier, Scope: t.scope, Features: t.features, Hashes: h.hashes(n), Tokens: t.tokens[:n*size], BlockSize: max(size, 1)})
		return "known content under new hashes"
	case 8:
		h.flood(id, 1+h.IntN(200)>>h.IntN(3), size)
		return "a flood"
	case 9:
		h.flood(id, 1, size)
		return "a root"
	case 10:
		t := &h.texts[h.IntN(len(h.texts))]
		stolen := hashesOf(t.tokens, h.size, t.scope.Salt)
		h.store(id, &kvindex.Stored{Tier: tier, Hashes: stolen, Tokens: h.words(len(stolen) * h.size), BlockSize: h.size})
		return "an honest engine's hashes of other content"
	case 11:
		t := &h.texts[h.IntN(len(h.texts))]
		hashes := hashesOf(t.tokens, h.size, t.scope.Salt)
		h.blocks = len(hashes)
		if h.IntN(2) == 0 {
			h.store(id, &kvindex.Stored{Tier: tier, Scope: t.scope, Features: t.features, Hashes: hashes, Tokens: t.tokens[:len(hashes)*h.size], BlockSize: h.size})
		}
		h.door.Remove(id, tier, 0, hashes[h.IntN(len(hashes)):])
		return "honest content, and its removal"
	case 12:
		gone := []uint64{h.known(), h.known(), h.known(), h.Uint64()}
		h.blocks = len(gone)
		h.door.Remove(id, tier, h.IntN(2), gone)
		return "a removal"
	case 13:
		line := h.hashes(1 + h.IntN(30))
		for i := len(line) - 1; i >= 0; i-- {
			s := kvindex.Stored{Tier: tier, Hashes: line[i : i+1], Tokens: h.words(size), BlockSize: size, HasParent: i > 0}
			if i > 0 {
				s.Parent = line[i-1]
			}
			h.store(id, &s)
		}
		return "a chain from its end"
	case 14:
		h.store(id, &kvindex.Stored{Tier: tier, Hashes: []uint64{h.known()}, Tokens: h.words(size), BlockSize: size, Parent: h.known(), HasParent: true})
		return "a known block after another parent"
	case 15:
		h.store(id, &kvindex.Stored{Tier: tier, Group: h.IntN(20), Attention: block.Attention(h.IntN(5)), Window: h.IntN(64), Hashes: h.hashes(1), Tokens: h.words(size), BlockSize: size,
			Features: []block.Feature{{ID: string(make([]byte, h.IntN(1<<14))), Offset: h.IntN(size)}}})
		return "one more group"
	default:
		if h.IntN(10) == 0 {
			h.door.Forget(id)
			return "a holder forgotten"
		}
		h.door.Clear(id, tier)
		return "a tier cleared"
	}
}
