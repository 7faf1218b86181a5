package placement

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// Config says what the keys of a [Store] are, and when the store evicts. A limit of 0 is no limit. If Bytes,
// HolderUnits and Units are all 0, New sets Units to 2^20, so that the memory is bounded.
type Config struct {
	Keys Keys

	// Bytes bounds the memory after every call; the roots do not count. Beyond this limit, the holder whose placements
	// take the most memory loses its least recently used runs.
	Bytes int64
	// HolderUnits bounds the units of each holder. A pass of [Store.Evict] enforces this limit. The pass evicts the least
	// recently used units first, and the deepest units of a key first. Between two passes a holder may have up to twice as
	// many units; with WholeRuns there is no bound between passes.
	HolderUnits int64
	// HolderTarget is how many units a pass leaves to a holder that has more than HolderUnits. 0 means HolderUnits.
	HolderTarget int64
	// WholeRuns makes a pass evict whole runs, as SGLang's router does with the nodes of its tree. Then a holder may have
	// fewer units than HolderTarget afterwards. Without WholeRuns a run is cut, so that HolderTarget units are left,
	// rounded down to whole pages. But if Bytes leaves no memory for the cut of a run that holders share, the whole run is
	// evicted.
	WholeRuns bool
	// TTL is how long a placement counts after its last use. After that, a pass of [Store.Evict] frees its memory.
	TTL time.Duration
	// Units bounds the units of all holders together, where a shared unit counts for each holder. Beyond this limit, the
	// least recently used units of all holders are evicted, until the share PruneTo of Units is left. One call of
	// [Store.Learn] evicts about 2,048 units at most, or twice the units of its key if that is more; the next calls
	// continue.
	Units int64
	// PruneTo is the share of Units that remains after an eviction, above 0 and at most 1. Default 0.8, as Dynamo's
	// prune_target_ratio.
	PruneTo float64
	// Interval is the time between two passes of [Store.Evict]. 0 means that there are no passes.
	Interval time.Duration
	// Step bounds how much one call of [Store.Evict] evicts for HolderUnits, in units, or in runs if WholeRuns. The
	// next call continues. 0 means that each pass is one call.
	Step int
}

// mostUnits is a greater number of units than any memory holds. Limits above it count as mostUnits, so that no number
// of bytes overflows.
const mostUnits = 1 << 56

func (c Config) withDefaults() Config {
	c.Bytes, c.TTL = max(c.Bytes, 0), max(c.TTL, 0)
	c.HolderUnits, c.Units = min(max(c.HolderUnits, 0), mostUnits), min(max(c.Units, 0), mostUnits)
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

// Store remembers which keys were sent to which holder. Make a Store with [New].
type Store struct {
	config Config
	unit   int          // bytes of a unit
	page   int          // bytes of a page; keys are compared and cut in whole pages
	due    atomic.Int64 // when the next pass of Evict begins; 0 before the first call
	skew   atomic.Int64 // the time that is added to the times of calls, see clock; changed under mu

	mu        sync.RWMutex    // guards the fields below
	nodes     []node          // the nodes of the tree by id; a root has no text
	roots     map[Root]uint32 // the ids of the roots
	planted   Root            // the number of roots that were ever planted
	freeNodes []uint32        // ids without a node
	links     []link          // the placements by id; id 0 is none
	freeLinks []uint32        // ids without a placement
	children  map[edge]uint32 // the nodes below a node
	holders   []holder        // the list of each holder, by the holder's number
	used      int64           // bytes of memory: text, nodes and links
	held      int64           // bytes of keys that holders have; a shared byte counts for each holder
	displaced int64           // bytes of keys that were dropped to keep a limit, before their TTL ended
	now       int64           // the latest time of any Learn or Evict; each Learn increases this time, and uses the result as its stamp
	next      int             // the holder with which a pass of trim continues
	pruning   bool            // the holders had more than Units, and more than PruneTo of Units are left
	path      []uint32        // scratch memory of follow
	heap      []fleet.Holder  // scratch memory of prune
}

// maxHolders bounds the number of a holder, because this number is an index of an array. A call with a greater number
// is ignored.
const maxHolders = 1 << 20

// New returns an empty store with one root, [First].
func New(c Config) *Store {
	unit, page := c.Keys.sizes()
	s := &Store{config: c.withDefaults(), unit: unit, page: page, links: make([]link, 1), roots: map[Root]uint32{}, children: map[edge]uint32{}, now: -1}
	s.Plant()
	return s
}

// Root is a tree of its own in a store: the keys of two roots share nothing. A store never gives a Root a second time.
type Root uint64

// First is the root that every store has.
const First Root = 0

// Plant makes another root, for instance for a model.
func (s *Store) Plant() Root {
	s.mu.Lock()
	defer s.mu.Unlock()
	root := s.planted
	s.roots[root] = s.node(node{})
	s.planted++
	return root
}

// Uproot removes a root without keys, and frees its memory. If holders have keys of the root, Uproot returns false and
// changes nothing. [First] cannot be removed. A later Learn with the removed root remembers nothing, and a later Match
// finds nothing.
func (s *Store) Uproot(root Root) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, ok := s.roots[root]
	if !ok || root == First || s.nodes[id].children > 0 {
		return false
	}
	delete(s.roots, root)
	s.used -= nodeBytes
	s.nodes[id] = node{}
	s.freeNodes = append(s.freeNodes, id)
	s.compact()
	return true
}

// Receipt records the changes of one call of [Store.Learn], so that [Store.Unlearn] can undo them.
type Receipt struct {
	known  int   // bytes of the key that the holder had before
	at     int64 // the stamp of this use
	before int64 // the stamp that the last of these known runs had before
}

// Learn records that a prompt with this key was sent to the holder at now, in Unix nanoseconds. All runs of the key
// become the holder's most recent runs. Learn leaves out an incomplete page at the end of the key, and the part of the
// key beyond a quarter of Config.Bytes. It copies the key.
func (s *Store) Learn(root Root, h fleet.Holder, key []byte, now int64) (r Receipt) {
	return s.LearnAt(root, h, key, Moment{Now: now})
}

// Moment is a time in the past.
type Moment struct {
	Now int64         // the present time, Unix nanoseconds
	Age time.Duration // how long before Now; below 0 counts as 0
}

// LearnAt is Learn for a prompt that was sent some time ago, for example by another router. Runs that the holder used
// later stay as they are. LearnAt learns nothing if the TTL has ended since.
func (s *Store) LearnAt(root Root, h fleet.Holder, key []byte, m Moment) (r Receipt) {
	if key = s.whole(key); len(key) == 0 || h >= maxHolders {
		return Receipt{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.roots[root]; !ok {
		return Receipt{}
	}
	now := s.clock(m.Now)
	s.now = max(s.now+1, now) // each use has a stamp of its own, by which Unlearn finds it
	r.at = s.now
	if m.Age > 0 {
		if r.at = s.now - int64(m.Age); r.at <= s.ended(now) || r.at <= 0 {
			return Receipt{}
		}
	}
	s.admit(h)
	s.expireOf(h, now, stretch) // otherwise an expired run would get this use's stamp, and Unlearn would leave it
	older, ok := s.before(h, r.at)
	if !ok {
		return Receipt{}
	}
	at := s.grow(s.roots[root], key)
	older = s.after(older, r.at) // grow may have split the run of older
	for ; len(s.nodes[at].text) > 0; at = s.nodes[at].parent {
		u := s.touch(use{at, h, older, r.at})
		if older = u.link; u.had && r.known == 0 {
			r.known, r.before = s.nodes[at].end, u.before
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
	return r
}

// setBack is the least step back in time that counts as a clock that was set back. Smaller steps back are normal,
// because concurrent calls may come out of order. Because of setBack, a placement may count up to 1 s longer than its
// TTL.
const setBack = int64(time.Second)

// clock turns now, the time of the caller's clock, into the store's time. If the caller's clock is set back, the
// store's time goes on from the latest time. Otherwise all placements would count until the caller's clock has reached
// that time again. A time before 1970 counts as 0. mu is held.
func (s *Store) clock(now int64) int64 {
	now = max(now, 0)
	if now+s.skew.Load() < s.now-setBack {
		s.skew.Store(s.now - now)
	}
	return now + s.skew.Load()
}

// whole returns the part of key that the store remembers.
func (s *Store) whole(key []byte) []byte {
	if limit := s.config.Bytes / 4; s.config.Bytes > 0 && int64(len(key)) > limit {
		key = key[:limit]
	}
	return key[:len(key)-len(key)%s.page]
}

// Unlearn undoes a call of Learn whose prompt was not sent. Runs that were used again afterwards stay.
func (s *Store) Unlearn(root Root, h fleet.Holder, key []byte, r Receipt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.roots[root]
	if !ok || int(h) >= len(s.holders) || !s.follow(at, s.whole(key)) {
		return
	}
	for i := len(s.path) - 1; i >= 0; i-- {
		id := s.path[i]
		at, has := s.find(id, h)
		if !has {
			return
		}
		x := s.nodes[id].holds[at].link
		if s.links[x].at != r.at || s.continued(x, r.at) {
			return
		}
		if s.nodes[id].end <= r.known {
			s.age(h, x, r.before)
			return
		}
		s.leave(h, id)
	}
}

// continued reports whether the use with this stamp also used a run that continues the run of placement x.
func (s *Store) continued(x uint32, at int64) bool {
	older := s.links[x].older
	return older != 0 && s.links[older].at == at && s.nodes[s.links[older].node].parent == s.links[x].node
}

// Forget drops all placements of the holder.
func (s *Store) Forget(h fleet.Holder) {
	for s.forgetSome(h) {
	}
}

// stretch is how many placements or units are dropped before the lock is released for other goroutines. This takes
// about 0.2 ms.
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

// Shrink evicts the least recently used units of all holders, until the holders together have at most this number of
// units.
func (s *Store) Shrink(units int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(min(max(units, 0), mostUnits) * int64(s.unit))
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
	Bytes      int64 // memory: as counted against Config.Bytes, and the roots
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
