package publish

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvevent"
)

// Hash is an engine's hash of a block, as a number. Only equality matters to a router.
type Hash = kvevent.Hash

// Stored says that blocks are cached.
//
// A block is cached for its tokens, for all tokens before them, and for LoRAName, CacheSalt and the extra keys. A
// router finds a block by these, not by the engine's hash.
type Stored struct {
	// TokenIDs has the tokens of the blocks, without the tokens of earlier blocks. If it is empty, the event is a
	// placeholder: it says that blocks which an earlier event described are now also on Medium.
	TokenIDs []block.Token
	// BlockSize is the number of tokens in a block. 0 means Config.BlockSize.
	BlockSize int
	// BlockHashes has one hash for each block, as numbers. BlockDigests has them as byte strings of 8 to 64 bytes. An
	// event has one of the two, and all events of a batch have the same one.
	BlockHashes  []Hash
	BlockDigests [][]byte
	// ParentHash, if HasParent is set, or ParentDigest is the hash of the block before the first token. Without a parent
	// the tokens begin a prompt.
	HasParent    bool
	ParentHash   Hash
	ParentDigest []byte

	LoRAName string // name of the adapter with which the blocks were computed; "": none
	LoRAID   *int64 // number of the adapter, which vLLM still sends; nil: none. A router needs LoRAName.
	// CacheSalt keeps prompts apart that other requests must not share; "": none. It is part of a prompt's first block, so
	// the event of a later block does not need it.
	CacheSalt string
	// ExtraKeys has, for each block, further keys of the block: items such as images, and digests of prompt embeddings. It
	// may be nil. Otherwise it has one element for each block.
	ExtraKeys [][]ExtraKey

	// Medium says where the blocks are: "GPU", "CPU", "STORAGE", or another name that routers know (see the README). ""
	// means "GPU".
	Medium string
	Group  *int // number of the cache group in a model with several (group_idx); nil: the model has one
	// Kind is the kind of the cache group (kv_cache_spec_kind), such as "full_attention" or "sliding_window"; "": full
	// attention. Window is the size of the sliding window in tokens; 0: none. In groups without full attention the number
	// of tokens need not fit the number of hashes, because such groups skip blocks.
	Kind   string
	Window int
}

// Removed says that one copy of each block is gone.
type Removed struct {
	BlockHashes  []Hash   // hashes as numbers, as Stored had them
	BlockDigests [][]byte // hashes as byte strings, as Stored had them
	Medium       string   // where the blocks were, as Stored had it; "": "GPU"
	Group        *int     // number of the cache group, as Stored had it; nil: none
}

// Event is one event of a batch. Exactly one of its fields is set.
type Event struct {
	Stored  *Stored
	Removed *Removed
	Cleared bool // every block on the GPU is gone; blocks on other media stay
}

// ExtraKey is a key of a block besides its tokens. [Item] and [Embedding] make an ExtraKey.
type ExtraKey struct {
	id     string
	offset int
	digest []byte
}

// Item returns the key of a multimodal item. The offset is the position of the item's first token relative to the
// block's first token. It is negative if the item begins in an earlier block. An item is a key of each block that it
// covers.
func Item(id string, offset int) ExtraKey { return ExtraKey{id: id, offset: offset} }

// Embedding returns the key of a block that was computed from prompt embeddings: a digest of the embeddings, 1 to 64
// bytes. The token ids of such a block have no meaning.
func Embedding(digest []byte) ExtraKey { return ExtraKey{digest: digest} }

// Errors of publishing. An error about an event wraps ErrInvalid, says which field is wrong, and means that nothing was
// published.
var (
	ErrInvalid  = errors.New("invalid event")
	ErrTooLarge = errors.New("batch is too large: publish its events in several batches")
)

// These bounds are those of the readers: a larger value would make a reader skip the event or cut the connection.
const (
	maxBlockSize = block.MaxSize
	maxGroup     = 1 << 16
	maxInt32     = 1<<31 - 1 // largest window and offset, in tokens
	maxText      = 1024      // bytes of a name, a salt or an identifier
	minDigest    = 8         // bytes; readers take the last 8
	maxDigest    = 64
	// maxPayload bounds the payload of a message. It is below 64 MiB, the largest frame that Warmpath's subscribers read.
	maxPayload = 64<<20 - 1024
)

// media has the names of media that routers know: GPU memory, host memory (2 names), disks (3) and shared or remote
// storage (3). Small letters are refused: "cpu" is the word of connectors that announce no removals, so a router would
// doubt the blocks. A router would take an unknown name for remote storage.
var media = []string{"GPU", "CPU", "CPU_PINNED", "DISK", "FS", "STORAGE", "OBJ", "EXTERNAL", "SHARED_STORAGE"}

// fullAttention has the kinds whose blocks have all their tokens in the event.
var fullAttention = map[string]bool{"": true, "full_attention": true, "mla_attention": true, "sink_full_attention": true}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// form is the form of the hashes in a batch.
type form uint8

const (
	formUnknown form = iota
	formNumbers
	formDigests
)

// check returns the error of an event of a batch whose events so far have hashes of the form f, and the form after it.
func (e *Event) check(size int, f form) (form, error) {
	n := 0
	for _, set := range [...]bool{e.Stored != nil, e.Removed != nil, e.Cleared} {
		if set {
			n++
		}
	}
	switch {
	case n != 1:
		return f, invalid("set exactly one of Stored, Removed and Cleared")
	case e.Stored != nil:
		return e.Stored.check(size, f)
	case e.Removed != nil:
		return e.Removed.check(f)
	}
	return f, nil
}

func (e *Removed) check(f form) (form, error) {
	f, n, err := checkHashes(e.BlockHashes, e.BlockDigests, f)
	if err != nil {
		return f, err
	}
	if n == 0 {
		return f, invalid("a removed event without block_hashes")
	}
	return f, checkPlace(e.Medium, e.Group)
}

func (e *Stored) check(size int, f form) (form, error) {
	f, n, err := checkHashes(e.BlockHashes, e.BlockDigests, f)
	if err != nil {
		return f, err
	}
	if e.ParentDigest != nil {
		if f == formNumbers || e.HasParent {
			return f, invalid("parent_hash has another form than block_hashes: use numbers or byte strings for all")
		}
		if err := checkDigest(e.ParentDigest); err != nil {
			return f, err
		}
		f = formDigests
	}
	if e.HasParent {
		if f == formDigests {
			return f, invalid("parent_hash has another form than block_hashes: use numbers or byte strings for all")
		}
		f = formNumbers
	}
	if err := e.checkTokens(size, n); err != nil {
		return f, err
	}
	if err := checkTexts(e.LoRAName, e.CacheSalt, e.Kind); err != nil {
		return f, err
	}
	if e.LoRAID != nil && *e.LoRAID < 0 {
		return f, invalid("lora_id %d is negative", *e.LoRAID)
	}
	if e.Window < 0 || e.Window > maxInt32 {
		return f, invalid("kv_cache_spec_sliding_window %d is not within 0..%d", e.Window, maxInt32)
	}
	if err := e.checkExtraKeys(n); err != nil {
		return f, err
	}
	return f, checkPlace(e.Medium, e.Group)
}

func (e *Stored) checkTokens(size, n int) error {
	full := fullAttention[e.Kind]
	switch {
	case size < 0 || size > maxBlockSize:
		return invalid("block size %d is not within 0..%d", size, maxBlockSize)
	case len(e.TokenIDs) == 0 && n == 0:
		return invalid("a stored event without token_ids and block_hashes")
	case len(e.TokenIDs) == 0:
		return nil
	case size == 0:
		return invalid("no block size: set the publisher's block size, or the event's")
	case full && n == 0:
		return invalid("a stored event without block_hashes")
	case full && len(e.TokenIDs) != n*size:
		return invalid("%d token_ids for %d blocks of %d tokens: only full blocks can be announced", len(e.TokenIDs), n, size)
	}
	return nil
}

func (e *Stored) checkExtraKeys(n int) error {
	if e.ExtraKeys == nil {
		return nil
	}
	if len(e.ExtraKeys) != n {
		return invalid("extra_keys has %d elements for %d blocks", len(e.ExtraKeys), n)
	}
	if len(e.TokenIDs) == 0 {
		return invalid("extra_keys without token_ids")
	}
	for _, keys := range e.ExtraKeys {
		for _, k := range keys {
			switch {
			case k.digest != nil:
				if len(k.digest) < 1 || len(k.digest) > maxDigest {
					return invalid("an extra key of %d bytes is not within 1..%d", len(k.digest), maxDigest)
				}
			case k.id == "":
				return invalid("an extra key without an identifier")
			case k.offset < -maxInt32 || k.offset > maxInt32:
				return invalid("the offset %d of an extra key is not within ±%d", k.offset, maxInt32)
			default:
				if err := checkTexts(k.id); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func checkHashes(hashes []Hash, digests [][]byte, f form) (form, int, error) {
	if len(hashes) > 0 {
		if f == formDigests || len(digests) > 0 {
			return f, 0, invalid("block_hashes are numbers and byte strings: use one form for all events of a batch")
		}
		return formNumbers, len(hashes), nil
	}
	if len(digests) == 0 {
		return f, 0, nil
	}
	if f == formNumbers {
		return f, 0, invalid("block_hashes are numbers and byte strings: use one form for all events of a batch")
	}
	for _, d := range digests {
		if err := checkDigest(d); err != nil {
			return f, 0, err
		}
	}
	return formDigests, len(digests), nil
}

func checkDigest(d []byte) error {
	if len(d) < minDigest || len(d) > maxDigest {
		return invalid("a hash of %d bytes is not within %d..%d", len(d), minDigest, maxDigest)
	}
	return nil
}

func checkPlace(medium string, group *int) error {
	if group != nil && (*group < 0 || *group > maxGroup) {
		return invalid("group_idx %d is not within 0..%d", *group, maxGroup)
	}
	if err := checkTexts(medium); err != nil {
		return err
	}
	if medium != "" && !slices.Contains(media, medium) {
		return invalid("medium %.60q is not known to routers: use one of %s, in capital letters", medium, strings.Join(media, ", "))
	}
	return nil
}

func checkTexts(texts ...string) error {
	for _, s := range texts {
		if len(s) > maxText {
			return invalid("a text of %d bytes is longer than %d: %.20q…", len(s), maxText, s)
		}
		if !utf8.ValidString(s) {
			return invalid("a text is not UTF-8: %.20q", s)
		}
	}
	return nil
}
