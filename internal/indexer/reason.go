package indexer

import (
	"strings"

	"github.com/warmpath/warmpath/fleet"
)

// unlearned returns the reason of a trust without the part that says how a router learns the cache: a process that
// sends no requests learns nothing from them.
func unlearned(why string) string {
	rest, ends := strings.CutSuffix(why, fleet.LearnedFromRequests)
	if !ends {
		return why
	}
	return strings.TrimRight(rest, ":; ")
}

// relearned returns the reason of a trust that a service has, as a router says it: the router learns the cache of a
// rank from its own requests if the trust is approximate.
func relearned(t fleet.Trust, why string) string {
	if t != fleet.TrustApproximate || strings.Contains(why, fleet.LearnedFromRequests) {
		return why
	}
	return why + "; " + fleet.LearnedFromRequests
}
