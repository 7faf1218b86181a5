package kvevent

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/warmpath/warmpath/block"
)

// Append appends b to dst as one payload. If b was decoded with [Decoder.KeepRaw], the bytes are the same as the
// engine's own encoder (msgspec) writes. If an event has no ExtraKeys, Append writes its extra keys from the other
// fields: then an image that covers several blocks is named only in the block where it begins, and prompt embeddings
// are not named. If the version has no field for a value, the value is left out. Skipped events are not written.
//
// If hashes are written as byte strings, the strings come from Digests. Without Digests, a string has 24 zero bytes and
// then the 8 bytes of the hash.
func (w Wire) Append(dst []byte, b *Batch) []byte {
	f, form := w.resolve()
	p := encoder{format: f, form: form, wire: w, b: dst}
	p.array(f.batch)
	p.float(b.Time)
	p.array(len(b.Events))
	for i := range b.Events {
		p.event(&b.Events[i])
	}
	if f.batch > 2 {
		if b.HasRank {
			p.integer(int64(b.Rank))
		} else {
			p.null()
		}
	}
	return p.b
}

// encoder writes MessagePack in the shortest form of each value; floats always have 8 bytes.
type encoder struct {
	*format
	form hashForm
	wire Wire
	b    []byte
}

func (p *encoder) event(e *Event) {
	switch {
	case p.stored == 0:
		p.mapped(e)
	case e.Kind == Stored:
		p.storedArray(e)
	case e.Kind == Removed:
		p.array(1 + p.removed)
		p.text(tagRemoved)
		for i := range p.removed {
			p.field(removedPlaces[i], e)
		}
	default:
		p.array(1)
		p.text(tagCleared)
	}
}

func (p *encoder) storedArray(e *Event) {
	metadata := p.meta && e.Salt != ""
	n := p.stored
	if metadata {
		n++
	}
	p.array(1 + n)
	p.text(tagStored)
	for i := range p.stored {
		p.field(storedPlaces[i], e)
	}
	if metadata {
		p.object(1)
		p.text("cache_salt")
		p.text(e.Salt)
	}
}

// namedField is a key of the map form. If optional is true and the event has no value for the key, the key is left out.
type namedField struct {
	name     string
	field    field
	optional bool
}

var storedKeys = [...][]namedField{
	keysVLLM: {
		{"block_hashes", fieldHashes, false}, {"parent_block_hash", fieldParent, false},
		{"token_ids", fieldTokens, false}, {"block_size", fieldBlockSize, false}, {"lora_id", fieldLoRAID, false},
		{"medium", fieldMedium, false}, {"lora_name", fieldLoRAName, false}, {"extra_keys", fieldExtraKeys, true},
		{"group_idx", fieldGroup, true}, {"kv_cache_spec_kind", fieldSpec, true},
		{"kv_cache_spec_sliding_window", fieldWindow, true}, {"locality", fieldLocality, true},
		{"ownership", fieldOwner, true}, {"session_id", fieldSession, true}, {"lookahead_token_ids", fieldAhead, true},
	},
	keysSGLang: {
		{"block_hashes", fieldHashes, false}, {"parent_block_hash", fieldParent, false},
		{"token_ids", fieldTokens, false}, {"block_size", fieldBlockSize, false}, {"lora_id", fieldLoRAID, false},
		{"medium", fieldMedium, false}, {"cache_salt", fieldSalt, true},
		{"session_id", fieldSession, true}, {"lora_name", fieldLoRAName, true},
	},
	keysTRTLLM: {
		{"block_hashes", fieldHashes, false}, {"parent_block_hash", fieldParent, false},
		{"token_ids", fieldTokens, false}, {"block_size", fieldBlockSize, false}, {"lora_id", fieldLoRAID, false},
		{"medium", fieldMedium, false}, {"lora_name", fieldLoRAName, false},
	},
}

var removedKeys = []namedField{
	{"block_hashes", fieldHashes, false}, {"medium", fieldMedium, false},
	{"group_idx", fieldGroup, true}, {"locality", fieldLocality, true}, {"ownership", fieldOwner, true},
}

var kindTags = [...]string{Stored: tagStored, Removed: tagRemoved, Cleared: tagCleared}

func (p *encoder) mapped(e *Event) {
	var keys []namedField
	switch e.Kind {
	case Stored:
		keys = storedKeys[p.keys]
	case Removed:
		keys = removedKeys
	}
	n := 1
	for _, k := range keys {
		if p.written(k, e) {
			n++
		}
	}
	p.object(n)
	p.text("type")
	p.text(kindTags[e.Kind])
	for _, k := range keys {
		if p.written(k, e) {
			p.text(k.name)
			p.field(k.field, e)
		}
	}
}

// written reports whether the event's map has key k. An optional key without a value is left out, as msgspec's
// omit_defaults does. Some keys are written only for versions that have them.
func (p *encoder) written(k namedField, e *Event) bool {
	if !k.optional {
		return true
	}
	switch k.field {
	case fieldExtraKeys:
		return writesKeys(e)
	case fieldGroup:
		return e.Group >= 0 && p.keys == keysVLLM
	case fieldSpec:
		return e.Spec != ""
	case fieldWindow:
		return e.Window > 0
	case fieldLocality:
		return e.Locality != "" && p.place
	case fieldOwner:
		return e.Owner != "" && p.owner
	case fieldSession:
		return e.Session != "" && p.owner
	case fieldAhead:
		return len(e.Ahead) > 0 && p.ahead && !e.Bigram
	case fieldSalt:
		return e.Salt != ""
	case fieldLoRAName:
		return e.LoRA != ""
	}
	return true
}

// writesKeys reports whether to write the field extra_keys of an event.
func writesKeys(e *Event) bool { return e.ExtraKeys != nil || !e.NoExtraKeys }

func (p *encoder) field(f field, e *Event) {
	switch f {
	case fieldHashes:
		p.array(len(e.Hashes))
		for i, h := range e.Hashes {
			p.hash(h, e.Digests, i)
		}
	case fieldParent:
		if !e.HasParent {
			p.null()
			return
		}
		p.hash(e.Parent, e.Digests, len(e.Hashes))
	case fieldTokens:
		p.tokens(e)
	case fieldBlockSize:
		p.integer(int64(e.BlockSize))
	case fieldLoRAID:
		if !e.HasLoRAID {
			p.null()
			return
		}
		p.integer(e.LoRAID)
	case fieldMedium:
		medium := e.Medium
		if medium == "" && e.Tier != ownedTier(tierOf("", e.Locality), e.Owner) {
			tier := e.Tier
			if e.Owner == OwnerKVCR {
				tier = max(tier, 1) - 1
			}
			medium = p.wire.Medium(tier)
		}
		p.optional(medium)
	case fieldLoRAName:
		p.optional(e.LoRA)
	case fieldExtraKeys:
		p.extraKeys(e)
	case fieldGroup:
		p.number(e.Group, e.Group >= 0)
	case fieldSpec:
		p.optional(e.Spec)
	case fieldWindow:
		p.number(e.Window, e.Window > 0)
	case fieldLocality:
		p.optional(e.Locality)
	case fieldOwner:
		p.optional(e.Owner)
	case fieldSession:
		p.optional(e.Session)
	case fieldAhead:
		p.lookAhead(e)
	case fieldSalt:
		p.optional(e.Salt)
	}
}

func (p *encoder) hash(h Hash, digests [][]byte, i int) {
	if p.form == hashBytes {
		if i < len(digests) {
			p.bytes(digests[i])
			return
		}
		var digest [32]byte
		binary.BigEndian.PutUint64(digest[24:], h)
		p.bytes(digest[:])
		return
	}
	if p.form == hashSigned {
		p.integer(int64(h))
		return
	}
	p.unsigned(h)
}

func (p *encoder) tokens(e *Event) {
	p.array(len(e.Tokens))
	for i, t := range e.Tokens {
		if !e.Bigram {
			p.unsigned(uint64(t))
			continue
		}
		next := block.Token(0)
		if i+1 < len(e.Tokens) {
			next = e.Tokens[i+1]
		} else if len(e.Ahead) > 0 {
			next = e.Ahead[0]
		}
		p.array(2)
		p.unsigned(uint64(t))
		p.unsigned(uint64(next))
	}
}

// lookAhead writes one list for each block: the tokens after the block that the block's hash also covers. If hashes and
// tokens are not aligned, each list is the look-ahead of the last block.
func (p *encoder) lookAhead(e *Event) {
	all, n := slices.Concat(e.Tokens, e.Ahead), len(e.Ahead)
	p.array(len(e.Hashes))
	for i := range e.Hashes {
		list := e.Ahead
		if e.Aligned() {
			list = all[(i+1)*e.BlockSize:][:n]
		}
		p.array(n)
		for _, t := range list {
			p.unsigned(uint64(t))
		}
	}
}

// extraKeys writes the extra keys of each block's hash. A multimodal item is named in the block where it begins.
// Engines name the item again in each later block that the item covers. extraKeys cannot do that, because the item's
// length is not known.
func (p *encoder) extraKeys(e *Event) {
	if e.ExtraKeys != nil {
		p.b = append(p.b, e.ExtraKeys...)
		return
	}
	if !writesKeys(e) {
		p.null()
		return
	}
	p.array(len(e.Hashes))
	items := byBlock(e)
	for i := range e.Hashes {
		salt := ""
		if i == 0 && !e.HasParent && e.Aligned() { // only then the first entry belongs to the first block of the prompt
			salt = e.Salt
		}
		named := 0
		for named < len(items) && blockOf(items[named], e) == i {
			named++
		}
		n := named
		if e.LoRA != "" {
			n++
		}
		if salt != "" {
			n++
		}
		if n == 0 {
			p.null()
			continue
		}
		p.array(n)
		if e.LoRA != "" {
			p.text(e.LoRA)
		}
		p.items(items[:named], i*e.BlockSize)
		items = items[named:]
		if salt != "" {
			p.text(salt)
		}
	}
}

// items writes the multimodal items that begin in one block. base is the position of the block's first token in the
// event.
func (p *encoder) items(items []block.Feature, base int) {
	for _, f := range items {
		if p.offsets {
			p.array(2)
		}
		p.text(f.ID)
		if p.offsets {
			p.integer(int64(f.Offset - base))
		}
	}
}

// byBlock returns the multimodal items of an event, sorted by the block that names the item. Usually the items are
// already sorted.
func byBlock(e *Event) []block.Feature {
	order := func(a, b block.Feature) int { return cmp.Compare(blockOf(a, e), blockOf(b, e)) }
	if slices.IsSortedFunc(e.Features, order) {
		return e.Features
	}
	items := slices.Clone(e.Features)
	slices.SortStableFunc(items, order)
	return items
}

// blockOf returns the index of the block that names an item: the block where the item begins.
func blockOf(f block.Feature, e *Event) int {
	if f.Offset < 0 || e.BlockSize <= 0 {
		return 0
	}
	// An item that begins in the look-ahead is named in the last block.
	return min(f.Offset/e.BlockSize, max(len(e.Hashes)-1, 0))
}

func (p *encoder) null() { p.b = append(p.b, 0xc0) }

func (p *encoder) optional(s string) {
	if s == "" {
		p.null()
		return
	}
	p.text(s)
}

func (p *encoder) number(n int, ok bool) {
	if !ok {
		p.null()
		return
	}
	p.integer(int64(n))
}

func (p *encoder) float(f float64) {
	p.b = binary.BigEndian.AppendUint64(append(p.b, 0xcb), math.Float64bits(f))
}

func (p *encoder) unsigned(v uint64) {
	switch {
	case v < 0x80:
		p.b = append(p.b, byte(v))
	case v <= math.MaxUint8:
		p.b = append(p.b, 0xcc, byte(v))
	case v <= math.MaxUint16:
		p.b = binary.BigEndian.AppendUint16(append(p.b, 0xcd), uint16(v))
	case v <= math.MaxUint32:
		p.b = binary.BigEndian.AppendUint32(append(p.b, 0xce), uint32(v))
	default:
		p.b = binary.BigEndian.AppendUint64(append(p.b, 0xcf), v)
	}
}

func (p *encoder) integer(v int64) {
	switch {
	case v >= 0:
		p.unsigned(uint64(v))
	case v >= -32:
		p.b = append(p.b, byte(v))
	case v >= math.MinInt8:
		p.b = append(p.b, 0xd0, byte(v))
	case v >= math.MinInt16:
		p.b = binary.BigEndian.AppendUint16(append(p.b, 0xd1), uint16(v))
	case v >= math.MinInt32:
		p.b = binary.BigEndian.AppendUint32(append(p.b, 0xd2), uint32(v))
	default:
		p.b = binary.BigEndian.AppendUint64(append(p.b, 0xd3), uint64(v))
	}
}

func (p *encoder) text(s string) {
	switch n := len(s); {
	case n < 32:
		p.b = append(p.b, 0xa0|byte(n))
	case n <= math.MaxUint8:
		p.b = append(p.b, 0xd9, byte(n))
	case n <= math.MaxUint16:
		p.b = binary.BigEndian.AppendUint16(append(p.b, 0xda), uint16(n))
	default:
		p.b = binary.BigEndian.AppendUint32(append(p.b, 0xdb), uint32(n))
	}
	p.b = append(p.b, s...)
}

func (p *encoder) bytes(s []byte) {
	switch n := len(s); {
	case n <= math.MaxUint8:
		p.b = append(p.b, 0xc4, byte(n))
	case n <= math.MaxUint16:
		p.b = binary.BigEndian.AppendUint16(append(p.b, 0xc5), uint16(n))
	default:
		p.b = binary.BigEndian.AppendUint32(append(p.b, 0xc6), uint32(n))
	}
	p.b = append(p.b, s...)
}

func (p *encoder) array(n int)  { p.head(n, 0x90, 0xdc) }
func (p *encoder) object(n int) { p.head(n, 0x80, 0xde) }

func (p *encoder) head(n int, short, long byte) {
	switch {
	case n < 16:
		p.b = append(p.b, short|byte(n))
	case n <= math.MaxUint16:
		p.b = binary.BigEndian.AppendUint16(append(p.b, long), uint16(n))
	default:
		p.b = binary.BigEndian.AppendUint32(append(p.b, long+1), uint32(n))
	}
}
