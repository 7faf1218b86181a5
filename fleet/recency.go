package fleet

import "math"

// recency is the order of last use of a holder's cached blocks, as far as no request under way uses them. Engines evict
// the least recently used block first, and put the blocks of a request into that order when the request ends [vLLM,
// v1/core/block_pool.py, free_blocks; SGLang, srt/mem_cache/radix_cache.py, by last access].
//
// The order is coarse in two ways. Blocks that were used at about the same time are one generation: recency knows the
// order of generations, but no order within one. And it stores one entry for each mark of a prompt instead of one for
// each block. A [Mark] is a position in a prompt, and its entry stands for all blocks between the mark before it and
// this mark. The mutex of the holder's ledger guards the recency.
//
// Package placement has another purpose (docs/design/0034): a placement says which holder may have a prompt. recency
// says how soon a holder evicts blocks that it has, and the holder's events correct it.
type recency struct {
	cacheShape                     // if its field blocks is 0, no order is kept
	now         uint32             // the present generation; the first one is 1
	generations [generations]int64 // at index g modulo len: the number of blocks that were last used in generation g
	held        int64              // the number of cached blocks, by the holder's events
	uses        []use              // a hash table in sets of useWays; a new use replaces the oldest of its set
	evicted     uint32             // the latest generation with an evicted block; 0: none
	unannounced int64              // estimated tokens of this router's requests that the engine still has to announce in blocks
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
	tag        uint32 // the upper half of the mark's key
	generation uint32 // the generation of the last use; 0: the entry is free
	blocks     int32  // the number of blocks between the two marks; blocks that two prompts share may count in two uses
}

const (
	// A generation is 1/perCache of the cache. In a cache of 65,536 tokens these are 1,024 tokens, less than most
	// prompts.
	perCache = 64
	// generations is how many generations are kept. Together they are twice as large as the cache. Older blocks are
	// evicted in any case.
	generations = 128
	// useWays is the number of entries of a set.
	useWays = 4
	// The table has an entry for each blocksPerUse blocks of the cache, within the bounds fewestUses and mostUses.
	// Prompts have a mark every 10 to 20 % of their length, and prompts with a common beginning share its marks. So for
	// a cache of conversations the table has twice the entries that it needs. It takes 1.5 bytes for each block.
	fewestUses, blocksPerUse, mostUses = 256, 8, 1 << 16
)

// resize forgets the order when the cache has another shape: the cache's size has just become known, or the engine is a
// new process.
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

// find returns the use of a mark, or nil if the table has none.
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

// add adds n blocks to generation g; n may be negative. If the generation is no longer kept, add does nothing.
func (c *recency) add(g uint32, n int64) {
	if c.now-g >= generations {
		return
	}
	at := &c.generations[g%generations]
	*at = max(*at+n, 0)
}

// take removes blocks from the order, because a request uses them now: the blocks between the mark with this key and
// the mark before it. evicted says that at least one of these blocks was evicted. In that case all blocks that were
// last used in the mark's generation or before are evicted, or soon will be. If a policy counts blocks at risk as
// uncached, take counts them as evicted, too: they will be evicted before the request is scheduled.
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

// put adds n blocks to the order as the most recently used blocks, because no request uses them any more: the blocks
// between the mark with this key and the mark before it.
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

// rest does the same as put for the n blocks after a prompt's last mark and for the tokens of its answer.
func (c *recency) rest(n, answer int64) {
	if c.blocks > 0 {
		c.add(c.now, n+answer/c.blockSize)
	}
}

// pass begins a new generation if the present one has reached its size, 1/perCache of the cache.
func (c *recency) pass() {
	if c.generations[c.now%generations] < max(c.blocks/perCache, 1) {
		return
	}
	if c.now++; c.now == 0 { // overflow: a later generation must have a greater number, so the order starts anew
		c.clear()
	}
	c.generations[c.now%generations] = 0
}

// stored records that the engine announced n new blocks. New blocks count as blocks of this router's requests until the
// tokens in unannounced are used up. Such blocks enter the order when their request ends. Further blocks belong to
// other clients, and enter the order now.
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

// newer returns the number of blocks that were last used in later generations than g.
func (c *recency) newer(g uint32) (n int64) {
	for back := range min(c.now-g, generations) {
		n += c.generations[(c.now-back)%generations]
	}
	return n
}

// cached notes that the engine announced new and removed blocks. known says that the events show the whole history of
// the cache. If known is false and blocks were removed, the cache is assumed to have been full before, except for one
// partly full block of each request.
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
	if c.blocks > 0 {
		l.filled.Store(math.Float64bits(min(float64(c.held)/float64(c.blocks), 1)))
	}
}

// forgetCache forgets how many blocks are cached and when they were used last: the cache is empty, or its content is
// unknown.
func (l *ledger) forgetCache() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recency.clear()
	l.filled.Store(0)
}

// AtRisk returns how many of a prompt's first matched engine blocks will probably be evicted on h before a request is
// scheduled that is dispatched now. The waiting prompts and the growing answers at h need blocks. They evict matched
// blocks if the cache has no free blocks and no blocks that were used less recently.
//
// marks are the prompt's marks. matched is the number of blocks that h has now. usable is the greatest number that
// could match: less than the whole prompt, because an engine computes at least the prompt's last token.
//
// The result is 0 if h has no requests, if a request under way uses the blocks, or if the size of the cache or the last
// use of the blocks is unknown. AtRisk takes h's lock if requests are under way.
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

// atRisk computes AtRisk. The caller holds mu.
func (l *ledger) atRisk(marks []Mark, matched, usable int64) (risk int64) {
	c := &l.recency
	if c.blocks == 0 {
		return 0
	}
	requests := l.requests.Load() // each request has one partly full block, which the engine has not announced
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
			evicted = max(evicted, u.generation) // the blocks up to this mark were cached at its last use, and at least one is not now
		}
	}
	left := c.blocks - l.blocks.Load() - l.output.Load()/c.blockSize - requests
	for i, end := last-1, matched; i >= 0; {
		if l.shared[marks[i].Key].requests > 0 {
			break // all blocks before this mark are in use, too
		}
		u := c.find(marks[i].Key)
		if u == nil {
			i--
			continue
		}
		begin := int64(0)
		for i--; i >= 0; i-- { // marks of the same generation, and marks without a known use, are taken together
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

// lost returns how many of n blocks of generation g the next evictions evict. The caller limits the result to 0 … n.
// evicted is the latest generation with an evicted block: the engine evicts the blocks of this generation and of the
// following ones in order. If no such generation is known or kept, the order is counted from the newest block instead:
// the requests under way leave room for `left` other blocks, so the newest `left` blocks stay, and all older blocks are
// evicted.
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
