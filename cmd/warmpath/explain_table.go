package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/warmpath/warmpath/internal/admin"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// writeExplanations prints each policy's decision, where the columns are explained, and whether the decisions agree.
func writeExplanations(w io.Writer, all *admin.Explanations) error {
	printed := "" // the text about the source of the model's ids that was printed last
	for i, e := range all.Policies {
		if i > 0 {
			fmt.Fprintln(w)
		}
		origin, model, _ := strings.Cut(e.TokenOrigin, ". ")
		if model != "" && model != printed {
			origin, printed = e.TokenOrigin, model
		}
		writeHead(w, e, origin)
		if leg := e.Prefill; leg != nil {
			if err := writeCandidates(w, leg.Candidates, leg.Terms); err != nil {
				return err
			}
			fmt.Fprintf(w, "\ndecode leg: the worker that generates the answer\n")
		}
		if err := writeCandidates(w, e.Candidates, e.Terms); err != nil {
			return err
		}
	}
	fmt.Fprint(w, "\nColumns: docs/api.md, \"The table\". Columns in small letters are parts of the score: docs/policies/\n")
	if len(all.Policies) < 2 {
		return nil
	}
	verdict := "All choose the same worker."
	if !all.Agree {
		var choices []string
		for _, e := range all.Policies {
			choices = append(choices, e.Policy+": "+chosen(e))
		}
		verdict = "They differ: " + strings.Join(choices, ", ") + "."
	}
	_, err := fmt.Fprintln(w, verdict)
	return err
}

func chosen(e *admin.Explanation) string {
	if e.Worker == "" {
		return "nobody"
	}
	return fmt.Sprintf("%s rank %d", e.Worker, e.Rank)
}

// writeHead prints the decision in words. origin says where the token ids come from.
func writeHead(w io.Writer, e *admin.Explanation, origin string) {
	// No policy is asked if an adapter is loaded first.
	fmt.Fprintf(w, "%s chooses %s: %s (%s)\n", cmp.Or(e.Policy, "the router"), chosen(e), e.Branch, e.Reason)
	if e.Error != "" {
		fmt.Fprintf(w, "  %s\n", e.Error)
	}
	tokens := fmt.Sprintf("%d prompt tokens (%s, %.1f ms)", e.PromptTokens, e.TokenSource, e.TokenWaitMS)
	if !e.TokensKnown {
		tokens = fmt.Sprintf("about %d prompt tokens (%s)", e.PromptTokens, e.TokenSource)
	}
	model := e.Base
	if e.LoRA != "" {
		model += " with adapter " + e.LoRA
	}
	if e.AskedModel != "" {
		model += " in place of " + e.AskedModel
	}
	fmt.Fprintf(w, "  model %s, %s, %d matched, %d predicted", model, tokens, e.MatchTokens, e.PredictedTokens)
	if e.AtRiskTokens > 0 {
		fmt.Fprintf(w, ", %d at risk", e.AtRiskTokens)
	}
	fmt.Fprintln(w, trust(e))
	if origin != "" {
		fmt.Fprintf(w, "  %s\n", origin)
	}
	if e.ChangingLine == telemetry.LineRendered {
		fmt.Fprintln(w, "  the prompt has a line that Claude Code changes with every request, and the engine cannot use its cache behind it:")
		fmt.Fprintln(w, "  start Claude Code with CLAUDE_CODE_ATTRIBUTION_HEADER=0")
	}
	if e.SessionSource != "" {
		fmt.Fprintf(w, "  session from %s\n", e.SessionSource)
	}
	fmt.Fprintf(w, "  service levels %s\n", cmp.Or(strings.Join(e.ServiceLevels, ", "), "none"))
	if e.Best != nil {
		fmt.Fprintf(w, "  best match not taken: %s rank %d has %d tokens, %s\n", e.Best.Worker, e.Best.Rank, e.Best.PredictedTokens, e.Best.WhyNot)
	}
	// Under a policy that follows what was sent before, the worker that cannot be used may have no match.
	for i := range e.Candidates {
		if c := &e.Candidates[i]; e.Branch == "fallback" && e.Best == nil && c.LeftOut != "" {
			fmt.Fprintf(w, "  cannot be used: %s rank %d, %s\n", c.Worker, c.Rank, c.Why)
		}
	}
	if e.Queued {
		fmt.Fprintln(w, "  it would wait for a worker first: all are saturated, or others wait")
	}
	writeLegs(w, e)
}

// writeLegs says which tokens come from another worker, and why one or two workers serve the request.
func writeLegs(w io.Writer, e *admin.Explanation) {
	if f := e.Fetch; f != nil {
		fmt.Fprintf(w, "  fetches %d tokens from %s in %s ms (%s)\n", f.Tokens, f.From, number(f.MS), link(f.Link))
	}
	d := e.Division
	if d == nil {
		return
	}
	if d.Divided {
		fmt.Fprintf(w, "  two workers: %s\n", d.Why)
	} else {
		fmt.Fprintf(w, "  one worker: %s (%s)\n", d.Why, d.Bypass)
	}
	if p := d.Predicted; p != nil {
		fmt.Fprintf(w, "  predicted cost: %s ms at one worker; %s ms at two: prefill %s ms, decode %s ms with %s ms of transfer\n",
			number(p.WholeMS), number(p.PrefillMS+p.DecodeMS), number(p.PrefillMS), number(p.DecodeMS), number(p.TransferMS))
	}
	if d.Link != nil {
		fmt.Fprintf(w, "  transfer: %d tokens from %s to %s (%s)\n", d.TransferTokens, d.Link.From, d.Link.To, link(d.Link))
	}
	if leg := e.Prefill; leg != nil {
		fmt.Fprintf(w, "\nprefill leg: %s chooses %s rank %d: %s (%s); %d matched, %d predicted\n",
			leg.Policy, leg.Worker, leg.Rank, leg.Branch, leg.Reason, leg.MatchTokens, leg.PredictedTokens)
	}
}

// link describes the times of a link.
func link(l *admin.Link) string {
	known := "of other pairs, or assumed"
	if l.Samples > 0 {
		known = fmt.Sprintf("from %d measured transfers", l.Samples)
	}
	return fmt.Sprintf("%s ms + %s ms for each token, %s", number(l.BaseMS), number(l.TokenMS), known)
}

// trust returns the trust of the match. It differs from the trust of the chosen worker's cache if the match is only an
// estimate.
func trust(e *admin.Explanation) string {
	if e.Worker == "" {
		return ""
	}
	said := ", trust of the match " + e.Trust
	for i := range e.Candidates {
		if c := &e.Candidates[i]; c.Chosen && c.Trust != e.Trust {
			said += fmt.Sprintf(" (an estimate from what was sent before; trust of the worker's cache %s)", c.Trust)
		}
	}
	return said
}

// columns are the columns before the parts of the score, with their units.
var columns = []struct{ name, unit string }{
	{" ", " "}, {"WORKER", ""}, {"RANK", ""}, {"MATCH", "tokens"}, {"TIERS", "tokens"}, {"PREDICTED", "tokens"}, {"AT RISK", "tokens"},
	{"UNCACHED", "tokens"}, {"CACHE TRUST", ""}, {"REQUESTS", "count"}, {"PREFILL", "tokens"}, {"BACKLOG", "ms"}, {"PACE", "ratio"},
}

// transferColumns are further columns if a candidate would get tokens from another worker.
var transferColumns = []struct{ name, unit string }{{"FETCHED", "tokens"}, {"TRANSFER", "ms"}}

// writeCandidates prints the columns with their units, then a line for each candidate, and marks the chosen one.
func writeCandidates(w io.Writer, candidates []admin.Candidate, terms []string) error {
	var table strings.Builder
	t := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	shown := columns
	fetch := slices.ContainsFunc(candidates, func(c admin.Candidate) bool { return c.FetchedTokens > 0 })
	if fetch {
		shown = slices.Concat(columns, transferColumns)
	}
	var names, units []string
	for _, c := range shown {
		names, units = append(names, c.name), append(units, c.unit)
	}
	names = append(append(names, terms...), "SCORE", "WHY")
	fmt.Fprintln(t, strings.Join(names, "\t"))
	units = append(units, make([]string, len(names)-len(units))...)
	fmt.Fprintln(t, strings.Join(units, "\t"))
	for i := range candidates {
		c := &candidates[i]
		mark := " "
		if c.Chosen {
			mark = "*"
		}
		line := []string{mark, c.Worker, strconv.Itoa(c.Rank), strconv.Itoa(c.MatchTokens), tiers(c), strconv.Itoa(c.PredictedTokens),
			strconv.Itoa(c.AtRiskTokens), strconv.Itoa(c.UncachedTokens), c.Trust, strconv.FormatInt(c.Load.Requests, 10),
			strconv.FormatInt(c.Load.PrefillTokens, 10), number(c.Load.BacklogMS), number(c.Pace.Factor)}
		if fetch {
			line = append(line, strconv.Itoa(c.FetchedTokens), number(c.TransferMS))
		}
		for _, name := range terms {
			line = append(line, term(c, name))
		}
		score := number(c.Score)
		if c.LeftOut != "" {
			score = "-"
		}
		fmt.Fprintln(t, strings.Join(append(line, score, c.Why), "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(table.String()) {
		fmt.Fprintln(w, strings.TrimRight(line, " \n")) // the line of the units ends with empty cells
	}
	return nil
}

func term(c *admin.Candidate, name string) string {
	v, ok := c.Terms[name]
	if !ok {
		return "-"
	}
	return number(v)
}

// tiers returns the tiers of a match, the nearest tier first.
func tiers(c *admin.Candidate) string {
	var parts []string
	for _, tier := range []string{"gpu", "cpu", "disk", "remote"} {
		if n := c.Tiers[tier]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s %d", tier, n))
		}
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// number formats v in few digits: large values as whole numbers.
func number(v float64) string {
	switch {
	case v == 0:
		return "0"
	case v >= 1000 || v <= -1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
