package kvfeed

import (
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
)

// unremoved has the blocks of a tier that announces no removals. LMCache's and Mooncake's connectors announce the
// blocks that they store in host memory, but not the removal of these blocks (LMCache's v1/cache_engine.py; with its
// server, LMCache #5076). Such a block counts as cached until UnremovedTTL after it was last stored.
type unremoved struct {
	queue  []storedAt // announcements, the oldest first
	latest map[unremovedBlock]time.Time
}

// unremovedBlock names a block. An engine hash may be on several tiers and in several cache groups.
type unremovedBlock struct {
	hash  kvevent.Hash
	group int
	tier  block.Tier
}

// storedAt is one announcement of a block.
type storedAt struct {
	unremovedBlock
	at time.Time
}

// mostUnremoved bounds the remembered announcements of one holder. They take 8 MiB, for 16 million tokens in LMCache's
// chunks of 256 tokens. Beyond the bound the oldest blocks are removed.
const mostUnremoved = 1 << 16

// ofConnector reports whether a stored event is about the tier of a connector that computes its own hashes. s.mu is
// held.
//
// The medium of the event alone does not show this. Connectors in the engine's process write "cpu". vLLM's own tier
// writes "CPU", and so does LMCache's connector with a server; but vLLM's events name a cache group, and LMCache's do
// not.
func (s *stream) ofConnector(e *kvevent.Event) bool {
	if e.Medium == "cpu" {
		return true
	}
	return s.engine == fleet.EngineVLLM && e.Tier == block.TierCPU && e.Owner == "" && e.Group < 0 && len(e.Tokens) > 0 && s.groups != 0
}

// announcesNoRemovals reports whether a stored event is about a tier that may announce no removals. Newer versions of
// LMCache's connector announce removals: the first removal shows this. s.mu is held.
func (s *stream) announcesNoRemovals(e *kvevent.Event) bool {
	return e.Medium != s.removes && s.ofConnector(e)
}

// keep records stored blocks for which no removal will come. s.mu and s.turn are held.
func (u *unremoved) keep(e *kvevent.Event, now time.Time) {
	if u.latest == nil {
		u.latest = map[unremovedBlock]time.Time{}
	}
	for _, h := range e.Hashes {
		b := unremovedBlock{h, max(e.Group, 0), e.Tier}
		u.latest[b] = now
		u.queue = append(u.queue, storedAt{b, now})
	}
}

// expired takes blocks of one tier and one cache group out of u: blocks last stored at or before until, and blocks
// beyond the bound.
func (u *unremoved) expired(until time.Time) (r warmpath.Removed) {
	n := 0
	for ; n < len(u.queue); n++ {
		q := &u.queue[n]
		another := len(r.Hashes) > 0 && (q.tier != r.Tier || q.group != r.Group)
		if another || q.at.After(until) && len(u.queue)-n <= mostUnremoved {
			break
		}
		if u.latest[q.unremovedBlock] == q.at { // otherwise a later announcement of the block follows in the queue
			delete(u.latest, q.unremovedBlock)
			r.Tier, r.Group, r.Hashes = q.tier, q.group, append(r.Hashes, q.hash)
		}
	}
	u.queue = u.queue[n:]
	if len(u.queue) == 0 {
		*u = unremoved{}
	}
	return r
}

// expire removes unremoved blocks whose time is over, and reports whether trust may have changed. s.mu and s.turn are
// held.
func (s *stream) expire(now time.Time) (changed bool) {
	for {
		r := s.unremoved.expired(now.Add(-s.config.UnremovedTTL))
		if len(r.Hashes) == 0 {
			break
		}
		s.router.Remove(s.holder, r)
	}
	if s.leaking != "" && !s.doubted && len(s.unremoved.queue) == 0 {
		s.leaking, changed = "", true
	}
	return changed
}

// removesAll records that a tier in host memory announces removals, so that its blocks need no time limit. This counts
// for the medium of the event only: a second connector of the engine writes another medium. s.mu is held.
func (s *stream) removesAll(e *kvevent.Event) {
	if e.Tier != block.TierCPU || e.Owner != "" || e.Group >= 0 && e.Medium != "cpu" || s.removes != "" {
		return
	}
	s.removes = e.Medium
	if s.leaking == e.Medium {
		s.leaking, s.doubted, s.unremoved = "", false, unremoved{}
	}
}
