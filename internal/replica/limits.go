package replica

import (
	"slices"

	"github.com/warmpath/warmpath/internal/tenant"
)

// warnUnsigned logs that anybody at the subjects can use up the limits of tenants, because no message is signed.
func (s *Sync) warnUnsigned() {
	limited := slices.ContainsFunc(s.parts.Tenants.Tenants(), func(t *tenant.Tenant) bool {
		return t.RequestsPerSecond > 0 || t.TokensPerMinute > 0 || t.MaxConcurrent > 0
	})
	if limited && s.cfg.Key == "" {
		s.parts.Log.Warn("tenants have limits, and messages of other routers are not signed: who can publish to the group's subjects can use up the limits",
			"group", s.cfg.Group, "advice", "set the same sync.key_file at all routers")
	}
}
