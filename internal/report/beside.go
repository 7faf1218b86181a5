package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Compared is the kind of a report that [Beside] made from other reports.
const Compared Kind = "compared"

// maxReport bounds the size of a report that is read, in bytes. A report of sixty runs over an hour takes 6 MB.
const maxReport = 256 << 20

// Read reads a report in the JSON form. It also accepts the form in which `warmpath plan --json` wraps a report.
func Read(r io.Reader) (*Report, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxReport+1))
	if err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	if len(data) > maxReport {
		return nil, fmt.Errorf("read report: more than %d bytes", maxReport)
	}
	var file struct {
		Report
		Planned *Report `json:"report"`
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("read report: %w", err)
	}
	got := &file.Report
	if file.Planned != nil {
		got = file.Planned
	}
	switch {
	case got.Schema != Schema:
		return nil, fmt.Errorf("read report: its schema is %q, not %q: write one with `warmpath sim --json` or `warmpath load -o FILE`", got.Schema, Schema)
	case len(got.Runs) == 0:
		return nil, errors.New("read report: it has no runs")
	case slices.Contains(got.Runs, nil):
		return nil, errors.New("read report: a run is null")
	}
	return got, nil
}

// Beside joins reports into one report. It adds the kind of the report to the name of each policy, as in "marginal
// (measured)". If several reports have the same kind, it adds the report's name from names instead. Reports with
// different service levels cannot be compared.
func Beside(names []string, reports []*Report) (*Report, error) {
	first := reports[0]
	all := &Report{Kind: Compared, Version: first.Version, Workload: first.Workload}
	for i, r := range reports {
		name := names[i]
		if !slices.ContainsFunc(reports, func(o *Report) bool { return o != r && o.Kind == r.Kind }) {
			name = string(r.Kind)
		}
		all.Interrupted = all.Interrupted || r.Interrupted
		all.Assumptions = append(all.Assumptions, name+": "+r.Command)
		if w := r.Workload; w.Name != first.Workload.Name || w.Requests != first.Workload.Requests || w.PromptTokens != first.Workload.PromptTokens {
			all.Assumptions = append(all.Assumptions, fmt.Sprintf("%s: another workload, %s with %d requests and %d prompt tokens", name, w.Name, w.Requests, w.PromptTokens))
		}
		for _, sentence := range r.Assumptions {
			all.Assumptions = append(all.Assumptions, name+": "+sentence)
		}
		for _, run := range r.Runs {
			if !slices.EqualFunc(run.SLO, first.Runs[0].SLO, func(a, b SLOShare) bool { return a.TTFT == b.TTFT && a.TPOT == b.TPOT }) {
				return nil, fmt.Errorf("%s was judged by other service levels than %s: simulate with the same --slo", names[i], names[0])
			}
			named := *run
			named.Policy = fmt.Sprintf("%s (%s)", run.Policy, name)
			all.Runs = append(all.Runs, &named)
		}
	}
	return all, nil
}
