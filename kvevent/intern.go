package kvevent

// interner returns one string for equal bytes, so that the string is allocated only once. It keeps strings in two maps,
// young and old, of at most maxInterned strings each. When young is full, it becomes old, and the strings of the former
// old map are dropped. Strings in use are kept, because each use of a string copies it into young. There must be a
// bound, because clients choose salts and identifiers of images freely.
type interner struct {
	young, old map[string]string
}

const (
	// maxInterned is larger than the number of adapters and tenants in use. With maxInternedLen, the strings in the two
	// maps take at most 2 MiB.
	maxInterned = 2048
	// maxInternedLen is in bytes. Identifiers have 64 hexadecimal digits, and salts are usually not longer. A longer
	// string is allocated each time.
	maxInternedLen   = 512
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

// printable returns at most maxTag bytes of b, and replaces each space, quotation mark, backslash and byte that is not
// printable ASCII with "?". The name of an event needs this, because the name comes from the network and goes into
// metrics and logs.
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
