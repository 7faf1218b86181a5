package warmpath

import (
	"cmp"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// A holder is one data-parallel rank of a worker. If a model has up to smallFleet holders, a decision looks at all of
// them. If it has more, most policies look at three groups of holders: the longest matches, holders with little load
// that the scout remembers, and the next holders in turn. A policy may nominate further holders. mostMatches is the
// size of the first group; the constant watched is the size of the second and of the third group. See docs/design/0007.
const (
	smallFleet  = 64
	mostMatches = 32
	watched     = 16
)

// scout remembers holders with little load among the many holders of a model name. It has a fixed number of places,
// each with one holder. A decision looks at the holder of each place and, for each place, at one further holder; the
// further holders are taken in turn. If the further holder has less load, the further holder takes the place.
//
// Any number of goroutines use a scout without a lock. A lost update does no harm, because the scout is only advice.
type scout struct {
	next   atomic.Uint64          // the position at which the next decision begins to look
	places [watched]atomic.Uint32 // holder + 1; 0: the place has no holder
}

// scoutKey is a model name, and the leg that the holders serve.
type scoutKey struct {
	model string
	leg   fleet.Leg
}

// scout returns the scout of a pool. It makes the scout on first use. [Router.Reclaim] drops the scouts of models
// without workers.
func (r *Router) scout(pool *fleet.Pool) *scout {
	key := scoutKey{pool.Name, pool.Leg}
	if s := (*r.scouts.Load())[key]; s != nil {
		return s
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	all := *r.scouts.Load()
	if s := all[key]; s != nil {
		return s
	}
	s := &scout{}
	all = maps.Clone(all)
	all[key] = s
	r.scouts.Store(&all)
	return s
}

// slot is the entry of one holder in Decision.slots. It says which candidate of the decision the holder is.
type slot struct {
	round uint32 // equal to Decision.round if the holder is a candidate of this decision
	at    int32  // the index of the candidate
}

// gather lists the candidates of a decision, without their matches. partial is true if gather left holders out.
func (r *Router) gather(d *Decision, snap *fleet.Snapshot, pool *fleet.Pool, req *Request) (partial bool) {
	d.begin(len(pool.Holders))
	reach := d.policy.Reach()
	if len(pool.Holders) <= smallFleet || reach == policy.ReachAll || req.Target != "" || req.Rank.Asked() {
		d.addAll(snap, pool)
		return false
	}
	n := uint64(len(pool.Holders))
	switch reach {
	case policy.ReachTurn:
		for i := range uint64(watched) {
			d.add(snap, pool, int((d.query.Turn+i)%n))
		}
		d.query.Turn = 0 // the candidates begin with the holder whose turn it is, so the policy takes the first candidate that can be used
	case policy.ReachAny:
		for i := range uint64(watched) {
			d.add(snap, pool, int(block.Mix64(req.Random+i)%n))
		}
	default:
		d.addLightest(snap, pool, r.scout(pool))
		d.addLongest(snap, pool)
		d.nominees = d.policy.Nominate(&d.query, d.nominees[:0])
		for _, h := range d.nominees {
			if position := pool.Position(h); position >= 0 {
				d.add(snap, pool, position)
			}
		}
	}
	return true
}

// begin starts an empty list of candidates.
func (d *Decision) begin(holders int) {
	d.clearCandidates()
	if len(d.slots) < holders {
		d.slots = make([]slot, holders+holders/4)
	}
	if d.round++; d.round == 0 { // overflow: old entries could have the number of a later round
		clear(d.slots)
		d.round = 1
	}
}

// clearCandidates empties the list of candidates and zeroes its memory. Otherwise the list would hold pointers to
// removed workers, so that their memory could not be freed. The method add also relies on the zeroed memory.
func (d *Decision) clearCandidates() {
	clear(d.Candidates)
	d.Candidates = d.Candidates[:0]
}

func (d *Decision) addAll(snap *fleet.Snapshot, pool *fleet.Pool) {
	for position := range pool.Holders {
		d.add(snap, pool, position)
	}
}

// addLightest adds the holders that the scout knows and the next holders in turn, and updates the scout.
func (d *Decision) addLightest(snap *fleet.Snapshot, pool *fleet.Pool, s *scout) {
	n := uint64(len(pool.Holders))
	from := s.next.Load()
	if d.take {
		from = s.next.Add(watched) - watched
	}
	for i := range s.places {
		known := -1
		if held := s.places[i].Load(); held != 0 {
			known = pool.Position(fleet.Holder(held - 1))
		}
		if known >= 0 {
			known = d.add(snap, pool, known)
		}
		seen := d.add(snap, pool, int((from+uint64(i))%n))
		if !d.take || seen == known {
			continue
		}
		if known < 0 || !eligible(&d.Candidates[known]) || lessLoaded(&d.Candidates[seen], &d.Candidates[known]) {
			s.places[i].Store(uint32(d.Candidates[seen].Holder) + 1)
		}
	}
}

// eligible reports whether c has no bar. A bar is a reason why a holder should get no request, such as failures.
func eligible(c *policy.Candidate) bool { return c.Bar == fleet.BarNone }

// lessLoaded reports whether a is better than b for a request that matches nowhere.
func lessLoaded(a, b *policy.Candidate) bool {
	if !eligible(a) {
		return false
	}
	if wa, wb := a.Work(), b.Work(); wa != wb {
		return wa < wb
	}
	return a.Load.Processed < b.Load.Processed
}

// addLongest adds the mostMatches holders with the longest matches. If too many holders have equally long matches, the
// request's random number selects some of them.
func (d *Decision) addLongest(snap *fleet.Snapshot, pool *fleet.Pool) {
	d.joinExtents()
	var longest [mostMatches]int // a heap of indexes in extents, the shortest extent first
	n := 0
	start := 0
	if len(d.extents) > mostMatches {
		start = int(block.Mix64(d.query.Random) % uint64(len(d.extents)))
	}
	for i := range d.extents {
		at := start + i
		if at >= len(d.extents) {
			at -= len(d.extents)
		}
		switch {
		case n < mostMatches:
			longest[n] = at
			n++
			d.rise(longest[:n])
		case d.extents[at].blocks > d.extents[longest[0]].blocks:
			longest[0] = at
			d.sink(longest[:n])
		}
	}
	for _, at := range longest[:n] {
		if position := pool.Position(d.extents[at].holder); position >= 0 {
			d.add(snap, pool, position)
		}
	}
}

// joinExtents sets d.extents: for each holder, in ascending order, the confirmed match or the part of the prompt that
// was sent to the holder, whichever is longer.
func (d *Decision) joinExtents() {
	slices.SortFunc(d.sent, func(a, b extent) int { return cmp.Compare(a.holder, b.holder) })
	all, sent := d.extents[:0], d.sent
	add := func(e extent) {
		if last := len(all) - 1; last >= 0 && all[last].holder == e.holder {
			all[last].blocks = max(all[last].blocks, e.blocks)
			return
		}
		all = append(all, e)
	}
	for i := range d.matches {
		m := &d.matches[i]
		for len(sent) > 0 && sent[0].holder < m.Holder {
			add(sent[0])
			sent = sent[1:]
		}
		add(extent{m.Holder, m.Blocks})
	}
	for _, e := range sent {
		add(e)
	}
	d.extents = all
}

func (d *Decision) rise(heap []int) {
	for i := len(heap) - 1; i > 0; {
		up := (i - 1) / 2
		if d.extents[heap[i]].blocks >= d.extents[heap[up]].blocks {
			return
		}
		heap[i], heap[up] = heap[up], heap[i]
		i = up
	}
}

func (d *Decision) sink(heap []int) {
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c < min(2*i+3, len(heap)); c++ {
			if d.extents[heap[c]].blocks < d.extents[heap[least]].blocks {
				least = c
			}
		}
		if least == i {
			return
		}
		heap[i], heap[least] = heap[least], heap[i]
		i = least
	}
}

// add makes the holder at a position of the pool a candidate, without its match, and returns its index.
func (d *Decision) add(snap *fleet.Snapshot, pool *fleet.Pool, position int) int {
	s := &d.slots[position]
	if s.round == d.round {
		return int(s.at)
	}
	at := len(d.Candidates)
	*s = slot{d.round, int32(at)}
	h := pool.Holders[position]
	w := snap.Worker(h)
	trust, _ := snap.Trust(h)
	size := w.Facts.BlockSize
	if size <= 0 {
		size = minBlockSize
	}
	if at < cap(d.Candidates) {
		d.Candidates = d.Candidates[:at+1] // the memory beyond the length is zero: see clearCandidates
	} else {
		d.Candidates = append(d.Candidates, policy.Candidate{})
	}
	c := &d.Candidates[at]
	c.Worker, c.Holder, c.Rank, c.Hash = w, h, snap.Rank(h), snap.Hash(h)
	c.Trust, c.BlockSize = trust, size
	standing := snap.Standing(h, d.scope, d.query.Tenant, d.Now)
	c.Bar = standing.Bar
	c.Available = standing.Bar != fleet.BarUnavailable && standing.Bar != fleet.BarLimited
	if c.Available {
		c.Withheld = 1 - standing.Share
	}
	c.Load = snap.LoadAt(h, d.Now)
	return at
}

// addRest adds the holders at which the decision did not look, so that an explanation lists all holders.
func (d *Decision) addRest(snap *fleet.Snapshot, pool *fleet.Pool) {
	first := len(d.Candidates)
	d.addAll(snap, pool)
	d.noteMatches(pool, first)
	for i := range d.Candidates[first:] {
		d.Candidates[first+i].Reason = policy.ReasonNotLooked
	}
}
