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

// TestKeysThatAreHashesMatchAsANaiveMap stores, removes and forgets random stretches of chains that part and part
// again, parents removed before children and children stored before parents, and compares every answer with a map.
func TestKeysThatAreHashesMatchAsANaiveMap(t *testing.T) {
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
	have [80]map[block.Key][2]int // copies by holder and tier
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
	var chains [][]block.Key
	for i := range 6 {
		var c []block.Key
		if i > 0 {
			c = slices.Clone(chains[r.IntN(i)][:r.IntN(length)])
		}
		for len(c) < length {
			c = append(c, block.Key(r.Uint64()))
		}
		chains = append(chains, c)
	}
	tidy := r.IntN(2) == 0 // from the roots, from the tails
	for step := range 200 {
		id := fleet.Holder(r.IntN(holders))
		c := chains[r.IntN(len(chains))]
		from := r.IntN(len(c))
		to := from + 1 + r.IntN(len(c)-from)
		if tidy {
			from = 0
		}
		tier := block.Tier(r.IntN(4) / 3)
		switch op := r.IntN(20); {
		case op < 11:
			parent := block.Key(0)
			if from > 0 {
				parent = c[from-1]
			}
			x.StoreKeys(id, tier, 0, parent, from > 0, c[from:to])
			for _, k := range c[from:to] {
				n := m.have[id][k]
				n[tier]++
				m.have[id][k] = n
			}
		case op < 19:
			gone := slices.Clone(c[from:to])
			if tidy {
				gone = slices.Clone(c[to-1:])
			}
			if tidy || r.IntN(2) == 0 {
				slices.Reverse(gone)
			}
			if r.IntN(10) == 0 {
				r.Shuffle(len(gone), func(i, j int) { gone[i], gone[j] = gone[j], gone[i] })
			}
			x.RemoveKeys(id, tier, 0, gone)
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
			keys := c[:1+r.IntN(len(c))]
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

// TestReadersOfKeysRunBesideWriters lets writers extend, part, shrink and forget chains that begin alike, while readers
// match. A holder that stands still must be seen whole in every answer, and nobody with more than there ever was.
func TestReadersOfKeysRunBesideWriters(t *testing.T) {
	turns := 20_000
	if testenv.Race() || testing.Short() {
		turns /= 5
	}
	h, _ := block.NewHasher(block.XXH3, 16)
	x := kvindex.New(h, kvindex.Config{})
	random := rand.New(rand.NewPCG(3, 3))
	var chains [][]block.Key
	for i := range 12 {
		var c []block.Key
		if i > 0 {
			c = slices.Clone(chains[random.IntN(i)][:20+random.IntN(60)])
		}
		for len(c) < 100 {
			c = append(c, block.Key(random.Uint64()))
		}
		chains = append(chains, c)
	}
	const still = 5
	x.StoreKeys(still, block.TierGPU, 0, 0, false, chains[0])
	shared := make([]uint32, len(chains)) // leading blocks of each chain that the first has too
	for i, c := range chains {
		for int(shared[i]) < len(c) && c[shared[i]] == chains[0][shared[i]] {
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
				dst = x.Match(chains[i], dst[:0])
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
			held := map[int]int{} // blocks of each chain, from the root
			for range turns {
				i := random.IntN(len(chains))
				n := 1 + random.IntN(100)
				switch {
				case random.IntN(200) == 0:
					x.Forget(w)
					clear(held)
				case n > held[i]:
					parent := block.Key(0)
					if held[i] > 0 {
						parent = chains[i][held[i]-1]
					}
					x.StoreKeys(w, block.TierGPU, 0, parent, held[i] > 0, chains[i][held[i]:n])
					held[i] = n
				default:
					gone := slices.Clone(chains[i][n:held[i]])
					if random.IntN(4) > 0 {
						slices.Reverse(gone)
					}
					x.RemoveKeys(w, block.TierGPU, 0, gone)
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
