package testenv_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/mockengine"
	"github.com/warmpath/warmpath/test/testenv"
)

// TestPredictionsOfAdaptersOnDemandAreTheEngines: adapters come and go at two workers with one slot each. Each
// prediction is what the engine reports, also when an adapter returns. When an adapter returns under another path, the
// router forgets what the worker has, and predicts too little rather than too much.
func TestPredictionsOfAdaptersOnDemandAreTheEngines(t *testing.T) {
	updating := func(c *mockengine.Config) { c.UpdateLoRA, c.MaxLoRAs = true, 1 }
	file := filepath.Join(t.TempDir(), "warmpath.yaml")
	write := func(path string) {
		t.Helper()
		text := patient + "watch_interval: 100ms\nadapters:\n- {name: sql, base: mock, path: " + path + "}\n- {name: law, base: mock, path: /law}\n- {name: med, base: mock, path: /med}\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("/sql")
	f := serveFile(t, file, []*mockengine.Server{mock(t, updating), mock(t, updating)})
	f.trusted(t)
	history := []message{{"system", prose("adapters", 60)}, {"user", "first"}}
	moved := false
	ask := func(model string) answer {
		t.Helper()
		a := f.chatWith(t, model, history, "")
		if a.status != 200 {
			t.Fatalf("%s: %d %s", model, a.status, a.body)
		}
		if moved && a.match < a.cached {
			t.Logf("%s: predicted %d of %d cached tokens after the change of a path", model, a.match, a.cached)
		} else {
			exact(t, a, model)
		}
		f.settle(t)
		return a
	}
	first := ask("sql")
	if first.cached != 0 {
		t.Errorf("the first request of the adapter found %d cached tokens", first.cached)
	}
	if again := ask("sql"); again.cached == 0 || again.worker != first.worker {
		t.Errorf("the second request went to %s with %d cached tokens, the first to %s", again.worker, again.cached, first.worker)
	}
	for range 3 { // each of these unloads another
		for _, model := range []string{"law", "med", "sql", "mock"} {
			ask(model)
		}
	}
	if n := f.metric(t, `warmpath_adapter_orders_total{order="unload",outcome="done"}`); n < 3 {
		t.Errorf("%v adapters were unloaded", n)
	}

	write("/sql-2")
	testenv.Until(t, "the new path is read", func() bool { return strings.Contains(f.scrape(t), `warmpath_reloads_total{result="ok"} 1`) })
	moved = true
	for range 2 {
		for _, model := range []string{"law", "med", "sql"} {
			ask(model)
		}
	}
}
