package placement

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// Config says what the keys of a [Store] are and when it evicts. A zero limit is no limit; at least one of Bytes,
// HolderUnits and Units bounds the memory, and New sets Units to 2^20 when none does.
type Config struct {
	Keys Keys

	// Bytes bounds the memory at every moment. The holder that takes the most loses its least recent runs.
	Bytes int64
	// HolderUnits is how many units of a holder a pass of [Store.Evict] leaves: the least recently used are evicted
	// first, and within one key the deepest. Between passes a holder may have more: up to twice as many, or without a
	// bound if WholeRuns.
	HolderUnits int64
	// HolderTarget is how many units a pass leaves a holder that has more than HolderUnits. 0 means HolderUnits.
	HolderTarget int64
	// WholeRuns makes a pass evict whole runs, as SGLang's router does with the nodes of its tree: a holder may be left
	// with fewer units than its target. Otherwise a run is cut, so that exactly the target is left.
	WholeRuns bool
	// TTL is how long a placement counts after its last use. A pass of [Store.Evict] frees its memory after that.
	TTL time.Duration
	// Units is how many units of all holders there may be at once, a shared one counted for each holder. When there are
	// more, the least recently used of all holders are evicted, at least 2,048 units with each call of [Store.Learn],
	// until PruneTo of Units are left.
	Units int64
	// PruneTo is above 0 and at most 1. Default 0.8, as Dynamo's prune_target_ratio.
	PruneTo float64
	// Interval is the time between passes. 0 means that there are none.
	Interval time.Duration
	// Step bounds how much one call of [Store.Evict] evicts for HolderUnits, in units, or in runs if WholeRuns. The
	// next call continues. 0 means that each pass is one call.
	Step int
}

func (c Config) withDefaults() Config {
	c.Bytes, c.HolderUnits, c.Units, c.TTL = max(c.Bytes, 0), max(c.HolderUnits, 0), max(c.Units, 0), max(c.TTL, 0)
	if c.Bytes == 0 && c.HolderUnits == 0 && c.Units == 0 {
		c.Units = 1 << 20
	}
	if c.HolderTarget <= 0 || c.HolderTarget > c.HolderUnits {
		c.HolderTarget = c.HolderUnits
	}
	if !(c.PruneTo > 0 && c.PruneTo <= 1) {
		c.PruneTo = 0.8
	}
	return c
}

// Store remembers which holder was sent which keys. Make one with [New].
type Store struct {
	config Config
	unit   int          // bytes of a unit
	page   int          // bytes of a page: keys part at its multiples
	due    atomic.Int64 // when the next pass of Evict begins; 0 before the first call
	skew   atomic.Int64 // what is added to the times of calls; see clock. Changed under mu

	mu sync.RWMutex // guards the fields below
	// nodes by id; roots have no text. links are the placements by id, 0 is none.
	nodes     []node
	roots     []uint32 // nodes, by Root
	freeNodes []uint32
	links     []link
	freeLinks []uint32
	children  map[edge]uint32
	holders   []holder // by number
	used      int64    // bytes of memory: text, nodes and links
	held      int64    // bytes of keys that holders have; a shared byte counts for each holder
	displaced int64    // bytes of keys that were dropped to keep a limit, before their TTL ended
	now       int64    // the latest time of any Learn or Evict, and the stamp of the last use: each use has a later one
	next      int      // the holder at which a pass goes on: a pass visits each holder once
	pruning   bool     // more than Units were held, and PruneTo of them is not reached yet
	path      []uint32 // scratch
	heap      []fleet.Holder
}

// maxHolders bounds the holders' numbers, which index an array. A call with a greater number is ignored.
const maxHolders = 1 << 20

// New returns an empty store with one root, [First].
func New(c Config) *Store {
	unit, page := c.Keys.sizes()
	s := &Store{config: c.withDefaults(), unit: unit, page: page, links: make([]link, 1), children: map[edge]uint32{}, now: -1}
	s.Plant()
	return s
}

// Root is the beginning of keys that share nothing with the keys of other roots.
type Root uint32

// First is the root that every store has.
const First Root = 0

// Plant makes another root, such as one for each model. It stays for as long as the store.
func (s *Store) Plant() Root {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.roots = append(s.roots, s.node(node{}))
	return Root(len(s.roots) - 1)
}

// Learned records the changes of one call of [Store.Learn], for [Store.Unlearn].
type Learned struct {
	known  int   // bytes of the key that the holder had before
	at     int64 // the stamp of this use
	before int64 // the stamp of the last run that the holder had before
}

// Learn records that the holder was sent a prompt with this key at now, in Unix nanoseconds. All runs of the key become
// the holder's most recent ones. It leaves out an incomplete page at the end, and all beyond a quarter of Bytes. It
// does not keep key.
func (s *Store) Learn(root Root, h fleet.Holder, key []byte, now int64) (l Learned) {
	if key = s.whole(key); len(key) == 0 || h >= maxHolders {
		return Learned{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now = s.clock(now)
	s.now = max(s.now+1, now) // Unlearn tells uses apart by their stamps, also when a clock stands still or is set back
	l.at = s.now
	s.admit(h)
	s.expireOf(h, now, stretch) // otherwise Unlearn would leave them with this use's stamp
	for at := s.grow(s.roots[root], key); len(s.nodes[at].text) > 0; at = s.nodes[at].parent {
		if had, before := s.touch(at, h); had && l.known == 0 {
			l.known, l.before = s.nodes[at].end, before
		}
	}
	s.fit()
	if limit := s.config.HolderUnits * int64(s.unit); limit > 0 && !s.config.WholeRuns && s.holders[h].bytes > 2*limit {
		s.shrink(h, limit)
	}
	if limit := s.config.Units * int64(s.unit); limit > 0 {
		s.pruning = s.pruning || s.held > limit
		if target := int64(float64(limit) * s.config.PruneTo); s.pruning {
			s.prune(max(target, s.held-max(stretch*int64(s.unit), 2*int64(len(key)))))
			s.pruning = s.held > target
		}
	}
	s.compact()
	return l
}

// setBack is the step back in time from which on a clock counts as set back. Times of calls that overtake each other
// differ by less, and a placement counts for at most so much longer.
const setBack = int64(time.Second)

// clock returns the store's time at now. It is the caller's time, and goes on from the latest one when the caller's
// clock is set back: otherwise all placements would count for as long as the clock needs to get there again. mu is
// held.
func (s *Store) clock(now int64) int64 {
	if now+s.skew.Load() < s.now-setBack {
		s.skew.Store(s.now - now)
	}
	return now + s.skew.Load()
}

// whole returns the part of key that is remembered.
func (s *Store) whole(key []byte) []byte {
	if limit := s.config.Bytes / 4; s.config.Bytes > 0 && int64(len(key)) > limit {
		key = key[:limit]
	}
	return key[:len(key)-len(key)%s.page]
}

// Unlearn undoes a call of Learn whose prompt was not sent. Runs that were used again afterwards stay.
func (s *Store) Unlearn(root Root, h fleet.Holder, key []byte, l Learned) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(h) >= len(s.holders) || !s.follow(s.roots[root], s.whole(key)) {
		return
	}
	for i := len(s.path) - 1; i >= 0; i-- {
		id := s.path[i]
		at, has := s.find(id, h)
		if !has {
			return
		}
		x := s.nodes[id].holds[at].link
		if s.links[x].at != l.at || s.continued(x, l.at) {
			return
		}
		if s.nodes[id].end <= l.known {
			s.age(h, x, l.before)
			return
		}
		s.leave(h, id)
	}
}

// continued reports whether a use with this stamp also covers a child of link x's run.
func (s *Store) continued(x uint32, at int64) bool {
	older := s.links[x].older
	return older != 0 && s.links[older].at == at && s.nodes[s.links[older].node].parent == s.links[x].node
}

// Forget drops all placements of the holder.
func (s *Store) Forget(h fleet.Holder) {
	for s.forgetSome(h) {
	}
}

// stretch is how many placements or units are dropped before the lock is released for other goroutines: some 0.2 ms.
const stretch = 2048

func (s *Store) forgetSome(h fleet.Holder) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if int(h) >= len(s.holders) {
		return false
	}
	for range stretch {
		if !s.drop(h, 0) {
			s.holders[h].trimming = false
			s.compact()
			return false
		}
	}
	return true
}

// Shrink evicts the least recently used units of all holders until they have at most the given number.
func (s *Store) Shrink(units int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(units * int64(s.unit))
}

// Units returns how many units the holder has.
func (s *Store) Units(h fleet.Holder) int64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if int(h) >= len(s.holders) {
		return 0
	}
	return s.holders[h].bytes / int64(s.unit)
}

// Stats describes a store.
type Stats struct {
	Runs       int   // nodes of the tree, without roots
	Placements int   // pairs of a holder and a run
	Units      int64 // units that holders have; a shared unit counts for each holder
	Bytes      int64 // memory, as counted against Config.Bytes
	Displaced  int64 // units that were dropped to keep a limit, before their TTL ended
}

// Stats describes the store now.
func (s *Store) Stats() Stats {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return Stats{
		Runs:       len(s.nodes) - len(s.roots) - len(s.freeNodes),
		Placements: len(s.links) - 1 - len(s.freeLinks),
		Units:      s.held / int64(s.unit),
		Bytes:      s.used,
		Displaced:  s.displaced / int64(s.unit),
	}
}
