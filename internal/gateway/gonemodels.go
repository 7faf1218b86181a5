package gateway

import (
	"slices"

	"github.com/warmpath/warmpath/fleet"
)

// goneModels are the models that no worker serves because the workers that served them left the fleet. A rolling
// restart under a new address has such a moment. A model that a present worker stopped serving is not gone: an operator
// unloaded it. The zero value is empty.
type goneModels struct{ names map[string]struct{} }

// mostGone bounds the number of models that are remembered. Fleets with thousands of adapters exist; a fleet that loses
// more of them at the same moment answers 404 for the rest.
const mostGone = 4096

func (g *goneModels) has(model string) bool {
	_, ok := g.names[model]
	return ok
}

// note compares two snapshots of the fleet.
func (g *goneModels) note(was, is *fleet.Snapshot) {
	for name := range g.names {
		if _, back := is.Pool(name); back {
			delete(g.names, name)
		}
	}
	for _, m := range was.Models() {
		if _, stays := is.Pool(m.ID); stays {
			continue
		}
		pool, _ := was.Pool(m.ID)
		unloaded := slices.ContainsFunc(pool.Workers, func(w *fleet.Worker) bool {
			now := is.ByID(w.ID)
			return now != nil && len(now.Facts.Models) > 0
		})
		if unloaded || len(g.names) >= mostGone {
			continue
		}
		if g.names == nil {
			g.names = map[string]struct{}{}
		}
		g.names[m.ID] = struct{}{}
	}
}
