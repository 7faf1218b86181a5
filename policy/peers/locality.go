package peers

import (
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// Locality says where this router runs. The labels node and zone of a worker say where the worker runs.
type Locality struct {
	Node string `yaml:"node"` // "" is unknown
	Zone string `yaml:"zone"` // "" is unknown
}

const reasonElsewhere = "another node or zone, and there are nearer ones"

// nearest is the locality filter. It keeps the candidates on the router's own node. If there are none, it keeps the
// candidates in the router's zone. If there are none either, it keeps all. It comes after the common filter (usable),
// so workers that are saturated or cannot be used do not count as near. [Ray Serve, LocalityMixin: node, availability
// zone, all]
type nearest Locality

func (l nearest) Filter(_ *policy.Query, c []policy.Candidate) int {
	for _, tier := range [...]struct{ label, here string }{{fleet.LabelNode, l.Node}, {fleet.LabelZone, l.Zone}} {
		if tier.here == "" {
			continue
		}
		if n := policy.Keep(c, reasonElsewhere, func(x *policy.Candidate) bool { return x.Worker.Facts.Labels[tier.label] == tier.here }); n > 0 {
			return n
		}
	}
	return len(c)
}
