package inprocess

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/tokens"
)

// TestAnEngineThatAnswersNoProbeIsToldWithWhatToDo: after half a minute, once in the log, and until it answers.
func TestAnEngineThatAnswersNoProbeIsToldWithWhatToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, nil)
		dir := folderOf(t, files())
		x.serve("http://a", "m", dir, &fakeEngine{outcome: tokens.Failed})
		x.after(20 * time.Second)
		x.wants("m", Searching, "did not answer")
		if x.log.String() != "" {
			t.Errorf("a pause of 20 s is told:\n%s", x.log)
		}
		x.after(20 * time.Second)
		x.wants("m", FromEngine, dir, "http://a", "did not answer")
		if s := x.status("m"); !strings.Contains(s.Advice, "--model-path m="+dir) {
			t.Errorf("advice %q", s.Advice)
		}
		x.after(time.Hour)
		if log := x.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "did not answer") || !strings.Contains(log, "--model-path") {
			t.Errorf("the log is not one line about the engine that does not answer:\n%s", log)
		}
		x.engines.set("http://a", &fakeEngine{model: load(t, files())})
		x.after(2 * lookEvery)
		x.wants("m", FromFiles)
	})
}

// TestOneOfManyThatAnswersNoProbeKeepsNothingUp: another worker of its version speaks for it. It is no reason either
// while a worker of another version is asked.
func TestOneOfManyThatAnswersNoProbeKeepsNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, nil)
		dir := folderOf(t, files())
		x.serve("http://a", "m", dir, &fakeEngine{outcome: tokens.Failed})
		x.serve("http://b", "m", dir, &fakeEngine{model: load(t, files())})
		x.after(time.Hour)
		x.wants("m", FromFiles)
		x.engines.set("http://c", &fakeEngine{model: load(t, files())})
		x.Fleet.SetHealth(x.Fleet.Put("http://c", fleet.Facts{Engine: fleet.EngineVLLM, Version: "0.33.0",
			Models: []fleet.Model{{ID: "m", Root: dir}}}), true, "")
		synctest.Wait()
		x.wants("m", Searching)
		x.after(lookEvery)
		x.wants("m", FromFiles)
		if said := strings.Count(x.log.String(), "token ids are"); said != 1 {
			t.Errorf("the log says %d times where ids come from:\n%s", said, x.log)
		}
	})
}

func TestTheLogSaysThatNoFilesAreLookedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, func(p *FinderParts) { p.Off = true })
		x.serve("http://a", "m", folderOf(t, files()), &fakeEngine{model: load(t, files())})
		x.after(time.Hour)
		if log := x.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "tokens.discover is off") || !strings.Contains(log, "model=m") {
			t.Errorf("the log is not one line about the setting:\n%s", log)
		}
	})
}
