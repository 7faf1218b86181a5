package kvevent

import "github.com/warmpath/warmpath/block"

// Hash is an engine hash in normal form. An integer is taken modulo 2^64. Of a byte string the last eight bytes are
// taken, big-endian, as vLLM makes integers from byte strings. Hashes of different holders cannot be compared.
type Hash = uint64

// Kind says what happened to blocks.
type Kind uint8

// The kinds of event.
const (
	// Stored: blocks are cached. The event may have no hashes: then a sliding-window group computed blocks while decoding,
	// and kept none of them.
	Stored  Kind = iota
	Removed      // one physical copy of each block is gone; ignore hashes that are not known
	Cleared      // every block on the tier is gone; other tiers do not change
)

var kindNames = [...]string{"stored", "removed", "cleared"}

// String returns the kind's name in metrics.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Keys is a set of extra keys. An extra key is a value besides the tokens that is part of a block's identity in an
// engine's cache.
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

// KeyRoot has the keys in the root of a chain of blocks. A block with a parent has these keys through its parent, so
// they matter only to a block without one.
const KeyRoot = KeyLoRA | KeySalt | KeyExtra

// Event is one change of a holder's cache. Its slices are valid until the next Decode into the same Batch. Its strings
// stay valid.
type Event struct {
	Kind   Kind
	Tier   block.Tier // tier that follows from Medium and Locality
	Bigram bool       // the event had the look-ahead as pairs of a token and the next token (SGLang with EAGLE)

	// LastCopies says that no copy of the removed blocks is left, however many copies were stored. It is set when the
	// engine sent the number of remaining copies.
	LastCopies bool

	HasParent    bool
	HasLoRAID    bool
	HasAttention bool // the engine named the group's kind; vLLM 0.20 and 0.21 number groups without naming them

	Attention block.Attention // kind of the cache group; AttentionFull if the event names none

	// Unread has the keys that are in the event and cannot be read: an adapter without a name, multimodal identifiers
	// without a position, unknown extra keys. If Unread is not empty, the event's tokens must not be indexed.
	Unread Keys
	// Hidden has the keys for which the event's format has no field: the request may have had them. SGLang never sends
	// extra_key. Offload tiers drop the salt. vLLM before 0.17 sends neither salt nor multimodal items.
	Hidden Keys

	Hashes []Hash
	Parent Hash // if HasParent: the block before the first token; otherwise the tokens begin a prompt, or the parent is not known
	// Tokens may have fewer or more tokens than the hashed blocks together (see Aligned).
	Tokens []block.Token
	// Ahead has the tokens after Tokens that the last block's hash covers, too; at most block.MaxAhead. Engines that
	// speculate hash a block together with such a look-ahead (vLLM since 0.33, SGLang with EAGLE). All blocks are
	// hashed with the same number of tokens. Empty: the hashes have no look-ahead.
	Ahead     []block.Token
	BlockSize int // size of a block in tokens; 0: the event is a placeholder that announces hashes without tokens

	LoRA   string // name of the adapter; "" is none, or Unread has KeyLoRA
	LoRAID int64
	Salt   string // cache_salt, only if the event begins a prompt (SGLang repeats the salt on later blocks)
	// Features has the multimodal items. Offsets are relative to the event's first token, and negative if an item
	// begins before that token. Each item is listed once, in the block where it begins.
	Features []block.Feature

	Medium   string // medium as the engine sent it; "" is none
	Locality string // "LOCAL", "REMOTE" or ""
	// Owner is the owner of these copies. Different owners store and remove copies on one medium independently. "" is
	// the engine itself; see OwnerKVCR.
	Owner  string
	Group  int    // number of the cache group; -1: the event names none
	Spec   string // kv_cache_spec_kind as sent; "" is none
	Window int    // size of the sliding window in tokens; 0: the event names none

	// Digests and ExtraKeys are filled with Decoder.KeepRaw. They have the parts that the normal form drops: the whole
	// byte hashes (the parent's hash is the last), and the extra_keys field. They are parts of the payload, and a Wire
	// writes them unchanged.
	Digests   [][]byte
	ExtraKeys []byte
	Session   string // session of the request that stored the blocks; other sessions may share the blocks
}

// OwnerKVCR is the owner of the copies in vLLM's KVCR tier (vllm#52067). These copies are local to the worker, but the
// engine loads them through its own host memory. So they count for the tier below their medium, and separately from the
// engine's own copies. It is not known what copies of other owners are worth to the worker.
const OwnerKVCR = "kvcr"

// Aligned reports whether hash i is the hash of Tokens[i·BlockSize:(i+1)·BlockSize]. It is false for placeholders, and
// for sliding-window and state-space groups that skip blocks. Hashes that do not align can only be joined to blocks of
// other events.
func (e *Event) Aligned() bool {
	return len(e.Hashes) > 0 && e.BlockSize > 0 && len(e.Tokens) == len(e.Hashes)*e.BlockSize
}

// Indexable reports whether the event's tokens may be indexed under the event's LoRA, Salt and Features. If not, a
// request could match blocks that were cached for another request. used has the keys that requests to this holder may
// carry: a hidden key does no harm if no request uses it. For a tier below the accelerator pass KeyRoot: nearly all
// blocks of such a tier can be found by their hashes instead.
//
// Hidden multimodal items do no harm as long as requests include their own items in their block keys: such keys do not
// match a block that was indexed without items.
func (e *Event) Indexable(used Keys) bool {
	if !e.Aligned() || e.Unread != 0 {
		return false
	}
	return e.HasParent || e.Hidden&used&KeyRoot == 0
}

// Shifted returns the tokens that identify blocks hashed with a look-ahead, in blocks of BlockSize. tokens are the
// tokens after the first len(Ahead) ones, up to the end of Ahead. first are the len(Ahead) tokens before them: if the
// event begins a prompt, first is part of the prompt's root (block.Hasher.Ahead). Without a look-ahead Shifted returns
// Tokens.
func (e *Event) Shifted() (first, tokens []block.Token) {
	if len(e.Ahead) == 0 || len(e.Tokens) == 0 {
		return nil, e.Tokens
	}
	all := e.Tokens[:len(e.Tokens):len(e.Tokens)]
	if n := len(e.Tokens) + len(e.Ahead); cap(e.Tokens) >= n && &e.Tokens[:n][n-1] == &e.Ahead[len(e.Ahead)-1] {
		all = e.Tokens[:n] // the decoder puts Ahead directly after Tokens in memory
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

// Batch is one message of one holder, or a part of a long message. Reuse a Batch. Its events share buffers. The buffers
// grow to the largest message (up to a few megabytes), and each Decode overwrites them. Only one goroutine may use a
// Batch at a time.
type Batch struct {
	Time    float64 // when the engine made the message, in Unix seconds
	Rank    int     // data-parallel rank
	HasRank bool
	Events  []Event

	// Skipped counts the dropped events: events with unknown names, and known events with unusable fields. SkippedTags
	// counts them by name. Problem describes the first problem, and ProblemAt is its position in bytes.
	Skipped     int
	SkippedTags []TagCount
	Problem     string
	ProblemAt   int

	// Incomplete says that an event that removes blocks could not be read. Apply the batch, then forget the holder: the
	// index may hold blocks that the engine no longer has.
	Incomplete bool

	// More says that the payload has more events: see [Decoder.Next].
	More bool

	hashes   []Hash
	tokens   []block.Token
	features []block.Feature
}

// Removals counts the consecutive events, from the i-th on, that remove blocks of the same tier, group and owner. It
// appends their hashes to dst. Engines send an event for each evicted block, and an index removes many blocks together
// faster than one by one. If the i-th event is no removal, n is 0.
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
	// tokens. A merged SGLang event of thousands of pages fits. Larger buffers, which hostile messages need, are freed.
	maxKept = 1 << 17
	// maxTags bounds the number of names in SkippedTags: all engines together have three names of events.
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
	*e = Event{Kind: k, Group: -1} // written in place, since an event has 300 bytes
	return e
}

// full reports whether no more events may be added: see fullEvents.
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
