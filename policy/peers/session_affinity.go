package peers

import (
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/placement"
	"github.com/warmpath/warmpath/policy"
)

// SessionAffinity keeps a session on its worker and rank, as long as the session has requests. If the worker cannot be
// used, the session gets another one [Dynamo, --router-session-affinity-ttl-secs; llm-d, session-affinity-filter]. A
// new session, and a request that names no session, goes to the holder with the least work. The work includes the
// request's own uncached tokens there.
type SessionAffinity struct {
	// TTL is the idle time after which a session is forgotten.
	TTL time.Duration `yaml:"ttl"`
	// Mode is what happens to a session whose worker cannot be used: soft (the session gets another worker) or hard
	// (the session's requests are refused until its worker can be used).
	Mode string `yaml:"mode"`
	// MaxSessions is the greatest number of sessions that are remembered, at about 50 bytes each. Beyond this number,
	// each new session replaces a random one.
	MaxSessions int `yaml:"max_sessions"`
}

// DefaultSessionAffinity returns llm-d's default for TTL; Dynamo has no default.
func DefaultSessionAffinity() SessionAffinity {
	return SessionAffinity{TTL: 5 * time.Minute, Mode: "soft", MaxSessions: 1 << 20}
}

// Validate returns all problems.
func (p SessionAffinity) Validate() error {
	var wrong policy.Problems
	if p.TTL <= 0 {
		wrong.Add("ttl", "%v is not positive", p.TTL)
	}
	wrong.OneOf("mode", p.Mode, "soft", "hard")
	wrong.Within("max_sessions", float64(p.MaxSessions), placement.SessionShards, 1<<28)
	return wrong.Join()
}

// Spec returns the policy.
func (p SessionAffinity) Spec(name string) policy.Spec {
	return policy.Spec{Name: name, NeedsMatches: true, Chooser: func() policy.Chooser {
		return &affinity{hard: p.Mode == "hard", sessions: placement.NewSessions(placement.SessionConfig{
			Homes: 1, Most: p.MaxSessions, Idle: p.TTL, Sweep: time.Minute,
		})}
	}}
}

type affinity struct {
	hard     bool
	sessions *placement.Sessions
}

func (a *affinity) Choose(q *policy.Query, c []policy.Candidate) policy.Pick {
	if q.Session.Key == "" {
		return policy.Pick{Index: policy.Best(q, c), Branch: policy.BranchNoKey, Ranked: true, Tie: policy.TieWork}
	}
	var space [2]fleet.Holder
	homes, known := a.sessions.Homes(sessionKey(q), q.Now, space[:0])
	if !known {
		return policy.Pick{Index: policy.Best(q, c), Branch: policy.BranchPlaced, Ranked: true, Tie: policy.TieWork}
	}
	if at := position(c, homes[0]); at >= 0 {
		return policy.Pick{Index: at, Branch: policy.BranchSession}
	}
	if a.hard && q.Target == "" {
		return policy.Pick{Index: -1}
	}
	return policy.Pick{Index: policy.Best(q, c), Branch: policy.BranchMoved, Ranked: true, Tie: policy.TieWork}
}

func (a *affinity) Routed(q *policy.Query, c *policy.Candidate) { learnSession(a.sessions, q, c) }

func (a *affinity) Finished(*policy.Finished) {}

// Forget does nothing: a holder that lost its cache keeps its sessions, and a holder that left is no longer a
// candidate.
func (a *affinity) Forget(fleet.Holder) {}

// Retire unbinds the sessions that are bound to the holder.
func (a *affinity) Retire(holders []fleet.Holder) { a.sessions.Forget(holders...) }

// Nominate names the holder that the session is bound to.
func (a *affinity) Nominate(q *policy.Query, dst []fleet.Holder) []fleet.Holder {
	if q.Session.Key == "" {
		return dst
	}
	dst, _ = a.sessions.Homes(sessionKey(q), q.Now, dst)
	return dst
}
