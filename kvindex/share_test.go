package kvindex_test

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// flooder announces blocks of random tokens in batches.
type flooder struct {
	x      *kvindex.Index
	source *rand.Rand
	hash   uint64 // the last engine hash that was used
	parent uint64 // the hash after which some floods continue a chain
}

const flooding fleet.Holder = 3 // the holder that announces the blocks

// store announces n blocks of the given size after a parent, and returns the hash of the last block.
func (f *flooder) store(n, size int, parent uint64) uint64 {
	s := kvindex.Stored{Tokens: random(f.source, n*size), BlockSize: size, Parent: parent, HasParent: parent != 0}
	for range n {
		f.hash++
		s.Hashes = append(s.Hashes, f.hash)
	}
	f.x.Store(flooding, &s)
	return f.hash
}

var floods = map[string]func(f *flooder) (blocks int){
	"prompts":   func(f *flooder) int { f.store(100, 16, 0); return 100 },
	"one chain": func(f *flooder) int { f.parent = f.store(500, 16, f.parent); return 500 },
	"roots":     func(f *flooder) int { f.store(1, 16, 0); return 1 },
	"waiting blocks": func(f *flooder) int {
		f.store(10, 16, f.hash+1<<40)
		return 10
	},
	"blocks of another size": func(f *flooder) int { f.store(20, 24, 0); return 20 },
	"blocks of one token":    func(f *flooder) int { f.store(160, 1, 0); return 160 },
	"parts of blocks":        func(f *flooder) int { f.store(1, 7, 0); return 1 },
	"one prompt in new hashes": func(f *flooder) int {
		s := kvindex.Stored{Tokens: seq(77, 1600), BlockSize: 16}
		for range 100 {
			f.hash++
			s.Hashes = append(s.Hashes, f.hash)
		}
		f.x.Store(flooding, &s)
		return 100
	},
	"branches": func(f *flooder) int {
		if f.parent == 0 {
			f.parent = f.store(1, 16, 0)
		}
		f.store(1, 16, f.parent)
		return 1
	},
}

// floodBlocks returns the number of blocks in the variable WARMPATH_FLOOD_BLOCKS (`make hostile` sets 10^7), or 0.
func floodBlocks() int {
	n, _ := strconv.Atoi(os.Getenv("WARMPATH_FLOOD_BLOCKS"))
	return n
}

func TestAFloodTakesNothingFromOthersShares(t *testing.T) {
	testenv.SkipRaced(t)
	if n := floodBlocks(); n > 0 {
		for _, kind := range []string{"prompts", "one chain"} {
			t.Run(kind, func(t *testing.T) { floodOthers(t, floods[kind], 64<<20, n) })
		}
		return
	}
	for kind, more := range floods {
		t.Run(kind+", 1 MiB", func(t *testing.T) { floodOthers(t, more, 1<<20, 20_000) })
		if !testing.Short() {
			t.Run(kind+", 16 MiB", func(t *testing.T) { floodOthers(t, more, 16<<20, 200_000) })
		}
	}
}

// floodOthers lets one of eight holders announce many blocks: the function more announces some blocks and returns their
// number. Each of the other holders must keep 90 % of the blocks for which an eighth of the budget has room.
func floodOthers(t *testing.T, more func(f *flooder) int, budget int64, flood int) {
	const holders = 8
	h, _ := block.NewHasher(block.XXH3, 16)
	var share int64
	if budget/holders >= 1<<20 {
		share = filled(h, budget/holders)
	} else {
		share = filled(h, budget) / holders // an eighth of the budget would be below the least budget of an index
	}
	x := kvindex.New(h, kvindex.Config{Bytes: budget})
	f := &flooder{x: x, source: rand.New(rand.NewPCG(9, 9)), hash: 1 << 60}
	stored := 0
	for ; stored < flood/4; stored += more(f) { // the index is full before the other holders announce blocks
	}
	prompts := int(share) / 100
	for id := range fleet.Holder(holders) {
		for i := 0; id != flooding && i < prompts; i++ {
			announce(x, id, random(rand.New(rand.NewPCG(uint64(id), uint64(i))), 1600), 50)
		}
	}
	for ; stored < flood; stored += more(f) {
	}
	s := x.Stats()
	if s.Bytes > s.Budget {
		t.Errorf("%d bytes of %d", s.Bytes, s.Budget)
	}
	least := share
	for _, one := range s.Holders {
		if one.Holder != flooding {
			least = min(least, one.Blocks[0])
		}
	}
	t.Logf("%d of %d blocks are left of the one with least; the flood has %d; %d evicted", least, share, s.Holders[flooding].Blocks[0], s.Evictions)
	if least < share*9/10 {
		t.Errorf("of %d blocks in a share %d are left: %+v", share, least, s.Holders)
	}
}

// filled returns the number of blocks of one holder that fit in an index with this budget.
func filled(h *block.Hasher, budget int64) int64 {
	x := kvindex.New(h, kvindex.Config{Bytes: budget})
	for i := 0; ; i++ {
		before := x.Stats()
		announce(x, 0, random(rand.New(rand.NewPCG(1, uint64(i))), 1600), 50)
		if x.Stats().Evictions > 0 {
			return before.Blocks
		}
	}
}

// A worker reports its own number of ranks. If each rank had a fair share, a worker could report many ranks and so take
// the room of other workers. So each worker has one share.
func TestAWorkerOfManyRanksHasOneShare(t *testing.T) {
	testenv.SkipRaced(t)
	h, _ := block.NewHasher(block.XXH3, 16)
	const budget, honest = 16 << 20, 7
	share := filled(h, budget) / (honest + 1)
	for _, ranks := range []int{8, 64} {
		x := kvindex.New(h, kvindex.Config{Bytes: budget, Worker: func(id fleet.Holder) (fleet.WorkerID, bool) {
			return fleet.WorkerID(min(id, honest)), true
		}})
		for id := range fleet.Holder(honest) {
			for i := range int(share) / 100 {
				announce(x, id, random(rand.New(rand.NewPCG(uint64(id), uint64(i))), 1600), 50)
			}
		}
		source := rand.New(rand.NewPCG(5, 5))
		for i := range 3000 {
			announce(x, fleet.Holder(honest+i%ranks), random(source, 1600), 50)
		}
		for _, one := range x.Stats().Holders {
			if one.Holder < honest && one.Blocks[0] < share*9/10 {
				t.Errorf("a worker of %d ranks leaves holder %d %d blocks of %d in a share", ranks, one.Holder, one.Blocks[0], share)
			}
		}
	}
}
