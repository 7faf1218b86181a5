package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/sim"
)

// configured returns the rows of a small workload.
func configured(t *testing.T, seeds int, rates []string, policies ...string) []row {
	t.Helper()
	rows, err := parseRows(policies)
	if err != nil {
		t.Fatal(err)
	}
	s := set{workload: "gen:independent,requests=80,question=4000", rate: "1", workers: 2}
	x := s.experiment("")
	x.Rate = rates
	if err := configure(rows, x, seeds); err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestATableDoesNotDependOnTheNumberOfRunsAtTheSameTime(t *testing.T) {
	print := func(parallel int) string {
		var table, capacities bytes.Buffer
		printTable(&table, configured(t, 2, []string{"1", "2"}, "random", "marginal@none"), parallel)
		printCapacities(&capacities, configured(t, 2, []string{"1"}, "random", "marginal@none"), []int{0, 1}, parallel)
		return table.String() + capacities.String()
	}
	one, three := print(1), print(3)
	if one != three {
		t.Errorf("one run after the other:\n%s\nthree at the same time:\n%s", one, three)
	}
	for _, begin := range []string{"\n| random | ", "\n| marginal@none | "} {
		if strings.Count(one, begin) != 2 {
			t.Errorf("not both tables have a row %q:\n%s", begin, one)
		}
	}
}

func TestARowHasServiceLevelsOfItsOwn(t *testing.T) {
	rows := configured(t, 1, []string{"1"}, "marginal", "marginal@none", "kv:prefill_load_scale=16,overlap_score_weight=2@5s/100ms+2s/50ms")
	if c := rows[0].configs[0][0]; c.Levels != nil {
		t.Errorf("levels %v, want the router's default", c.Levels)
	}
	if c := rows[1].configs[0][0]; c.Levels == nil || len(c.Levels) != 0 {
		t.Errorf("levels %v, want none", c.Levels)
	}
	if c := rows[2].configs[0][0]; len(c.Levels) != 2 || c.Levels[1].String() != "2s/50ms" || c.Policy.Name != rows[2].policy {
		t.Errorf("levels %v of policy %q", c.Levels, c.Policy.Name)
	}
	if rows, err := parseRows([]string{"all@none"}); err != nil || len(rows) != len(sim.Policies()) || !slices.Equal(rows[0].levels, []string{"none"}) {
		t.Errorf("all policies without levels: %v, %v", rows, err)
	}
}

// The figure of a seed is its mean over the rates. The spread is between the seeds.
func TestALineHasTheSpreadBetweenSeeds(t *testing.T) {
	run := func(ttft, share, answered float64) *report.Run {
		slo := report.SLOShare{Share: share, AnsweredShare: answered}
		return &report.Run{TTFT: report.Latency{Mean: ttft}, SLO: []report.SLOShare{slo, {Share: .5, AnsweredShare: .5}}}
	}
	runs := [][]*report.Run{{run(100, .9, .9), run(300, .7, .9)}, {run(200, .8, 1), run(400, .6, .8)}}
	got := line("p", runs)
	for _, want := range []string{"| p | ", " 250 ±50 |", " 75.0 ±5.0 (answered 90.0) |", " 50.0 ±0.0 |"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %s", want, got)
		}
	}
	if got := line("p", runs[:1]); strings.Contains(got, "±") {
		t.Errorf("one seed has a spread: %s", got)
	}
}

func TestAMedianIsInTheMiddle(t *testing.T) {
	if a, b := median([]float64{3, 1, 2}), median([]float64{4, 1, 3, 2}); a != 2 || b != 2.5 {
		t.Errorf("medians %v and %v, want 2 and 2.5", a, b)
	}
}
