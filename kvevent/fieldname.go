package kvevent

// fields maps the keys of events in map form to fields. A key means the same field in the events of all engines.
var fields = map[string]field{
	"type":                         fieldType,
	"block_hashes":                 fieldHashes,
	"parent_block_hash":            fieldParent,
	"token_ids":                    fieldTokens,
	"block_size":                   fieldBlockSize,
	"lora_id":                      fieldLoRAID,
	"medium":                       fieldMedium,
	"lora_name":                    fieldLoRAName,
	"extra_keys":                   fieldExtraKeys,
	"group_idx":                    fieldGroup,
	"kv_cache_spec_kind":           fieldSpec,
	"kv_cache_spec_sliding_window": fieldWindow,
	"locality":                     fieldLocality,
	"cache_salt":                   fieldSalt,
	"metadata":                     fieldMetadata,
	"ownership":                    fieldOwner,
	"session_id":                   fieldSession,
	"lookahead_token_ids":          fieldAhead,
	"remaining_copy_counts":        fieldRemaining,
	"block_mm_infos":               fieldItems,
	"seq_hashes":                   fieldMooncake,
	"object_key":                   fieldMooncake,
	"backend_id":                   fieldMooncake,
}

// packedNames has the name of each field as a MessagePack string. If a field has several names, its entry is empty.
var packedNames = func() (packed [numFields]string) {
	count := map[field]int{}
	for name, f := range fields {
		packed[f] = string([]byte{0xa0 | byte(len(name))}) + name
		count[f]++
	}
	for f, n := range count {
		if n > 1 {
			packed[f] = ""
		}
	}
	return packed
}()

// fieldName takes the name of a field of an event in map form, and returns the field; fieldNone stands for an unknown
// name. previous is the field that came before this name. An engine always writes its fields in the same order. So
// fieldName first tries the name that followed previous in the last event.
func (d *Decoder) fieldName(e *Event, previous field) (f field, ok bool) {
	c := &d.c
	next := &d.after[e.Kind][previous]
	if name := packedNames[*next]; name != "" && c.left() >= len(name) && string(c.p[c.i:c.i+len(name)]) == name {
		c.i += len(name)
		return *next, true
	}
	key, ok := c.text()
	if !ok {
		return fieldNone, false
	}
	f = fields[string(key)]
	*next = f
	return f, true
}
