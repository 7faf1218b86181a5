package kvindex

import "github.com/warmpath/warmpath/block"

// derive returns one of the numbers that a seed stands for, 0 for seed 0.
func derive(seed, number uint64) uint64 {
	if seed == 0 {
		return 0
	}
	return block.Mix64(seed + number*block.Golden)
}

// plant seeds the tables, which must be empty.
func (x *Index) plant(seed uint64) {
	b := &x.blocks
	b.heads.Seed, b.names.Seed, b.sets.byHash.Seed = derive(seed, 1), derive(seed, 2), derive(seed, 3)
	b.sets.byState.Seed = derive(seed, 5)
	b.heads.Shared = true
	if x.config.Bytes < 32<<20 {
		b.log.Words = 512 // a small part of the least budget
	}
	b.veil = 0x6a09e667f3bcc908 ^ derive(seed, 4)
}
