package kvevent

import "github.com/warmpath/warmpath/block"

// Hash is an engine hash in normal form: an integer is taken modulo 2^64, a byte string by its last eight bytes,
// big-endian, as vLLM makes integers from byte strings. A hash is meaningful within one holder only.
type Hash = uint64

// Kind says what happened to blocks.
type Kind uint8

// The kinds of event.
const (
	Stored  Kind = iota // blocks are cached; without hashes the group keeps none of them (sliding windows while decoding)
	Removed             // one physical copy of each block is gone; ignore unknown hashes
	Cleared             // every block on the tier is gone; other tiers do not change
)

var kindNames = [...]string{"stored", "removed", "cleared"}

// String returns the kind's name in metrics.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Keys is a set of extra keys: values besides tokens that are part of a block's identity in an engine's cache.
type Keys uint8

// The extra keys.
const (
	KeyLoRA    Keys = 1 << iota // the adapter
	KeySalt                     // the request's cache_salt
	KeyExtra                    // SGLang's extra_key
	KeyFeature                  // multimodal items
	KeyEmbeds                   // prompt embeddings: the token ids are placeholders
	KeyOther                    // an unknown extra key
)

// KeyRoot are the keys in the root of a chain: they matter only to a block without a parent.
const KeyRoot = KeyLoRA | KeySalt | KeyExtra

// Event is one change of a holder's cache. Its slices are valid until the next Decode into the same Batch; its strings
// stay valid.
type Event struct {
	Kind   Kind
	Tier   block.Tier // from Medium and Locality
	Bigram bool       // the look-ahead came as pairs of a token and the next one (SGLang with EAGLE)

	// LastCopies says that no copy of the removed blocks is left, however many were stored: the engine sent the number
	// of remaining copies.
	LastCopies bool

	HasParent    bool
	HasLoRAID    bool
	HasAttention bool // the engine named the group's kind; vLLM 0.20 and 0.21 number groups without naming them

	Attention block.Attention // AttentionFull when none is named

	// Unread are keys that the event has but that cannot be read: an adapter without a name, multimodal identifiers
	// without a position, unknown extra keys. The event's tokens must not be indexed.
	Unread Keys
	// Hidden are keys for which the event's format has no field: the request may have had them. SGLang never sends
	// extra_key; offload tiers drop the salt; vLLM before 0.17 sends neither salt nor multimodal items.
	Hidden Keys

	Hashes []Hash
	Parent Hash // the block before the first token; without a parent the tokens begin a prompt, or the parent is not known
	// Tokens may be fewer or more than the tokens of the hashed blocks (see Aligned).
	Tokens []block.Token
	// Ahead are the tokens after Tokens that the last block's hash covers too, at most block.MaxAhead: an engine that
	// speculates hashes a block with its look-ahead (vLLM since 0.33, SGLang with EAGLE). Each block is hashed with the
	// same number. Empty: without a look-ahead.
	Ahead     []block.Token
	BlockSize int // tokens; 0 is a placeholder that announces hashes without tokens

	LoRA   string // adapter name; "" is none, or Unread has KeyLoRA
	LoRAID int64
	Salt   string // only if the event begins a prompt (SGLang repeats it on later blocks)
	// Features have offsets relative to the event's first token. The offset is negative for an item that begins before
	// it. Each item is named once, in the block where it begins.
	Features []block.Feature

	Medium   string // as sent; "" is none
	Locality string // "LOCAL", "REMOTE" or ""
	// Owner is the owner of these copies. Copies of different owners on one medium are stored and removed
	// independently. "" is the engine; see OwnerKVCR.
	Owner  string
	Group  int    // cache group; -1: none named
	Spec   string // kv_cache_spec_kind as sent; "" is none
	Window int    // sliding window in tokens; 0: none named

	// With Decoder.KeepRaw, the parts that the normal form drops: the whole byte hashes (the parent's last), and the
	// extra_keys field. They are parts of the payload. Wires write them unchanged.
	Digests   [][]byte
	ExtraKeys []byte
	Session   string // the session with the request that stored the blocks; other sessions may share the blocks
}

// OwnerKVCR is the owner of the copies in vLLM's KVCR tier (vllm#52067). They are local to the worker, but the engine
// loads them through its own host memory. So they count for the tier below their medium, apart from the engine's own
// copies. The value of other owners' copies to the worker is not known.
const OwnerKVCR = "kvcr"

// Aligned reports whether hash i is the block Tokens[i·BlockSize:(i+1)·BlockSize]. It is false for placeholders, and
// for sliding-window and state-space groups that skip blocks: their hashes can only be joined to blocks of other
// events.
func (e *Event) Aligned() bool {
	return len(e.Hashes) > 0 && e.BlockSize > 0 && len(e.Tokens) == len(e.Hashes)*e.BlockSize
}

// Indexable reports whether the event's tokens may be indexed under its own LoRA, Salt and Features. If not, a request
// could match blocks that were cached for another request. used are the keys that requests to this holder may have: a
// hidden key does no harm if no request uses it. For a tier below the accelerator pass KeyRoot: nearly all of its
// blocks can be found by their hashes instead.
//
// Hidden multimodal items do no harm as long as requests include their own items in their keys: such keys match
// nothing.
func (e *Event) Indexable(used Keys) bool {
	if !e.Aligned() || e.Unread != 0 {
		return false
	}
	return e.HasParent || e.Hidden&used&KeyRoot == 0
}

// Shifted returns the tokens that identify blocks hashed with a look-ahead, in blocks of BlockSize: the tokens after
// the first len(Ahead), up to the end of Ahead. first are the tokens before them: if the event begins a prompt, they
// are part of its root (block.Hasher.Ahead). Without a look-ahead Shifted returns Tokens.
func (e *Event) Shifted() (first, tokens []block.Token) {
	if len(e.Ahead) == 0 || len(e.Tokens) == 0 {
		return nil, e.Tokens
	}
	all := e.Tokens[:len(e.Tokens):len(e.Tokens)]
	if n := len(e.Tokens) + len(e.Ahead); cap(e.Tokens) >= n && &e.Tokens[:n][n-1] == &e.Ahead[len(e.Ahead)-1] {
		all = e.Tokens[:n] // the decoder puts Ahead behind Tokens in memory
	} else {
		all = append(all, e.Ahead...)
	}
	return all[:len(e.Ahead)], all[len(e.Ahead):]
}

// TagCount is the number of skipped events with one name.
type TagCount struct {
	Tag   string // the engine's name of the event, cut and made printable; "other" for names beyond the limit
	Count int
}

// Batch is one message of one holder, or a part of a long message. Reuse Batches: the events share buffers that grow to
// the largest message (up to a few megabytes) and are overwritten after that. For one goroutine.
type Batch struct {
	Time    float64 // when the engine made the message, in Unix seconds
	Rank    int     // data-parallel rank
	HasRank bool
	Events  []Event

	// Skipped counts the dropped events: events with unknown names, and known events with unusable fields. SkippedTags
	// has their names, Problem describes the first problem, and ProblemAt is its byte.
	Skipped     int
	SkippedTags []TagCount
	Problem     string
	ProblemAt   int

	// Incomplete says that an event that removes blocks could not be read. Apply the batch, then forget the holder: the
	// index may hold blocks that the engine no longer has.
	Incomplete bool

	// More says that the payload has more events, see [Decoder.Next].
	More bool

	hashes   []Hash
	tokens   []block.Token
	features []block.Feature
}

// Removals returns how many consecutive events, from the i-th on, remove blocks of the same tier, group and owner. It
// appends their hashes to dst. Engines send an event for each evicted block, and an index removes many blocks together
// faster than one by one. n is 0 when the i-th event is no removal.
func (b *Batch) Removals(i int, dst []Hash) (n int, hashes []Hash) {
	first := &b.Events[i]
	for ; i+n < len(b.Events); n++ {
		e := &b.Events[i+n]
		if e.Kind != Removed || e.Tier != first.Tier || e.Group != first.Group || e.Owner != first.Owner ||
			e.LastCopies != first.LastCopies {
			break
		}
		dst = append(dst, e.Hashes...)
	}
	return n, dst
}

const (
	// maxKept bounds the elements of each buffer that a Batch keeps between messages: 1 MiB of hashes, 512 KiB of
	// tokens. A merged SGLang event of thousands of pages fits; larger buffers of hostile messages are freed.
	maxKept = 1 << 17
	// maxTags bounds the names in SkippedTags: all engines together have three names of events.
	maxTags = 8
	// maxTag bounds a name's bytes: the longest known name has 16.
	maxTag = 48
)

// Reset empties the batch and keeps its buffers.
func (b *Batch) Reset() {
	events, tags := kept(b.Events, fullEvents), b.SkippedTags[:0]
	*b = Batch{
		Events: events, SkippedTags: tags,
		hashes: kept(b.hashes, maxKept), tokens: kept(b.tokens, maxKept), features: kept(b.features, maxKept/16),
	}
}

func kept[T any](s []T, limit int) []T {
	if cap(s) > limit {
		return nil
	}
	return s[:0]
}

// add appends an empty event. The pointer is valid until the next call.
func (b *Batch) add(k Kind) *Event {
	b.Events = room(b.Events, 1)
	b.Events = b.Events[:len(b.Events)+1]
	e := &b.Events[len(b.Events)-1]
	*e = Event{Kind: k, Group: -1} // in place: an event is 300 bytes
	return e
}

// full reports whether no more events may be added: see the constants.
func (b *Batch) full() bool {
	return len(b.Events)+b.Skipped >= fullEvents || len(b.hashes) >= fullHashes ||
		len(b.tokens) >= fullTokens || len(b.features) >= fullFeatures
}

// skip counts a dropped event.
func (b *Batch) skip(tag, problem string, at int) {
	if b.Skipped == 0 {
		b.Problem, b.ProblemAt = problem, at
	}
	b.Skipped++
	if len(b.SkippedTags) >= maxTags-1 {
		tag = b.knownTag(tag)
	}
	for i := range b.SkippedTags {
		if b.SkippedTags[i].Tag == tag {
			b.SkippedTags[i].Count++
			return
		}
	}
	b.SkippedTags = append(b.SkippedTags, TagCount{Tag: tag, Count: 1})
}

// knownTag returns tag if it is counted already, else otherTag.
func (b *Batch) knownTag(tag string) string {
	for i := range b.SkippedTags {
		if b.SkippedTags[i].Tag == tag {
			return tag
		}
	}
	return otherTag
}

const otherTag = "other"
