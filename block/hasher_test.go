package block

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func newHasher(t testing.TB, a Algorithm, size int) *Hasher {
	t.Helper()
	h, err := NewHasher(a, size)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func someTokens(n int) []Token {
	r := rand.New(rand.NewPCG(1, uint64(n)))
	tokens := make([]Token, n)
	for i := range tokens {
		tokens[i] = r.Uint32()
	}
	return tokens
}

func TestSizeIsBounded(t *testing.T) {
	for _, size := range []int{-1, 0, MaxSize + 1} {
		if _, err := NewHasher(XXH3, size); err == nil {
			t.Errorf("size %d was accepted", size)
		}
	}
	if _, err := NewHasher(FNV1a+1, 16); err == nil {
		t.Error("an unknown algorithm was accepted")
	}
}

func TestAlgorithmsAreParsedByName(t *testing.T) {
	for _, a := range []Algorithm{XXH3, FNV1a} {
		if got, err := ParseAlgorithm(a.String()); err != nil || got != a {
			t.Errorf("%s: %v, %v", a, got, err)
		}
	}
	if _, err := ParseAlgorithm("md5"); err == nil || err.Error() != `"md5" is none of xxh3, fnv1a` {
		t.Errorf("an unknown name: %v", err)
	}
}

// The numbers were computed in Python by the formula at [FNV1a], from the parent 0 on.
func TestKeysOfFNV1aAreThoseOfOtherPrograms(t *testing.T) {
	h := newHasher(t, FNV1a, 16)
	var tokens []Token
	for i := range Token(32) {
		tokens = append(tokens, i+1)
	}
	got := h.Append(nil, h.Root(Scope{}), 0, tokens, nil)
	if want := []Key{0xe7ecfb4f6e006495, 0x8ec28982cb577b3a}; !slices.Equal(got, want) {
		t.Errorf("%x, want %x", got, want)
	}
}

func TestRootsOfDifferentScopesDiffer(t *testing.T) {
	scopes := []Scope{
		{}, {Model: "a"}, {LoRA: "a"}, {Salt: "a"}, {Extra: "a"},
		{Model: "ab"}, {Model: "a", LoRA: "b"}, {Model: "a", Salt: "b"}, {Model: "a", Extra: "b"},
		{LoRA: "a", Salt: "b"}, {Model: "a\x00b"}, {Model: "a", LoRA: "\x00b"}, {Salt: "ab"},
	}
	for _, a := range []Algorithm{XXH3, FNV1a} {
		h := newHasher(t, a, 16)
		seen := map[Key]Scope{}
		for _, s := range scopes {
			root := h.Root(s)
			if other, ok := seen[root]; ok {
				t.Errorf("%d: %+v and %+v share the root %x", a, s, other, root)
			}
			seen[root] = s
		}
	}
}

func TestChainContinuesWhereItWasCut(t *testing.T) {
	features := []Feature{{"late", 100}, {"img-a", 5}, {"img-b", 33}, {"img-c", 33}, {"img-d", 64}}
	for _, size := range []int{1, 4, 16, 24, 32} {
		h := newHasher(t, XXH3, size)
		root := h.Root(Scope{Model: "m"})
		tokens := someTokens(5 * 96)
		whole := h.Append(nil, root, 0, tokens, features)
		for cut := 0; cut <= len(tokens); cut += size {
			head := h.Append(nil, root, 0, tokens[:cut], features)
			parent := root
			if len(head) > 0 {
				parent = head[len(head)-1]
			}
			if diff := cmp.Diff(whole, h.Append(head, parent, cut, tokens[cut:], features)); diff != "" {
				t.Fatalf("block size %d cut at %d (-whole +cut):\n%s", size, cut, diff)
			}
		}
	}
}

func TestEventAndRequestSideFoldFeaturesAlike(t *testing.T) {
	h := newHasher(t, XXH3, 16)
	root := h.Root(Scope{Model: "m"})
	tokens := someTokens(96)
	request := h.Append(nil, root, 0, tokens, []Feature{{"img", 5}, {"clip", 40}})
	// The event has the blocks 2 to 5, and lists each feature twice and out of order. The feature img starts in block 0,
	// before the blocks of the event.
	event := h.Append(nil, request[1], 32, tokens[32:], []Feature{{"clip", 40}, {"img", 5}, {"clip", 40}, {"img", 5}})
	if diff := cmp.Diff(request[2:], event); diff != "" {
		t.Errorf("keys (-request +event):\n%s", diff)
	}
}

func TestFeaturesChangeTheirBlockAndAllAfterIt(t *testing.T) {
	h := newHasher(t, XXH3, 16)
	tokens := someTokens(64)
	plain := h.Append(nil, 0, 0, tokens, nil)
	variants := [][]Feature{
		{{"a", 20}}, {{"b", 20}}, {{"a", 21}}, {{"a", 16}}, {{"a", 31}},
		{{"a", 20}, {"b", 20}}, {{"ab", 20}}, {{"a", 20}, {"b", 21}}, {{"", 20}},
	}
	seen := map[Key]int{plain[1]: -1}
	for i, features := range variants {
		keys := h.Append(nil, 0, 0, tokens, features)
		if keys[0] != plain[0] {
			t.Errorf("%v changed a block before it", features)
		}
		if other, ok := seen[keys[1]]; ok {
			t.Errorf("%v and variant %d have the same key", features, other)
		}
		seen[keys[1]] = i
		if keys[2] == plain[2] || keys[3] == plain[3] {
			t.Errorf("%v did not change the blocks after it", features)
		}
	}
	swapped := h.Append(nil, 0, 0, tokens, []Feature{{"b", 20}, {"a", 20}})
	if diff := cmp.Diff(h.Append(nil, 0, 0, tokens, variants[5]), swapped); diff != "" {
		t.Errorf("the order of features changes the keys:\n%s", diff)
	}
}

func TestAppendAllocatesNothing(t *testing.T) {
	features := []Feature{{"img-a", 5}, {"img-b", 900}, {"img-c", 901}}
	for _, a := range []Algorithm{XXH3, FNV1a} {
		for _, size := range []int{1, 16, 32, 64, 256, 1000} {
			h := newHasher(t, a, size)
			tokens := someTokens(2000)
			dst := make([]Key, 0, len(tokens))
			allocs := testing.AllocsPerRun(20, func() {
				root := h.Root(Scope{Model: "some/model-name-of-usual-length", LoRA: "sql", Salt: "tenant-a"})
				dst = h.Append(dst[:0], root, 0, tokens, features)
			})
			if allocs != 0 {
				t.Errorf("algorithm %d block size %d: %v allocations, want 0", a, size, allocs)
			}
		}
	}
}

func FuzzAppendAgreesUnderAnyCut(f *testing.F) {
	f.Add([]byte("some bytes that are tokens in fours, long enough for a few blocks"), uint8(3), "img", 7, uint8(2))
	f.Fuzz(func(t *testing.T, raw []byte, size uint8, id string, offset int, cut uint8) {
		h, err := NewHasher(XXH3, int(size))
		if err != nil {
			return
		}
		tokens := make([]Token, len(raw)/4)
		for i := range tokens {
			tokens[i] = binary.LittleEndian.Uint32(raw[4*i:])
		}
		features := []Feature{{id, offset}, {id, offset / 2}}
		whole := h.Append(nil, 1, 0, tokens, features)
		at := min(int(cut), len(whole))
		parent := Key(1)
		if at > 0 {
			parent = whole[at-1]
		}
		rest := h.Append(nil, parent, at*int(size), tokens[at*int(size):], features)
		if other := h.Append(nil, 1, 0, tokens, []Feature{features[1], features[0]}); !slices.Equal(whole, other) {
			t.Fatalf("%x, and %x with the features in another order", whole, other)
		}
		if len(whole)-at != len(rest) {
			t.Fatalf("%d keys in one piece, %d+%d in two", len(whole), at, len(rest))
		}
		for i, k := range rest {
			if k != whole[at+i] {
				t.Fatalf("key %d differs when cut at block %d", at+i, at)
			}
		}
	})
}

func TestAFeatureOnABlocksLastTokenStaysOutOfTheNextBlock(t *testing.T) {
	h, _ := NewHasher(XXH3, 4)
	tokens := []Token{1, 2, 3, 4, 5, 6, 7, 8}
	features := []Feature{{ID: "a", Offset: 3}, {ID: "b", Offset: 6}}
	whole := h.Append(nil, 1, 0, tokens, features)
	if second := h.Append(nil, whole[0], 4, tokens[4:], features[1:]); second[0] != whole[1] {
		t.Errorf("the second block has key %d with the first block's features listed and %d without", whole[1], second[0])
	}
}
