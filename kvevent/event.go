package kvevent

import "github.com/warmpath/warmpath/block"

// Hash is an engine's own id of a block in normal form: integers as they are modulo 2^64, byte strings by their last
// eight bytes, big-endian, which is how vLLM makes its integers from them. It means something within one holder only.
type Hash = uint64

// Kind is what happened to blocks.
type Kind uint8

// The kinds of event.
const (
	Stored  Kind = iota // blocks are cached; with no hashes, a group that keeps none of them (sliding windows while decoding)
	Removed             // one physical copy of each block is gone; unknown hashes mean nothing
	Cleared             // everything on the tier is gone; other tiers are not touched
)

var kindNames = [...]string{"stored", "removed", "cleared"}

// String returns the kind as metrics write it.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Keys is a set of the things, besides tokens, that keep requests apart in an engine's cache.
type Keys uint8

// What keeps requests apart.
const (
	KeyLoRA    Keys = 1 << iota // the adapter
	KeySalt                     // the request's cache_salt
	KeyExtra                    // SGLang's extra_key
	KeyFeature                  // multimodal items
	KeyEmbeds                   // prompt embeddings: the token ids stand for nothing
	KeyOther                    // an extra key of a kind that this package does not know
)

// KeyRoot are the keys that a chain is rooted in: they matter to a block without a parent only.
const KeyRoot = KeyLoRA | KeySalt | KeyExtra

// Event is one change to a holder's cache. Its slices are valid until the next Decode into the same Batch; its
// strings stay valid.
type Event struct {
	Kind   Kind
	Tier   block.Tier // from Medium and Locality
	Bigram bool       // SGLang with EAGLE writes its look-ahead as pairs of a token and the next

	// LastCopies says that no copy of the removed blocks is left, whatever was counted: a removal that tells how many
	// remain.
	LastCopies bool

	HasParent    bool
	HasLoRAID    bool
	HasAttention bool // the engine named the group's kind; vLLM 0.20 and 0.21 number groups without naming them

	Attention block.Attention // AttentionFull when none is named

	// Unread are keys that this event certainly has, or has in a form that cannot be read: an adapter without a name,
	// multimodal identifiers without a place, unknown extra keys. Its tokens must not be indexed.
	Unread Keys
	// Hidden are keys that this event's form has no place for: they may be set, and it would look the same. SGLang
	// never tells extra_key; offload tiers drop the salt; vLLM before 0.17 tells neither salt nor multimodal items.
	Hidden Keys

	Hashes []Hash
	Parent Hash // the block before the first token; without one the tokens begin a prompt, or the engine did not say
	// Tokens may be fewer or more than the hashes stand for (see Aligned).
	Tokens []block.Token
	// Ahead are the tokens after Tokens that the last block's hash covers too, at most block.MaxAhead: an engine that
	// speculates hashes a block with its look-ahead (vLLM since 0.33, SGLang with EAGLE). Each block is hashed with as
	// many. Empty: with none.
	Ahead     []block.Token
	BlockSize int // tokens; 0 is a placeholder that announces hashes without tokens

	LoRA   string // adapter name; "" is none, or Unread has KeyLoRA
	LoRAID int64
	Salt   string // only where the event begins a prompt (SGLang repeats it on later blocks)
	// Features have offsets relative to the event's first token, negative for an item that begins before it. Each is
	// named once, in the block in which it begins.
	Features []block.Feature

	Medium   string // as sent; "" is none
	Locality string // "LOCAL", "REMOTE" or ""
	// Owner keeps these copies apart from the engine's own on the same medium: it stores and removes by itself. "" is
	// the engine; see OwnerKVCR.
	Owner  string
	Group  int    // cache group; -1: none named
	Spec   string // kv_cache_spec_kind as sent; "" is none
	Window int    // sliding window in tokens; 0: none named

	// With Decoder.KeepRaw, what normal form drops: byte hashes whole (then the parent's), and the extra_keys field.
	// They are parts of the payload. Wires write them back as they are.
	Digests   [][]byte
	ExtraKeys []byte
	Session   string // the session whose request stored the blocks; others may share them
}

// OwnerKVCR is the owner of the copies of vLLM's KVCR tier (vllm#52067). They are local to the worker, and the engine
// loads them through its own host memory: so they count one tier below their medium, apart from the engine's own. What
// another owner's copies are worth to the worker is not known.
const OwnerKVCR = "kvcr"

// Aligned reports whether hash i is the block Tokens[i·BlockSize:(i+1)·BlockSize]. It is not for sliding-window and
// state-space groups that skip blocks, and for placeholders: those hashes can only be joined to blocks that another
// event explains.
func (e *Event) Aligned() bool {
	return len(e.Hashes) > 0 && e.BlockSize > 0 && len(e.Tokens) == len(e.Hashes)*e.BlockSize
}

// Indexable reports whether the event's tokens may be indexed under its own LoRA, Salt and Features without claiming
// for one request what was cached for another. used are the keys that requests to this holder may carry: what the
// event hides does no harm when nobody uses it. For a tier below the accelerator assume KeyRoot, because its blocks
// can nearly always be joined through their hashes instead.
//
// Hidden multimodal items do no harm either as long as requests fold theirs in: their keys then match nothing.
func (e *Event) Indexable(used Keys) bool {
	if !e.Aligned() || e.Unread != 0 {
		return false
	}
	return e.HasParent || e.Hidden&used&KeyRoot == 0
}

// Shifted returns the tokens that the event's hashes tell, in blocks of BlockSize, where they are hashed with a
// look-ahead: those after the first len(Ahead), up to the end of Ahead. first are those before them: where the event
// begins a prompt, they are part of its root (block.Hasher.Ahead). Without a look-ahead it returns Tokens.
func (e *Event) Shifted() (first, tokens []block.Token) {
	if len(e.Ahead) == 0 || len(e.Tokens) == 0 {
		return nil, e.Tokens
	}
	all := e.Tokens[:len(e.Tokens):len(e.Tokens)]
	if n := len(e.Tokens) + len(e.Ahead); cap(e.Tokens) >= n && &e.Tokens[:n][n-1] == &e.Ahead[len(e.Ahead)-1] {
		all = e.Tokens[:n] // as the decoder leaves them
	} else {
		all = append(all, e.Ahead...)
	}
	return all[:len(e.Ahead)], all[len(e.Ahead):]
}

// TagCount says how often an event of one name was skipped.
type TagCount struct {
	Tag   string // the engine's name of the event, cut and made printable; "other" for names beyond the limit
	Count int
}

// Batch is one message of one holder, or a part of a long one. Reuse it: its events share buffers that grow to the
// largest message seen (up to a few megabytes) and are then only written over. One goroutine.
type Batch struct {
	Time    float64 // when the engine made it, Unix seconds
	Rank    int     // data-parallel rank
	HasRank bool
	Events  []Event

	// Skipped counts events that were dropped: unknown names, and known ones that were not usable. SkippedTags names
	// them, Problem says what was wrong with the first and ProblemAt at which byte.
	Skipped     int
	SkippedTags []TagCount
	Problem     string
	ProblemAt   int

	// Incomplete says that an event that takes blocks away was unreadable (or, with polled events, is missing): apply
	// the batch, then forget the holder, because the index may hold what the engine no longer has.
	Incomplete bool

	// More says that the payload has further events, see [Decoder.Next].
	More bool

	hashes   []Hash
	tokens   []block.Token
	features []block.Feature
}

// Removals returns how many events from the i-th on follow each other that take blocks from one tier and group, and
// their hashes after dst. Engines announce each evicted block in an event of its own; an index takes them away together
// in less time than one by one. It is 0 when the i-th event is another.
func (b *Batch) Removals(i int, dst []Hash) (n int, hashes []Hash) {
	first := &b.Events[i]
	for ; i+n < len(b.Events); n++ {
		e := &b.Events[i+n]
		if e.Kind != Removed || e.Tier != first.Tier || e.Group != first.Group || e.Owner != first.Owner || e.LastCopies != first.LastCopies {
			break
		}
		dst = append(dst, e.Hashes...)
	}
	return n, dst
}

const (
	// maxKept bounds the elements of each buffer that a Batch keeps between messages: 1 MiB of hashes, 512 KiB of
	// tokens. A merged SGLang event of thousands of pages fits; a hostile giant is given back.
	maxKept = 1 << 17
	// maxTags bounds the names in SkippedTags: engines have had three kinds of event in all.
	maxTags = 8
	// maxTag bounds a name's bytes: the longest known is 16.
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

// full reports whether no further event may be added: see the constants.
func (b *Batch) full() bool {
	return len(b.Events)+b.Skipped >= fullEvents || len(b.hashes) >= fullHashes ||
		len(b.tokens) >= fullTokens || len(b.features) >= fullFeatures
}

// skip counts an event that is dropped.
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

// knownTag returns tag if it is counted already, and the collective name otherwise.
func (b *Batch) knownTag(tag string) string {
	for i := range b.SkippedTags {
		if b.SkippedTags[i].Tag == tag {
			return tag
		}
	}
	return otherTag
}

const otherTag = "other"
