package peers

import (
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/placement"
	"github.com/warmpath/warmpath/policy"
)

// Manual keeps each session on its first worker. If this worker cannot be used, the session goes to another worker, and
// returns when the first worker can be used again [SMG 1.9.0, manual]. A request that names no session is placed like a
// new session, and not remembered. sticky_least_loaded of vllm-project/router is the same with assignment_mode
// min_group and max_idle_secs 7200.
type Manual struct {
	// AssignmentMode places new sessions: random, min_load (fewest requests), min_group (fewest sessions).
	AssignmentMode string `yaml:"assignment_mode"`
	// MaxIdleSecs is the idle time in seconds after which a session is forgotten.
	MaxIdleSecs int `yaml:"max_idle_secs"`
	// EvictionIntervalSecs is the time in seconds between two searches for idle sessions.
	EvictionIntervalSecs int `yaml:"eviction_interval_secs"`
	// MaxSessions is the greatest number of sessions that are remembered, at about 50 bytes each. Beyond this number,
	// each new session replaces a random one.
	MaxSessions int `yaml:"max_sessions"`
}

// DefaultManual returns SMG's defaults, and a bound, which SMG does not have.
func DefaultManual() Manual {
	return Manual{AssignmentMode: "random", MaxIdleSecs: 14400, EvictionIntervalSecs: 60, MaxSessions: 1 << 20}
}

// Validate returns all problems.
func (p Manual) Validate() error {
	var wrong policy.Problems
	wrong.OneOf("assignment_mode", p.AssignmentMode, "random", "min_load", "min_group")
	wrong.Within("max_idle_secs", float64(p.MaxIdleSecs), 1, 1e9)
	wrong.Within("eviction_interval_secs", float64(p.EvictionIntervalSecs), 1, 1e9)
	wrong.Within("max_sessions", float64(p.MaxSessions), placement.SessionShards, 1<<28)
	return wrong.Join()
}

// Spec returns the policy.
func (p Manual) Spec(name string) policy.Spec {
	return policy.Spec{Name: name, Terms: []string{"sessions"}, Chooser: func() policy.Chooser {
		return &manual{mode: p.AssignmentMode, sessions: placement.NewSessions(placement.SessionConfig{
			Homes: 2, Most: p.MaxSessions,
			Idle: time.Duration(p.MaxIdleSecs) * time.Second, Sweep: time.Duration(p.EvictionIntervalSecs) * time.Second,
		})}
	}}
}

type manual struct {
	mode     string
	sessions *placement.Sessions
}

func (m *manual) Choose(q *policy.Query, c []policy.Candidate) policy.Pick {
	var homes []fleet.Holder
	known := false
	if q.Session.Key != "" {
		var space [2]fleet.Holder
		homes, known = m.sessions.Homes(sessionKey(q), q.Now, space[:0])
	}
	for _, h := range homes {
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

// place chooses a worker for a request without a session, or whose session has no worker that can be used. Workers that
// are equally good have the same probability, as in SMG.
func (m *manual) place(q *policy.Query, c []policy.Candidate) int {
	for i := range c {
		switch m.mode {
		case "min_load":
			c[i].Score = 0 - float64(c[i].Load.Requests)
		case "min_group":
			c[i].Terms[0] = float64(m.sessions.Count(c[i].Holder))
			c[i].Score = 0 - c[i].Terms[0]
		}
	}
	return policy.AnyBest(q, c)
}

func (m *manual) Routed(q *policy.Query, c *policy.Candidate) { learnSession(m.sessions, q, c) }

func (m *manual) Finished(*policy.Finished) {}

// Forget does nothing: the sessions of a worker return to it when it is back.
func (m *manual) Forget(fleet.Holder) {}

// Retire removes the holders as homes of sessions: they will not come back.
func (m *manual) Retire(holders []fleet.Holder) { m.sessions.Forget(holders...) }
