package peers

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// Manual keeps each session with the worker that it was first given, and goes back to it when it recovers [SMG manual;
// vllm-router sticky_least_loaded is assignment_mode min_group with max_idle_secs 7200; facts/gateways.md §2.10]. A request
// that names no session is placed as a new one and not remembered.
type Manual struct {
	// AssignmentMode places new sessions: random, min_load (fewest requests), min_group (fewest sessions).
	AssignmentMode string `yaml:"assignment_mode"`
	// MaxIdleSecs is after how many idle seconds a session is forgotten.
	MaxIdleSecs int `yaml:"max_idle_secs"`
	// EvictionIntervalSecs is how often such sessions are looked for.
	EvictionIntervalSecs int `yaml:"eviction_interval_secs"`
	// MaxSessions bounds how many are remembered, at some 50 bytes each; any other is forgotten for one too many.
	MaxSessions int `yaml:"max_sessions"`
}

// DefaultManual returns SMG's defaults, and a bound, which it has none.
func DefaultManual() Manual {
	return Manual{AssignmentMode: "random", MaxIdleSecs: 14400, EvictionIntervalSecs: 60, MaxSessions: 1 << 20}
}

// Validate returns all that is wrong.
func (p Manual) Validate() error {
	var wrong policy.Problems
	wrong.OneOf("assignment_mode", p.AssignmentMode, "random", "min_load", "min_group")
	wrong.Within("max_idle_secs", float64(p.MaxIdleSecs), 1, 1e9)
	wrong.Within("eviction_interval_secs", float64(p.EvictionIntervalSecs), 1, 1e9)
	wrong.Within("max_sessions", float64(p.MaxSessions), sessionShards, 1<<28)
	return wrong.Join()
}

// Spec returns the policy.
func (p Manual) Spec(name string) policy.Spec {
	return policy.Spec{Name: name, Terms: []string{"sessions"}, Chooser: func() policy.Chooser {
		return &manual{mode: p.AssignmentMode, sessions: newSessions(sessionLimits{
			homes: 2, most: p.MaxSessions, idle: time.Duration(p.MaxIdleSecs) * time.Second, sweep: time.Duration(p.EvictionIntervalSecs) * time.Second,
		})}
	}}
}

type manual struct {
	mode     string
	sessions *sessions
}

func (m *manual) Choose(q *policy.Query, c []policy.Candidate) policy.Pick {
	s, known := session{}, false
	if q.Session.Key != "" {
		s, known = m.sessions.look(q)
	}
	for _, h := range s.homes[:s.n] {
		if at := position(c, h); at >= 0 {
			return policy.Pick{Index: at, Branch: policy.BranchSession}
		}
	}
	at := m.place(q, c)
	switch {
	case q.Session.Key == "":
		return policy.Pick{Index: at, Branch: policy.BranchNoKey}
	case known:
		return policy.Pick{Index: at, Branch: policy.BranchMoved}
	}
	return policy.Pick{Index: at, Branch: policy.BranchPlaced}
}

// place chooses for a session that has no worker; ties are drawn alike, as in the source.
func (m *manual) place(q *policy.Query, c []policy.Candidate) int {
	for i := range c {
		switch m.mode {
		case "min_load":
			c[i].Score = 0 - float64(c[i].Load.Requests)
		case "min_group":
			c[i].Terms[0] = float64(m.sessions.count(c[i].Holder))
			c[i].Score = 0 - c[i].Terms[0]
		}
	}
	return policy.AnyBest(q, c)
}

func (m *manual) Routed(q *policy.Query, c *policy.Candidate) { m.sessions.note(q, c.Holder) }

func (m *manual) Finished(*policy.Finished) {}

// Forget keeps the sessions: they go home when the worker is back.
func (m *manual) Forget(fleet.Holder) {}

// SessionAffinity keeps a session on the worker and rank that it was given while it is used, and gives it another when that
// cannot be used [Dynamo's session affinity, llm-d's session-affinity-filter; facts/dynamo.md §2.6, llm-d.md §1.5]. A new
// session, and a request that names none, goes where the least is to be done, its own uncached tokens included.
type SessionAffinity struct {
	// TTL is after how much idle time a session is forgotten.
	TTL time.Duration `yaml:"ttl"`
	// Mode is soft (a session whose worker cannot be used gets another) or hard (its requests are refused meanwhile).
	Mode string `yaml:"mode"`
	// MaxSessions bounds how many are remembered, at some 50 bytes each; any other is forgotten for one too many.
	MaxSessions int `yaml:"max_sessions"`
}

// DefaultSessionAffinity returns llm-d's time; Dynamo has none until it is told one.
func DefaultSessionAffinity() SessionAffinity {
	return SessionAffinity{TTL: 5 * time.Minute, Mode: "soft", MaxSessions: 1 << 20}
}

// Validate returns all that is wrong.
func (p SessionAffinity) Validate() error {
	var wrong policy.Problems
	if p.TTL <= 0 {
		wrong.Add("ttl", "%v is not positive", p.TTL)
	}
	wrong.OneOf("mode", p.Mode, "soft", "hard")
	wrong.Within("max_sessions", float64(p.MaxSessions), sessionShards, 1<<28)
	return wrong.Join()
}

// Spec returns the policy.
func (p SessionAffinity) Spec(name string) policy.Spec {
	return policy.Spec{Name: name, NeedsMatches: true, Chooser: func() policy.Chooser {
		return &affinity{hard: p.Mode == "hard", sessions: newSessions(sessionLimits{homes: 1, most: p.MaxSessions, idle: p.TTL, sweep: time.Minute})}
	}}
}

type affinity struct {
	hard     bool
	sessions *sessions
}

func (a *affinity) Choose(q *policy.Query, c []policy.Candidate) policy.Pick {
	if q.Session.Key == "" {
		return policy.Pick{Index: policy.Best(q, c), Branch: policy.BranchNoKey, Ranked: true}
	}
	s, known := a.sessions.look(q)
	if !known {
		return policy.Pick{Index: policy.Best(q, c), Branch: policy.BranchPlaced, Ranked: true}
	}
	if at := position(c, s.homes[0]); at >= 0 {
		return policy.Pick{Index: at, Branch: policy.BranchSession}
	}
	if a.hard && q.Target == "" {
		return policy.Pick{Index: -1}
	}
	return policy.Pick{Index: policy.Best(q, c), Branch: policy.BranchMoved, Ranked: true}
}

func (a *affinity) Routed(q *policy.Query, c *policy.Candidate) { a.sessions.note(q, c.Holder) }

func (a *affinity) Finished(*policy.Finished) {}

// Forget unbinds nothing: the bound holder is back soon, or is no candidate any more.
func (a *affinity) Forget(fleet.Holder) {}

// Nominate names the holder that the session is bound to.
func (a *affinity) Nominate(q *policy.Query, dst []fleet.Holder) []fleet.Holder {
	if q.Session.Key == "" {
		return dst
	}
	s, _ := a.sessions.look(q)
	return append(dst, s.homes[:s.n]...)
}

// sessions remembers where sessions belong. Keys are kept as 64-bit hashes: no memory of the request is held on to, an entry
// is small, and two of a million keys are alike with a probability of 3 in a hundred million. Any number of goroutines may use
// it; a lock is held on one of 64 parts, and for a sweep of that part.
type sessions struct {
	limits sessionLimits
	shards [sessionShards]sessionShard
	counts tally
}

const sessionShards = 64

type sessionLimits struct {
	homes int // holders kept for a session: 1 or 2
	most  int // sessions
	idle  time.Duration
	sweep time.Duration // how often idle sessions are dropped
}

type sessionShard struct {
	mu    sync.Mutex
	byKey map[uint64]session
	swept int64
}

// session is where one belongs: the home it has had longest first, to which it goes back.
type session struct {
	homes [2]fleet.Holder
	n     uint8
	used  int64 // Unix nanoseconds
}

func newSessions(l sessionLimits) *sessions {
	s := &sessions{limits: l}
	for i := range s.shards {
		s.shards[i].byKey = map[uint64]session{}
	}
	return s
}

func (s *sessions) of(q *policy.Query) (key uint64, shard *sessionShard) {
	key = policy.HashText(q.Model, q.LoRA, q.Session.Source, q.Session.Key)
	return key, &s.shards[key%sessionShards]
}

// look returns where q's session belongs; an idle one is not known any more.
func (s *sessions) look(q *policy.Query) (found session, known bool) {
	key, shard := s.of(q)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	found, known = shard.byKey[key]
	if known && q.Now-found.used >= int64(s.limits.idle) {
		return session{}, false
	}
	return found, known
}

// note remembers that q's session was sent to h: beside its home, or in place of the one it had longest.
func (s *sessions) note(q *policy.Query, h fleet.Holder) {
	if q.Session.Key == "" {
		return
	}
	key, shard := s.of(q)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	s.sweep(shard, q.Now)
	x, known := shard.byKey[key]
	if known && q.Now-x.used >= int64(s.limits.idle) {
		s.drop(shard, key)
		x, known = session{}, false
	}
	if !known && len(shard.byKey) >= s.limits.most/sessionShards {
		for other := range shard.byKey { // any
			s.drop(shard, other)
			break
		}
	}
	x.used = q.Now
	switch {
	case x.n > 0 && x.homes[0] == h, x.n > 1 && x.homes[1] == h:
	case s.limits.homes == 1 || x.n == 0:
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

// count returns how many sessions have a home at h.
func (s *sessions) count(h fleet.Holder) int64 { return s.counts.of(h) }

// drop forgets a session. shard.mu is held.
func (s *sessions) drop(shard *sessionShard, key uint64) {
	x := shard.byKey[key]
	for _, h := range x.homes[:x.n] {
		s.counts.add(h, -1)
	}
	delete(shard.byKey, key)
}

// sweep drops idle sessions when it is time. shard.mu is held.
func (s *sessions) sweep(shard *sessionShard, now int64) {
	if now-shard.swept < int64(s.limits.sweep) {
		return
	}
	shard.swept = now
	for key, x := range shard.byKey {
		if now-x.used >= int64(s.limits.idle) {
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
		return // a million holders were seen: those beyond are not told apart by their sessions
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
