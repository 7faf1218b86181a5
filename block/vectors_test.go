package block

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/test/testenv"
)

// decimal is a 64-bit value as the vectors write it: text, unsigned or signed; "" is 0.
type decimal uint64

func (d *decimal) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil || s == "" {
		return err
	}
	u, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		i, err := strconv.ParseInt(s, 10, 64)
		*d = decimal(i)
		return err
	}
	*d = decimal(u)
	return nil
}

type hexBytes []byte

func (h *hexBytes) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return err
	}
	raw, err := hex.DecodeString(s)
	*h = raw
	return err
}

// extraKeyVector is one entry of extra_keys: a text, a number, [identifier, offset] or {"bytes_hex": …}.
type extraKeyVector struct{ ExtraKey }

func (e *extraKeyVector) UnmarshalJSON(b []byte) error {
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	switch v := v.(type) {
	case string:
		e.ExtraKey = TextKey(v)
	case float64:
		e.ExtraKey = numberKey(int64(v))
	case []any:
		e.ExtraKey = PlacedKey(v[0].(string), int(v[1].(float64)))
	case map[string]any:
		raw, err := hex.DecodeString(v["bytes_hex"].(string))
		e.ExtraKey = bytesKey(raw)
		return err
	}
	return nil
}

// numberKey is an extra key that is a number: the LoRA id in vLLM before 0.11.1.
func numberKey(n int64) ExtraKey { return ExtraKey{atoms: []atom{{kind: atomNumber, number: n}}} }

// bytesKey is an extra key that is a byte string: the hash of prompt embeddings.
func bytesKey(b []byte) ExtraKey {
	return ExtraKey{atoms: []atom{{kind: atomBytes, text: string(b)}}}
}

type hashVectors struct {
	VLLM []struct {
		ID            string `json:"id"`
		Algo          string
		Seed          *string  `json:"pythonhashseed"`
		EffectiveSeed string   `json:"effective_seed"`
		NoneHash      hexBytes `json:"none_hash_hex"`
		NoneInt       decimal  `json:"none_hash_int"`
		BlockSize     int      `json:"block_size"`
		Tokens        []Token
		Extra         []extraKeyVector
		Blocks        []struct {
			ExtraKeys []extraKeyVector `json:"extra_keys"`
			Hash      hexBytes         `json:"hash_hex"`
			HashInt   decimal          `json:"hash_int"`
			External  decimal          `json:"external_u64"`
			Preimage  hexBytes         `json:"preimage_hex"`
		}
		After20   []hexBytes `json:"hashes_after_20_tokens"`
		After40   []hexBytes `json:"hashes_after_40_tokens"`
		FineSize  int        `json:"hash_block_size"`
		CoarseTo  int        `json:"target_block_size"`
		Fine      []hexBytes `json:"fine_hashes"`
		Coarse    []hexBytes `json:"coarse_hashes"`
		ChunkSize int        `json:"chunk_size"`
		NumTokens int        `json:"num_tokens"`
		Unfull    bool       `json:"save_unfull_chunk"`
		Chunks    []struct {
			Start, End int
			Hash       hexBytes `json:"hash_hex"`
		}
	} `json:"vllm_block_hashes"`
	SGLang []struct {
		ID       string `json:"id"`
		PageSize int    `json:"page_size"`
		Segments [][]Token
		Salt     string `json:"cache_salt"`
		Bigram   bool
		Hashes   []hexBytes `json:"page_hash_hex"`
		Values   []decimal  `json:"event_u64"`
		Signed   []decimal  `json:"event_int64"`
		Cases    []struct {
			Tokens []Token
			Prior  *hexBytes `json:"prior_hex"`
			Hash   hexBytes  `json:"hash_hex"`
			Signed decimal   `json:"int64"`
		}
	} `json:"sglang_page_hashes"`
	FNV []struct {
		ID        string  `json:"id"`
		BlockSize int     `json:"block_size"`
		Start     decimal `json:"start_key"`
		Tokens    []Token
		Keys      []decimal
	} `json:"fnv1a_chain"`
	LLMD []struct {
		Algorithm string
		Seed      string `json:"hash_seed"`
		Model     string `json:"model_name"`
		BlockSize int    `json:"block_size"`
		Tokens    []Token
		MM        [][]string `json:"mm_hashes"`
		Parent    decimal
		ModelHash decimal `json:"model_hash"`
		Keys      []decimal
	} `json:"llmd_request_keys"`
}

func readVectors(t testing.TB) *hashVectors {
	t.Helper()
	var v hashVectors
	testenv.Vectors(t, &v)
	if len(v.VLLM) < 70 || len(v.SGLang) < 8 || len(v.FNV) < 6 || len(v.LLMD) < 12 {
		t.Fatalf("vectors are missing: %d, %d, %d, %d", len(v.VLLM), len(v.SGLang), len(v.FNV), len(v.LLMD))
	}
	return &v
}

// algorithmNamed returns the algorithm that an engine calls name.
func algorithmNamed(t testing.TB, name string) EngineAlgorithm {
	t.Helper()
	i := slices.Index(engineAlgorithmNames[:], name)
	if i < 0 {
		t.Fatalf("%q is none of %q", name, engineAlgorithmNames)
	}
	return EngineAlgorithm(i)
}

func engineHasher(t testing.TB, c EngineChain) *EngineHasher {
	t.Helper()
	h, err := NewEngineHasher(c)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func digests(raw []hexBytes) [][]byte {
	out := make([][]byte, len(raw))
	for i := range raw {
		out[i] = raw[i]
	}
	return out
}

func rawDigests(ds []Digest) [][]byte {
	out := make([][]byte, len(ds))
	for i := range ds {
		out[i] = ds[i].Bytes()
	}
	return out
}

func TestVLLMHashesAreReproduced(t *testing.T) {
	for _, v := range readVectors(t).VLLM {
		t.Run(v.ID, func(t *testing.T) {
			switch {
			case v.Coarse != nil:
				var fine []Digest
				for _, raw := range v.Fine {
					d, err := NewDigest(raw)
					if err != nil {
						t.Fatal(err)
					}
					fine = append(fine, d)
				}
				var coarse []Digest // a coarse block has the digest of its last fine block
				for n, i := v.CoarseTo/v.FineSize, v.CoarseTo/v.FineSize-1; i < len(fine); i += n {
					coarse = append(coarse, fine[i])
				}
				if len(coarse) != len(v.Coarse) {
					t.Fatalf("%d blocks of the larger size, want %d", len(coarse), len(v.Coarse))
				}
				for i, d := range coarse {
					// Older vLLM versions concatenate the digests of the fine blocks. So their digest ends with the digest
					// that this package makes for the coarse block.
					if !bytes.HasSuffix(v.Coarse[i], d.Bytes()) {
						t.Errorf("coarse block %d is %x, want %x", i, d.Bytes(), v.Coarse[i])
					}
				}
				return
			case v.Chunks != nil:
				tokens := make([]Token, v.NumTokens)
				for i := range tokens {
					tokens[i] = Token(i * 31 % 50000)
				}
				h := engineHasher(t, EngineChain{Algorithm: VLLMSHA256CBOR, Size: v.ChunkSize, Seed: *v.Seed, Tail: v.Unfull})
				got := h.Append(nil, h.Root("", ""), tokens, nil)
				var want []hexBytes
				for _, c := range v.Chunks {
					want = append(want, c.Hash)
				}
				if diff := cmp.Diff(digests(want), rawDigests(got)); diff != "" {
					t.Errorf("chunks (-want +got):\n%s", diff)
				}
				return
			}
			algorithm := algorithmNamed(t, v.Algo)
			seed := v.EffectiveSeed
			if v.Seed != nil {
				seed = *v.Seed
			} else if seed != DefaultSeed {
				t.Fatalf("seed %q, DefaultSeed is %q", seed, DefaultSeed)
			}
			h := engineHasher(t, EngineChain{Algorithm: algorithm, Size: v.BlockSize, Seed: seed})
			root := h.Root("", "")
			if v.After20 != nil {
				extra := [][]ExtraKey{{PlacedKey("img-a", 4)}}
				grown := h.Append(nil, root, v.Tokens[:20], extra)
				if diff := cmp.Diff(digests(v.After20), rawDigests(grown)); diff != "" {
					t.Errorf("after 20 tokens (-want +got):\n%s", diff)
				}
				grown = h.Append(grown, grown[0], v.Tokens[16:], nil)
				if diff := cmp.Diff(digests(v.After40), rawDigests(grown)); diff != "" {
					t.Errorf("after 40 tokens (-want +got):\n%s", diff)
				}
				return
			}
			if v.NoneHash != nil && !bytes.Equal(root.Bytes(), v.NoneHash) || v.NoneInt != 0 && h.Normal(root) != uint64(v.NoneInt) {
				t.Fatalf("root %x, want %x", root.Bytes(), v.NoneHash)
			}
			extra := make([][]ExtraKey, len(v.Blocks))
			for i, b := range v.Blocks {
				for _, k := range append(v.Extra[:len(v.Extra):len(v.Extra)], b.ExtraKeys...) {
					extra[i] = append(extra[i], k.ExtraKey)
				}
			}
			got := h.Append(nil, root, v.Tokens, extra)
			if len(got) != len(v.Blocks) {
				t.Fatalf("%d blocks, want %d", len(got), len(v.Blocks))
			}
			parent := root
			for i, b := range v.Blocks {
				if b.Hash != nil && !bytes.Equal(got[i].Bytes(), b.Hash) {
					t.Errorf("block %d is %x, want %x", i, got[i].Bytes(), b.Hash)
				}
				if h.Normal(got[i]) != uint64(b.External) {
					t.Errorf("block %d has normal form %d, want %d", i, h.Normal(got[i]), b.External)
				}
				if b.Preimage != nil {
					raw := hashInput(h, parent, v.Tokens[i*v.BlockSize:(i+1)*v.BlockSize], extra[i])
					if !bytes.Equal(raw, b.Preimage) {
						t.Errorf("input of block %d is\n%x, want\n%x", i, raw, b.Preimage)
					}
				}
				parent = got[i]
			}
		})
	}
}

// TestTheEnginesStillMakeTheseHashes makes the stored hashes again with the code of the installed engines. This takes
// half a minute, so the test runs only if WARMPATH_INTEROP is set, as `make interop` does.
func TestTheEnginesStillMakeTheseHashes(t *testing.T) {
	if os.Getenv("WARMPATH_INTEROP") == "" {
		testenv.Missing(t, "the code of vLLM and SGLang", "make test-engines interop")
	}
	for _, engine := range []string{"vllm", "sglang"} {
		t.Run(engine, func(t *testing.T) {
			python := testenv.Installed(t, "engines/"+engine+"/venv/bin/python", "make test-engines")
			cmd := exec.Command(python, testenv.Path(t, "vectors/check.py"), engine)
			cmd.Env = append(os.Environ(), "VLLM_TARGET_DEVICE=cpu")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

func hashInput(h *EngineHasher, parent Digest, tokens []Token, extra []ExtraKey) []byte {
	raw, _ := h.block(nil, parent, tokens, extra)
	return raw
}

func TestSGLangHashesAreReproduced(t *testing.T) {
	for _, v := range readVectors(t).SGLang {
		t.Run(v.ID, func(t *testing.T) {
			for i, c := range v.Cases {
				h := engineHasher(t, EngineChain{Algorithm: SGLangSHA256, Size: len(c.Tokens)})
				var prior Digest
				if c.Prior != nil {
					var err error
					if prior, err = NewDigest(*c.Prior); err != nil {
						t.Fatal(err)
					}
				}
				got := h.Append(nil, prior, c.Tokens, nil)
				if len(got) != 1 || !bytes.Equal(got[0].Bytes(), c.Hash) || h.Normal(got[0]) != uint64(c.Signed) {
					t.Errorf("case %d: %x, want %x", i, rawDigests(got), []byte(c.Hash))
				}
			}
			if v.Cases != nil {
				return
			}
			var tokens []Token
			for _, s := range v.Segments {
				tokens = append(tokens, s...)
			}
			h := engineHasher(t, EngineChain{Algorithm: SGLangSHA256, Size: v.PageSize, Bigram: v.Bigram})
			got := h.Append(nil, h.Root("", v.Salt), tokens, nil)
			if diff := cmp.Diff(digests(v.Hashes), rawDigests(got)); diff != "" {
				t.Fatalf("pages (-want +got):\n%s", diff)
			}
			for i, d := range got {
				if h.Normal(d) != uint64(v.Values[i]) || h.Normal(d) != uint64(v.Signed[i]) {
					t.Errorf("page %d has normal form %d, want %d", i, h.Normal(d), v.Values[i])
				}
			}
		})
	}
}

func TestFNV1aChainIsReproduced(t *testing.T) {
	for _, v := range readVectors(t).FNV {
		h := newHasher(t, FNV1a, v.BlockSize)
		if h.Root(Scope{}) != 0 {
			t.Fatal("the empty scope is not rooted at 0")
		}
		got := h.Append(nil, Key(v.Start), 0, v.Tokens, nil)
		var want []Key
		for _, k := range v.Keys {
			want = append(want, Key(k))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", v.ID, diff)
		}
	}
}

func TestLLMDRequestKeysAreReproduced(t *testing.T) {
	for i, v := range readVectors(t).LLMD {
		h := engineHasher(t, EngineChain{Algorithm: algorithmNamed(t, v.Algorithm), Size: v.BlockSize, Seed: v.Seed})
		parent := h.Root(v.Model, "")
		if v.ModelHash != 0 && h.Normal(parent) != uint64(v.ModelHash) {
			t.Errorf("case %d: model hash %d, want %d", i, h.Normal(parent), v.ModelHash)
		}
		if v.Parent != 0 {
			parent = NewDigest64(uint64(v.Parent))
		}
		extra := make([][]ExtraKey, len(v.MM))
		for b, ids := range v.MM {
			for _, id := range ids {
				extra[b] = append(extra[b], TextKey(id))
			}
		}
		var got []decimal
		for _, d := range h.Append(nil, parent, v.Tokens, extra) {
			got = append(got, decimal(h.Normal(d)))
		}
		if diff := cmp.Diff(v.Keys, got); diff != "" {
			t.Errorf("case %d, %s (-want +got):\n%s", i, v.Algorithm, diff)
		}
	}
}

func TestSeedAndAlgorithmOfAnEngineAreFound(t *testing.T) {
	for _, v := range readVectors(t).VLLM {
		if v.Chunks != nil || v.Coarse != nil || v.After20 != nil || len(v.Blocks) == 0 {
			continue
		}
		s := EngineSample{Size: v.BlockSize, Tokens: v.Tokens}
		for _, b := range v.Blocks {
			var keys []ExtraKey
			for _, k := range append(v.Extra[:len(v.Extra):len(v.Extra)], b.ExtraKeys...) {
				keys = append(keys, k.ExtraKey)
			}
			s.Hashes = append(s.Hashes, uint64(b.External))
			s.Extra = append(s.Extra, keys)
		}
		chain, ok := IdentifyEngine(s, "0", "42", "123", "", "random")
		if !ok || chain.Algorithm.String() != v.Algo || v.Seed != nil && chain.Seed != *v.Seed {
			t.Errorf("%s: found %v %+v", v.ID, ok, chain)
		}
		s.Hashes[len(s.Hashes)-1]++
		if chain, ok := IdentifyEngine(s, "0", "42", "123", "", "random"); ok {
			t.Errorf("%s: a wrong hash was explained by %+v", v.ID, chain)
		}
	}
	for _, v := range readVectors(t).SGLang {
		if v.Cases != nil || v.Bigram {
			continue
		}
		s := EngineSample{Size: v.PageSize, Salt: v.Salt}
		for _, segment := range v.Segments {
			s.Tokens = append(s.Tokens, segment...)
		}
		for _, h := range v.Values {
			s.Hashes = append(s.Hashes, uint64(h))
		}
		if chain, ok := IdentifyEngine(s, "0"); !ok || chain.Algorithm != SGLangSHA256 {
			t.Errorf("%s: found %v %+v", v.ID, ok, chain)
		}
	}
}

func TestImpossibleChainsAreRefused(t *testing.T) {
	for _, c := range []EngineChain{
		{Algorithm: numEngineAlgorithms, Size: 16},
		{Algorithm: VLLMSHA256CBOR},
		{Algorithm: VLLMSHA256CBOR, Size: MaxSize + 1},
		{Algorithm: VLLMSHA256, Size: maxPickledBlock + 1},
		{Algorithm: VLLMSHA256, Size: 16, Bigram: true},
	} {
		if _, err := NewEngineHasher(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
	if _, ok := IdentifyEngine(EngineSample{Size: 16, Hashes: []uint64{1}, Tokens: make([]Token, 15)}); ok {
		t.Error("a sample with fewer tokens than hashes was explained")
	}
	for _, n := range []int{0, 7, 33} {
		if _, err := NewDigest(make([]byte, n)); err == nil {
			t.Errorf("a digest of %d bytes was accepted", n)
		}
	}
}

func FuzzEngineChainsHashAnything(f *testing.F) {
	f.Add([]byte("0123456789abcdef0123456789abcdef"), uint8(3), "42", "img", int64(-7))
	f.Fuzz(func(t *testing.T, raw []byte, size uint8, seed, id string, number int64) {
		tokens := make([]Token, len(raw)/2)
		for i := range tokens {
			tokens[i] = Token(raw[2*i])<<24 | Token(raw[2*i+1])
		}
		extra := [][]ExtraKey{{TextKey(id), numberKey(number), bytesKey(raw), PlacedKey(id, int(number)), TupleKey(), TupleKey(id, seed)}, {}}
		for a := range numEngineAlgorithms {
			for _, options := range []EngineChain{{}, {Tail: true}, {Bigram: true}} {
				options.Algorithm, options.Size, options.Seed = a, int(size), seed
				h, err := NewEngineHasher(options)
				if err != nil {
					continue
				}
				got := h.Append(nil, h.Root(id, seed), tokens, extra)
				if want := len(tokens) / int(size); !options.Tail && !options.Bigram && len(got) != want {
					t.Fatalf("%v: %d digests, want %d", a, len(got), want)
				}
			}
		}
	})
}
