package kvevent

import "github.com/warmpath/warmpath/block"

// field is a field of an event, in array or map form.
type field uint8

const (
	fieldNone field = iota
	fieldType
	fieldHashes
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoRAID
	fieldMedium
	fieldLoRAName // at its position, arrays of SGLang 0.5.18 have a map of metadata
	fieldExtraKeys
	fieldGroup
	fieldSpec
	fieldWindow
	fieldLocality
	fieldSalt
	fieldMetadata
	fieldOwner
	fieldSession
	fieldAhead
	fieldRemaining
	fieldItems    // Dynamo's block_mm_infos
	fieldMooncake // stands for all keys that only events of Mooncake have
	numFields
)

// These are the fields of an event in array form, in their order after the event's name (vLLM distributed/kv_events.py,
// SGLang disaggregation/kv_events.py). The comments name the first versions with these fields.
var (
	storedPlaces = []field{
		fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoRAID, // vLLM 0.9.0, SGLang 0.4.6
		fieldMedium,            // vLLM 0.10.2, SGLang 0.5.9
		fieldLoRAName,          // vLLM 0.14
		fieldExtraKeys,         // vLLM 0.17
		fieldGroup,             // vLLM 0.20
		fieldSpec, fieldWindow, // vLLM 0.22
		// vLLM writes maps since 0.24. The following fields are in the order of the fields of vLLM's classes.
		fieldLocality, fieldOwner, fieldSession, // vLLM 0.27, 0.32
		fieldAhead, // vLLM 0.33
	}
	removedPlaces = []field{fieldHashes, fieldMedium, fieldGroup, fieldLocality, fieldOwner}
)

// reading is what is known about an event while its fields are read.
type reading struct {
	present   uint32 // bit set of the fields that the event has, with or without a value
	filled    uint32 // bit set of the fields of the event that are not null
	fields    int    // number of elements of the array form, including the event's name; 0: the event is a map
	extraKeys int    // position in the payload where the value of extra_keys begins
	extraEnd  int    // position where this value ends
	// later is the position of the value of lookahead_token_ids or remaining_copy_counts. Both are read after the other
	// fields.
	later int
}

func (r *reading) has(f field) bool   { return r.present&(1<<f) != 0 }
func (r *reading) holds(f field) bool { return r.filled&(1<<f) != 0 }

// read reads one event, in array or map form, into e. If the event is unusable, read returns the reason and leaves the
// cursor somewhere inside the event.
func (d *Decoder) read(b *Batch, e *Event, r *reading) (problem string) {
	switch d.c.kind() {
	case kindArray:
		problem = d.readArray(b, e, r)
	case kindMap:
		problem = d.readMap(b, e, r)
	default:
		return "an event is an array or a map"
	}
	if problem != "" || d.c.broken != "" {
		return problem
	}
	return d.finish(b, e, r)
}

func (d *Decoder) readArray(b *Batch, e *Event, r *reading) (problem string) {
	c := &d.c
	n, _ := c.array()
	if n == 0 {
		return "an event without a name"
	}
	r.fields = n
	if problem := d.tag(e, r); problem != "" {
		return problem
	}
	places := storedPlaces
	switch e.Kind {
	case Removed:
		places = removedPlaces
	case Cleared:
		places = nil
	}
	for i := 1; i < n && c.broken == ""; i++ {
		if i <= len(places) && places[i-1] >= fieldLocality && !d.fits(places[i-1]) {
			// This is not the format of vLLM: another producer wrote the event. Its fields from this position on have an unknown
			// meaning.
			places = nil
			e.Locality, e.Owner, e.Session = "", "", ""
		}
		if i > len(places) {
			c.skip()
			continue
		}
		if problem := d.field(places[i-1], b, e, r); problem != "" {
			return problem
		}
	}
	return ""
}

// fits reports whether the next value can be a value of f. vLLM added the field f only after it had stopped writing
// arrays. So an array of another producer may have any value at the position of f.
func (d *Decoder) fits(f field) bool {
	c := &d.c
	kind := c.kind()
	if kind == kindNil {
		return true
	}
	switch f {
	case fieldLocality:
		resume := c.i
		s, ok := c.text()
		c.i = resume
		return ok && (string(s) == "LOCAL" || string(s) == "REMOTE")
	case fieldOwner, fieldSession:
		return kind == kindString
	case fieldAhead:
		return kind == kindArray
	}
	return true
}

func (d *Decoder) readMap(b *Batch, e *Event, r *reading) (problem string) {
	c := &d.c
	n, _ := c.object()
	var f field
	for ; n > 0 && c.broken == ""; n-- {
		var ok bool
		if f, ok = d.fieldName(e, f); !ok {
			return "a key of an event is no string"
		}
		if f == fieldNone {
			c.skip()
			continue
		}
		if problem := d.field(f, b, e, r); problem != "" {
			return problem
		}
	}
	if !r.has(fieldType) {
		return "an event without a type"
	}
	return ""
}

// field takes the value of f and stores it in e.
func (d *Decoder) field(f field, b *Batch, e *Event, r *reading) (problem string) {
	c := &d.c
	if f == fieldType {
		return d.tag(e, r)
	}
	r.present |= 1 << f
	if c.null() {
		return ""
	}
	r.filled |= 1 << f
	ok := true
	switch f {
	case fieldHashes:
		return d.hashes(b, e)
	case fieldTokens:
		return d.tokens(b, e)
	case fieldParent:
		var digest []byte
		e.Parent, digest, ok = c.hash()
		e.HasParent = ok
		if d.KeepRaw && digest != nil {
			// Every known format has the hashes before the parent. So the digest of the parent comes after the digests of the
			// hashes.
			e.Digests = append(e.Digests, digest)
		}
	case fieldBlockSize:
		e.BlockSize, ok = c.size(maxBlockSize)
	case fieldLoRAID:
		ok = d.loraID(e)
	case fieldMedium:
		ok = d.string(&e.Medium)
	case fieldLoRAName:
		if c.kind() == kindMap {
			return d.metadata(e, r)
		}
		ok = d.string(&e.LoRA)
	case fieldExtraKeys: // the value is read last, because its meaning depends on the other fields
		r.extraKeys = c.i
		c.skip()
		r.extraEnd = c.i
	case fieldGroup:
		e.Group, ok = c.size(maxGroup)
	case fieldSpec:
		ok = d.string(&e.Spec)
	case fieldWindow:
		e.Window, ok = c.size(maxWindow)
	case fieldLocality:
		ok = d.string(&e.Locality)
	case fieldOwner:
		ok = d.name(&e.Owner)
	// Nothing depends on the session. So a session that is no string does not make the event unusable.
	case fieldSession:
		if session, is := c.text(); !is {
			c.skip()
		} else if d.KeepRaw {
			e.Session = d.names.text(session)
		}
	case fieldAhead, fieldRemaining: // the value is read last
		r.later = c.i
		c.skip()
	case fieldSalt:
		ok = d.string(&e.Salt)
	case fieldMetadata:
		return d.metadata(e, r)
	case fieldItems:
		d.items(e)
	case fieldMooncake:
		c.skip()
	}
	if !ok {
		return wrongKind[f]
	}
	return ""
}

var wrongKind = [...]string{
	fieldParent:    "parent_block_hash is no hash",
	fieldBlockSize: "block_size is no size",
	fieldLoRAID:    "lora_id is no id",
	fieldMedium:    "medium is no string",
	fieldLoRAName:  "lora_name is no string",
	fieldGroup:     "group_idx is no index",
	fieldSpec:      "kv_cache_spec_kind is no string",
	fieldWindow:    "kv_cache_spec_sliding_window is no size",
	fieldLocality:  "locality is no string",
	fieldOwner:     "ownership is no string of at most 128 bytes",
	fieldSalt:      "cache_salt is no string",
	fieldMooncake:  "",
}

func (d *Decoder) tag(e *Event, r *reading) (problem string) {
	tag, ok := d.c.text()
	if !ok {
		return "an event's name is no string"
	}
	r.present |= 1 << fieldType
	switch string(tag) {
	case tagStored:
		e.Kind = Stored
	case tagRemoved:
		e.Kind = Removed
	case tagCleared:
		e.Kind = Cleared
	default:
		return "an event of an unknown name"
	}
	return ""
}

func (d *Decoder) string(s *string) bool {
	b, ok := d.c.text()
	if ok {
		*s = d.known(b)
	}
	return ok
}

// name takes the name of an owner.
func (d *Decoder) name(s *string) bool {
	b, ok := d.c.text()
	if !ok || len(b) > maxName {
		return false
	}
	*s = d.names.text(b)
	return true
}

// known returns b as a string. For the two most frequent strings it needs no lookup in a map.
func (d *Decoder) known(b []byte) string {
	switch string(b) {
	case "GPU":
		return "GPU"
	case "full_attention":
		return "full_attention"
	}
	return d.names.text(b)
}

// loraID takes the number of an adapter. SGLang declares the field as a string or a number, but always sends null. If
// the value is a string, the event has an adapter without a usable name.
func (d *Decoder) loraID(e *Event) bool {
	if d.c.kind() == kindString {
		e.Unread |= KeyLoRA
		return d.c.skip()
	}
	e.LoRAID, e.HasLoRAID = d.c.integer64()
	return e.HasLoRAID
}

func (d *Decoder) hashes(b *Batch, e *Event) (problem string) {
	c := &d.c
	n, ok := c.array()
	if !ok {
		return "block_hashes is no array"
	}
	switch {
	case n > maxHashes:
		return "more than 262,144 block hashes"
	case len(e.Hashes) > 0:
		return "block_hashes twice"
	}
	start := len(b.hashes)
	b.hashes = room(b.hashes, n)
	for ; n > 0; n-- {
		h, digest, ok := c.hash()
		if !ok {
			b.hashes = b.hashes[:start]
			return "a block hash is neither an integer nor bytes"
		}
		if d.KeepRaw && digest != nil {
			e.Digests = append(e.Digests, digest)
		}
		b.hashes = append(b.hashes, h)
	}
	e.Hashes = b.hashes[start:len(b.hashes):len(b.hashes)]
	return ""
}

func (d *Decoder) tokens(b *Batch, e *Event) (problem string) {
	c := &d.c
	n, ok := c.array()
	if !ok {
		return "token_ids is no array"
	}
	switch {
	case n > maxTokens:
		return "more than two million token ids"
	case len(e.Tokens) > 0:
		return "token_ids twice"
	}
	start := len(b.tokens)
	b.tokens = room(b.tokens, n+block.MaxAhead)
	if n > 0 && c.kind() == kindArray {
		problem = d.pairs(b, e, n)
	} else if b.tokens, ok = c.appendTokens(b.tokens, n); !ok {
		problem = "a token id is no integer of 32 bits"
	}
	if problem != "" {
		b.tokens = b.tokens[:start]
		return problem
	}
	if e.Bigram {
		e.Tokens, e.Ahead = b.tokens[start:start+n:start+n+1], b.tokens[start+n:start+n+1:start+n+1]
		return ""
	}
	e.Tokens = b.tokens[start : start+n : start+n]
	return ""
}

// pairs takes the n pairs (token, next token) of SGLang with EAGLE. The next token of each pair must be the first token
// of the following pair. Otherwise the tokens of the blocks are not known, and the event is unusable.
func (d *Decoder) pairs(b *Batch, e *Event, n int) (problem string) {
	c := &d.c
	e.Bigram = true
	var last block.Token
	for i := range n {
		if two, ok := c.array(); !ok || two != 2 {
			return "a token pair is no array of two"
		}
		first, ok1 := c.token()
		next, ok2 := c.token()
		if !ok1 || !ok2 {
			return "a token of a pair is no integer of 32 bits"
		}
		if i > 0 && first != last {
			return "token pairs do not chain"
		}
		b.tokens = append(b.tokens, first)
		last = next
	}
	b.tokens = append(b.tokens, last)
	return ""
}

// metadata takes SGLang's map of metadata, and stores its salt.
func (d *Decoder) metadata(e *Event, r *reading) (problem string) {
	c := &d.c
	n, ok := c.object()
	if !ok {
		return "metadata is no map"
	}
	r.present |= 1 << fieldMetadata
	for ; n > 0 && c.broken == ""; n-- {
		key, ok := c.text()
		if !ok {
			return "a key of metadata is no string"
		}
		if string(key) == "cache_salt" && !c.null() {
			if !d.string(&e.Salt) {
				return wrongKind[fieldSalt]
			}
			continue
		}
		if string(key) != "cache_salt" {
			c.skip()
		}
	}
	return ""
}

// items takes the field block_mm_infos: Dynamo's lists of multimodal items for each block. The positions in these lists
// cannot be used.
func (d *Decoder) items(e *Event) {
	c := &d.c
	n, ok := c.array()
	if !ok {
		e.Unread |= KeyFeature
		c.skip()
		return
	}
	for ; n > 0 && c.broken == ""; n-- {
		if !c.null() {
			e.Unread |= KeyFeature
			c.skip()
		}
	}
}

// room returns s with capacity for n more elements. n must be bounded by the length of the payload, so that memory
// stays bounded, too.
func room[T any](s []T, n int) []T {
	if cap(s)-len(s) >= n {
		return s
	}
	grown := make([]T, len(s), max(2*cap(s), len(s)+n))
	copy(grown, s)
	return grown
}
