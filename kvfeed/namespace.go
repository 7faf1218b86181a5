package kvfeed

import (
	"crypto/sha256"
	"encoding/binary"
	"sync"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvevent"
)

// SGLang's events never contain extra_key. In two cases SGLang hashes the hash of a block once more, together with the
// request's extra_key and cache_salt: in its "dynamo" format, and for adapters with names
// (srt/disaggregation/kv_events.py: kv_event_namespace_seed, namespaced_block_hash). Then the router can try the
// extra_key values that requests carried, and see which of them gives the announced hash.

// namespaceTag is the beginning of the text that SGLang hashes to make a namespace.
const namespaceTag = "sglang-kv-event-namespace-v1"

// namespaced returns the hash under which the dynamo format announces a block of a request with these keys. A key of ""
// means that the request does not have it.
func namespaced(h kvevent.Hash, extra, salt string) kvevent.Hash {
	if extra == "" && salt == "" {
		return h
	}
	seed := []byte(namespaceTag)
	for _, part := range [...]string{extra, salt} {
		if part == "" {
			seed = append(seed, 0)
			continue
		}
		seed = append(seed, 1)
		seed = binary.LittleEndian.AppendUint64(seed, uint64(len(part)))
		seed = append(seed, part...)
	}
	sum := sha256.Sum256(seed)
	sum = sha256.Sum256(binary.BigEndian.AppendUint64(sum[:], h))
	return binary.BigEndian.Uint64(sum[:8])
}

// recentExtras is how many extra_key values of requests are remembered and tried. Each try costs two SHA-256 hashes for
// the first block of each prompt. If requests use more values at the same time, blocks of some values are not found.
const recentExtras = 16

// extras has the last values of extra_key in requests to a rank of a worker. It is safe for concurrent use.
type extras struct {
	mu     sync.Mutex
	values []string // the latest value is the last element
}

// maxExtra bounds the length of an extra_key, in bytes: longer values are not tried.
const maxExtra = 1024

func (x *extras) add(value string) {
	if len(value) > maxExtra {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := len(x.values) - 1; i >= 0; i-- {
		if x.values[i] == value {
			copy(x.values[i:], x.values[i+1:])
			x.values[len(x.values)-1] = value
			return
		}
	}
	if len(x.values) == recentExtras {
		x.values = append(x.values[:0], x.values[1:]...)
	}
	x.values = append(x.values, value)
}

// find returns the extra_key with which the first block of a prompt gets the announced hash. "" means no key.
// withoutKeys is the block's hash without keys.
func (x *extras) find(withoutKeys, announced kvevent.Hash, salt string) (extra string, ok bool) {
	if namespaced(withoutKeys, "", salt) == announced {
		return "", true
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := len(x.values) - 1; i >= 0; i-- {
		if namespaced(withoutKeys, x.values[i], salt) == announced {
			return x.values[i], true
		}
	}
	return "", false
}

// namespace takes an event with a prompt's first block, and finds the request's extra_key by the hash of that block.
// proven reports that the hash depends on the keys. Then requests with other keys have blocks with other hashes, and
// each later event can be joined to its own parent. s.mu is held.
func (s *stream) namespace(e *kvevent.Event) (extra string, known, proven bool) {
	h, err := block.NewEngineHasher(block.EngineChain{Algorithm: block.SGLangSHA256, Size: e.BlockSize, Bigram: e.Bigram})
	if err != nil || !e.Aligned() || len(e.Ahead) > 0 && !e.Bigram {
		return "", false, false
	}
	first := e.Tokens[:e.BlockSize]
	if e.Bigram {
		head, tail := e.Shifted()
		first = append(append([]block.Token{}, head...), tail[:e.BlockSize]...)
	}
	digests := h.Append(nil, h.Root("", e.Salt), first, nil)
	if len(digests) != 1 {
		return "", false, false
	}
	withoutKeys := h.Normal(digests[0])
	extra, known = s.extras.find(withoutKeys, e.Hashes[0], e.Salt)
	return extra, known, known && e.Hashes[0] != withoutKeys
}
