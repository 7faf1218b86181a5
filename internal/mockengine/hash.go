package mockengine

import (
	"cmp"
	"crypto/sha256"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/engine"
)

// engineHash returns the engine's hash chain: vLLM's sha256_cbor with its fixed seed, or SGLang's hash of pages. vLLM's
// hash covers the adapter's path and a tag before the salt; events contain neither path nor tag. If the block size is
// invalid, engineHash returns nil.
func engineHash(c *Config) engine.HashFunc {
	chain := block.EngineChain{Algorithm: block.VLLMSHA256CBOR, Size: c.BlockSize, Seed: cmp.Or(c.HashSeed, block.DefaultSeed)}
	if c.Kind == SGLang {
		chain = block.EngineChain{Algorithm: block.SGLangSHA256, Size: c.BlockSize}
	}
	hasher, err := block.NewEngineHasher(chain)
	if err != nil {
		return nil // engine.New returns the error for the block size
	}
	var requests atomic.Uint64
	return func(dst []engine.Hash, r *engine.Request, tokens []block.Token) []engine.Hash {
		start := len(dst) * c.BlockSize
		n := (len(tokens) - start) / c.BlockSize
		if n <= 0 {
			return dst
		}
		parent := r.HashState
		if start == 0 {
			parent = chainRoot(hasher, c.Kind, &r.Scope)
			if c.NoPrefixCaching { // blocks with a root of their own match no other request
				parent = block.NewDigest64(requests.Add(1))
			}
		}
		var extra [][]block.ExtraKey
		if c.Kind == VLLM {
			extra = extraKeys(r, start, n, c.BlockSize)
		}
		var room [64]block.Digest
		digests := hasher.Append(room[:0], parent, tokens[start:], extra)
		for _, d := range digests {
			dst = append(dst, engine.Hash(hasher.Normal(d)))
		}
		r.HashState = digests[len(digests)-1]
		return dst
	}
}

// chainRoot returns the hash that takes the place of the parent of a prompt's first block. Real SGLang separates the
// blocks of adapters and extra keys in its cache, but not in its hashes. The engine model finds blocks by their hashes,
// so here the root hash for SGLang also covers the adapter and the extra key. vLLM's block hashes cover the adapter
// already, and vLLM has no field extra_key.
func chainRoot(h *block.EngineHasher, kind Kind, s *block.Scope) block.Digest {
	root := h.Root("", s.Salt)
	if kind != SGLang || s.LoRA == "" && s.Extra == "" {
		return root
	}
	sum := sha256.Sum256([]byte(s.LoRA + "\x00" + s.Extra + "\x00" + string(root.Bytes())))
	d, err := block.NewDigest(sum[:])
	if err != nil {
		panic("bug: digest of 32 bytes: " + err.Error())
	}
	return d
}

// extraKeys returns the extra keys of n blocks for vLLM's hashes, one list for each block. It returns nil if the
// request has no extra keys.
func extraKeys(r *engine.Request, start, n, size int) [][]block.ExtraKey {
	if r.Scope.LoRA == "" && r.Scope.Salt == "" && len(r.Features) == 0 {
		return nil
	}
	extra := make([][]block.ExtraKey, n)
	for i := range extra {
		at := start + i*size
		if r.Scope.LoRA != "" {
			extra[i] = append(extra[i], block.TupleKey("lora", r.Scope.LoRA, pathOf(r)))
		}
		for _, f := range r.Features {
			if f.Offset < at+size && f.Offset+imageTokens > at {
				extra[i] = append(extra[i], block.PlacedKey(f.ID, f.Offset-at))
			}
		}
		if at == 0 && r.Scope.Salt != "" {
			extra[i] = append(extra[i], block.TupleKey("cache_salt", r.Scope.Salt))
		}
	}
	return extra
}

// pathOf returns the path of the adapter of a request.
func pathOf(r *engine.Request) string {
	if p, ok := r.Owner.(*progress); ok && p.adapter != "" {
		return p.adapter
	}
	return adapterPath(r.Scope.LoRA)
}

// adapterPath returns the path of an adapter of Config.LoRA.
func adapterPath(name string) string { return "/adapters/" + name }
