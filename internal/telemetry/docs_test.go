package telemetry

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/kvfeed"
)

// TestDocsNameMetricsThatExist checks that every metric exists that a page for users, the dashboard or an alert names.
func TestDocsNameMetricsThatExist(t *testing.T) {
	known := descriptions(t)
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("no pages: %v", err)
	}
	pages = append(pages, "../../deploy/grafana/warmpath.json", "../../deploy/prometheus/warmpath-alerts.yaml", "../../deploy/prometheus/warmpath-alerts.test.yaml")
	named := regexp.MustCompile(`warmpath_[a-z_]*[a-z]`)
	series := regexp.MustCompile(`_(bucket|sum|count)$`)
	seen := 0
	for _, page := range append(pages, "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range named.FindAllString(string(text), -1) {
			seen++
			_, ok := known[name]
			if _, histogram := known[series.ReplaceAllString(name, "")]; !ok && !histogram {
				t.Errorf("%s: there is no %s", filepath.Base(page), name)
			}
		}
	}
	if seen < 10 {
		t.Errorf("%d metrics found: the test looks for them in the wrong way", seen)
	}
}

// TestTheRowsOfTheDocsAreTheMetrics checks that docs/metrics.md has one row for each metric, with its type, its labels
// and its help text, and no other row. In the row, keys and names stand in backquotes, and the text has no full stop.
func TestTheRowsOfTheDocsAreTheMetrics(t *testing.T) {
	text, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	known := descriptions(t)
	seen := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(warmpath_[a-z_]+)` \\| ([a-z]+) \\| (.*?) \\| (.*) \\|$").FindAllStringSubmatch(string(text), -1) {
		name, kind, labels, meaning := row[1], row[2], row[3], row[4]
		d, ok := known[name]
		if !ok || seen[name] {
			t.Errorf("the row of %s is of no metric, or not its only row", name)
			continue
		}
		seen[name] = true
		listed := "–"
		if d.labels != "" {
			listed = "`" + strings.ReplaceAll(d.labels, ",", "`, `") + "`"
		}
		if labels != listed {
			t.Errorf("the row of %s has the labels %s, the metric has %s", name, labels, listed)
		}
		if !slices.Contains([]string{"counter", "gauge", "histogram"}, kind) || (kind == "counter") != strings.HasSuffix(name, "_total") {
			t.Errorf("the row of %s has the type %s", name, kind)
		}
		if help := strings.TrimSuffix(d.help, "."); strings.ReplaceAll(meaning, "`", "") != help {
			t.Errorf("%s\nin the row:  %s\nin the help: %s", name, meaning, help)
		}
	}
	for name := range known {
		if strings.HasPrefix(name, "warmpath_") && !seen[name] {
			t.Errorf("docs/metrics.md has no row | `%s` | TYPE | LABELS | MEANING |", name)
		}
	}
}

func TestEveryMetricBeginsWithTheProject(t *testing.T) {
	for name := range descriptions(t) {
		if !strings.HasPrefix(name, "warmpath_") && !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			t.Errorf("%s", name)
		}
	}
}

// description is what a metric says about itself.
type description struct{ labels, help string }

// descriptions returns the descriptions of all metrics by name.
func descriptions(t *testing.T) map[string]description {
	all := map[string]description{}
	parts := regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: (".*?"), unit: .* variableLabels: \{([^}]*)\}`)
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
			Log:    func() LogLines { return LogLines{} },

			Snapshots: func() Snapshots { return Snapshots{} },
			Sync:      func() Sync { return Sync{Peers: []SyncPeer{{Name: "r"}}, Dropped: map[string]uint64{"old": 1}} },
			Tokens: func() TokenStats {
				return TokenStats{Stats: tokens.Stats{Distrusted: []string{"m"}, BeginningsOff: []string{"m"}}, Models: map[string]int{"files": 1}}
			},
		}).Collect(series)
		close(series)
		for m := range series {
			descs <- m.Desc()
		}
	}()
	for d := range descs {
		found := parts.FindStringSubmatch(d.String())
		help, err := strconv.Unquote(found[2])
		if err != nil {
			t.Errorf("%s: %v", d, err)
		}
		all[found[1]] = description{labels: found[3], help: help}
	}
	return all
}
