package peers

import "github.com/warmpath/warmpath/policy"

// Locality is where this router runs. Workers say where they run by labels of the same names.
type Locality struct {
	Node string `yaml:"node"` // "" is unknown
	Zone string `yaml:"zone"` // "" is unknown
}

// Labels of workers that the locality filter reads.
const (
	labelNode = "node"
	labelZone = "zone"
)

const reasonElsewhere = "another node or zone, and there are nearer ones"

// nearest is the locality filter. It keeps the candidates on the router's own node; if there are none, the candidates
// in its zone; if there are none, all. It comes after the common filter (usable), so that workers that cannot be used
// or are saturated do not count. [Ray Serve, LocalityMixin: node, availability zone, all]
type nearest Locality

func (l nearest) Filter(_ *policy.Query, c []policy.Candidate) int {
	for _, tier := range [...]struct{ label, here string }{{labelNode, l.Node}, {labelZone, l.Zone}} {
		if tier.here == "" {
			continue
		}
		if n := keep(c, reasonElsewhere, func(x *policy.Candidate) bool { return x.Worker.Facts.Labels[tier.label] == tier.here }); n > 0 {
			return n
		}
	}
	return len(c)
}
