package kvindex

import (
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// drawn is a seed that who chooses hashes does not know.
const drawn = 0x5eed5eed5eed5eed

func seeded(t *testing.T, size int, seed uint64) *Index {
	t.Helper()
	h, err := block.NewHasher(block.XXH3, size)
	if err != nil {
		t.Fatal(err)
	}
	return New(h, Config{Seed: seed})
}

// TestAWorkerCannotTakeAnothersEntryByAChosenHash: a worker announces the hash that lands on another's entry when the
// seed is known to be 0. The other must still be able to remove what it announced, else the index claims what is
// gone.
func TestAWorkerCannotTakeAnothersEntryByAChosenHash(t *testing.T) {
	attack := func(seed uint64) (left uint32, odd bool) {
		x := seeded(t, 16, seed)
		const victim, hostile, size = 1, 2, 24 // another size than the index's, so that both are odd
		tokens, other := make([]block.Token, 10*size), make([]block.Token, 10*size)
		handles, chosen := make([]uint64, 10), make([]uint64, 10)
		for i := range tokens {
			tokens[i], other[i] = block.Token(i), block.Token(i+1000)
		}
		for i := range handles {
			handles[i] = uint64(i + 1)
			chosen[i] = handles[i] ^ secretOf(0, victim) ^ secretOf(0, hostile)
		}
		x.Store(victim, &Stored{Handles: handles, Tokens: tokens, BlockSize: size})
		x.Store(hostile, &Stored{Handles: chosen, Tokens: other, BlockSize: size})
		x.Remove(victim, block.TierGPU, 0, handles)
		for _, m := range x.Match(x.hasher.Append(nil, x.hasher.Root(block.Scope{}), 0, tokens, nil), 0, nil) {
			if m.Holder == fleet.Holder(victim) {
				left = m.Blocks
			}
		}
		return left, x.holder(victim).odd && x.holder(hostile).odd
	}
	if left, odd := attack(0); left == 0 || !odd {
		t.Errorf("with seed 0: %d blocks are left, odd %v: this is no attack", left, odd)
	}
	if left, _ := attack(drawn); left != 0 {
		t.Errorf("%d blocks are claimed that were removed", left)
	}
}

const colliding = 20_000

// collide returns a number that seed 0 keeps at the first home of the first segment.
func collide(i int, unmix func(uint64) uint64) uint64 { return unmix(uint64(i + 1)) }

func TestChosenHashesCollideUnderSeedZeroOnly(t *testing.T) {
	unmix := (&nameSeed{}).unmixer()
	for _, seed := range []uint64{0, drawn, 1, 2, 3} {
		x := seeded(t, 16, seed)
		homes, segments := map[uint64]int{}, map[uint64]int{}
		for i := range colliding {
			h := x.blocks.names.seed.mix(collide(i, unmix))
			segments[h>>56]++
			homes[h>>40]++
		}
		check(t, "names", seed, segments, homes)

		clear(homes)
		clear(segments)
		for i := range colliding {
			h := x.blocks.slots.mix(block.Key(collide(i, func(h uint64) uint64 { return h * inverse(mixKeys) })))
			segments[h>>56]++
			homes[h>>40]++
		}
		check(t, "slots", seed, segments, homes)

		clear(homes)
		clear(segments)
		for i := range colliding {
			h := x.handles.spread(collide(i, unmix))
			segments[h>>56]++
			homes[h>>40]++
		}
		check(t, "a table", seed, segments, homes)
	}
}

// check holds numbers that were chosen to collide to what chance makes of as many: 78 in a segment, 0.001 at a home.
func check(t *testing.T, what string, seed uint64, segments, homes map[uint64]int) {
	t.Helper()
	inOne, atOne := 0, 0
	for _, n := range segments {
		inOne = max(inOne, n)
	}
	for _, n := range homes {
		atOne = max(atOne, n)
	}
	if seed == 0 {
		if inOne != colliding || atOne != colliding {
			t.Errorf("%s: with seed 0 %d are in one segment and %d at one home: they were not chosen to collide", what, inOne, atOne)
		}
		return
	}
	if inOne > 2*colliding/256 || atOne > 8 {
		t.Errorf("%s: with seed %x %d of %d are in one segment, and %d at one home", what, seed, inOne, colliding, atOne)
	}
}

// TestChosenHashesCostNoMoreThanOthers: what a worker announces under hashes that were chosen to collide takes the
// steps and the memory that it takes under others, whether its handles are names or points.
func TestChosenHashesCostNoMoreThanOthers(t *testing.T) {
	unmix := (&nameSeed{}).unmixer()
	for _, size := range []int{16, 24} {
		cost := func(handle func(i int) uint64) (steps, bytes int64, far int) {
			x := seeded(t, 16, drawn)
			tokens := make([]block.Token, colliding*size)
			handles := make([]uint64, colliding)
			for i := range tokens {
				tokens[i] = block.Token(i)
			}
			for i := range handles {
				handles[i] = handle(i)
			}
			x.Store(0, &Stored{Handles: handles, Tokens: tokens, BlockSize: size})
			s := x.Stats()
			for i := range x.blocks.names.segments {
				far = max(far, int(x.blocks.names.segments[i].buckets()))
			}
			for i := range x.handles.segments {
				far = max(far, longest(&x.handles.segments[i]))
			}
			if s.Holders[0].Blocks[0] < colliding {
				t.Fatalf("%+v", s)
			}
			return s.Steps, s.Bytes, far
		}
		steps, bytes, far := cost(func(i int) uint64 { return collide(i, unmix) })
		otherSteps, otherBytes, otherFar := cost(func(i int) uint64 { return derive(7, uint64(i)) })
		t.Logf("blocks of %d: %d steps and %d for others, %d bytes and %d, %d and %d slots in a row or buckets in a segment", size, steps, otherSteps, bytes, otherBytes, far, otherFar)
		if steps > otherSteps*11/10 || bytes > otherBytes*11/10 || far > 4*otherFar {
			t.Errorf("blocks of %d: %d steps, others take %d; %d bytes, %d; %d in a row, %d", size, steps, otherSteps, bytes, otherBytes, far, otherFar)
		}
	}
}

// longest returns the greatest number of slots in a row that are taken.
func longest(g *tableSegment) (most int) {
	n := 0
	for i := range g.slots {
		n++
		if g.slots[i].val == 0 {
			n = 0
		}
		most = max(most, n)
	}
	return most
}

func TestWhatASeedMixesCanBeUnmixed(t *testing.T) {
	for seed := range uint64(50) {
		x := seeded(t, 16, seed)
		unmix := x.blocks.names.seed.unmixer()
		for i := range uint64(100) {
			if handle := derive(99, i); unmix(x.blocks.names.seed.mix(handle)) != handle {
				t.Fatalf("seed %d, handle %x: %x", seed, handle, unmix(x.blocks.names.seed.mix(handle)))
			}
		}
	}
}
