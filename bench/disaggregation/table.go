package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/internal/report"
)

// figure is a column of the tables.
type figure struct {
	name string
	of   func(*report.Run) float64
	show func(float64) string
	more bool // more is better
}

func plain(v float64) string { return fmt.Sprintf("%.1f", v) }

var (
	firstToken = figure{name: "TTFT mean", of: func(r *report.Run) float64 { return r.TTFT.Mean }, show: report.Milliseconds}
	wholes     = figure{name: "E2E mean", of: func(r *report.Run) float64 { return r.E2E.Mean }, show: report.Milliseconds}
	slower     = figure{name: "5 s/100 ms", of: func(r *report.Run) float64 { return 100 * r.SLO[0].Share }, show: plain, more: true}
	faster     = figure{name: "2 s/50 ms", of: func(r *report.Run) float64 { return 100 * r.SLO[1].Share }, show: plain, more: true}
	shown      = []figure{
		{name: "divided %", of: func(r *report.Run) float64 {
			return 100 * float64(r.Transfers.Divided) / float64(max(r.Requests.Sent, 1))
		}, show: func(v float64) string { return fmt.Sprintf("%.0f", v) }},
		{name: "hit %", of: func(r *report.Run) float64 { return 100 * r.HitRate }, show: plain},
		firstToken,
		{name: "p99", of: func(r *report.Run) float64 { return r.TTFT.P99 }, show: report.Milliseconds},
		{name: "TPOT mean", of: func(r *report.Run) float64 { return r.TPOT.Mean }, show: report.Milliseconds},
		{name: "p99", of: func(r *report.Run) float64 { return r.TPOT.P99 }, show: report.Milliseconds},
		wholes, slower, faster,
	}
	compared = []figure{firstToken, wholes, slower, faster}
)

// figures prints a table with all rows: the medians of their runs.
func figures(all []*row, title string) {
	fmt.Printf("### %s\n\n| workers | GB/s | divided by |", title)
	for _, f := range shown {
		fmt.Printf(" %s |", f.name)
	}
	fmt.Println("\n|---|---|---|" + strings.Repeat("--:|", len(shown)))
	for _, r := range all {
		link, mode := r.link, r.mode
		if r.fetch {
			mode += ", fetch"
		} else if mode == "never" || link == "" {
			link = "–"
		}
		fmt.Printf("| %s | %s | %s |", r.fleet, link, mode)
		for _, f := range shown {
			values := make([]float64, len(r.runs))
			for i, run := range r.runs {
				values[i] = f.of(run)
			}
			fmt.Printf(" %s |", f.show(median(values)))
		}
		fmt.Println()
	}
	fmt.Println()
}

// heads prints the head of the table whose lines compare returns.
func heads() {
	fmt.Print("| set | workers | GB/s |")
	for _, f := range compared {
		fmt.Printf(" %s |", f.name)
	}
	fmt.Println("\n|---|---|--:|" + strings.Repeat("--:|", len(compared)))
}

// compare says by how many percent auto is above the better of always and never, for each fleet and link: the median
// of the runs, then the least and the greatest. A median that loses more than 3 % is bold.
func compare(all []*row, set string) (lines []string) {
	find := func(fleet, link, mode string) *row {
		for _, r := range all {
			if r.fleet == fleet && !r.fetch && r.mode == mode && (r.link == link || mode == "never" || mode == "none") {
				return r
			}
		}
		return nil
	}
	for _, r := range all {
		if r.mode != "auto" || r.fetch {
			continue
		}
		never := find(apart, r.link, "never")
		if r.fleet == exchange {
			never = find(alone, r.link, "none") // workers that divide nothing and fetch nothing exchange nothing
		}
		always := find(r.fleet, r.link, "always")
		line := fmt.Sprintf("| %s | %s | %s |", set, r.fleet, r.link)
		for _, f := range compared {
			values := make([]float64, len(r.runs))
			for i := range values {
				a, n := f.of(always.runs[i]), f.of(never.runs[i])
				better := min(a, n)
				if f.more {
					better = max(a, n)
				}
				values[i] = 100 * (f.of(r.runs[i])/better - 1)
			}
			middle := fmt.Sprintf("%+.1f", median(values))
			if loss := median(values); loss > 3 && !f.more || loss < -3 && f.more {
				middle = "**" + middle + "**"
			}
			if len(values) > 1 {
				middle += fmt.Sprintf(" (%+.1f to %+.1f)", slices.Min(values), slices.Max(values))
			}
			line += " " + middle + " |"
		}
		lines = append(lines, line)
	}
	return lines
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}
