package inprocess

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/tokens"
)

// After half a minute, one log line names the silent engine. The status names the engine until it answers a probe.
func TestAnEngineThatAnswersNoProbeIsLoggedWithAdvice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, nil)
		dir := folderOf(t, files())
		x.serve("http://a", "m", dir, &fakeEngine{outcome: tokens.Failed})
		x.after(20 * time.Second)
		x.wants("m", Searching, "did not answer")
		if x.log.String() != "" {
			t.Errorf("a pause of 20 s is logged:\n%s", x.log)
		}
		x.after(20 * time.Second)
		x.wants("m", FromEngine, dir, "http://a", "did not answer")
		if s := x.status("m"); !strings.Contains(s.Advice, "--model-path m="+dir) {
			t.Errorf("advice %q", s.Advice)
		}
		x.after(time.Hour)
		if log := x.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "did not answer") ||
			!strings.Contains(log, "--model-path") {
			t.Errorf("the log is not one line about the engine that does not answer:\n%s", log)
		}
		x.engines.set("http://a", &fakeEngine{model: load(t, files())})
		x.after(2 * lookEvery)
		x.wants("m", FromFiles)
	})
}

// An engine without /tokenize is asked for nothing, so the log does not say that it is asked.
func TestTheLogSaysIfNoWorkerGivesTokenIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, func(p *FinderParts) { p.Off = true })
		facts := fleet.Facts{Engine: fleet.EngineOther, BlockSize: 16, Models: []fleet.Model{{ID: "m"}}}
		x.Fleet.SetHealth(x.Fleet.Put("http://a", facts), true, "")
		x.after(time.Minute)
		log := x.log.String()
		if !strings.Contains(log, "no worker of the model gives token ids") || !strings.Contains(log, "texts and chats that arrive here") || !strings.Contains(log, "engine="+fleet.EngineOther.String()) ||
			!strings.Contains(log, "--model-path m=DIR") || strings.Contains(log, "asked of the engine") {
			t.Errorf("%s", log)
		}
		facts.CanTokenize = true
		x.Fleet.Put("http://a", facts)
		x.after(time.Minute)
		if log := x.log.String(); strings.Count(log, "\n") != 2 || !strings.Contains(log, "token ids are asked of the engine") {
			t.Errorf("a worker that gives ids:\n%s", log)
		}
	})
}

// Another worker of the same version agrees, so the silent worker is not needed. The silent worker also delays nothing
// while a worker of another version is asked.
func TestOneSilentWorkerOfManyDelaysNothing(t *testing.T) {
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

// The worker that fails its probes is the only worker of its version. After failedOften failed probes the files are
// used without its agreement.
func TestAWorkerThatFailsItsProbesDoesNotBlockTheFiles(t *testing.T) {
	for _, outcome := range []tokens.Outcome{tokens.Failed, tokens.Unsupported} {
		t.Run(string(outcome), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := runFinder(t, nil)
				dir := folderOf(t, files())
				x.serve("http://a", "m", dir, &fakeEngine{model: load(t, files())})
				// Each question takes 2 s, because an engine needs time, too.
				x.engines.set("http://b", &fakeEngine{outcome: outcome, hook: func() { <-time.After(2 * time.Second) }})
				x.Fleet.SetHealth(x.Fleet.Put("http://b", fleet.Facts{Engine: fleet.EngineVLLM, Version: "0.33.0",
					Models: []fleet.Model{{ID: "m", Root: dir}}}), true, "")
				x.after(lookEvery)
				for range 600 {
					x.after(time.Second)
					x.wants("m", FromFiles)
					if t.Failed() {
						return
					}
				}
				if n := x.engines.questions("http://b"); n < 2 {
					t.Errorf("the worker was asked %d times", n)
				}
			})
		})
	}
}

// Models whose engines answer no probe must not stay in memory for ever, because at most maxHeld models are held. But
// such a model is tried again later, and is used when its engine answers.
func TestModelsWithSilentEnginesLeaveRoomForOthers(t *testing.T) {
	for _, outcome := range []tokens.Outcome{tokens.Failed, tokens.Unsupported} {
		t.Run(string(outcome), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := runFinder(t, nil)
				for i := range 3 * maxHeld {
					x.serve(fmt.Sprintf("http://%02d", i), fmt.Sprintf("a%02d", i), folderOf(t, files()),
						&fakeEngine{outcome: outcome})
				}
				x.after(time.Second)
				x.serve("http://z", "z", folderOf(t, files()), &fakeEngine{model: load(t, files())})
				x.after(5 * time.Minute)
				x.wants("z", FromFiles)
				for _, i := range []int{0, 20} {
					x.engines.set(fmt.Sprintf("http://%02d", i), &fakeEngine{model: load(t, files())})
				}
				x.after(15 * time.Minute)
				for _, model := range []string{"a00", "a20", "z"} {
					x.wants(model, FromFiles)
				}
				x.wants("a07", FromEngine, "cannot be compared")
				if len(x.held) > maxHeld {
					t.Errorf("%d models are held", len(x.held))
				}
			})
		})
	}
}

func TestTheLogSaysThatNoFilesAreLookedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := runFinder(t, func(p *FinderParts) { p.Off = true })
		x.serve("http://a", "m", folderOf(t, files()), &fakeEngine{model: load(t, files())})
		x.after(time.Hour)
		if log := x.log.String(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "tokens.discover is off") ||
			!strings.Contains(log, "model=m") {
			t.Errorf("the log is not one line about the setting:\n%s", log)
		}
	})
}
