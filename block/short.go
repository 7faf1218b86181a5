package block

import "math/bits"

// The key of a block of 16 or 32 tokens, the sizes that engines use most, needs no buffer: the tokens are read straight
// into the 64-bit words that XXH3-64 works on for inputs of 72 and 136 bytes. The words that hold tokens are mixed
// while the parent is still being computed, so a chain costs little more than the latency of one multiplication
// and the final avalanche per block: about half of what filling a buffer and calling the library costs
// (BenchmarkAppend). TestShortFormsEqualTheLibrary holds them to XXH3.

// The sum starts as the input's length in bytes times XXH3's PRIME64_1 (11400714785074694791), modulo 2^64.
const (
	length72  = 9194725282157753848
	length136 = 970708578556155832
)

// The words of XXH3's default secret that inputs of up to 240 bytes are keyed with, by their offset in it.
const (
	secret0   = 0xbe4ba423396cfeb8
	secret8   = 0x1cad21f72c81017c
	secret16  = 0xdb979083e96dd4de
	secret24  = 0x1f67b3b7a4a44072
	secret32  = 0x78e5c0cc4ee679cb
	secret40  = 0x2172ffcc7dd05a82
	secret48  = 0x8e2443f7744608b8
	secret56  = 0x4c263a81e69035e0
	secret64  = 0xcb00c391bb52283c
	secret72  = 0xa32e531b8b65d088
	secret80  = 0x4ef90da297486471
	secret88  = 0xd8acdea946ef1938
	secret96  = 0x3f349ce33f76faa8
	secret104 = 0x1d4f0bc7c7bbdcf9
	secret112 = 0x3159b4cd4be0518a
	secret119 = 0x7378d9c97e9fc831
	secret120 = 0x647378d9c97e9fc8
	secret127 = 0xebd33483acc5ea64
)

func block16(parent Key, t *[16]Token) Key {
	w3, w4, w5 := word(t[4], t[5]), word(t[6], t[7]), word(t[8], t[9])
	sum := mix(w4^secret64, w5^secret72) + mix(w3^secret80, w4^secret88)
	sum += mix(word(t[2], t[3])^secret32, w3^secret40) + mix(w5^secret48, word(t[10], t[11])^secret56)
	sum += mix(word(t[12], t[13])^secret16, word(t[14], t[15])^secret24)
	sum += length72
	sum += mix(uint64(parent)^secret0, word(t[0], t[1])^secret8)
	return Key(avalanche(sum))
}

func block32(parent Key, t *[32]Token) Key {
	sum := mix(word(t[2], t[3])^secret16, word(t[4], t[5])^secret24)
	sum += mix(word(t[6], t[7])^secret32, word(t[8], t[9])^secret40)
	sum += mix(word(t[10], t[11])^secret48, word(t[12], t[13])^secret56)
	sum += mix(word(t[14], t[15])^secret64, word(t[16], t[17])^secret72)
	sum += mix(word(t[18], t[19])^secret80, word(t[20], t[21])^secret88)
	sum += mix(word(t[22], t[23])^secret96, word(t[24], t[25])^secret104)
	w15 := word(t[28], t[29])
	sum += mix(word(t[26], t[27])^secret112, w15^secret120)
	last := mix(w15^secret119, word(t[30], t[31])^secret127)
	sum += length136
	sum += mix(uint64(parent)^secret0, word(t[0], t[1])^secret8)
	return Key(avalanche(avalanche(sum) + last))
}

// word is two tokens as one little-endian 64-bit word.
func word(lo, hi Token) uint64 { return uint64(lo) | uint64(hi)<<32 }

// mix is XXH3's mul128_fold64.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

func avalanche(h uint64) uint64 {
	h ^= h >> 37
	h *= 0x165667919e3779f9
	return h ^ h>>32
}
