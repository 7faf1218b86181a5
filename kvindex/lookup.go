package kvindex

import "maps"

// lookup is a map that gives memory back: Go's maps keep the memory of deleted entries. The zero lookup is empty.
type lookup[K comparable, V any] struct {
	entries map[K]V
	most    int // the largest number of entries since entries was made
}

// smallMap is the number of entries up to which a lookup keeps its map until it is empty.
const smallMap = 8

func (l *lookup[K, V]) len() int    { return len(l.entries) }
func (l *lookup[K, V]) get(key K) V { return l.entries[key] }

func (l *lookup[K, V]) put(key K, value V) {
	if l.entries == nil {
		l.entries = map[K]V{}
	}
	l.entries[key] = value
	l.most = max(l.most, len(l.entries))
}

// drop deletes an entry. If less than half of the largest number of entries is left, drop copies them to a smaller map.
func (l *lookup[K, V]) drop(key K) {
	delete(l.entries, key)
	switch n := len(l.entries); {
	case n == 0:
		*l = lookup[K, V]{}
	case l.most > smallMap && n < l.most/2:
		entries := make(map[K]V, n)
		maps.Copy(entries, l.entries)
		*l = lookup[K, V]{entries, n}
	}
}

// listStep is the most elements that a list of records or parts grows by, so that one more element takes little memory.
const listStep = 4

// withRoom returns a list with room for one more element.
func withRoom[T any](list []T) []T {
	if len(list) < cap(list) {
		return list
	}
	more := make([]T, len(list), len(list)+min(len(list)+1, listStep))
	copy(more, list)
	return more
}

// without returns a list without its i-th element. It gives back the memory of a list that has become much shorter.
func without[T any](list []T, i int) []T {
	copy(list[i:], list[i+1:])
	if list = list[:len(list)-1]; cap(list)-len(list) <= listStep {
		return list
	}
	return append(make([]T, 0, len(list)), list...)
}
