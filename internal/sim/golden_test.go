package sim_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/sim"
)

var update = flag.Bool("update", false, "rewrite the golden results, their picture and their table")

// golden has the stored figures of a policy.
type golden struct {
	HitRate  float64 `json:"hit_rate"`
	TTFTMean float64 `json:"ttft_mean_ms"`
	TTFTP95  float64 `json:"ttft_p95_ms"`
	E2EP95   float64 `json:"e2e_p95_ms"`
}

// A result may differ from the stored result: the hit rate (0..1) by hitBand, and a p95 latency by 10 % (tailBand). A
// larger difference is either an intended change or a bug.
const (
	hitBand  = .01
	tailBand = .10
)

const (
	goldenFile  = "testdata/golden.json"
	goldenSVG   = "../../docs/policies.svg"                    // picture in the README
	goldenPage  = "../../bench/results/policies.md"            // page with the table
	goldenBegin = "<!-- golden run -->\n"                      // line before the table
	goldenEnd   = "<!-- end of golden run -->"                 // line after the table
	rewrite     = "go test ./internal/sim -run Golden -update" // command that writes the three files
)

// goldenExperiment is the run of `warmpath sim` with the flags that the page with the table shows.
func goldenExperiment() sim.Experiment {
	x := sim.DefaultExperiment()
	x.Workload = "gen:code-agent,sessions=48,context=16000,context-max=80000,turns=10,rate=1"
	x.Policies, x.Workers, x.Seeds, x.BlockSize = []string{"all"}, []int{4}, []uint64{1}, 64
	return x
}

// The run has a fixed seed, a small workload and all policies. Its results must stay within the bands around the stored
// results.
func TestGoldenRun(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: it simulates twenty policies, in two to three seconds of a core")
	}
	runs := playAll(t, goldenExperiment())
	got := map[string]golden{}
	for _, r := range runs {
		got[r.Policy] = golden{r.HitRate, r.TTFT.Mean, r.TTFT.P95, r.E2E.P95}
	}
	if *update {
		writeGolden(t, got, runs)
		return
	}
	want := readGolden(t)
	for name, w := range want {
		g, ok := got[name]
		switch {
		case !ok:
			t.Errorf("policy %s is gone", name)
		case math.Abs(g.HitRate-w.HitRate) > hitBand, math.Abs(g.TTFTP95/w.TTFTP95-1) > tailBand, math.Abs(g.E2EP95/w.E2EP95-1) > tailBand:
			t.Errorf("%s: %+v is out of the band around %+v; if that is meant: %s", name, g, w, rewrite)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Logf("policy %s has no golden result yet: %s", name, rewrite)
		}
	}
}

// The picture and the table show the stored results.
func TestGoldenPictureAndTableShowTheStoredResults(t *testing.T) {
	if *update {
		t.Skip("skipped: TestGoldenRun writes them with -update")
	}
	want := readGolden(t)
	if !bytes.Equal(readFile(t, goldenSVG), picture(t, want)) {
		t.Errorf("%s does not show %s; make it anew: %s", goldenSVG, goldenFile, rewrite)
	}
	_, table, _ := strings.Cut(string(readFile(t, goldenPage)), goldenBegin)
	table, _, found := strings.Cut(table, goldenEnd)
	if !found {
		t.Fatalf("%s has no table between %q and %q", goldenPage, goldenBegin, goldenEnd)
	}
	var names []string
	for name, w := range want {
		names = append(names, name)
		if row := fmt.Sprintf("\n| %s | %.1f | %s |", name, 100*w.HitRate, report.Milliseconds(w.TTFTMean)); !strings.Contains(table, row) {
			t.Errorf("the table in %s has no row that begins %q: %s", goldenPage, row, rewrite)
		}
	}
	if rows := strings.Count(table, "\n") - 2; rows != len(names) {
		slices.Sort(names)
		t.Errorf("the table in %s has %d rows, the policies are %v", goldenPage, rows, names)
	}
}

// picture draws the results for the README.
func picture(t *testing.T, results map[string]golden) []byte {
	var bars []bar
	for name, g := range results {
		bars = append(bars, bar{Policy: name, TTFT: g.TTFTMean, HitRate: g.HitRate})
	}
	var drawn bytes.Buffer
	err := writeSVG(&drawn, frame{
		Title:   "Routing policies: first token and cache hits",
		Note:    "Simulated: coding agents on four workers, Qwen3-32B on two H100 each. The same requests for every policy.",
		Default: "marginal",
	}, bars)
	if err != nil {
		t.Fatal(err)
	}
	return drawn.Bytes()
}

func writeGolden(t *testing.T, got map[string]golden, runs []*report.Run) {
	data, err := json.MarshalIndent(got, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(goldenFile), 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, goldenFile, append(data, '\n'))
	writeFile(t, goldenSVG, picture(t, got))
	before, rest, _ := strings.Cut(string(readFile(t, goldenPage)), goldenBegin)
	_, after, found := strings.Cut(rest, goldenEnd)
	if !found {
		t.Fatalf("%s has no place for the table, between %q and %q", goldenPage, goldenBegin, goldenEnd)
	}
	var table bytes.Buffer
	if err := report.WriteMarkdown(&table, &report.Report{Runs: runs}); err != nil {
		t.Fatal(err)
	}
	writeFile(t, goldenPage, []byte(before+goldenBegin+table.String()+goldenEnd+after))
}

func readGolden(t *testing.T) map[string]golden {
	var stored map[string]golden
	if err := json.Unmarshal(readFile(t, goldenFile), &stored); err != nil {
		t.Fatal(err)
	}
	return stored
}

func readFile(t *testing.T, path string) []byte {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func writeFile(t *testing.T, path string, data []byte) {
	if err := os.WriteFile(path, data, 0o644); err != nil {
		t.Fatal(err)
	}
}
