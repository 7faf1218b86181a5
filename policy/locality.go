package policy

import "github.com/warmpath/warmpath/fleet"

// Locality is where this router runs. Workers say where they run by labels of the same names.
type Locality struct {
	Node string `yaml:"node"` // "" is unknown
	Zone string `yaml:"zone"` // "" is unknown
}

// Labels of workers that the locality filter reads.
const (
	LabelNode = "node"
	LabelZone = "zone"
)

// Reasons of the filters below.
const (
	ReasonElsewhere    = "another node or zone, and there are nearer ones"
	ReasonNoAdapter    = "the adapter is not loaded there, and it is elsewhere"
	ReasonMoreAdapters = "more adapters are loaded there than elsewhere"
)

// nearest is the locality filter. It keeps the candidates on the router's own node; if there are none, those in its
// zone; if there are none, all. It comes after the common filter (usable), so that workers that cannot be used or are
// saturated do not count. [Ray Serve, LocalityMixin: node, availability zone, all]
type nearest Locality

func (l nearest) Filter(_ *Query, c []Candidate) int {
	for _, tier := range [...]struct{ label, here string }{{LabelNode, l.Node}, {LabelZone, l.Zone}} {
		if tier.here == "" {
			continue
		}
		if n := keep(c, ReasonElsewhere, func(x *Candidate) bool { return x.Worker.Facts.Labels[tier.label] == tier.here }); n > 0 {
			return n
		}
	}
	return len(c)
}

// multiplex keeps, for a request to an adapter, the candidates that have it loaded; if there are none, those with the
// fewest adapters, where loading it costs least. A request to a base model passes all. The router offers only workers
// that list the adapter, so this filter matters where a worker can load more adapters than it lists. [Ray Serve,
// MultiplexMixin: loaded, fewest models, all]
type multiplex struct{}

func (multiplex) Filter(q *Query, c []Candidate) int {
	if q.LoRA == "" || len(c) == 0 {
		return len(c)
	}
	if n := keep(c, ReasonNoAdapter, func(x *Candidate) bool { return loads(&x.Worker.Facts, q.LoRA) }); n > 0 {
		return n
	}
	fewest := adapters(&c[0].Worker.Facts)
	for i := range c {
		fewest = min(fewest, adapters(&c[i].Worker.Facts))
	}
	return keep(c, ReasonMoreAdapters, func(x *Candidate) bool { return adapters(&x.Worker.Facts) == fewest })
}

func loads(f *fleet.Facts, adapter string) bool {
	for i := range f.Models {
		if f.Models[i].ID == adapter {
			return true
		}
	}
	return false
}

func adapters(f *fleet.Facts) int {
	n := 0
	for i := range f.Models {
		if f.Models[i].Parent != "" {
			n++
		}
	}
	return n
}

// keep moves the candidates for which good is true to the front, in their order, and gives the others a reason. If
// good is true for none, nothing changes.
func keep(c []Candidate, reason string, good func(*Candidate) bool) int {
	kept := 0
	for i := range c {
		if good(&c[i]) {
			kept++
		}
	}
	if kept == 0 || kept == len(c) {
		return kept
	}
	kept = 0
	for i := range c {
		if !good(&c[i]) {
			c[i].Reason = reason
			continue
		}
		if kept != i {
			c[kept], c[i] = c[i], c[kept]
		}
		kept++
	}
	return kept
}
