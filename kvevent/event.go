package kvevent

import "github.com/warmpath/warmpath/block"

// Hash is an engine hash in one form for all engines. If the engine sends an integer, Hash is this integer modulo 2^64.
// If the engine sends a byte string, Hash is its last eight bytes, read as a big-endian number: vLLM itself makes
// integers from byte strings in this way. Hashes of different holders cannot be compared.
type Hash = uint64

// Kind says what happened to blocks.
type Kind uint8

// The kinds of event.
const (
	// Stored: blocks are cached. A stored event may have no hashes: then a sliding-window group computed blocks while
	// decoding, and kept none of them.
	Stored  Kind = iota
	Removed      // one copy of each block is gone, or all copies: see Event.LastCopies; a reader ignores hashes that it does not know
	Cleared      // every block on the event's tier is gone; in vLLM the blocks on other tiers stay
)

var kindNames = [...]string{"stored", "removed", "cleared"}

// String returns the kind's name in metrics.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Keys is a set of extra keys. An extra key is a value, other than the tokens, that an engine includes in a block's
// identity.
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

// KeyRoot has the extra keys that are part of the root of a chain of blocks. A block with a parent inherits these keys
// from the parent. So they must be known only for a block without a parent.
const KeyRoot = KeyLoRA | KeySalt | KeyExtra

// Event is one change of a holder's cache. Its slices are valid until the next Decode or Next with the same Batch. Its
// strings stay valid.
type Event struct {
	Kind   Kind
	Tier   block.Tier // tier that follows from Medium, Locality and Owner
	Bigram bool       // the event has pairs instead of tokens: each token with the token after it (SGLang with EAGLE)

	// LastCopies says that no copy of the removed blocks is left, even if several copies were stored. LastCopies is set
	// when the engine sent the number of remaining copies.
	LastCopies bool

	HasParent bool
	HasLoRAID bool
	// HasAttention says that the engine named the kind of the cache group. vLLM 0.20 and 0.21 send the number of the group
	// without its kind.
	HasAttention bool

	Attention block.Attention // kind of the cache group; AttentionFull if the event names none

	// Unread has the extra keys that are in the event but cannot be read: an adapter without a name, multimodal
	// identifiers without a position, prompt embeddings, unknown extra keys. If Unread is not empty, the event's tokens
	// must not be indexed.
	Unread Keys
	// Hidden has the extra keys for which the event's format has no field, so the request that stored the blocks may have
	// had these keys. SGLang never sends extra_key. Offload tiers do not send the salt. vLLM before 0.17 sends neither the
	// salt nor multimodal items.
	Hidden Keys
	// NoExtraKeys says that a stored event does not have the field extra_keys. A Wire leaves the field out, or writes null
	// where the field has a fixed place.
	NoExtraKeys bool

	Hashes []Hash
	// Parent is the hash of the block before the first token, if HasParent is set. If HasParent is not set, either the
	// tokens begin a prompt, or the parent is not known.
	Parent Hash
	// Tokens has the tokens of the blocks. There may be fewer or more tokens than the hashed blocks have together (see
	// Aligned).
	Tokens []block.Token
	// Ahead has the look-ahead of the last block: tokens after Tokens that the hash of the last block also covers, at most
	// block.MaxAhead. Engines with speculative decoding hash each block together with some tokens after the block (vLLM
	// since 0.33, SGLang with EAGLE). The number of these tokens is the same for all blocks. If Ahead is empty, the hashes
	// have no look-ahead.
	Ahead     []block.Token
	BlockSize int // tokens in a block; 0: the event is a placeholder, which announces hashes without tokens

	LoRA   string // name of the adapter; "": no adapter is known, see Unread and Hidden for adapters without a name
	LoRAID int64
	Salt   string // cache_salt; vLLM sends it only with the first block of a prompt, SGLang also with later blocks
	// Features has the multimodal items, each of them once. The offset of an item is the position of its first token,
	// relative to the event's first token. The offset is negative if the item begins before the event's first token.
	Features []block.Feature

	Medium   string // medium as the engine sent it; "": the event names none
	Locality string // "LOCAL" or "REMOTE"; "": the event names none
	// Owner is the owner of the blocks' copies. Different owners store and remove copies on one medium independently of
	// each other. "" is the engine itself. For another owner see OwnerKVCR.
	Owner  string
	Group  int    // number of the cache group; -1: the event names none
	Spec   string // kv_cache_spec_kind as sent: the kind of the cache group; "": the event names none
	Window int    // size of the sliding window in tokens; 0: the event names none

	// Digests, ExtraKeys and Session are filled only with Decoder.KeepRaw. Digests has the engine's hashes as whole byte
	// strings, of which Hashes has only the last eight bytes; the parent's hash is the last one. ExtraKeys is the field
	// extra_keys. Digests and ExtraKeys share the payload's memory, and a Wire writes them unchanged.
	Digests   [][]byte
	ExtraKeys []byte
	Session   string // session of the request that stored the blocks; requests of other sessions may also use the blocks
}

// OwnerKVCR is the owner of the copies in vLLM's KVCR tier (vllm#52067). These copies are local to the worker, but the
// engine loads them through its own host memory. So they count for the tier below their medium, and separately from the
// engine's own copies. For copies of any other owner, it is not known whether the engine can use them.
const OwnerKVCR = "kvcr"

// Aligned reports whether each hash i is the hash of the block Tokens[i·BlockSize:(i+1)·BlockSize]. This is not so for
// placeholders, and for sliding-window and state-space groups that skip blocks. Hashes that are not aligned do not show
// which tokens their blocks have. So an index can use such a hash only if another event showed the tokens.
func (e *Event) Aligned() bool {
	return len(e.Hashes) > 0 && e.BlockSize > 0 && len(e.Tokens) == len(e.Hashes)*e.BlockSize
}

// Indexable reports whether the event's tokens may be indexed under the event's LoRA, Salt and Features. If an index
// takes other tokens, a request could match blocks that were cached for a different request. used has the extra keys
// that requests to this holder may carry: a hidden key does no harm if no request uses it. For a tier below the GPU,
// pass KeyRoot, which stands for the worst case: nearly all blocks of such a tier can be found by their hashes instead.
//
// Hidden multimodal items do no harm if the router includes a request's own items in the keys of the request's blocks:
// such keys do not match a block that was indexed without items.
func (e *Event) Indexable(used Keys) bool {
	if !e.Aligned() || e.Unread != 0 {
		return false
	}
	return e.HasParent || e.Hidden&used&KeyRoot == 0
}

// Shifted returns the tokens from which an index makes the keys of the event's blocks. Without a look-ahead, these are
// Tokens. With a look-ahead of n tokens, the keys are made from the tokens n places later: tokens begins n tokens after
// the event's first token and ends with Ahead, and is cut into blocks of BlockSize. first has the n tokens before
// these. If the event begins a prompt, first is part of the prompt's root (block.Hasher.Ahead).
func (e *Event) Shifted() (first, tokens []block.Token) {
	if len(e.Ahead) == 0 || len(e.Tokens) == 0 {
		return nil, e.Tokens
	}
	all := e.Tokens[:len(e.Tokens):len(e.Tokens)]
	if n := len(e.Tokens) + len(e.Ahead); cap(e.Tokens) >= n && &e.Tokens[:n][n-1] == &e.Ahead[len(e.Ahead)-1] {
		all = e.Tokens[:n] // the decoder puts Ahead directly behind Tokens in memory, so no copy is needed
	} else {
		all = append(all, e.Ahead...)
	}
	return all[:len(e.Ahead)], all[len(e.Ahead):]
}

// TagCount is the number of skipped events with one name.
type TagCount struct {
	Tag   string // the engine's name of the event, shortened and made printable; "other" for names beyond maxTags
	Count int
}

// Batch is one message of one holder, or a part of a long message. Use one Batch for many messages: its events share
// buffers, which stay between messages as long as they take at most a few megabytes. Each Decode overwrites the events
// of the Decode before. Only one goroutine may use a Batch at a time.
type Batch struct {
	Time    float64 // when the engine made the message, in Unix seconds
	Rank    int     // data-parallel rank
	HasRank bool
	Events  []Event

	// Skipped counts the dropped events: events with unknown names, and known events with unusable fields. SkippedTags
	// counts the dropped events by name. Problem says why the first of them was dropped, and ProblemAt is its position in
	// the payload, in bytes.
	Skipped     int
	SkippedTags []TagCount
	Problem     string
	ProblemAt   int

	// Incomplete says that an event that removes blocks could not be read. The caller must apply the batch and then forget
	// all blocks of the holder, because the index may claim blocks that the engine no longer has.
	Incomplete bool

	// More says that the payload has more events: see [Decoder.Next].
	More bool

	hashes   []Hash
	tokens   []block.Token
	features []block.Feature
}

// Removals joins the i-th event with the events after it, as long as they all remove blocks of the same tier, group and
// owner, and have the same LastCopies. It returns the number n of these events, and appends their hashes to dst. If the
// i-th event is no removal, n is 0. Engines send an event for each evicted block, and an index removes many blocks
// together faster than one by one.
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
	// maxKept bounds the capacity of the buffers that a Batch keeps between messages: 1 MiB of hashes and 512 KiB of
	// tokens. A merged SGLang event of thousands of pages fits. Hostile messages may need larger buffers, and these are
	// freed.
	maxKept = 1 << 17
	// maxTags bounds the number of names in SkippedTags. All engines together have only three names of events.
	maxTags = 8
	// maxTag bounds the bytes of a name in SkippedTags. The longest known name has 16 bytes.
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

// add appends an empty event. The returned pointer is valid until the next call of add.
func (b *Batch) add(k Kind) *Event {
	b.Events = room(b.Events, 1)
	b.Events = b.Events[:len(b.Events)+1]
	e := &b.Events[len(b.Events)-1]
	*e = Event{Kind: k, Group: -1} // written in place, because an Event has some 300 bytes
	return e
}

// full reports whether the batch has no room for a further event: see fullEvents.
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

// knownTag returns tag if SkippedTags has it already, and otherTag if not.
func (b *Batch) knownTag(tag string) string {
	for i := range b.SkippedTags {
		if b.SkippedTags[i].Tag == tag {
			return tag
		}
	}
	return otherTag
}

const otherTag = "other"
