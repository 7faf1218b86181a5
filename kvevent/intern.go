package kvevent

// interner returns equal bytes as one string, and allocates it only once. It holds two generations of at most
// maxInterned strings. When the young generation is full, it becomes the old one, and the former old one is dropped.
// Strings in use survive, because each use moves them to the young generation. The number of kept strings is bounded,
// because the number of different salts and image identifiers is not.
type interner struct {
	young, old map[string]string
}

const (
	maxInterned      = 2048 // more than the adapters and tenants in use; two generations take at most 2 MiB with maxInternedLen
	maxInternedLen   = 512  // bytes; longer strings are copied each time: identifiers have 64 hex digits, salts about as many
	sizeOfFreshTable = 64
)

// text returns b as a string that stays valid.
func (t *interner) text(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	if s, ok := t.young[string(b)]; ok {
		return s
	}
	if len(b) > maxInternedLen {
		return string(b)
	}
	s, ok := t.old[string(b)]
	if !ok {
		s = string(b)
	}
	if len(t.young) >= maxInterned {
		t.young, t.old = t.old, t.young
		clear(t.young)
	}
	if t.young == nil {
		t.young = make(map[string]string, sizeOfFreshTable)
	}
	t.young[s] = s
	return s
}

// printable returns at most maxTag bytes of b, and replaces each byte that is not printable ASCII. The name of an event
// needs this: it comes from the network and goes to metrics and logs.
func (t *interner) printable(b []byte) string {
	var buffer [maxTag]byte
	n := copy(buffer[:], b)
	for i, c := range buffer[:n] {
		if c <= ' ' || c > '~' || c == '"' || c == '\\' {
			buffer[i] = '?'
		}
	}
	return t.text(buffer[:n])
}
