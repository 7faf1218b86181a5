package kvindex

import "github.com/warmpath/warmpath/block"

// putRun is put of keys that are at spots which follow each other, and returns how many of them are not new; fresh:
// all are. The buckets of some keys are on their way into the cache before the first of them is written to, and so
// are those where there may be room for keys whose homes are full, which come last.
func (t *slots) putRun(keys []block.Key, s spot, fresh bool, alive func(spot) bool) (known int) {
	if len(keys) == 1 && fresh {
		t.insert(keys[0], s, alive)
		return 0
	}
	var ways [ahead]way
	var late [ahead]uint8 // those whose homes are full
	for ; len(keys) > 0; keys, s = keys[min(len(keys), ahead):], s+ahead {
		some := keys[:min(len(keys), ahead)]
		for k, key := range some {
			h := t.mix(key)
			g := t.segment(h)
			a := g.array.Load()
			if t.full(g, a, ahead) {
				ways[k].array = nil // it may have to grow, for this key and the segment's others that follow
				continue
			}
			home := a.home(h)
			ways[k] = way{a, home}
			fetch(&a.words[home*bucketWords])
			g.n++
			t.n++
		}
		n := 0
		for k, key := range some {
			if w := &ways[k]; w.array != nil {
				if fresh || w.array.lacks(w.home, key) {
					if !w.array.insertHome(w.home, key, s+spot(k)) {
						w.array.fetchStray(w.home)
						late[n] = uint8(k)
						n++
					}
					continue
				}
				t.segment(t.mix(key)).n-- // it may not be new
				t.n--
			}
			if !t.put(key, s+spot(k), alive) {
				known++
			}
		}
		// Their segments have not grown meanwhile: there was room for all of the group when the first was counted.
		for _, k := range late[:n] {
			ways[k].array.insertStray(ways[k].home, some[k], s+spot(k))
		}
	}
	return known
}

// fetchStray lets the first two buckets after a full home be on their way into the cache.
func (a *slotArray) fetchStray(home uint64) {
	b := nextBucket(home, 1, a.buckets)
	fetch(&a.words[b*bucketWords])
	fetch(&a.words[nextBucket(b, 2, a.buckets)*bucketWords])
}

// way is where a key will be inserted.
type way struct {
	array *slotArray
	home  uint64
}

// lacks reports whether a key is surely not there, by a look at its home.
func (a *slotArray) lacks(home uint64, key block.Key) bool {
	w := (*[bucketWords]uint64)(a.words[home*bucketWords:])
	return stray(w[1]) == 0 && w[0] != uint64(key) && w[2] != uint64(key) && w[4] != uint64(key) && w[6] != uint64(key)
}
