package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/sim"
	"github.com/warmpath/warmpath/policy"
)

func newPlan() *cobra.Command {
	x := sim.DefaultExperiment()
	x.SLO = []string{"5s/100ms"}
	var out output
	goal := sim.Goal{Share: 0.9, MaxWorkers: 256, MaxRate: 64}
	fewest := false
	c := &cobra.Command{
		Use:   "plan",
		Short: "Find the largest rate that keeps an SLO, or the fewest workers for a rate",
		Long: `Find by simulation how much load a fleet can take. A request is good if it keeps the first --slo;
further ones are only measured. The result is the largest rate at which at least the share --share
of all requests is good with --workers workers, as a factor of the workload's own rate. With
--fewest-workers the result is the smallest number of workers for --rate. Failed and rejected
requests are not good; if there are any, the table also shows in brackets the share of the answered
requests that are good. --service-levels says what the router aims at; it does not change what the
plan measures.

  warmpath plan --workload mooncake:conversation.jsonl.gz --policies all --workers 8
  warmpath plan --workload gen:interactive-chat --policies kv_aware --fewest-workers --rate 20/s`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !(goal.Share > 0 && goal.Share <= 1) {
				return usageError{fmt.Errorf("share %v is not within 0..1", goal.Share)}
			}
			w, configs, err := prepare(&x)
			if err != nil {
				return err
			}
			first := configs[0]
			var policies []policy.Spec
			for _, one := range configs {
				if one.Rate != first.Rate || one.Seed != first.Seed || one.Groups[0].Count != first.Groups[0].Count || one.Groups[0].KVTokens != first.Groups[0].KVTokens {
					return usageError{errors.New("a plan takes one value each of --workers, --rate, --seed, and --blocks or --kv-tokens")}
				}
				policies = append(policies, one.Policy)
			}
			search := sim.PlanRate
			if fewest {
				search = sim.PlanWorkers
			}
			p := newSweepLine(c.ErrOrStderr())
			p.show("searching …")
			found := 0
			plans, err := search(c.Context(), first, policies, goal, func(sim.Plan) {
				found++
				p.show(fmt.Sprintf("searching … %d of %d policies", found, len(policies)))
			})
			p.clear()
			if err != nil && !stopped(c.Context()) {
				return err
			}
			r := newReport(c, w, configs)
			r.Interrupted = stopped(c.Context())
			for i := range plans {
				r.Runs = append(r.Runs, plans[i].Runs...)
			}
			return writePlans(c, &out, r, plans, &goal, fewest)
		},
	}
	flags := c.Flags()
	experimentFlags(flags, &x)
	flags.Float64Var(&goal.Share, "share", goal.Share, "`SHARE` of requests that must keep the first --slo")
	flags.BoolVar(&fewest, "fewest-workers", fewest, "find the number of workers for --rate instead of the rate for --workers")
	flags.IntVar(&goal.MaxWorkers, "max-workers", goal.MaxWorkers, "most workers to try")
	flags.Float64Var(&goal.MaxRate, "max-rate", goal.MaxRate, "largest rate to try, as a factor")
	out.flags(flags)
	return c
}

// planReport is the JSON form of a plan: the results, and the report of all runs from which the results come.
type planReport struct {
	Share  float64        `json:"share"`
	SLO    planGoal       `json:"slo"`
	Plans  []sim.Plan     `json:"plans"`
	Report *report.Report `json:"report"`
}

// planGoal is the SLO that the share Share of all requests must keep.
type planGoal struct {
	TTFT  float64 `json:"ttft_ms"`
	TPOT  float64 `json:"tpot_ms"`
	Share float64 `json:"share"`
}

func writePlans(c *cobra.Command, out *output, r *report.Report, plans []sim.Plan, goal *sim.Goal, fewest bool) error {
	if out.json {
		p := planReport{Share: goal.Share, Plans: plans, Report: r}
		if len(r.Runs) > 0 {
			slo := r.Runs[0].SLO[0]
			p.SLO = planGoal{TTFT: slo.TTFT, TPOT: slo.TPOT, Share: goal.Share}
		}
		r.Schema = report.Schema
		e := json.NewEncoder(c.OutOrStdout())
		e.SetIndent("", " ")
		if err := e.Encode(p); err != nil {
			return fmt.Errorf("write plan: %w", err)
		}
		quiet := output{html: out.html}
		sink := *c
		sink.SetOut(io.Discard)
		return quiet.write(&sink, r)
	}
	w := c.OutOrStdout()
	if len(r.Runs) > 0 {
		slo := r.Runs[0].SLO[0]
		what := "Largest rate"
		if fewest {
			what = "Fewest workers"
		}
		fmt.Fprintf(w, "%s at which %.0f %% of requests have their first token within %s and %s a token\n\n", what, 100*goal.Share, report.Milliseconds(slo.TTFT), report.Milliseconds(slo.TPOT))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "policy\tworkers\trate\treq/s\thit %\tSLO %\tTTFT p50\tp99\tout tok/s\truns\t")
	for i := range plans {
		p := &plans[i]
		b := p.Best
		if b == nil {
			fmt.Fprintf(t, "%s\tnone found\t\t\t\t\t\t\t\t%d\t\n", p.Policy, len(p.Runs))
			continue
		}
		more := ""
		if p.Limited {
			more = " or more"
		}
		fmt.Fprintf(t, "%s\t%d\t%.2f×%s\t%.2f\t%.1f\t%s\t%s\t%s\t%.0f\t%d\t\n", p.Policy, b.Setup.Workers, b.Rate, more, b.PerSecond, 100*b.HitRate,
			b.SLO[0].Percent(), report.Milliseconds(b.TTFT.P50), report.Milliseconds(b.TTFT.P99), b.OutputPerSecond, len(p.Runs))
	}
	_ = t.Flush()
	sink := *c
	sink.SetOut(io.Discard)
	return out.write(&sink, r)
}
