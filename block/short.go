package block

import "math/bits"

// Most engines use blocks of 16 or 32 tokens. This file computes XXH3-64 of such blocks without the library and without
// a buffer: it reads the tokens directly into 64-bit words, as XXH3-64 defines them for inputs of 64 and 128 bytes.
// This takes two thirds of the library's time (BenchmarkHash). TestLocalsAreXXH3OfTheTokens compares the results with
// those of the library.

// XXH3 adds the input's length in bytes times PRIME64_1 (11400714785074694791), modulo 2^64, to the sum.
const (
	length64  = 64 * 11400714785074694791 & (1<<64 - 1)
	length128 = 128 * 11400714785074694791 & (1<<64 - 1)
)

// The words of XXH3's default secret for inputs of up to 240 bytes, by their offset in the secret, in bytes.
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
	secret120 = 0x647378d9c97e9fc8
)

func block16(t *[16]Token) uint64 {
	sum := Fold128(word(t[0], t[1])^secret0, word(t[2], t[3])^secret8)
	sum += Fold128(word(t[12], t[13])^secret16, word(t[14], t[15])^secret24)
	sum += Fold128(word(t[4], t[5])^secret32, word(t[6], t[7])^secret40)
	sum += Fold128(word(t[8], t[9])^secret48, word(t[10], t[11])^secret56)
	return avalanche(sum + length64)
}

func block32(t *[32]Token) uint64 {
	sum := Fold128(word(t[0], t[1])^secret0, word(t[2], t[3])^secret8)
	sum += Fold128(word(t[28], t[29])^secret16, word(t[30], t[31])^secret24)
	sum += Fold128(word(t[4], t[5])^secret32, word(t[6], t[7])^secret40)
	sum += Fold128(word(t[24], t[25])^secret48, word(t[26], t[27])^secret56)
	sum += Fold128(word(t[8], t[9])^secret64, word(t[10], t[11])^secret72)
	sum += Fold128(word(t[20], t[21])^secret80, word(t[22], t[23])^secret88)
	sum += Fold128(word(t[12], t[13])^secret96, word(t[14], t[15])^secret104)
	sum += Fold128(word(t[16], t[17])^secret112, word(t[18], t[19])^secret120)
	return avalanche(sum + length128)
}

// word returns two tokens as one little-endian 64-bit word.
func word(lo, hi Token) uint64 { return uint64(lo) | uint64(hi)<<32 }

// Fold128 returns the exclusive or of the two halves of a*b, a product of 128 bits. XXH3 calls it mul128_fold64.
func Fold128(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

func avalanche(h uint64) uint64 {
	h ^= h >> 37
	h *= 0x165667919e3779f9
	return h ^ h>>32
}
