package kvindex_test

import (
	"cmp"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// TestKeysThatAreHandlesMatchAsANaiveMap stores, removes and forgets random stretches of chains that part and part
// again, parents removed before children and children stored before parents, and compares every answer with a map.
func TestKeysThatAreHandlesMatchAsANaiveMap(t *testing.T) {
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
		if r.Full, r.Speculative = r.Blocks, r.Blocks; r.Blocks > 0 {
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
			got, want := x.Match(keys, 0, nil), m.match(keys)
			slices.SortFunc(got, func(a, b kvindex.Match) int { return cmp.Compare(a.Holder, b.Holder) })
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d, %d keys of chain %d: %+v, want %+v", seed, step, len(keys), i, got, want)
			}
		}
	}
	for id := range m.have {
		x.Forget(fleet.Holder(id))
	}
	if s := x.Stats(); s.Blocks != 0 || s.Memberships != 0 {
		t.Errorf("seed %d: left when all are forgotten: %+v", seed, s)
	}
}
