package block

// Golden is 2^64 divided by the golden ratio, rounded to an odd number. The generator SplitMix64 adds it to its state
// for each random number.
const Golden = 0x9e3779b97f4a7c15

// Mix64 is the output function of SplitMix64: number n of the generator with a seed is Mix64(seed + n*Golden), with n
// from 1. A change of one bit of x changes each bit of the result with a probability of about one half. Mix64 is a
// bijection: different numbers have different results. [Steele, Lea and Flood, Fast Splittable Pseudorandom Number
// Generators, OOPSLA 2014, mix64; the constants are variant 13 of Stafford, Better Bit Mixing, 2011]
func Mix64(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
