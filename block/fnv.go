package block

// FNVBasis is the value with which a 64-bit FNV-1a hash begins.
const FNVBasis = 0xcbf29ce484222325

const fnvPrime = 0x100000001b3

// FNV continues the 64-bit FNV-1a hash h with some values. The usual FNV-1a hashes bytes. For tokens, FNV hashes each
// token as one value. [Fowler, Noll, Vo: draft-eastlake-fnv]
func FNV[T ~byte | ~uint32](h uint64, values []T) uint64 {
	for _, v := range values {
		h = (h ^ uint64(v)) * fnvPrime
	}
	return h
}

// FNVText continues the 64-bit FNV-1a hash h with the bytes of a text and a zero byte. So two texts one after another
// have another hash than the two texts cut at another place.
func FNVText(h uint64, text string) uint64 {
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * fnvPrime
	}
	return h * fnvPrime
}
