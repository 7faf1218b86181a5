package inprocess

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/internal/tokens"
)

// If the ids of real requests, made from a model's files, differed from the engine's ids, the model's later requests
// get the engine's ids. This holds for files that the operator named and for files that the Finder found.
func TestAModelWithDifferencesWhileServingHasTheEnginesIDs(t *testing.T) {
	for _, source := range []Source{FromGiven, FromFiles} {
		t.Run(string(source), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir, other := folderOf(t, files()), "another"
				if source == FromGiven {
					other = "m"
				}
				x := runFinder(t, open(t, Path{Name: other, Path: dir}))
				x.serve("http://a", "m", dir, &fakeEngine{model: load(t, files())})
				x.after(time.Second)
				x.wants("m", source)
				if got := x.Folder("m", tokens.VLLM); got != dir {
					t.Errorf("ids are made from %q", got)
				}
				x.engines.compare("m", tokens.Comparison{Distrusted: true, Differed: 3, Prompts: 20, Worker: "http://a"})
				s := x.status("m")
				if want := "ids made from " + dir + " differed from those of http://a in 3 of the last 20 " +
					"prompts"; s.Source != FromEngine || s.Folder != "" || s.Why != want {
					t.Errorf("%+v, want %q", s, want)
				}
				if !strings.Contains(s.Advice, "--model-path m=DIR") {
					t.Errorf("advice %q", s.Advice)
				}
				x.engines.compare("m", tokens.Comparison{Differed: 3, Prompts: 40, Worker: "http://a"})
				x.wants("m", source)
			})
		})
	}
}

func TestAModelWithoutWorkersIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, nil)
		id := x.serve("http://a", "m", "", &fakeEngine{model: load(t, files())})
		x.serve("http://b", "n", "", &fakeEngine{model: load(t, files())})
		x.after(time.Second)
		x.Fleet.Remove(id)
		x.after(time.Second)
		x.engines.mu.Lock()
		kept := x.engines.kept
		x.engines.mu.Unlock()
		if kept == nil || kept("m") || !kept("n") {
			t.Error("what was learned of a model that left is kept")
		}
	})
}
