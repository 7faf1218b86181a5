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

// warnHidden logs that routers of other machines cannot connect to this one.
func (s *Sync) warnHidden() {
	if s.cfg.hidden() {
		s.parts.Log.Warn("only this machine reaches sync.listen "+s.cfg.Listen+", and sync.routes names other machines",
			"advice", "set sync.listen to 0.0.0.0:4248 with sync.user and a password, at all routers")
	}
}
