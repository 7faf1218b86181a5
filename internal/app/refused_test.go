package app

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/queue"
)

func TestAReloadThatFailsChangesNothing(t *testing.T) {
	const oldURL, newURL = "http://127.0.0.1:1", "http://127.0.0.1:2"
	for name, test := range map[string]struct {
		change func(*config.Config)
		err    string
	}{
		"the policies are refused": {func(c *config.Config) { c.Policy = "unknown" }, `use policy "unknown"`},
		"the workers are refused": {func(c *config.Config) {
			c.Policy, c.Workers = "least_load", append(c.Workers, c.Workers...)
		}, "listed twice"},
	} {
		t.Run(name, func(t *testing.T) {
			old := config.Default()
			old.Workers = []discovery.Target{{URL: oldURL}}
			next := old
			next.Workers, next.Queue.Order = []discovery.Target{{URL: newURL}}, queue.Fair
			test.change(&next)
			a, err := New(&old, Options{Log: slog.New(slog.DiscardHandler), Load: func() (*config.Config, error) { return &next, nil }})
			if err != nil {
				t.Fatal(err)
			}
			if changes, err := a.Reload(); err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("the file is not refused: %q, %v", changes, err)
			}
			if a.workers.Target(oldURL).URL == "" || a.workers.Target(newURL).URL != "" {
				t.Errorf("the worker of the refused file is watched, or the old worker is not")
			}
			if p, err := a.router.Policy("", "m"); err != nil || p.Name() != old.Policy {
				t.Errorf("the policy is %v, %v", p, err)
			}
			if a.cfg != &old {
				t.Errorf("the configuration in force is %+v", a.cfg)
			}
		})
	}
}
