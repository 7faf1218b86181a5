package indexer

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// A worker has at most maxModels models and adapters, whether one call names them or several add up to more.
func TestAWorkerHasABoundedNumberOfAdapters(t *testing.T) {
	g := serve(t, Config{}, nil).service.registry
	models := func(from, n int) []fleet.Model {
		all := []fleet.Model{{ID: "m"}}
		for i := range n {
			all = append(all, fleet.Model{ID: "adapter-" + strconv.Itoa(from+i), Parent: "m"})
		}
		return all
	}
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		worker  string
		models  []fleet.Model
		refused bool
	}{
		{"http://a", models(0, maxModels), true},
		{"http://a", models(0, maxModels-1), false},
		{"http://a", models(maxModels, 1), true},
		{"http://a", models(3, 1), false}, // it is there
	} {
		_, err := g.register(&registration{worker: c.worker, models: c.models}, now)
		if refused := err != nil && strings.Contains(err.Error(), "models and adapters"); refused != c.refused || !refused && err != nil {
			t.Errorf("%d models: %v", len(c.models), err)
		}
	}
}

// A worker that discovery lists after its registration is discovery's: its registration ends, and the worker stays.
func TestTheRegistrationOfAListedWorkerEnds(t *testing.T) {
	lists := false
	w := serve(t, Config{}, func(p *Parts) {
		p.Listed = func(worker string) string {
			if lists && worker == "http://a" {
				return "list"
			}
			return ""
		}
		p.ListedAll = func() map[string]string { return nil }
	})
	g, now := w.service.registry, time.Unix(1000, 0)
	for _, worker := range []string{"http://a", "http://b"} {
		if _, err := g.register(&registration{worker: worker, models: []fleet.Model{{ID: "m"}}, ranks: 1}, now); err != nil {
			t.Fatal(err)
		}
	}
	g.mu.Lock() // the service looks for what has ended, too
	lists = true
	g.mu.Unlock()
	g.expire(now)
	if g.has("http://a") || !g.has("http://b") || len(w.fleet.Snapshot().Workers()) != 2 {
		t.Errorf("%d registrations, %d workers", g.len(), len(w.fleet.Snapshot().Workers()))
	}
}
