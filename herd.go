package warmpath

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// herd is what a router knows about the requests that its peers have placed and that it has not heard of yet. Routers
// with the same view of the fleet choose the same holder. If they decide within the delay of their messages, the second
// request waits for the first, while other holders are as good.
type herd struct {
	place  atomic.Uint64 // the router's number among the routers in the upper half, their count in the lower half
	unseen atomic.Int64  // expected number of placements that are on their way, in millionths
	tokens atomic.Int64  // uncached tokens of these placements
}

// SetReplicas says that this router is number own, from 0, of count routers in front of the same workers. All routers
// must number themselves alike, such as by the order of their ids. Together with [Peer.SetDelay] it lets routers avoid
// the same holder: see docs/design/0065. Without it, and with a count below 2, they do not.
func (r *Router) SetReplicas(own, count int) {
	if own < 0 || own >= count || count > math.MaxInt32 {
		own, count = 0, 0
	}
	r.herd.place.Store(uint64(own)<<32 | uint64(count))
}

// SetDelay says how long what the peer tells is on its way, as the transport has measured it. 0, the default, means
// that it is not known or does not matter.
func (p *Peer) SetDelay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = min(max(d, 0), time.Minute)
	p.expectUnseen(p.gap)
}

// arrived counts a placement of the peer, of which a number of tokens are not cached. p.mu is held.
func (p *Peer) arrived(uncached int, now int64) {
	gap := max(now-p.lastAt, 1)
	switch {
	case p.lastAt == 0:
		p.uncached = float64(uncached)
	case p.gap == 0:
		p.gap = float64(gap)
	default:
		p.gap += (float64(gap) - p.gap) / 16
	}
	p.uncached += (float64(uncached) - p.uncached) / 16
	p.lastAt = now
	p.expectUnseen(p.gap)
}

// mostUnseen bounds the expected number of placements of a peer that are on their way.
const mostUnseen = 1000

// expectUnseen sets how many placements of the peer are on their way, if it places one in each gap (nanoseconds); with
// 0, none. p.mu is held.
func (p *Peer) expectUnseen(gap float64) {
	unseen := 0.0
	if gap > 0 {
		unseen = min(float64(p.delay)/gap, mostUnseen)
	}
	count, tokens := int64(unseen*1e6), int64(unseen*p.uncached)
	p.router.herd.unseen.Add(count - p.unseen)
	p.router.herd.tokens.Add(tokens - p.unseenTokens)
	p.unseen, p.unseenTokens = count, tokens
}

const (
	// herding is how many times the expected number of unseen placements is the share of decisions that avoid holders.
	// With 4, all decisions avoid from one unseen placement for four decisions on. A larger factor would avoid more often
	// than collisions happen: then fewer holders compete with the holder of a match, and policies follow matches further
	// than one router would.
	herding = 4
	// fewCandidates is the number of candidates up to which each router gets the same number of holders.
	fewCandidates = 16
	// worthFollowing is the part of a usual request from which on a longer match is followed to any holder.
	worthFollowing = 8
)

// avoid makes the holders of other routers look as if each had one more request, of usual size. Each holder is the
// holder of one router. So routers that decide at the same time choose different holders, as long as these are better
// by less than one request, and have no longer match of the prompt.
func (d *Decision) avoid(req *Request) {
	h := &d.router.herd
	unseen, place := h.unseen.Load(), h.place.Load()
	own, count := place>>32, place&math.MaxUint32
	if unseen <= 0 || count < 2 || d.Leg == fleet.LegDecode || req.Target != "" {
		return
	}
	if chance := float64(block.Mix64(req.Random^herding)>>11) / (1 << 53); chance >= herding*float64(unseen)/1e6 {
		return
	}
	longest := -1
	for i := range d.Candidates {
		if c := &d.Candidates[i]; eligible(c) && d.owner(i, count) == own {
			longest = max(longest, d.follows(c))
		}
	}
	if longest < 0 {
		return // none of this router's own holders can be used
	}
	tokens := h.tokens.Load() * 1e6 / unseen
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if d.owner(i, count) != own && d.follows(c) <= longest+int(tokens/worthFollowing) {
			d.burden(c, tokens)
		}
	}
}

// follows returns the length of c's match, as far as the match can decide.
func (d *Decision) follows(c *policy.Candidate) int {
	if !d.policy.Follows() {
		return 0
	}
	return c.Kept()
}

// owner returns the number of the router whose holder candidate i is.
func (d *Decision) owner(i int, count uint64) uint64 {
	hash := d.Candidates[i].Hash
	if len(d.Candidates) > fewCandidates {
		return block.Mix64(hash) % count
	}
	before := uint64(0)
	for j := range d.Candidates {
		if d.Candidates[j].Hash < hash {
			before++
		}
	}
	return before % count
}

// burden adds a request of that many uncached tokens to the load of c, as work of others.
func (d *Decision) burden(c *policy.Candidate, tokens int64) {
	l, blocks := &c.Load, tokens/int64(c.BlockSize)
	l.Others.ContextBlocks += blocks
	l.ContextBlocks += blocks
	l.ContextTokens += tokens
	l.Others.PrefillTokens += tokens
	l.PrefillTokens += tokens
	l.PendingTokens += tokens
	l.Backlog += time.Duration(float64(tokens) * l.Times().Token * 1e6)
	if most := d.query.MaxRequests; most == 0 || l.Requests+1 < int64(most) { // otherwise the holder would look full
		l.Others.Requests++
		l.Others.Waiting++
		l.Requests++
		l.Waiting++
	}
}
