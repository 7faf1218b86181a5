package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/internal/report"
)

// figure is a column of the table.
type figure struct {
	head   string
	format string
	spread bool // beside the mean, show how far the seeds are apart
	of     func(*report.Run) float64
	// answered is the same figure for the answered requests alone. nil: there is none. It is shown if it differs.
	answered func(*report.Run) float64
}

// figures has the columns. The figures by which policies are compared have a spread; more spreads would hide them.
var figures = []figure{
	{"hit %", "%.1f", false, func(r *report.Run) float64 { return 100 * r.HitRate }, nil},
	{"TTFT mean", "%.0f", true, func(r *report.Run) float64 { return r.TTFT.Mean }, nil},
	{"p50", "%.0f", false, func(r *report.Run) float64 { return r.TTFT.P50 }, nil},
	{"p99", "%.0f", true, func(r *report.Run) float64 { return r.TTFT.P99 }, nil},
	{"ITL mean", "%.1f", false, func(r *report.Run) float64 { return r.ITL.Mean }, nil},
	{"TPOT p99", "%.0f", false, func(r *report.Run) float64 { return r.TPOT.P99 }, nil},
	{"E2E mean", "%.0f", true, func(r *report.Run) float64 { return r.E2E.Mean }, nil},
	{"p99", "%.0f", false, func(r *report.Run) float64 { return r.E2E.P99 }, nil},
	slo(0, "SLO 5 s/100 ms"),
	slo(1, "SLO 2 s/50 ms"),
}

// slo is the column of a service level of report.DefaultSLOs.
func slo(i int, head string) figure {
	return figure{
		head, "%.1f", true,
		func(r *report.Run) float64 { return 100 * r.SLO[i].Share },
		func(r *report.Run) float64 { return 100 * r.SLO[i].AnsweredShare },
	}
}

// printTable plays all runs and prints a line for each row as soon as its runs have ended.
func printTable(w io.Writer, rows []row, parallel int) {
	seeds, rates := len(rows[0].configs), len(rows[0].configs[0])
	if seeds > 1 {
		fmt.Fprint(w, "Means; ± is half of the difference between the greatest and the least seed.\n\n")
	}
	next := begin(len(rows)*seeds*rates, parallel, func(i int) *report.Run {
		return play(rows[i/(seeds*rates)].configs[i/rates%seeds][i%rates])
	})
	heads := "| policy |"
	for _, f := range figures {
		heads += " " + f.head + " |"
	}
	fmt.Fprintln(w, heads)
	fmt.Fprintln(w, "|"+strings.Repeat("---|", len(figures)+1))
	for _, r := range rows {
		runs := make([][]*report.Run, seeds)
		for seed := range runs {
			for range rates {
				runs[seed] = append(runs[seed], next())
			}
		}
		fmt.Fprintln(w, line(r.name, runs))
	}
}

// line returns a row of the table. runs has the runs of a policy by seed, then by rate. The figure of a seed is the
// mean over its rates. So the spread says nothing about the difference between rates.
func line(name string, runs [][]*report.Run) string {
	cells := []string{name}
	for _, f := range figures {
		value, spread := summary(runs, f.of)
		cell := fmt.Sprintf(f.format, value)
		if f.spread && len(runs) > 1 {
			cell += " ±" + fmt.Sprintf(f.format, spread)
		}
		if f.answered != nil {
			answered, _ := summary(runs, f.answered)
			if text := fmt.Sprintf(f.format, answered); text != fmt.Sprintf(f.format, value) {
				cell += " (answered " + text + ")"
			}
		}
		cells = append(cells, cell)
	}
	return "| " + strings.Join(cells, " | ") + " |"
}

// summary returns the mean of a figure, and half of the difference between the greatest and the least seed.
func summary(runs [][]*report.Run, of func(*report.Run) float64) (value, spread float64) {
	var bySeed []float64
	for _, rates := range runs {
		sum := 0.0
		for _, r := range rates {
			sum += of(r)
		}
		bySeed = append(bySeed, sum/float64(len(rates)))
		value += bySeed[len(bySeed)-1] / float64(len(runs))
	}
	return value, (slices.Max(bySeed) - slices.Min(bySeed)) / 2
}
