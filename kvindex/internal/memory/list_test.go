package memory

import (
	"slices"
	"testing"
)

func TestListsCountWhatIsInUse(t *testing.T) {
	var lists Lists
	all := make([]List, 3000)
	for n := range all {
		words := make([]uint64, n)
		for i := range words {
			words[i] = uint64(n + i)
		}
		before := lists.Bytes()
		lists.Set(&all[n], words)
		if !slices.Equal(all[n].Words(), words) {
			t.Fatalf("a list of %d words has others", n)
		}
		if took := lists.Bytes() - before; took < int64(n)*8 || n > 0 && took > ListBytes(n) {
			t.Fatalf("a list of %d words takes %d bytes, at most %d are expected", n, took, ListBytes(n))
		}
	}
	for n := range all {
		lists.Set(&all[n], []uint64{1})
		lists.Set(&all[n], nil)
	}
	if n := lists.Bytes(); n != 0 {
		t.Errorf("%d bytes when no list is left", n)
	}
}
