package memory

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// has reports whether a search for a key finds a value. Values of other keys may come before it.
func has(t *Table, key, value uint64) bool {
	for v, p := t.Find(t.Hash(key)); v != 0; v, p = p.Next() {
		if v == value {
			return true
		}
	}
	return false
}

func TestATableFindsWhatWasPutAndNotDeleted(t *testing.T) {
	for _, shared := range []bool{false, true} {
		r := rand.New(rand.NewPCG(3, 4))
		table, want := Table{Shared: shared}, map[uint64]uint64{}
		var keys []uint64
		for op := range 300_000 {
			key := r.Uint64()
			if op%3 == 0 {
				key = r.Uint64N(2000) // a small key, which is drawn many times
			}
			if old := want[key]; old != 0 {
				if !has(&table, key, old) {
					t.Fatalf("operation %d: key %x has no value %d", op, key, old)
				}
				continue
			}
			if len(keys) > 20_000+20_000*(op/100_000%2) { // from this size on, each added key replaces a deleted key; the size changes during the test
				i := r.IntN(len(keys))
				if !table.Delete(table.Hash(keys[i]), want[keys[i]]) {
					t.Fatalf("operation %d: key %x is not there", op, keys[i])
				}
				delete(want, keys[i])
				keys[i] = keys[len(keys)-1]
				keys = keys[:len(keys)-1]
			}
			value := r.Uint64N(1<<48) | 1
			table.Put(table.Hash(key), value)
			want[key] = value
			keys = append(keys, key)
		}
		for key, value := range want {
			if !has(&table, key, value) {
				t.Fatalf("key %x has no value %d", key, value)
			}
		}
		table.Tight = true
		if before := table.Bytes(); len(want) > 0 {
			if table.Fit(); table.Bytes() > before {
				t.Errorf("%d bytes became %d", before, table.Bytes())
			}
		}
		for key, value := range want {
			if !has(&table, key, value) {
				t.Fatalf("after Fit key %x has no value %d", key, value)
			}
		}
	}
}

func TestReadersOfATableFindEachEntryThatStays(t *testing.T) {
	table := Table{Shared: true}
	const still = 500
	for i := range uint64(still) {
		table.Put(table.Hash(i), i+1)
	}
	var done atomic.Bool
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for i := uint64(0); !done.Load(); i = (i + 1) % still {
				if !has(&table, i, i+1) {
					t.Errorf("key %d is not found", i)
					return
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(1, 1))
	var others []uint64
	for range 100_000 {
		if len(others) > 3000 {
			i := r.IntN(len(others))
			table.Delete(table.Hash(others[i]), others[i]&(1<<48-1)|1)
			others[i] = others[len(others)-1]
			others = others[:len(others)-1]
			continue
		}
		key := r.Uint64()
		table.Put(table.Hash(key), key&(1<<48-1)|1)
		others = append(others, key)
	}
	done.Store(true)
	readers.Wait()
}

func TestAnArenaHandsOutEachElementOnce(t *testing.T) {
	var a Arena[[4]uint64]
	r := rand.New(rand.NewPCG(5, 6))
	used := map[uint32]uint64{}
	var list []uint32
	for op := range uint64(200_000) {
		if len(list) > 0 && (r.IntN(5) < 2 || len(list) > 5000) {
			k := r.IntN(len(list))
			i := list[k]
			if a.At(i)[0] != used[i] {
				t.Fatalf("element %d has changed", i)
			}
			a.Release(i)
			delete(used, i)
			list[k] = list[len(list)-1]
			list = list[:len(list)-1]
			continue
		}
		i := a.Alloc()
		if _, twice := used[i]; twice || i == 0 {
			t.Fatalf("element %d is handed out twice", i)
		}
		a.At(i)[0] = op
		used[i] = op
		list = append(list, i)
	}
	for i, want := range used {
		if got := a.At(i)[0]; got != want {
			t.Errorf("element %d: %d, want %d", i, got, want)
		}
	}
}

func TestALogKeepsRunsAndLittleGarbage(t *testing.T) {
	var l Log
	r := rand.New(rand.NewPCG(7, 8))
	runs, lengths := make([]Run, 400), make([]int, 400)
	for range 100_000 {
		k := r.IntN(len(runs))
		if r.IntN(3) == 0 {
			n := r.IntN(lengths[k] + 1)
			l.Cut(&runs[k], uint32(k), n)
			lengths[k] = n
		} else {
			n := 1 + r.IntN(20)
			if r.IntN(300) == 0 {
				n = 3000
			}
			var firsts []uint64
			for i := range n {
				firsts = append(firsts, uint64(k)<<32|uint64(lengths[k]+i))
			}
			l.Append(&runs[k], uint32(k), lengths[k], firsts)
			for i, second := range runs[k].Seconds()[lengths[k] : lengths[k]+n] {
				if second != 0 {
					t.Fatalf("second word %d of run %d is %x after Append", i, k, second)
				}
				runs[k].Seconds()[lengths[k]+i] = firsts[i] + 1
			}
			lengths[k] += n
		}
		l.Compact(false, func(owner uint32) (*Run, int) { return &runs[owner], lengths[owner] })
		firsts, seconds := runs[k].Firsts(), runs[k].Seconds()
		for i := range lengths[k] {
			if want := uint64(k)<<32 | uint64(i); firsts[i] != want || seconds[i] != want+1 {
				t.Fatalf("pair %d of run %d: %x, %x", i, k, firsts[i], seconds[i])
			}
		}
	}
	live := 0
	for k := range runs {
		live += 2 * lengths[k]
	}
	if int(l.Bytes()) > 8*live*3/2+64*logWords*8 {
		t.Errorf("%d bytes for %d words", l.Bytes(), live)
	}
	for k := range runs {
		l.Cut(&runs[k], uint32(k), 0)
	}
	if l.words > logWords {
		t.Errorf("%d words are kept for nothing", l.words)
	}
}

// A full index deletes entries a few at a time, and gives memory back after each few. Shrink then moves at most some 40
// entries for each deleted entry, and the table stays at most a tenth larger than its entries need.
func TestShrinkMovesFewEntries(t *testing.T) {
	const n = 200_000
	table := Table{Tight: true}
	for i := range uint64(n) {
		table.Put(table.Hash(i), i+1)
	}
	table.Fit()
	moved := 0
	for i := range uint64(n / 2) {
		table.Delete(table.Hash(i), i+1)
		if i%64 != 0 {
			continue
		}
		var before [tableSegments]*[]bucket
		for k := range table.segments {
			before[k] = table.segments[k].buckets.Load()
		}
		table.Shrink()
		for k := range table.segments {
			if table.segments[k].buckets.Load() != before[k] {
				moved += table.segments[k].n
			}
		}
	}
	if moved > 40*n/2 {
		t.Errorf("%d deletions moved %d entries", n/2, moved)
	}
	is := table.Bytes()
	if table.Fit(); is > table.Bytes()*11/10 {
		t.Errorf("the table takes %d bytes, and needs %d", is, table.Bytes())
	}
	for i := range uint64(n) {
		if has(&table, i, i+1) != (i >= n/2) {
			t.Fatalf("key %d", i)
		}
	}
}
