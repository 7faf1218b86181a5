package kvindex

import "github.com/warmpath/warmpath/fleet"

// Tables multiply keys by odd numbers that the seed changes. Two keys that somebody chose without knowing the
// multiplier then have the same n upper bits for at most one multiplier in 2^(n-1) [Dietzfelbinger, Hagerup,
// Katajainen, Penttonen: A Reliable Randomized Algorithm for the Closest-Pair Problem, 1997]. With seed 0 the
// multipliers are the constants.
const (
	mixKeys   = 0x9e3779b97f4a7c15
	mixFirst  = 0x9e3779b97f4a7c15
	mixSecond = 0xd6e8feb86659fd93
)

// What the seed is needed for: see derive.
const (
	seedKeys = iota + 1
	seedNames
	seedFirst
	seedSecond
	seedTables
	seedHolders = 1 << 32 // and the holder
)

// derive returns one of the numbers that a seed stands for, 0 for seed 0. It is the finalizer of SplitMix64.
func derive(seed, number uint64) uint64 {
	if seed == 0 {
		return 0
	}
	z := seed + number*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// deriveEven is derive of a number that an odd one stays odd with.
func deriveEven(seed, number uint64) uint64 { return derive(seed, number) &^ 1 }

// inverse returns the number whose product with an odd one is 1. Each step of Newton's method doubles the bits that
// are right.
func inverse(odd uint64) uint64 {
	inv := odd // three bits are right
	for range 5 {
		inv *= 2 - odd*inv
	}
	return inv
}

// secretOf returns what keeps a holder's handles apart from all others': a handle is never looked up without it. Two
// handles of two holders are the same together with it by chance only, with odds of 2^-64, unless who chose them
// knows the seed.
func secretOf(seed uint64, id fleet.Holder) uint64 {
	return uint64(id)*0x9fb21c651e98df25 ^ derive(seed, seedHolders|uint64(id))
}

// plant gives the tables what they need of a seed. They must be empty.
func (x *Index) plant(seed uint64) {
	b := &x.blocks
	b.slots.seed = deriveEven(seed, seedKeys)
	b.roots.seed = b.slots.seed
	b.names.seed = nameSeed{derive(seed, seedNames), deriveEven(seed, seedFirst), deriveEven(seed, seedSecond)}
	for _, t := range []*table{&x.handles, &x.waiters, &x.covers, &b.sets.byHash} {
		t.seed = deriveEven(seed, seedTables)
	}
}
