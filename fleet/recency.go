package fleet

// recency is the order of last use of a holder's cached blocks that no request uses. Engines evict the least recently
// used block first, and put the blocks of a request into that order when the request ends [vLLM,
// v1/core/block_pool.py, free_blocks; SGLang, srt/mem_cache/radix_cache.py, by last access]. The order is kept by
// generations of some blocks each, and for marks of prompts instead of for blocks: see [NextMark]. A ledger's mutex
// guards it.
//
// It is no store of placements (package placement, docs/design/0034). A placement says which holder may have a prompt.
// recency says how soon a holder evicts blocks that it has, and the holder's events correct it.
type recency struct {
	cacheShape                     // if its blocks are 0, nothing is kept
	now         uint32             // the present generation; from 1 on
	generations [generations]int64 // blocks that were last used in generation g, at index g modulo len
	held        int64              // blocks that are cached, by the holder's events
	uses        []use              // a hash table in sets of useWays; the oldest of a set is replaced
	evicted     uint32             // the latest generation with an evicted block; 0: none
	unannounced int64              // upper bound of the tokens of our own requests that the engine has not announced yet
}

// cacheShape is the size of a cache; 0 means unknown.
type cacheShape struct{ blocks, blockSize int64 }

func (s *Snapshot) cacheShape(h Holder) cacheShape {
	w := s.Worker(h)
	if w == nil {
		return cacheShape{}
	}
	return cacheShape{int64(w.Facts.BlocksPerRank), int64(w.Facts.BlockSize)}
}

// use is the last use of the blocks between a mark and the mark before it.
type use struct {
	tag        uint32 // of the mark's key
	generation uint32 // 0: the place is free
	blocks     int32  // all blocks between the marks; another prompt that shares some of them counts them, too
}

const (
	// A generation is 1/perCache of the cache: 1,024 tokens of 65,536, a part of most prompts. The kept generations
	// hold two caches: older blocks are evicted in any case.
	generations = 128
	perCache    = 64
	useWays     = 4
	// Prompts have a mark every 10 to 20 % of their length, and share the marks of a common beginning. A use for each
	// eight blocks holds twice the marks of a cache of conversations, and takes 1.5 bytes a block.
	fewestUses, blocksPerUse, mostUses = 256, 8, 1 << 16
)

// resize forgets the order when the cache has another shape: its size was just learned, or it belongs to a new process.
func (c *recency) resize(shape cacheShape) {
	if shape == c.cacheShape {
		return
	}
	*c = recency{cacheShape: shape, now: 1, held: c.held, unannounced: c.unannounced}
	if shape.blocks <= 0 || shape.blockSize <= 0 {
		c.blocks = 0
		return
	}
	n := int64(fewestUses)
	for n < shape.blocks/blocksPerUse && n < mostUses {
		n *= 2
	}
	c.uses = make([]use, n)
}

// clear forgets the order of use and the count of held blocks.
func (c *recency) clear() {
	clear(c.uses)
	c.generations, c.held, c.unannounced, c.evicted, c.now = [generations]int64{}, 0, 0, 0, 1
}

// find returns the use of a mark, nil when it is not known.
func (c *recency) find(key uint64) *use {
	if len(c.uses) == 0 {
		return nil
	}
	set := c.set(key)
	for i := range set {
		if set[i].tag == uint32(key>>32) && set[i].generation != 0 {
			return &set[i]
		}
	}
	return nil
}

func (c *recency) set(key uint64) []use {
	at := int(key) & (len(c.uses)/useWays - 1) * useWays
	return c.uses[at : at+useWays]
}

// add adds n blocks to generation g, or subtracts them. For a generation that is no longer kept it does nothing.
func (c *recency) add(g uint32, n int64) {
	if c.now-g >= generations {
		return
	}
	at := &c.generations[g%generations]
	*at = max(*at+n, 0)
}

// take records that a request uses the blocks that end with a mark, and whether one of these blocks was evicted. If so,
// all blocks that were last used in the mark's generation or before are evicted, or soon will be. If a policy counts
// blocks at risk as uncached, they count as evicted here, too: they will be evicted when the request is scheduled.
func (c *recency) take(key uint64, evicted bool) {
	u := c.find(key)
	if u == nil {
		return
	}
	if evicted {
		c.evicted = max(c.evicted, u.generation)
	}
	c.add(u.generation, -int64(u.blocks))
	*u = use{}
}

// put records that the n blocks that end with a mark are no longer in use: they become the most recently used.
func (c *recency) put(key uint64, n int64) {
	if len(c.uses) == 0 {
		return
	}
	u := c.find(key)
	if u == nil {
		set := c.set(key)
		u = &set[0]
		for i := range set {
			if set[i].generation < u.generation {
				u = &set[i]
			}
		}
	} else {
		c.add(u.generation, -int64(u.blocks))
	}
	*u = use{tag: uint32(key >> 32), generation: c.now, blocks: int32(n)}
	c.add(c.now, n)
}

// rest records that the n blocks after a prompt's last mark, and the blocks of its answer, are no longer in use.
func (c *recency) rest(n, answer int64) {
	if c.blocks > 0 {
		c.add(c.now, n+answer/c.blockSize)
	}
}

// pass begins a new generation when the present one has its part of the cache.
func (c *recency) pass() {
	if c.generations[c.now%generations] < max(c.blocks/perCache, 1) {
		return
	}
	if c.now++; c.now == 0 { // after 2^32 generations: a later one has a greater number
		c.clear()
	}
	c.generations[c.now%generations] = 0
}

// stored records that the engine announced n new blocks. It attributes them first to our own requests whose blocks are
// unannounced: these blocks enter the order when their request ends. The rest belongs to other clients, and enters the
// order now.
func (c *recency) stored(n int64) {
	c.held += n
	if c.blocks == 0 {
		return
	}
	c.held = min(c.held, c.blocks)
	own := min(n, (c.unannounced+c.blockSize-1)/c.blockSize)
	c.unannounced = max(c.unannounced-own*c.blockSize, 0)
	if n > own {
		c.pass()
		c.add(c.now, n-own)
	}
}

// newer returns the blocks that were last used in later generations than g.
func (c *recency) newer(g uint32) (n int64) {
	for back := range min(c.now-g, generations) {
		n += c.generations[(c.now-back)%generations]
	}
	return n
}

// cached notes that the engine announced new blocks and removals. known says that the history of the cache is complete.
// If it is not, the cache is assumed to have been full when it removed blocks, except for a partly full block of each
// request.
func (l *ledger) cached(stored, removed int64, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &l.recency
	if removed > 0 && !known {
		c.held = max(c.held, c.blocks-l.requests.Load())
	}
	c.held = max(c.held-removed, 0)
	if stored > 0 {
		c.stored(stored)
	}
}

// forgetCache forgets which blocks are cached and their order of use: the cache is empty, or its content is unknown.
func (l *ledger) forgetCache() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recency.clear()
}

// AtRisk returns how many of the first matched engine blocks of a prompt, named by its marks, will probably be
// evicted on h before a request that is dispatched now is scheduled. The waiting prompts and the growing answers
// evict them, if the cache has neither room nor blocks that were used less recently. The result is 0 on a holder
// without requests, where a request under way uses the blocks, and where the size of the cache or the last use of the
// blocks is unknown. usable is how many blocks could be matched at most: an engine computes at least the last token
// of a prompt. AtRisk takes h's own lock where requests are under way.
func (s *Snapshot) AtRisk(h Holder, marks []Mark, matched, usable int) int {
	st := s.state(h)
	if st == nil || matched <= 0 || st.work.requests.Load() == 0 {
		return 0
	}
	if st.trust.Load().level != TrustExact {
		usable = matched // blocks that do not match may still be cached
	}
	l := &st.work
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.atRisk(marks, int64(matched), int64(usable)))
}

// atRisk is AtRisk. mu is held.
func (l *ledger) atRisk(marks []Mark, matched, usable int64) (risk int64) {
	c := &l.recency
	if c.blocks == 0 {
		return 0
	}
	requests := l.requests.Load() // each has a partly full block that is not announced
	evictions := c.unannounced/c.blockSize + requests - max(c.blocks-c.held-requests, 0)
	if evictions <= 0 {
		return 0
	}
	last := 0
	for last < len(marks) && int64(marks[last].Blocks) <= matched {
		last++
	}
	evicted := c.evicted
	if matched < usable && last < len(marks) && l.shared[marks[last].Key].requests == 0 {
		if u := c.find(marks[last].Key); u != nil {
			evicted = max(evicted, u.generation) // more of the prompt was cached at its last use
		}
	}
	left := c.blocks - l.blocks.Load() - l.output.Load()/c.blockSize - requests
	for i, end := last-1, matched; i >= 0; {
		if l.shared[marks[i].Key].requests > 0 {
			break // all blocks before it are in use, too
		}
		u := c.find(marks[i].Key)
		if u == nil {
			i--
			continue
		}
		begin := int64(0)
		for i--; i >= 0; i-- { // the marks of the same generation, and unknown ones
			v := c.find(marks[i].Key)
			if v != nil && v.generation != u.generation || l.shared[marks[i].Key].requests > 0 {
				begin = int64(marks[i].Blocks)
				break
			}
		}
		n := end - begin
		lost := min(max(c.lost(u.generation, evicted, n, evictions, left), 0), n)
		risk += lost
		if lost < n {
			break // the beginning of these blocks stays, and so do all blocks before them
		}
		end = begin
	}
	return min(risk, evictions)
}

// lost returns how many of n blocks of generation g are evicted by this number of evictions; it may be below 0 or above
// n. Generations are evicted in order, from the latest one with an evicted block on. If there is no such generation, or
// it is no longer kept, all blocks beyond left are evicted, where left is the room that requests leave in the cache.
func (c *recency) lost(g, evicted uint32, n, evictions, left int64) int64 {
	switch {
	case evicted == 0 || c.now-evicted >= generations:
		return c.newer(g) + n - left
	case g <= evicted:
		return evictions
	}
	sooner := c.newer(evicted-1) - c.newer(g) - n // blocks that are evicted before these
	return evictions - max(sooner, 0)
}
