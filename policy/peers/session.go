package peers

import (
	"github.com/warmpath/warmpath/placement"
	"github.com/warmpath/warmpath/policy"
)

// sessionKey returns the key of q's session. Sessions of different models or adapters have different keys.
func sessionKey(q *policy.Query) uint64 {
	return policy.HashText(q.Model, q.LoRA, q.Session.Source, q.Session.Key)
}

// learnSession records that the session of q was sent to c. It does nothing if q names no session.
func learnSession(s *placement.Sessions, q *policy.Query, c *policy.Candidate) {
	if q.Session.Key != "" {
		s.LearnAt(sessionKey(q), c.Holder, placement.Moment{Now: q.Now, Age: q.Age})
	}
}
