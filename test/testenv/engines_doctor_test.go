package testenv_test

import (
	"slices"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/discovery"
	"github.com/warmpath/warmpath/internal/doctor"
)

// TestDoctorAndRealEngines examines healthy engines, and engines that were started without what routing needs.
func TestDoctorAndRealEngines(t *testing.T) {
	for _, test := range []struct {
		name string
		launch
		want []string // checks that find a problem
	}{
		{"a healthy vLLM", launch{kind: "vllm"}, nil},
		{"vLLM without events", launch{kind: "vllm", env: []string{"KV_JSON="}}, []string{"events"}},
		{"vLLM without prefix caching", launch{kind: "vllm", env: []string{"KV_JSON="}, args: []string{"--no-enable-prefix-caching"}}, []string{"prefix_cache"}},
		{"a healthy SGLang", launch{kind: "sglang"}, nil},
		{"SGLang without prefix caching", launch{kind: "sglang", args: []string{"--disable-radix-cache"}}, []string{"prefix_cache"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := begin(t, "examined", test.launch)
			e.await(t)
			report := doctor.Examine(t.Context(), doctor.Options{Targets: []discovery.Target{{URL: e.url}}, Listen: 20 * time.Second})
			var problems []string
			for _, f := range report.Findings {
				if f.Severity != doctor.Note {
					problems = append(problems, f.Check)
				}
				t.Logf("%s %s: seen %s; fix: %s", f.Severity, f.Check, f.Seen, f.Fix)
			}
			if !slices.Equal(problems, test.want) {
				t.Errorf("problems %q, want %q\n%+v", problems, test.want, report.Workers)
			}
			if test.want == nil && (len(report.Workers[0].Prompts) != 3 || report.Workers[0].Prompts[1].CachedTokens <= 0 || report.Workers[0].HashChain == "") {
				t.Errorf("the healthy engine was examined as %+v", report.Workers[0])
			}
			e.stop()
		})
	}
}
