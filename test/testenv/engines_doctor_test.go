package testenv_test

import (
	"slices"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/doctor"
)

// TestDoctorAndRealEngines examines engines that were started without what routing needs. The tests of the surface
// examine healthy engines.
func TestDoctorAndRealEngines(t *testing.T) {
	silent := begin(t, "silent", launch{kind: "vllm", env: []string{"KV_JSON="}})
	uncached := begin(t, "uncached", launch{kind: "sglang", args: []string{"--disable-radix-cache"}})
	silent.await(t)
	uncached.await(t)
	t.Run("vLLM without events", func(t *testing.T) { examine(t, silent, "events") })
	t.Run("SGLang without prefix caching", func(t *testing.T) { examine(t, uncached, "prefix_cache") })
}

// examine lets the doctor examine an engine. want are the checks that find a problem; none means that it is healthy.
func examine(t *testing.T, e *realEngine, want ...string) {
	t.Helper()
	report := doctor.Examine(t.Context(), doctor.Options{Targets: []discovery.Target{{URL: e.url}}, Listen: 20 * time.Second})
	var problems []string
	for _, f := range report.Findings {
		if f.Severity != doctor.Note {
			problems = append(problems, f.Check)
		}
		t.Logf("%s %s: seen %s; fix: %s", f.Severity, f.Check, f.Seen, f.Fix)
	}
	if !slices.Equal(problems, want) {
		t.Errorf("problems %q, want %q\n%+v", problems, want, report.Workers)
	}
	if w := report.Workers[0]; want == nil && (len(w.Prompts) != 3 || w.Prompts[1].CachedTokens <= 0 || w.HashChain == "") {
		t.Errorf("the healthy engine was examined as %+v", w)
	}
}
