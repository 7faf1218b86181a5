package sharedindex

import "sync"

// cache keeps records that were read, until the server says that they changed. It has two generations: when the young
// one has half of the memory, the old one is dropped and the young one becomes the old one. It is safe for concurrent
// use.
type cache struct {
	half int64 // the limit of one generation, in bytes; 0: the cache is off

	mu         sync.Mutex // guards the fields below
	young, old map[string]string
	bytes      int64 // of young
	// times counts the changes that the server told, by a hash of the name. A record is kept only if the count did not
	// change since before it was read: the news may come before the record is kept.
	times [256]uint32
	all   uint32 // counts the times that everything was dropped
}

// moment is the time of a name in a cache.
type moment struct{ of, all uint32 }

func newCache(bytes int64) *cache { return &cache{half: bytes / 2} }

// entryCost is the memory of an entry besides its name and its value, in bytes.
const entryCost = 64

// stripe returns the place of a name in times.
func stripe(name string) byte {
	if len(name) == 0 {
		return 0
	}
	return name[len(name)-1]
}

// get returns a record, or the present moment of its name.
func (c *cache) get(name string) (value string, ok bool, at moment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if value, ok = c.young[name]; ok {
		return value, true, moment{}
	}
	if value, ok = c.old[name]; ok {
		delete(c.old, name)
		c.keep(name, value)
		return value, true, moment{}
	}
	return "", false, moment{c.times[stripe(name)], c.all}
}

// put keeps a record that was read after the moment, unless it changed meanwhile.
func (c *cache) put(name, value string, at moment) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at == (moment{c.times[stripe(name)], c.all}) {
		c.keep(name, value)
	}
}

func (c *cache) keep(name, value string) {
	if c.young == nil {
		c.young = map[string]string{}
	}
	if _, known := c.young[name]; !known {
		c.bytes += int64(len(name)+len(value)) + entryCost
	}
	if c.young[name] = value; c.bytes > c.half {
		c.old, c.young, c.bytes = c.young, nil, 0
	}
}

// drop forgets records that changed.
func (c *cache) drop(names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		c.times[stripe(name)]++
		delete(c.young, name)
		delete(c.old, name)
	}
}

// clear forgets everything: news may have been lost.
func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all++
	c.young, c.old, c.bytes = nil, nil, 0
}
