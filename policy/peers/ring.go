package peers

import (
	"cmp"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// ring has the places of holders on a circle of 2^64 positions. A holder is added when it is a candidate for the first
// time; this allocates, and takes the lock. Readers whose candidates are all on the ring never wait.
type ring struct {
	nodes   int // places of each holder
	current atomic.Pointer[circle]
	mu      sync.Mutex // held while current is replaced
}

// circle is one version of a ring. It is immutable.
type circle struct {
	places []place // by ascending position
	known  []bool  // known[h] says whether holder h has places on the circle
}

type place struct {
	at     uint64
	holder fleet.Holder
}

func newRing(nodes int) *ring {
	r := &ring{nodes: nodes}
	r.current.Store(&circle{})
	return r
}

// walk goes round the ring from the position key. It returns the first candidate for which suits is true, and the
// number of holders that it met on the way, this candidate and holders that are no candidates included. Beyond eight
// holders, it may count a holder more than once. If suits is true for no candidate, walk returns the first candidate.
func (r *ring) walk(key uint64, c []policy.Candidate, suits func(*policy.Candidate) bool) (index, steps int) {
	circle := r.learn(c)
	start := sort.Search(len(circle.places), func(i int) bool { return circle.places[i].at >= key })
	first, firstStep := -1, 0
	var met [8]fleet.Holder // the first holders on the way; few, because mostly the first one is taken
	for i := range circle.places {
		h := circle.places[(start+i)%len(circle.places)].holder
		if slices.Contains(met[:min(steps, len(met))], h) {
			continue
		}
		if steps < len(met) {
			met[steps] = h
		}
		steps++
		at := position(c, h)
		if at < 0 {
			continue
		}
		if suits(&c[at]) {
			return at, steps
		}
		if first < 0 {
			first, firstStep = at, steps
		}
	}
	return max(first, 0), firstStep
}

func position(c []policy.Candidate, h fleet.Holder) int {
	for i := range c {
		if c[i].Holder == h {
			return i
		}
	}
	return -1
}

// learn returns a circle with all candidates on it.
func (r *ring) learn(c []policy.Candidate) *circle {
	now := r.current.Load()
	if now.knows(c) {
		return now
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now = r.current.Load()
	next := &circle{places: slices.Clone(now.places), known: slices.Clone(now.known)}
	for i := range c {
		h := int(c[i].Holder)
		if h < len(next.known) && next.known[h] {
			continue
		}
		for len(next.known) <= h {
			next.known = append(next.known, false)
		}
		next.known[h] = true
		for node := range r.nodes {
			next.places = append(next.places, place{block.Mix64(c[i].Hash + uint64(node)*block.Golden), c[i].Holder})
		}
	}
	slices.SortFunc(next.places, func(a, b place) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.holder, b.holder)) })
	r.current.Store(next)
	return next
}

// knows reports whether all candidates are on the circle.
func (x *circle) knows(c []policy.Candidate) bool {
	for i := range c {
		if h := int(c[i].Holder); h >= len(x.known) || !x.known[h] {
			return false
		}
	}
	return true
}

// remove removes a holder from the ring. If the holder is a candidate again later, the ring adds it again.
func (r *ring) remove(h fleet.Holder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.current.Load()
	if int(h) >= len(now.known) || !now.known[h] {
		return
	}
	next := &circle{known: slices.Clone(now.known)}
	next.known[h] = false
	for _, p := range now.places {
		if p.holder != h {
			next.places = append(next.places, p)
		}
	}
	r.current.Store(next)
}
