package kvindex

import (
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex/internal/memory"
)

// drawn is a seed that an attacker who chooses hashes does not know.
const drawn = 0x5eed5eed5eed5eed

func seeded(t *testing.T, size int, seed uint64) *Index {
	t.Helper()
	h, err := block.NewHasher(block.XXH3, size)
	if err != nil {
		t.Fatal(err)
	}
	return New(h, Config{Seed: seed})
}

const colliding = 20_000

// inverse returns the number x with x·odd = 1 modulo 2^64. Each step of Newton's method doubles the number of correct
// bits.
func inverse(odd uint64) uint64 {
	inv := odd // the lowest three bits are correct
	for range 5 {
		inv *= 2 - odd*inv
	}
	return inv
}

// collide returns the key that has the hash i in a table with the seed 0.
func collide(i uint64) uint64 {
	h := i ^ i>>32
	h *= inverse(0xd6e8feb86659fd93)
	return (h ^ h>>32) * inverse(0x9e3779b97f4a7c15)
}

// TestChosenHashesCollideUnderSeedZeroOnly checks that keys which collide under seed 0 collide no more than random keys
// under other seeds. A table has 256 segments, so a segment has 78 of 20,000 random keys on average. A home is the
// place in the table where the search for a key begins. The test takes the upper 24 bits of a hash as the home, so a
// home has 0.001 keys on average.
func TestChosenHashesCollideUnderSeedZeroOnly(t *testing.T) {
	for _, seed := range []uint64{0, drawn, 1, 2, 3} {
		x := seeded(t, 16, seed)
		for what, table := range map[string]*memory.Table{"names": &x.blocks.names, "heads": &x.blocks.heads, "sets": &x.blocks.sets.byHash} {
			homes, segments, inOne, atOne := map[uint64]int{}, map[uint64]int{}, 0, 0
			for i := range uint64(colliding) {
				h := table.Hash(collide(i + 1))
				segments[h>>56]++
				homes[h>>40]++
				inOne, atOne = max(inOne, segments[h>>56]), max(atOne, homes[h>>40])
			}
			switch {
			case seed == 0 && (inOne != colliding || atOne != colliding):
				t.Errorf("%s: with seed 0 only %d keys are in one segment and %d at one home: the test's keys do not collide", what, inOne, atOne)
			case seed != 0 && (inOne > 2*colliding/256 || atOne > 8):
				t.Errorf("%s: with seed %x %d of %d keys are in one segment, and %d at one home", what, seed, inOne, colliding, atOne)
			}
		}
	}
}

// A worker may choose engine hashes that collide under seed 0. Announcements under these hashes must take no more steps
// and no more memory than announcements under other hashes.
func TestChosenHashesCostNoMoreThanOthers(t *testing.T) {
	for _, size := range []int{16, 24} {
		cost := func(hash func(i int) uint64) (steps, bytes int64) {
			x := seeded(t, 16, drawn)
			tokens := make([]block.Token, colliding*size)
			hashes := make([]uint64, colliding)
			for i := range tokens {
				tokens[i] = block.Token(i)
			}
			for i := range hashes {
				hashes[i] = hash(i)
			}
			x.Store(0, &Stored{Hashes: hashes, Tokens: tokens, BlockSize: size})
			s := x.Stats()
			if s.Holders[0].Blocks[0] < colliding {
				t.Fatalf("%+v", s)
			}
			return s.Steps, s.Bytes
		}
		steps, bytes := cost(func(i int) uint64 { return collide(uint64(i + 1)) })
		otherSteps, otherBytes := cost(func(i int) uint64 { return derive(7, uint64(i)) })
		if steps > otherSteps*11/10 || bytes > otherBytes*11/10 {
			t.Errorf("blocks of %d: %d steps, others take %d; %d bytes, %d", size, steps, otherSteps, bytes, otherBytes)
		}
	}
}

// The table heads leads from the key of a prompt's first block to the block. If two keys have the same hash in this
// table, a match must still find the block of each key.
func TestPromptsWhoseFirstKeysCollideAreMatched(t *testing.T) {
	x := seeded(t, 16, 0)
	keys := []block.Key{block.Key(collide(1 << 60)), block.Key(collide(1<<60 | 1<<10))} // a table does not store bit 10 of a hash
	for i, key := range keys {
		if err := x.Load(0, &Held{Keys: []block.Key{key}, Hashes: []uint64{uint64(i) + 1}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range keys {
		if m := x.Match([]block.Key{key}, nil); len(m) != 1 || m[0].Blocks != 1 {
			t.Errorf("%+v", m)
		}
	}
}
