package telemetry

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvfeed"
)

// TestDocsNameMetricsThatExist checks that every metric exists that a page for users names.
func TestDocsNameMetricsThatExist(t *testing.T) {
	known := names()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	named := regexp.MustCompile(`warmpath_[a-z_]*[a-z]`)
	seen := 0
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range named.FindAllString(string(text), -1) {
			seen++
			if _, ok := known[name]; !ok {
				t.Errorf("%s: there is no %s", filepath.Base(page), name)
			}
		}
	}
	if seen < 10 {
		t.Errorf("%d metrics found: the test looks for them in the wrong way", seen)
	}
}

// TestEveryMetricIsInTheDocs checks that docs/operate.md has a row for each metric, with its type and its labels.
func TestEveryMetricIsInTheDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, labels := range names() {
		if !strings.HasPrefix(name, "warmpath_") {
			continue
		}
		listed := "–"
		if labels != "" {
			listed = "`" + strings.ReplaceAll(labels, ",", "`, `") + "`"
		}
		row := regexp.MustCompile("(?m)^\\| `" + name + "` \\| (counter|gauge|histogram) \\| " + listed + " \\| .+ \\|$").FindSubmatch(text)
		if row == nil || (string(row[1]) == "counter") != strings.HasSuffix(name, "_total") {
			t.Errorf("docs/operate.md has no row | `%s` | TYPE | %s | MEANING |", name, listed)
		}
	}
}

func TestEveryMetricBeginsWithTheProject(t *testing.T) {
	for name := range names() {
		if !strings.HasPrefix(name, "warmpath_") && !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			t.Errorf("%s", name)
		}
	}
}

// names returns the names of all metrics, each with the names of its labels.
func names() map[string]string {
	all := map[string]string{}
	name := regexp.MustCompile(`fqName: "([^"]+)".* variableLabels: \{([^}]*)\}`)
	descs := make(chan *prometheus.Desc)
	go func() { // ends when all descriptions are sent
		defer close(descs)
		New(DefaultConfig()).registry.Describe(descs)
		series := make(chan prometheus.Metric, 1000)
		newCollector(Sources{
			Workers: func() []Worker {
				return []Worker{{Reports: 1, Holders: []Holder{{Stream: &kvfeed.Stats{}, Reported: fleet.Reported{At: 1}, Pace: fleet.Pace{Measured: 1}}}}}
			},
			Index:  func() []Index { return []Index{{Model: "m"}} },
			Queue:  func() []Line { return []Line{{Model: "m"}} },
			Stalls: func() []Stall { return []Stall{{}} },
			Stale:  func() time.Duration { return 0 },
			Tokens: func() TokenStats {
				return TokenStats{Distrusted: []string{"m"}, BeginningsOff: []string{"m"}, Models: map[string]int{"files": 1}}
			},
		}).Collect(series)
		close(series)
		for m := range series {
			descs <- m.Desc()
		}
	}()
	for d := range descs {
		found := name.FindStringSubmatch(d.String())
		all[found[1]] = found[2]
	}
	return all
}
