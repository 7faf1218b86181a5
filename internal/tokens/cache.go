package tokens

import (
	"cmp"
	lru "container/list"
	"slices"
	"sync"

	"github.com/warmpath/warmpath/block"
)

// entryOverhead is the memory of one cache entry in addition to its ids, in bytes: map slot, list element, slice
// headers.
const entryOverhead = 256

// cache remembers answers of engines and the service, and the first ids that several answers have in common. When the
// entries take more than limit bytes, cache drops the least recently used entries. It is safe for concurrent use.
// Goroutines share the answers, and must not change them.
type cache struct {
	limit int64

	mu      sync.Mutex
	bytes   int64                // guarded by mu
	entries map[key]*lru.Element // guarded by mu
	order   *lru.List            // guarded by mu; values are *entry, the most recently used is in front
}

type entry struct {
	key    key
	answer *answer
}

func newCache(limit int64) *cache {
	return &cache{limit: limit, entries: map[key]*lru.Element{}, order: lru.New()}
}

func (c *cache) get(k key) (*answer, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[k]
	if !ok {
		return nil, false
	}
	c.order.MoveToFront(e)
	return e.Value.(*entry).answer, true
}

func (c *cache) put(k key, a *answer) {
	size := a.size()
	if size > c.limit {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.entries[k]; ok {
		return
	}
	c.entries[k] = c.order.PushFront(&entry{k, a})
	for c.bytes += size; c.bytes > c.limit; {
		c.drop(c.order.Back())
	}
}

// remove forgets the entry of k, if the cache has it.
func (c *cache) remove(k key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.entries[k]; ok {
		c.drop(e)
	}
}

// drop forgets e. The caller holds c.mu.
func (c *cache) drop(e *lru.Element) {
	old := c.order.Remove(e).(*entry)
	delete(c.entries, old.key)
	c.bytes -= old.answer.size()
}

func (c *cache) stats() (entries, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(len(c.entries)), c.bytes
}

// sortFeatures orders features by their offset in the prompt, as block.Hasher requires.
func sortFeatures(features []block.Feature) {
	slices.SortFunc(features, func(a, b block.Feature) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.ID, b.ID))
	})
}
