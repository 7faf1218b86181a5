package kvindex_test

import (
	"cmp"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// TestRandomStretchesMatchAsANaiveMap stores and removes random ranges of chains, clears tiers, forgets holders, and
// compares every answer with a map. Many chains share a beginning. Parents may be removed before their children, and
// children may be stored before their parents.
func TestRandomStretchesMatchAsANaiveMap(t *testing.T) {
	rounds := uint64(300)
	if testing.Short() {
		rounds = 50
	}
	if n, err := strconv.ParseUint(os.Getenv("WARMPATH_MODEL_RUNS"), 10, 64); err == nil {
		rounds = n
	}
	for seed := range rounds {
		keyedRound(t, seed)
		if t.Failed() {
			return
		}
	}
}

type keyedModel struct {
	have [80]map[block.Key][2]int // number of copies of each block, by holder and tier
}

func (m *keyedModel) match(keys []block.Key) []kvindex.Match {
	var out []kvindex.Match
	for id, have := range m.have {
		r := kvindex.Match{Holder: fleet.Holder(id)}
		tier := 0
		for _, k := range keys {
			for tier < 2 && have[k][tier] == 0 {
				tier++
			}
			if tier == 2 {
				break
			}
			r.Blocks++
			r.Tier[tier]++
		}
		if r.Full = r.Blocks; r.Blocks > 0 {
			out = append(out, r)
		}
	}
	return out
}

func keyedRound(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 9))
	h, _ := block.NewHasher(block.XXH3, 16)
	x := kvindex.New(h, kvindex.Config{})
	m := &keyedModel{}
	for i := range m.have {
		m.have[i] = map[block.Key][2]int{}
	}
	holders := []int{1, 3, 8, 80}[r.IntN(4)]
	length := []int{5, 12, 40, 200}[r.IntN(4)]
	var chains []chain
	for i := range 6 {
		tokens := random(r, 16*length)
		if i > 0 {
			copy(tokens, chains[r.IntN(i)].tokens[:16*r.IntN(length)])
		}
		chains = append(chains, newChain(tokens))
	}
	tidy := r.IntN(2) == 0 // store chains from their first block on, and remove them from their last block on
	for step := range 200 {
		id := fleet.Holder(r.IntN(holders))
		c := chains[r.IntN(len(chains))]
		from := r.IntN(length)
		to := from + 1 + r.IntN(length-from)
		if tidy {
			from = 0
		}
		tier := block.Tier(r.IntN(4) / 3)
		switch op := r.IntN(20); {
		case op < 11:
			c.store(x, id, tier, from, to)
			for _, k := range c.keys[from:to] {
				n := m.have[id][k]
				n[tier]++
				m.have[id][k] = n
			}
		case op < 19:
			gone := slices.Clone(c.keys[from:to])
			if tidy {
				gone = slices.Clone(c.keys[to-1:])
			}
			if tidy || r.IntN(2) == 0 {
				slices.Reverse(gone)
			}
			if r.IntN(10) == 0 {
				r.Shuffle(len(gone), func(i, j int) { gone[i], gone[j] = gone[j], gone[i] })
			}
			x.Remove(id, tier, 0, asHashes(gone))
			for _, k := range gone {
				n := m.have[id][k]
				n[tier] = max(0, n[tier]-1)
				m.have[id][k] = n
			}
		case r.IntN(2) == 0:
			x.Clear(id, tier)
			for k, n := range m.have[id] {
				n[tier] = 0
				m.have[id][k] = n
			}
		default:
			x.Forget(id)
			clear(m.have[id])
		}
		for i, c := range chains {
			keys := c.keys[:1+r.IntN(length)]
			got, want := x.Match(keys, nil), m.match(keys)
			slices.SortFunc(got, func(a, b kvindex.Match) int { return cmp.Compare(a.Holder, b.Holder) })
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d, %d keys of chain %d: %+v, want %+v", seed, step, len(keys), i, got, want)
			}
		}
	}
	for id := range m.have {
		x.Forget(fleet.Holder(id))
	}
	if s := x.Stats(); s.Blocks != 0 || s.Memberships != 0 || s.Bytes > 1<<17 {
		t.Errorf("seed %d: left when all are forgotten: %+v", seed, s)
	}
}

// TestReadersRunBesideWritersOfOneSize lets writers extend, branch, shorten and forget chains with a common beginning
// while readers match. Every answer must have all blocks of a holder that does not change, and no answer may have more
// blocks than a chain has.
func TestReadersRunBesideWritersOfOneSize(t *testing.T) {
	turns := 20_000
	if testenv.Race() || testing.Short() {
		turns /= 5
	}
	h, _ := block.NewHasher(block.XXH3, 16)
	x := kvindex.New(h, kvindex.Config{})
	random := rand.New(rand.NewPCG(3, 3))
	var chains []chain
	for i := range 12 {
		tokens := seq(100_000*i, 1600)
		if i > 0 {
			copy(tokens, chains[random.IntN(i)].tokens[:16*(20+random.IntN(60))])
		}
		chains = append(chains, newChain(tokens))
	}
	const still = 5
	chains[0].learn(x, still)
	shared := make([]uint32, len(chains)) // number of leading blocks that each chain shares with the first chain
	for i, c := range chains {
		for shared[i] < 100 && c.keys[shared[i]] == chains[0].keys[shared[i]] {
			shared[i]++
		}
	}
	var done atomic.Bool
	var readers, writers sync.WaitGroup
	for r := range uint64(2) {
		readers.Go(func() {
			random := rand.New(rand.NewPCG(r, 7))
			var dst []kvindex.Match
			for !done.Load() {
				i := random.IntN(len(chains))
				dst = x.Match(chains[i].keys, dst[:0])
				seen := uint32(0)
				for _, m := range dst {
					if m.Holder == still {
						seen = m.Blocks
					}
					if m.Blocks > 100 || m.Tier[0] != m.Blocks {
						t.Errorf("%+v", m)
						return
					}
				}
				if seen != shared[i] {
					t.Errorf("the holder that stands still has %d of %d blocks of chain %d", seen, shared[i], i)
					return
				}
			}
		})
	}
	for w := range fleet.Holder(3) {
		writers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 8))
			held := map[int]int{} // number of blocks of each chain that the holder has, from the first block on
			for range turns {
				i := random.IntN(len(chains))
				n := 1 + random.IntN(100)
				switch {
				case random.IntN(200) == 0:
					x.Forget(w)
					clear(held)
				case n > held[i]:
					chains[i].store(x, w, block.TierGPU, held[i], n)
					held[i] = n
				default:
					gone := slices.Clone(chains[i].keys[n:held[i]])
					if random.IntN(4) > 0 {
						slices.Reverse(gone)
					}
					x.Remove(w, block.TierGPU, 0, asHashes(gone))
					held[i] = n
				}
			}
			x.Forget(w)
		})
	}
	writers.Wait()
	done.Store(true)
	readers.Wait()
	if s := x.Stats(); s.Blocks != 100 || s.Memberships != 100 {
		t.Errorf("left: %+v", s)
	}
}
