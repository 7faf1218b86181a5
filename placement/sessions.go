package placement

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// SessionConfig says when [Sessions] evicts.
type SessionConfig struct {
	Homes int           // the number of holders that are kept for a session: 1 or 2
	Most  int           // the greatest number of sessions; in a full part, a new session replaces any other
	Idle  time.Duration // how long a session is remembered after its last request
	Sweep time.Duration // the time between two removals of idle sessions
}

// Sessions remembers which holder each session was sent to. A session's key is a 64-bit hash, so an entry takes only
// about 50 bytes. Among a million sessions, the probability that any two have the same key is 3 in a hundred million.
//
// Sessions is safe for concurrent use. It has 64 parts with a lock each, and each call holds one lock at a time.
type Sessions struct {
	config SessionConfig
	shards [SessionShards]sessionShard
	counts tally
}

// SessionShards is the number of parts of [Sessions], and so the smallest useful value of SessionConfig.Most.
const SessionShards = 64

type sessionShard struct {
	mu    sync.Mutex
	byKey map[uint64]session
	swept int64 // when idle sessions were dropped last, Unix nanoseconds
}

// session is the entry of one session. Its homes are the holders that it was sent to, the oldest home first. Policies
// send the session to the oldest home that can be used.
type session struct {
	homes [2]fleet.Holder
	n     uint8 // the number of homes
	used  int64 // when the session was used last, Unix nanoseconds
}

// NewSessions returns an empty table.
func NewSessions(c SessionConfig) *Sessions {
	s := &Sessions{config: c}
	for i := range s.shards {
		s.shards[i].byKey = map[uint64]session{}
	}
	return s
}

// Homes appends the homes of a session to dst, the oldest home first. If the session is unknown or was idle for too
// long, it appends nothing, and known is false.
func (s *Sessions) Homes(key uint64, now int64, dst []fleet.Holder) (homes []fleet.Holder, known bool) {
	shard := &s.shards[key%SessionShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	x, known := shard.byKey[key]
	if !known || now-x.used >= int64(s.config.Idle) {
		return dst, false
	}
	return append(dst, x.homes[:x.n]...), true
}

// Learn records that a request of the session was sent to h. now is the time in Unix nanoseconds. If h is not a home of
// the session yet, h becomes a home. If the session then has more than SessionConfig.Homes homes, it loses the oldest
// home.
func (s *Sessions) Learn(key uint64, h fleet.Holder, now int64) { s.LearnAt(key, h, Moment{Now: now}) }

// LearnAt is Learn for a request that was sent some time ago, for example by another router. It learns nothing if a
// later request of the session is known, or if the session was idle for too long since.
func (s *Sessions) LearnAt(key uint64, h fleet.Holder, m Moment) {
	now, used := m.Now, m.Now-int64(max(m.Age, 0))
	if m.Age > 0 && now-used >= int64(s.config.Idle) {
		return
	}
	shard := &s.shards[key%SessionShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	s.sweep(shard, now)
	x, known := shard.byKey[key]
	if known && now-x.used >= int64(s.config.Idle) {
		s.drop(shard, key)
		x, known = session{}, false
	}
	if known && m.Age > 0 && x.used > used {
		return
	}
	if !known && len(shard.byKey) >= s.config.Most/SessionShards {
		for other := range shard.byKey { // evict any session
			s.drop(shard, other)
			break
		}
	}
	x.used = used
	switch {
	case x.n > 0 && x.homes[0] == h, x.n > 1 && x.homes[1] == h:
	case s.config.Homes == 1 || x.n == 0:
		if x.n > 0 {
			s.counts.add(x.homes[0], -1)
		}
		x.homes[0], x.n = h, 1
		s.counts.add(h, 1)
	default:
		if x.n > 1 {
			s.counts.add(x.homes[0], -1)
			x.homes[0] = x.homes[1]
		}
		x.homes[1], x.n = h, 2
		s.counts.add(h, 1)
	}
	shard.byKey[key] = x
}

// Forget removes holders from the homes of all sessions. It visits every session, except if none of the holders is the
// home of a session.
func (s *Sessions) Forget(holders ...fleet.Holder) {
	gone := map[fleet.Holder]bool{}
	for _, h := range holders {
		if s.counts.of(h) != 0 {
			gone[h] = true
		}
	}
	if len(gone) == 0 {
		return
	}
	for i := range s.shards {
		s.forgetIn(&s.shards[i], gone)
	}
}

func (s *Sessions) forgetIn(shard *sessionShard, gone map[fleet.Holder]bool) {
	shard.mu.Lock()
	defer shard.mu.Unlock()
	for key, x := range shard.byKey {
		left := x
		left.n = 0
		for _, h := range x.homes[:x.n] {
			if !gone[h] {
				left.homes[left.n] = h
				left.n++
			}
		}
		switch left.n {
		case x.n:
			continue
		case 0:
			s.drop(shard, key)
			continue
		}
		for _, h := range x.homes[:x.n] {
			if gone[h] {
				s.counts.add(h, -1)
			}
		}
		shard.byKey[key] = left
	}
}

// Count returns how many sessions have a home at h.
func (s *Sessions) Count(h fleet.Holder) int64 { return s.counts.of(h) }

// drop forgets a session. shard.mu is held.
func (s *Sessions) drop(shard *sessionShard, key uint64) {
	x := shard.byKey[key]
	for _, h := range x.homes[:x.n] {
		s.counts.add(h, -1)
	}
	delete(shard.byKey, key)
}

// sweep drops idle sessions if at least SessionConfig.Sweep has passed since the last sweep. shard.mu is held.
func (s *Sessions) sweep(shard *sessionShard, now int64) {
	if now-shard.swept < int64(s.config.Sweep) {
		return
	}
	shard.swept = now
	for key, x := range shard.byKey {
		if now-x.used >= int64(s.config.Idle) {
			s.drop(shard, key)
		}
	}
}

// tally holds a counter for each holder. The counters lie in parts, which are allocated on first use and never move.
type tally struct {
	parts [1 << 12]atomic.Pointer[[tallyPart]atomic.Int64]
}

const tallyPart = 256

func (t *tally) add(h fleet.Holder, n int64) {
	i := int(h) / tallyPart
	if i >= len(t.parts) {
		return // holders with numbers from 2^20 on are not counted
	}
	part := t.parts[i].Load()
	if part == nil {
		t.parts[i].CompareAndSwap(nil, new([tallyPart]atomic.Int64))
		part = t.parts[i].Load()
	}
	part[h%tallyPart].Add(n)
}

func (t *tally) of(h fleet.Holder) int64 {
	i := int(h) / tallyPart
	if i >= len(t.parts) {
		return 0
	}
	if part := t.parts[i].Load(); part != nil {
		return part[h%tallyPart].Load()
	}
	return 0
}
