package peers

import (
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

const (
	reasonNoAdapter    = "the adapter is not loaded there, and it is elsewhere"
	reasonMoreAdapters = "more adapters are loaded there than elsewhere"
)

// multiplex is a filter for requests to an adapter. It keeps the candidates that have loaded the adapter. If there are
// none, it keeps the candidates with the fewest adapters, where loading one more costs least. For a request to a base
// model it keeps all candidates. The router offers only workers that list the adapter, so this filter has an effect
// only if a worker can load more adapters than it lists. [Ray Serve, MultiplexMixin: loaded, fewest models, all]
type multiplex struct{}

func (multiplex) Filter(q *policy.Query, c []policy.Candidate) int {
	if q.LoRA == "" || len(c) == 0 {
		return len(c)
	}
	if n := policy.Keep(c, reasonNoAdapter, func(x *policy.Candidate) bool { return loads(&x.Worker.Facts, q.LoRA) }); n > 0 {
		return n
	}
	fewest := adapters(&c[0].Worker.Facts)
	for i := range c {
		fewest = min(fewest, adapters(&c[i].Worker.Facts))
	}
	return policy.Keep(c, reasonMoreAdapters, func(x *policy.Candidate) bool { return adapters(&x.Worker.Facts) == fewest })
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
