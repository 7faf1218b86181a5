package indexer

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// A flood of registrations is bounded in ranks and in names, too. What is removed makes room.
func TestRegisteredWorkersAreBoundedInRanksAndNames(t *testing.T) {
	now := time.Now()
	ranks := func(i int) *registration { // two ranks with all the ranks between them
		return &registration{worker: fmt.Sprint("w", i), models: []fleet.Model{{ID: "m"}},
			sources: []fleet.EventSource{{Rank: 0, Endpoint: "tcp://h:1"}, {Rank: fleet.MaxRanks - 1, Endpoint: "tcp://h:1"}}}
	}
	names := func(i int) *registration {
		r := &registration{worker: fmt.Sprint("w", i), sources: []fleet.EventSource{{Endpoint: "tcp://h:1"}}}
		for k := range maxModels / 2 {
			r.models = append(r.models, fleet.Model{ID: fmt.Sprint(k, strings.Repeat("x", 1000))})
		}
		return r
	}
	for name, c := range map[string]struct {
		make        func(i int) *registration
		least, most int
	}{
		"ranks": {ranks, maxRegisteredRanks / fleet.MaxRanks, maxRegisteredRanks / fleet.MaxRanks},
		"names": {names, 40, maxRegisteredBytes / (maxModels / 2 * 1000)},
	} {
		t.Run(name, func(t *testing.T) {
			g := &registry{fleet: fleet.New(fleet.Config{}), log: slog.New(slog.DiscardHandler), listed: func(string) string { return "" }, entries: map[string]*entry{}, endpoints: endpoints{registered: map[string]string{}}}
			n := 0
			var err error
			for ; n <= c.most && err == nil; n++ {
				_, err = g.register(c.make(n), now)
			}
			if n--; !errors.Is(err, errFull) || n < c.least || n > c.most {
				t.Fatalf("%d workers were taken, want %d to %d: %v", n, c.least, c.most, err)
			}
			if _, err := g.register(c.make(0), now); err != nil {
				t.Errorf("a worker that is registered: %v", err)
			}
			if err := g.unregister(&removal{worker: "w0"}); err != nil {
				t.Fatal(err)
			}
			if _, err := g.register(c.make(n), now); err != nil {
				t.Errorf("after a removal: %v", err)
			}
			for i := 1; i <= n; i++ {
				if err := g.unregister(&removal{worker: fmt.Sprint("w", i)}); err != nil {
					t.Fatal(err)
				}
			}
			if g.total != (weight{}) {
				t.Errorf("without workers: %+v", g.total)
			}
		})
	}
}
