package kvevent

import "github.com/warmpath/warmpath/block"

// finish completes and checks an event when all its fields are read. If the event is unusable, finish returns the
// reason.
func (d *Decoder) finish(b *Batch, e *Event, r *reading) (problem string) {
	if r.has(fieldMooncake) {
		return "an event of Mooncake's master has hashes of its own and no tokens"
	}
	e.Tier = tierOf(e.Medium, e.Locality)
	if e.Kind == Cleared {
		return ""
	}
	if !r.holds(fieldHashes) {
		return "an event without block_hashes"
	}
	e.Tier = ownedTier(e.Tier, e.Owner)
	if e.Kind == Removed {
		if r.holds(fieldRemaining) {
			return d.remaining(e, r)
		}
		return ""
	}
	if !r.holds(fieldTokens) {
		return "a stored event without token_ids"
	}
	if !r.holds(fieldBlockSize) && len(e.Tokens) > 0 {
		return "a stored event without block_size"
	}
	e.HasAttention = e.Spec != ""
	e.Attention = attentionOf(e.Spec)
	// vLLM before 0.14 sends the number of an adapter without its name. The numbers begin at 1.
	if e.HasLoRAID && e.LoRAID != 0 && e.LoRA == "" {
		e.Unread |= KeyLoRA
	}
	e.Hidden, e.NoExtraKeys = hidden(e, r), !r.holds(fieldExtraKeys)
	if r.holds(fieldAhead) {
		if problem := d.ahead(b, e, r); problem != "" {
			return problem
		}
	}
	if r.holds(fieldExtraKeys) {
		d.extraKeys(b, e, r)
	}
	return ""
}

// hidden returns the extra keys for which the event's format has no field.
func hidden(e *Event, r *reading) Keys {
	if r.holds(fieldExtraKeys) {
		return 0 // vLLM since 0.17 sends every value that the hash depends on
	}
	var k Keys
	switch named := r.has(fieldLoRAName); {
	case r.has(fieldMetadata): // SGLang 0.5.18 with a salt
		k = KeyExtra
	case r.fields > 7: // vLLM 0.14 and later without extra_keys; it cannot be SGLang, so there is no extra_key
		k = KeySalt | KeyFeature
	case r.fields > 0: // vLLM before 0.14, or SGLang: both write arrays of the same form
		k = KeySalt | KeyFeature | KeyExtra
	case named && e.LoRA == "": // vLLM and TensorRT-LLM write the field lora_name even if it is null
		k = KeySalt | KeyFeature
	case named && e.Tier != block.TierGPU: // an offload tier of vLLM or SGLang
		k = KeySalt | KeyFeature | KeyExtra
	default: // a map of SGLang: fields without a value are left out, and extra_key is never sent
		k = KeyExtra
	}
	if e.Salt != "" {
		k &^= KeySalt
	}
	// If the event names an adapter, the adapter is not hidden. Without a name, there may still be an adapter in two
	// cases. Either the format has no field for the name; or the event is of an offload tier, because some connectors
	// (LMCache) always write null.
	if e.LoRA == "" && (!r.has(fieldLoRAName) || r.has(fieldMetadata) || e.Tier != block.TierGPU) {
		k |= KeyLoRA
	}
	return k
}

// extraKeys reads the extra keys that vLLM put into the hash of each block. Their order is: the adapter's name,
// multimodal items, the salt (only in the first block of a prompt), digests of prompt embeddings
// (v1/core/kv_cache_utils.py: generate_block_hash_extra_keys).
func (d *Decoder) extraKeys(b *Batch, e *Event, r *reading) {
	c := &d.c
	resume := c.i
	c.i = r.extraKeys
	if d.KeepRaw {
		e.ExtraKeys = c.p[r.extraKeys:r.extraEnd:r.extraEnd]
	}
	d.classify(b, e, r)
	c.i = resume
}

// classify reads the value of the field extra_keys and decides which kind each key is.
func (d *Decoder) classify(b *Batch, e *Event, r *reading) {
	c := &d.c
	n, ok := c.array()
	if !ok {
		e.Unread |= KeyOther
		return
	}
	k := keyring{batch: b, event: e, start: len(b.features), aligned: e.Aligned() && n == len(e.Hashes)}
	for i := range n {
		if c.null() {
			continue
		}
		elements, ok := c.array()
		if !ok {
			e.Unread |= KeyOther
			c.skip()
			continue
		}
		k.base, k.first = i*e.BlockSize, i == 0
		for j := range elements {
			d.key(&k, j)
		}
	}
	k.finish(r)
	e.Features = b.features[k.start:len(b.features):len(b.features)]
}

// keyring is the state while the extra keys of one event are read.
type keyring struct {
	batch   *Batch
	event   *Event
	start   int    // index of the event's first item in batch.features
	aligned bool   // entry i of extra_keys is for the block at Tokens[i·BlockSize:]
	base    int    // token position of the current block
	first   bool   // the current block is the event's first block
	pairs   bool   // an item came together with its offset, as in vLLM since #36708
	bare    string // last string in the prompt's first block that is not in a pair or triple; it may be the salt
	bares   int    // number of such strings in the first block of the prompt
}

// key reads element j of the extra keys of the current block.
func (d *Decoder) key(k *keyring, j int) {
	c, e := &d.c, k.event
	switch c.kind() {
	case kindString:
		s, _ := c.text()
		switch {
		case j == 0 && e.LoRA != "" && string(s) == e.LoRA:
		case k.first && k.aligned && !e.HasParent:
			k.bare = d.names.text(s)
			k.bares++
		default: // an item of an older version, whose position in the block is unknown
			e.Unread |= KeyFeature
		}
	case kindArray:
		d.compound(k)
	case kindBytes:
		e.Unread |= KeyEmbeds
		c.skip()
	default:
		e.Unread |= KeyOther
		c.skip()
	}
}

// compound reads a key that consists of several parts: (identifier, offset) for an item, ("cache_salt", salt) or
// ("lora", name, path). vLLM hashes the last two forms since version 0.32, but does not publish them yet.
func (d *Decoder) compound(k *keyring) {
	c, e := &d.c, k.event
	start := c.i
	n, _ := c.array()
	name, ok := c.text()
	switch {
	case !ok:
	case n == 2 && string(name) == "cache_salt" && c.kind() == kindString:
		salt, _ := c.text()
		e.Salt = d.names.text(salt)
		return
	case n == 2 && c.kind() == kindInt:
		offset, ok := c.integer64()
		if !ok || offset > maxOffset || offset < -maxOffset {
			e.Unread |= KeyFeature
			return
		}
		k.pairs = true
		if !k.aligned {
			e.Unread |= KeyFeature
			return
		}
		k.add(block.Feature{ID: d.names.text(name), Offset: k.base + int(offset)})
		return
	case n == 3 && string(name) == "lora" && c.kind() == kindString:
		adapter, _ := c.text()
		if e.LoRA == "" {
			e.LoRA = d.names.text(adapter)
			e.Unread &^= KeyLoRA
		}
		c.skip()
		return
	}
	e.Unread |= KeyOther
	c.i = start
	c.skip()
}

// add records an item once, although engines name the item in every block that it covers.
func (k *keyring) add(f block.Feature) {
	// lookBack is the number of recorded items that are compared with f. Normally at most this many items cover one
	// block; with more, an item may be recorded twice. Comparing f with all recorded items would take quadratic time.
	const lookBack = 32
	seen := k.batch.features[k.start:]
	if f.Offset < k.base+len(k.event.Ahead) && !k.first {
		for i := len(seen) - 1; i >= 0 && i >= len(seen)-lookBack; i-- {
			if seen[i] == f {
				return
			}
		}
	}
	if len(seen) >= maxFeatures {
		k.event.Unread |= KeyFeature
		return
	}
	k.batch.features = append(k.batch.features, f)
}

// finish interprets the strings in the first block of a prompt that are not in a pair or triple. Normally the last of
// them is the salt. But in vLLM 0.17 and 0.18 such a string may also be a multimodal item. Version 0.19 writes items
// with offsets, but its events have the same number of fields. So only an item with an offset shows that an event is of
// version 0.19.
func (k *keyring) finish(r *reading) {
	const fieldsOf017 = 9
	e := k.event
	switch {
	case k.bares == 0:
	case k.bare == "": // no engine accepts an empty salt
		e.Unread |= KeyOther
	case r.fields == fieldsOf017 && !k.pairs:
		e.Unread |= KeySalt | KeyFeature
	default:
		e.Salt = k.bare
		if k.bares > 1 {
			e.Unread |= KeyFeature
		}
	}
}
