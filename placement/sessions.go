package placement

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// SessionConfig says when [Sessions] evicts.
type SessionConfig struct {
	Homes int           // holders that are kept for a session: 1 or 2
	Most  int           // sessions; when there are more, random ones are evicted
	Idle  time.Duration // how long a session is remembered after its last request
	Sweep time.Duration // how often idle sessions are dropped
}

// Sessions remembers which holder each session was sent to. A session's key is a 64-bit hash: no memory of the
// request is kept, an entry takes some 50 bytes, and two of a million sessions share a key with a probability of 3 in
// a hundred million. It is safe for concurrent use: a lock is held on one of 64 parts, also for the sweep of that
// part.
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
	swept int64
}

// session is the entry of one session: its homes, the oldest one first. The session returns to the oldest home that can
// be used.
type session struct {
	homes [2]fleet.Holder
	n     uint8
	used  int64 // Unix nanoseconds
}

// NewSessions returns an empty memory.
func NewSessions(c SessionConfig) *Sessions {
	s := &Sessions{config: c}
	for i := range s.shards {
		s.shards[i].byKey = map[uint64]session{}
	}
	return s
}

// Homes appends the homes of a session, the oldest one first. It reports false for a session that is unknown or was
// idle for too long.
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

// Learn records that a request of the session was sent to h at now. h becomes a home of the session: a second one, or
// the replacement of the oldest.
func (s *Sessions) Learn(key uint64, h fleet.Holder, now int64) {
	shard := &s.shards[key%SessionShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	s.sweep(shard, now)
	x, known := shard.byKey[key]
	if known && now-x.used >= int64(s.config.Idle) {
		s.drop(shard, key)
		x, known = session{}, false
	}
	if !known && len(shard.byKey) >= s.config.Most/SessionShards {
		for other := range shard.byKey { // any
			s.drop(shard, other)
			break
		}
	}
	x.used = now
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

// Forget removes holders from the homes of all sessions. It visits every session once, unless each of the holders is
// the home of none.
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

// sweep drops idle sessions when it is time. shard.mu is held.
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

// tally is a number for each holder, in parts that are made when they are first needed and never move.
type tally struct {
	parts [1 << 12]atomic.Pointer[[tallyPart]atomic.Int64]
}

const tallyPart = 256

func (t *tally) add(h fleet.Holder, n int64) {
	i := int(h) / tallyPart
	if i >= len(t.parts) {
		return // a million holders were seen: later ones are not counted
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
