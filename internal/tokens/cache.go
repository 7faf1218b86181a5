package tokens

import (
	"cmp"
	"container/list"
	"slices"
	"sync"

	"github.com/warmpath/warmpath/block"
)

// entryOverhead is what one remembered prompt costs beside its ids: map slot, list element, headers.
const entryOverhead = 256

// cache remembers answers up to a number of bytes, the least recently used leave first. It is safe for concurrent use;
// answers are shared and must not be changed.
type cache struct {
	limit int64

	mu      sync.Mutex
	bytes   int64                 // guarded by mu
	entries map[key]*list.Element // guarded by mu
	order   *list.List            // guarded by mu; front = most recently used; values are *entry
}

type entry struct {
	key    key
	answer *answer
}

func newCache(limit int64) *cache {
	return &cache{limit: limit, entries: map[key]*list.Element{}, order: list.New()}
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
		last := c.order.Back()
		old := last.Value.(*entry)
		c.order.Remove(last)
		delete(c.entries, old.key)
		c.bytes -= old.answer.size()
	}
}

func (c *cache) stats() (entries, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int64(len(c.entries)), c.bytes
}

// sortFeatures orders features by their place in the prompt, as the chain of keys wants them.
func sortFeatures(features []block.Feature) {
	slices.SortFunc(features, func(a, b block.Feature) int {
		return cmp.Or(cmp.Compare(a.Offset, b.Offset), cmp.Compare(a.ID, b.ID))
	})
}
