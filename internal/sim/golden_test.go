package sim_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/sim"
)

var update = flag.Bool("update", false, "rewrite the golden results and the README's table")

// golden is what a policy reached when the file was last written. Policies that are new are not in it until -update.
type golden struct {
	HitRate float64 `json:"hit_rate"`
	TTFTP95 float64 `json:"ttft_p95_ms"`
	E2EP95  float64 `json:"e2e_p95_ms"`
}

// The bands: a change of the core that moves hit rates by a point or tails by a tenth is meant, or is a bug.
const (
	hitBand  = .01
	tailBand = .10
)

// goldenExperiment is `warmpath sim` with these flags; the README says so.
func goldenExperiment() sim.Experiment {
	x := sim.DefaultExperiment()
	x.Workload = "gen:code-agent,sessions=48,context=16000,context-max=80000,turns=10,rate=1"
	x.Policies, x.Workers, x.Seeds, x.BlockSize = []string{"all"}, []int{4}, []uint64{1}, 64
	return x
}

const goldenFile = "testdata/golden.json"

// A fixed seed, a small workload, all policies: the result stays within a band of the stored one.
// go test ./internal/sim -run Golden -update writes it anew, with the table in the README.
func TestGoldenRun(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it simulates five policies, in three seconds of a core")
	}
	runs := playAll(t, goldenExperiment())
	got := map[string]golden{}
	for _, r := range runs {
		got[r.Policy] = golden{r.HitRate, r.TTFT.P95, r.E2E.P95}
	}
	if *update {
		writeGolden(t, got, runs)
		return
	}
	data, err := os.ReadFile(goldenFile)
	if err != nil {
		t.Fatal(err)
	}
	var want map[string]golden
	if err := json.Unmarshal(data, &want); err != nil {
		t.Fatal(err)
	}
	for name, w := range want {
		g, ok := got[name]
		switch {
		case !ok:
			t.Errorf("policy %s is gone", name)
		case math.Abs(g.HitRate-w.HitRate) > hitBand, math.Abs(g.TTFTP95/w.TTFTP95-1) > tailBand, math.Abs(g.E2EP95/w.E2EP95-1) > tailBand:
			t.Errorf("%s: %+v is out of the band around %+v; if that is meant: go test ./internal/sim -run Golden -update", name, g, w)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Logf("policy %s has no golden result yet: go test ./internal/sim -run Golden -update", name)
		}
	}
}

func writeGolden(t *testing.T, got map[string]golden, runs []*report.Run) {
	data, err := json.MarshalIndent(got, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(goldenFile), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(goldenFile, append(data, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
	const readme = "../../README.md"
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	var table bytes.Buffer
	if err := report.WriteMarkdown(&table, &report.Report{Runs: runs}); err != nil {
		t.Fatal(err)
	}
	begin, end := []byte("<!-- golden run -->\n"), []byte("<!-- end of golden run -->")
	i, j := bytes.Index(text, begin), bytes.Index(text, end)
	if i < 0 || j < i {
		t.Logf("%s has no place for the table, between %q and %q", readme, begin, end)
		return
	}
	text = append(append(append([]byte(nil), text[:i+len(begin)]...), table.Bytes()...), text[j:]...)
	if err := os.WriteFile(readme, text, 0o644); err != nil {
		t.Fatal(err)
	}
}
