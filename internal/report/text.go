package report

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// WriteJSON writes the report in the JSON form of [Schema]. The text is indented, with one value in each line.
func WriteJSON(w io.Writer, r *Report) error {
	r.complete()
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	if err := e.Encode(r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// complete sets the schema, and replaces absent lists by empty lists, so that the JSON form has no null.
func (r *Report) complete() {
	r.Schema = Schema
	if r.Assumptions == nil {
		r.Assumptions = []string{}
	}
	if r.Runs == nil {
		r.Runs = []*Run{}
	}
	for _, run := range r.Runs {
		if run.Workers == nil { // no worker was reported
			run.Workers = []Worker{}
		}
		if run.SLO == nil {
			run.SLO = []SLOShare{}
		}
		s := &run.Series
		for _, list := range []*[]float64{&s.Arrivals, &s.HitRate, &s.TTFT, &s.Output, &s.Ready} {
			if *list == nil {
				*list = []float64{}
			}
		}
		for _, list := range []*[][]float64{&s.Running, &s.Waiting, &s.KV} {
			if *list == nil {
				*list = [][]float64{}
			}
		}
	}
}

// column is a column of the table. An optional column of several runs is left out if all its cells are equal. With one
// run, it is left out if its cell is "0" or empty.
type column struct {
	head     string
	optional bool
	cell     func(*Run) string
}

func columns(runs []*Run) []column {
	failed := func(r *Run) int { return r.Requests.Failed }
	rejected := func(r *Run) int { return r.Requests.Rejected }
	none := func(count func(*Run) int) bool {
		return !slices.ContainsFunc(runs, func(r *Run) bool { return count(r) > 0 })
	}
	ms := func(get func(*Run) float64) func(*Run) string {
		return func(r *Run) string { return Milliseconds(get(r)) }
	}
	all := []column{
		{"policy", false, func(r *Run) string {
			if r.Stopped {
				return r.Policy + " (stopped)"
			}
			return r.Policy
		}},
		{"note", true, func(r *Run) string { return r.Note }},
		{"workers", true, func(r *Run) string { return fmt.Sprint(r.Setup.Workers) }},
		{"routers", true, func(r *Run) string { return fmt.Sprint(r.Routers) }},
		{"sync", true, func(r *Run) string { return cmp.Or(r.Sync, "off") }},
		{"rate", true, func(r *Run) string { return fmt.Sprintf("%.3g×", r.Rate) }},
		{"KV tokens", true, func(r *Run) string { return Count(int64(r.KVTokens)) }},
		{"profile", true, func(r *Run) string { return r.Profile }},
		{"seed", true, func(r *Run) string { return fmt.Sprint(r.Seed) }},
		{"divided %", true, func(r *Run) string { return r.Transfers.dividedPercent() }},
		{"hit %", false, func(r *Run) string { return fmt.Sprintf("%.1f", 100*r.HitRate) }},
		{"TTFT mean", false, ms(func(r *Run) float64 { return r.TTFT.Mean })},
		{"p50", false, ms(func(r *Run) float64 { return r.TTFT.P50 })},
		{"p90", false, ms(func(r *Run) float64 { return r.TTFT.P90 })},
		{"p99", false, ms(func(r *Run) float64 { return r.TTFT.P99 })},
		{"ITL p50", false, ms(func(r *Run) float64 { return r.ITL.P50 })},
		{"p99", false, ms(func(r *Run) float64 { return r.ITL.P99 })},
		{"E2E mean", false, ms(func(r *Run) float64 { return r.E2E.Mean })},
		{"p99", false, ms(func(r *Run) float64 { return r.E2E.P99 })},
	}
	var slos [][]SLOShare
	for _, r := range runs {
		slos = append(slos, r.SLO)
	}
	for i, head := range sloHeads(slos) {
		all = append(all, column{head, false, func(r *Run) string { return sloCell(r.SLO, i) }})
	}
	return append(all,
		column{"out tok/s", false, func(r *Run) string { return fmt.Sprintf("%.0f", r.OutputPerSecond) }},
		column{"work max/mean", false, func(r *Run) string { return fmt.Sprintf("%.2f", r.Balance.ComputedSpread) }},
		column{"failed", none(failed), func(r *Run) string { return fmt.Sprint(failed(r)) }},
		column{"rejected", none(rejected), func(r *Run) string { return fmt.Sprint(rejected(r)) }},
	)
}

// sloHeads returns the titles of the columns for the SLOs of several runs or stages. A title says whether a cell of its
// column has the share of the answered requests, too.
func sloHeads(rows [][]SLOShare) []string {
	var heads []string
	for i, s := range rows[0] {
		head := "SLO % " + Milliseconds(s.TTFT)
		if s.TPOT > 0 {
			head += "/" + Milliseconds(s.TPOT)
		}
		if slices.ContainsFunc(rows, func(row []SLOShare) bool { return i < len(row) && row[i].differs() }) {
			head += " (answered)"
		}
		heads = append(heads, head)
	}
	return heads
}

func sloCell(row []SLOShare, i int) string {
	if i >= len(row) {
		return "-"
	}
	return row[i].Percent()
}

// Percent returns the share of all requests in percent. If some requests were not answered, it adds the share of the
// answered requests: "18.3 (93.6)".
func (s SLOShare) Percent() string {
	if !s.differs() {
		return fmt.Sprintf("%.1f", 100*s.Share)
	}
	return fmt.Sprintf("%.1f (%.1f)", 100*s.Share, 100*s.AnsweredShare)
}

func (s SLOShare) differs() bool { return s.AnsweredShare > s.Share }

// table returns the runs as rows of cells. The first row has the titles of the columns.
func table(runs []*Run) [][]string {
	if len(runs) == 0 {
		return nil
	}
	rows := make([][]string, len(runs)+1)
	for _, c := range columns(runs) {
		cells := make([]string, len(runs))
		differ := false
		for i, r := range runs {
			cells[i] = c.cell(r)
			differ = differ || cells[i] != cells[0]
		}
		if c.optional && !differ && (len(runs) > 1 || cells[0] == "0" || cells[0] == "") {
			continue
		}
		rows[0] = append(rows[0], c.head)
		for i := range runs {
			rows[i+1] = append(rows[i+1], cells[i])
		}
	}
	return rows
}

// WriteText writes a line about the workload, a table with a row for each run, and a table of the stages of each run.
func WriteText(w io.Writer, r *Report) error {
	var b strings.Builder
	l := r.Workload
	fmt.Fprintf(&b, "%s: %s requests, %s prompt and %s output tokens over %.0f s\n", l.Name, Count(int64(l.Requests)), Count(l.PromptTokens), Count(l.OutputTokens), l.SpanSeconds)
	if r.Interrupted {
		fmt.Fprintf(&b, "Interrupted: this is what was done by then.\n")
	}
	if rows := table(r.Runs); rows != nil {
		b.WriteByte('\n')
		t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
		for _, row := range rows {
			fmt.Fprintln(t, strings.Join(row, "\t")+"\t")
		}
		_ = t.Flush() // a strings.Builder never returns an error
	}
	for _, run := range r.Runs {
		writeStages(&b, run)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func writeStages(b *strings.Builder, run *Run) {
	if len(run.Stages) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s by stage\n", run.Policy)
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	var slos [][]SLOShare
	for i := range run.Stages {
		slos = append(slos, run.Stages[i].SLO)
	}
	heads := append([]string{"stage", "requests", "hit %", "out tok/s", "TTFT mean", "p90", "p99", "TPOT p50"}, sloHeads(slos)...)
	fmt.Fprintln(t, strings.Join(heads, "\t")+"\t")
	for i := range run.Stages {
		s := &run.Stages[i]
		fmt.Fprintf(t, "%s\t%d\t%.1f\t%.0f\t%s\t%s\t%s\t%s\t", s.Name, s.Requests, 100*s.HitRate, s.OutputPerSecond,
			Milliseconds(s.TTFT.Mean), Milliseconds(s.TTFT.P90), Milliseconds(s.TTFT.P99), Milliseconds(s.TPOT.P50))
		for k := range slos[0] {
			fmt.Fprintf(t, "%s\t", sloCell(s.SLO, k))
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush()
}

// WriteMarkdown writes only the table, for documents.
func WriteMarkdown(w io.Writer, r *Report) error {
	var b strings.Builder
	for i, row := range table(r.Runs) {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(&b, "|%s\n", strings.Repeat(" ---: |", len(row)))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Milliseconds returns a time with few digits and a unit: "850 µs", "12.3 ms", "1.24 s", "95 s".
func Milliseconds(ms float64) string {
	switch {
	case ms <= 0:
		return "0"
	case ms < 1:
		return fmt.Sprintf("%.0f µs", ms*1000)
	case ms < 100:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 1000:
		return fmt.Sprintf("%.0f ms", ms)
	case ms < 1e5:
		return strings.TrimSuffix(fmt.Sprintf("%.2f", ms/1000), ".00") + " s"
	default:
		return fmt.Sprintf("%.0f s", ms/1000)
	}
}

// Count returns a number, with a unit if the number is large: "950", "12,031", "1.8 M".
func Count(n int64) string {
	switch {
	case n >= 10_000_000_000:
		return fmt.Sprintf("%.1f G", float64(n)/1e9)
	case n >= 1_000_000:
		return strings.TrimSuffix(fmt.Sprintf("%.2f", float64(n)/1e6), "0") + " M"
	case n >= 10_000:
		return fmt.Sprintf("%d,%03d", n/1000, n%1000)
	}
	return fmt.Sprint(n)
}
