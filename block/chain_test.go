package block

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/xxh3"
)

var oddSizes = []int{1, 2, 3, 4, 8, 15, 16, 17, 31, 32, 33, 60, 61, 64, 100, 128, 255, 256, 257, 511, 1024, 4000, 65536}

func TestLocalsAreXXH3OfTheTokens(t *testing.T) {
	for _, size := range oddSizes {
		h := newHasher(t, XXH3, size)
		tokens := someTokens(3*size + size/2)
		var want []uint64
		for i := 0; i+size <= len(tokens); i += size {
			var b []byte
			for _, token := range tokens[i : i+size] {
				b = binary.LittleEndian.AppendUint32(b, token)
			}
			want = append(want, xxh3.Hash(b))
			if got := localPortable(tokens[i : i+size]); got != want[len(want)-1] {
				t.Errorf("block size %d: the portable code gives %x, want %x", size, got, want[len(want)-1])
			}
		}
		if diff := cmp.Diff(want, h.Locals(nil, tokens)); diff != "" {
			t.Errorf("block size %d (-want +got):\n%s", size, diff)
		}
	}
}

// Append must give the keys that the formula of docs/design/0006 gives. This test computes the formula step by step.
func TestKeysAreSumsOfTermsOfBlocksAndPlaces(t *testing.T) {
	for _, size := range oddSizes {
		h := newHasher(t, XXH3, size)
		key := h.Root(Scope{Model: "m"})
		tokens := someTokens(3*size + size/2)
		var want []Key
		for i, local := range h.Locals(nil, tokens) {
			hi, lo := bits.Mul64(local^uint64(i+1)*0x9e3779b97f4a7c15, 0x9fb21c651e98df25)
			key += Key(hi ^ lo)
			want = append(want, key)
		}
		if diff := cmp.Diff(want, h.Append(nil, h.Root(Scope{Model: "m"}), 0, tokens, nil)); diff != "" {
			t.Errorf("block size %d (-want +got):\n%s", size, diff)
		}
	}
}

// Two routers must make the same keys, even if their versions differ. So these keys must not change.
func TestKeysStayWhatTheyAre(t *testing.T) {
	tokens := make([]Token, 256)
	for i := range tokens {
		tokens[i] = Token(i * 7)
	}
	for size, want := range goldenKeys {
		h := newHasher(t, XXH3, size)
		root := h.Root(Scope{Model: "m", LoRA: "l", Salt: "s", Extra: "e"})
		keys := h.Append(nil, root, 0, tokens, []Feature{{ID: "image", Offset: 3}})
		if got := [2]Key{keys[0], keys[len(keys)-1]}; got != want {
			t.Errorf("block size %d: first and last key %#x, want %#x", size, got, want)
		}
	}
}

var goldenKeys = map[int][2]Key{
	1:  {0xf5537206037ab681, 0x8368d5b91c89debc},
	16: {0xd252a66bfd75bf2d, 0xce80e18cd156de04},
	32: {0x5eafdd98775bbd1e, 0xb4d74fc71a9e65df},
	64: {0x7026163f7c2db76b, 0x2f226bf7ff05a040},
}

func TestChainOfLocalsIsAppend(t *testing.T) {
	for _, size := range []int{1, 4, 16, 24, 32, 64, 300} {
		h := newHasher(t, XXH3, size)
		root := h.Root(Scope{Model: "m"})
		tokens := someTokens(20*size + size/3)
		want := h.Append(nil, root, 0, tokens, nil)
		locals := h.Locals(nil, tokens)
		if diff := cmp.Diff(want, h.Chain(nil, root, 0, locals)); diff != "" {
			t.Fatalf("block size %d (-append +chain):\n%s", size, diff)
		}
		for cut := range locals {
			head := h.Chain(nil, root, 0, locals[:cut])
			parent := root
			if cut > 0 {
				parent = head[cut-1]
			}
			if diff := cmp.Diff(want, h.Chain(head, parent, cut*size, locals[cut:])); diff != "" {
				t.Fatalf("block size %d cut at %d (-append +chain):\n%s", size, cut, diff)
			}
		}
	}
}

func TestFNV1aHasNoLocals(t *testing.T) {
	h := newHasher(t, FNV1a, 16)
	for name, f := range map[string]func(){
		"Locals": func() { h.Locals(nil, someTokens(16)) },
		"Chain":  func() { h.Chain(nil, 0, 0, []uint64{1}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s did not panic", name)
				}
			}()
			f()
		}()
	}
}

func TestLocalsAndChainAllocateNothing(t *testing.T) {
	for _, size := range []int{1, 16, 32, 64, 256, 1000} {
		h := newHasher(t, XXH3, size)
		tokens := someTokens(4000)
		locals, keys := make([]uint64, 0, 4000), make([]Key, 0, 4000)
		if n := testing.AllocsPerRun(20, func() {
			locals = h.Locals(locals[:0], tokens)
			keys = h.Chain(keys[:0], 1, 0, locals)
		}); n != 0 {
			t.Errorf("block size %d: %v allocations", size, n)
		}
	}
}

func TestEveryBitOfEveryTokenPlaceAndParentCounts(t *testing.T) {
	for _, size := range []int{1, 16, 32, 64} {
		h := newHasher(t, XXH3, size)
		tokens := someTokens(4 * size)
		base := h.Append(nil, 1, 0, tokens, nil)
		flips := 0
		for bit := range 32 * len(tokens) {
			tokens[bit/32] ^= 1 << (bit % 32)
			got := h.Append(nil, 1, 0, tokens, nil)
			tokens[bit/32] ^= 1 << (bit % 32)
			first := bit / 32 / size
			for i := range got {
				if (got[i] == base[i]) != (i < first) {
					t.Fatalf("block size %d, bit %d of token %d: key %d is %x and was %x", size, bit%32, bit/32, i, got[i], base[i])
				}
			}
			flips += bits.OnesCount64(uint64(got[len(got)-1] ^ base[len(base)-1]))
		}
		if mean := float64(flips) / float64(32*len(tokens)); mean < 29 || mean > 35 {
			t.Errorf("block size %d: a flipped bit changes %.1f bits of the last key", size, mean)
		}
		for bit := range 64 {
			got := h.Append(nil, 1^1<<bit, 0, tokens, nil)
			for i := range got {
				if got[i] == base[i] {
					t.Errorf("block size %d: bit %d of the parent does not count for key %d", size, bit, i)
				}
			}
		}
		if moved := h.Append(nil, 1, size, tokens, nil); slices.Equal(moved, base) {
			t.Errorf("block size %d: the position of a block does not change its key", size)
		}
	}
}

// A key is a sum of terms, one for each block, so keys could be equal for the same blocks in another order. The test
// makes all words of a length from a few different blocks (the alphabet): all beginnings of these words must have
// different keys.
func TestOrdersAndRepetitionsOfFewBlocksDiffer(t *testing.T) {
	h := newHasher(t, XXH3, 16)
	for _, alphabet := range [][]Token{{0, 1}, {0, 1 << 31}, {5, 7, 9}, {1, 2, 3, 4}} {
		var locals []uint64
		for _, token := range alphabet {
			locals = append(locals, h.Locals(nil, slices.Repeat([]Token{token}, 16))...)
		}
		length, total := 0, 1
		for total*len(locals) <= 1<<18 {
			length, total = length+1, total*len(locals)
		}
		seen := make([]Key, 0, 2*total)
		chain, keys := make([]uint64, length), make([]Key, 0, length)
		for n := range total {
			for i, rest := 0, n; i < length; i, rest = i+1, rest/len(locals) {
				chain[length-1-i] = locals[rest%len(locals)] // the last block changes fastest
			}
			keys = h.Chain(keys[:0], 1, 0, chain)
			// The word differs from the word before in its last fresh+1 blocks. Only the keys of these blocks are new.
			fresh := 0
			for rest := n; rest > 0 && rest%len(locals) == 0; rest /= len(locals) {
				fresh++
			}
			if n == 0 {
				fresh = length - 1
			}
			seen = append(seen, keys[length-1-min(fresh, length-1):]...)
		}
		want := len(seen)
		slices.Sort(seen)
		if got := len(slices.Compact(seen)); got != want {
			t.Errorf("%d symbols: %d of %d beginnings share a key", len(alphabet), want-got, want)
		}
	}
}

func TestLongRunsOfOneBlockDiffer(t *testing.T) {
	for _, size := range []int{1, 16, 64} {
		h := newHasher(t, XXH3, size)
		var keys []Key
		for token := range Token(8) {
			keys = h.Append(keys, 1, 0, slices.Repeat([]Token{token}, 10_000*size), nil)
		}
		slices.Sort(keys)
		if n := len(slices.Compact(keys)); n != 80_000 {
			t.Errorf("block size %d: %d different keys of 80,000", size, n)
		}
	}
}

// Thue-Morse words are known to collide under every polynomial hash modulo 2^64.
func TestThueMorseWordsDiffer(t *testing.T) {
	h := newHasher(t, XXH3, 16)
	ab := h.Locals(nil, someTokens(32))
	word, inverse := make([]uint64, 1<<14), make([]uint64, 1<<14)
	for i := range word {
		word[i], inverse[i] = ab[bits.OnesCount(uint(i))%2], ab[1-bits.OnesCount(uint(i))%2]
	}
	a, b := h.Chain(nil, 1, 0, word), h.Chain(nil, 1, 0, inverse)
	for i := range a {
		if a[i] == b[i] {
			t.Fatalf("prefixes of %d blocks have the same key", i+1)
		}
	}
}

// Among n random numbers of b bits, n²/2^(b+1) pairs are expected to be equal. If keys are cut to 28 neighbouring bits,
// about as many pairs of keys must be equal.
func TestKeysCollideAsOftenAsChance(t *testing.T) {
	h := newHasher(t, XXH3, 16)
	r := rand.New(rand.NewPCG(7, 7))
	const n = 1 << 18
	sources := map[string]func(i int) []Token{
		"random":   func(int) []Token { return someRandom(r, 64*16) },
		"counting": func(i int) []Token { return counted(i, 64*16) },
		"few":      func(int) []Token { return fewWords(r, 64*16) },
	}
	for name, source := range sources {
		keys := make([]Key, 0, n)
		for i := 0; len(keys) < n; i++ {
			keys = h.Append(keys, 1, 0, source(i), nil)
		}
		slices.Sort(keys)
		keys = slices.Compact(keys)
		want := float64(len(keys)) * float64(len(keys)) / (1 << 29) // 128 for 2^18 keys
		cut := make([]uint32, len(keys))
		for shift := 0; shift <= 36; shift += 6 {
			for i, k := range keys {
				cut[i] = uint32(k>>shift) & (1<<28 - 1)
			}
			slices.Sort(cut)
			pairs := len(cut) - len(slices.Compact(cut))
			if float64(pairs) > want*1.5 || float64(pairs) < want/1.5 {
				t.Errorf("%s: %d keys have equal bits %d to %d, want about %.0f", name, pairs, shift, shift+27, want)
			}
		}
	}
}

func someRandom(r *rand.Rand, n int) []Token {
	tokens := make([]Token, n)
	for i := range tokens {
		tokens[i] = r.Uint32N(150_000)
	}
	return tokens
}

// counted returns a prompt of n tokens that are 0, except the first token, which is i.
func counted(i, n int) []Token {
	tokens := make([]Token, n)
	tokens[0] = Token(i)
	return tokens
}

// fewWords returns a random prompt of n tokens. A block of 16 tokens has one of only four contents.
func fewWords(r *rand.Rand, n int) []Token {
	tokens := make([]Token, n)
	for i := range tokens {
		if i%16 == 0 {
			tokens[i] = r.Uint32N(4)
		}
	}
	return tokens
}

func FuzzLocalsAndChainAreAppend(f *testing.F) {
	f.Add([]byte("some bytes that are tokens in fours, long enough for a few blocks"), uint16(3), uint64(1), uint8(2))
	f.Fuzz(func(t *testing.T, raw []byte, size uint16, parent uint64, start uint8) {
		h, err := NewHasher(XXH3, int(size))
		if err != nil {
			return
		}
		tokens := make([]Token, len(raw)/4)
		for i := range tokens {
			tokens[i] = binary.LittleEndian.Uint32(raw[4*i:])
		}
		from := int(start) * h.Size()
		whole := h.Append(nil, Key(parent), from, tokens, nil)
		if chained := h.Chain(nil, Key(parent), from, h.Locals(nil, tokens)); !slices.Equal(whole, chained) {
			t.Fatalf("Append says %x, Chain of Locals %x", whole, chained)
		}
	})
}

func ExampleHasher_Chain() {
	h, _ := NewHasher(XXH3, 4)
	root := h.Root(Scope{Model: "m"})
	tokens := []Token{1, 2, 3, 4, 5, 6, 7, 8}
	locals := h.Locals(nil, tokens)
	fmt.Println(slices.Equal(h.Chain(nil, root, 0, locals), h.Append(nil, root, 0, tokens, nil)))
	// Output: true
}
