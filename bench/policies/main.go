// Command policies judges routing policies side by side with the laboratory: named workloads, several seeds, one row a policy.
// It is what the tables of docs/policies.md were made with. Runs go one after the other: a machine that is shared stays usable.
//
//	go run ./policies -set conversation -seeds 3
//	go run ./policies -set conversation -policies "lmetric marginal" -capacity
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/sim"
	"github.com/warmpath/warmpath/internal/workload"
)

// set is a workload with the load at which policies differ.
type set struct {
	workload string // TRACES stands for the folder of the traces
	rate     string
	workers  int
	kv       int // tokens; 0: the profile's
}

const conversation = "mooncake:TRACES/mooncake_conversation.jsonl.gz"

// sets by name. The rates of the first three are those of facts on routing §5.2; the others are near the load at which most
// policies leave their service level.
var sets = map[string]set{
	"conversation":    {conversation, "1.75", 8, 1_500_000},
	"conversation-16": {conversation, "3.5", 16, 1_500_000},
	"conversation-32": {conversation, "7", 32, 1_500_000},
	"toolagent":       {"mooncake:TRACES/mooncake_toolagent_head1000.jsonl.gz", "1.3", 8, 0},
	"ladder":          {"gen:llmd-ladder,stages=15x50/20x30/40x30/60x25", "1", 8, 0},
	"ladder-whole":    {"gen:llmd-ladder", "1", 8, 0},
	"code-agent":      {"gen:code-agent,sessions=80,context=25000,context-max=60000,turns=15,rate=1", "1", 8, 0},
	"rag":             {"gen:rag,rate=40,requests=3000", "1", 8, 0},
	"independent":     {"gen:independent,rate=60,requests=2000,question=2000", "1", 8, 0},
	"multi-round-qa":  {"gen:multi-round-qa,users=100,qps=12,sessions=500,system=1000,history=8000", "1", 8, 0},
	"shared-prefix":   {"gen:sglang-shared-prefix,rate=60,prompts=40", "1", 8, 0},
	"rollouts":        {"gen:rl-rollouts", "1", 8, 0},
	"chat":            {"gen:interactive-chat,sessions=1000,rate=12", "1", 8, 0},
}

func main() {
	names := slices.Sorted(maps.Keys(sets))
	name := flag.String("set", "conversation", "one of "+strings.Join(names, ", "))
	policies := flag.String("policies", "kv_aware precise_prefix_cache kv:prefill_load_scale=16 lmetric predicted_ttft marginal", "names, parted by spaces; NAME:KEY=VALUE,…")
	seeds := flag.Int("seeds", 1, "means over seeds 1 to `N`, of the workload and of the routers")
	profile := flag.String("profile", "", "of the engines")
	rate := flag.String("rate", "", "other than the set's")
	metrics := flag.Duration("metrics", 0, "between two looks at what engines report; 0 is the gateway's second, llm-d's is 50ms")
	capacity := flag.Bool("capacity", false, "instead of a table: the rate at which 90 % keep 5 s to the first token and 100 ms between others")
	traces := flag.String("traces", or(os.Getenv("WARMPATH_TRACES"), "../../shared/traces"), "`FOLDER`")
	flag.Parse()
	s, ok := sets[*name]
	if !ok {
		fail(fmt.Errorf("no set is called %q; there are %s", *name, strings.Join(names, ", ")))
	}
	x := sim.DefaultExperiment()
	x.Workload = strings.ReplaceAll(s.workload, "TRACES", filepath.Clean(*traces))
	x.Rate, x.Workers, x.Policies = []string{or(*rate, s.rate)}, []int{s.workers}, strings.Fields(*policies)
	x.Profile = or(*profile, x.Profile)
	if *metrics > 0 {
		x.Metrics = *metrics
	}
	if s.kv > 0 {
		x.KVTokens = []int{s.kv}
	}
	configs, err := bySeed(&x, *seeds)
	if err != nil {
		fail(err)
	}
	if *capacity {
		for _, c := range configs[0] {
			fmt.Printf("%s: %.2f\n", c.Policy.Name, limit(c))
		}
		return
	}
	fmt.Println("| policy | hit % | TTFT mean | p50 | p99 | ITL mean | TPOT p99 | E2E mean | p99 | SLO 5 s/100 ms | SLO 2 s/50 ms |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|---|---|")
	for i := range configs[0] {
		var runs []*report.Run
		for _, of := range configs {
			runs = append(runs, play(of[i]))
		}
		fmt.Println(row(runs))
	}
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "policies:", err)
	os.Exit(1)
}

// bySeed returns the runs for each seed, by policy.
func bySeed(x *sim.Experiment, seeds int) (all [][]sim.Config, err error) {
	for seed := 1; seed <= max(seeds, 1); seed++ {
		w, err := workload.LoadWith(x.Workload, workload.Options{Seed: uint64(seed)})
		if err != nil {
			return nil, err
		}
		x.Seeds = []uint64{uint64(seed)}
		configs, err := x.Configs(w, nil)
		if err != nil {
			return nil, err
		}
		all = append(all, configs)
	}
	return all, nil
}

func play(c sim.Config) *report.Run {
	r, err := sim.Run(context.Background(), c, nil)
	if err != nil {
		fail(err)
	}
	return r
}

// row is the means over runs.
func row(runs []*report.Run) string {
	mean := func(of func(*report.Run) float64) float64 {
		sum := 0.0
		for _, r := range runs {
			sum += of(r)
		}
		return sum / float64(len(runs))
	}
	cells := []string{runs[0].Policy}
	add := func(format string, of func(*report.Run) float64) {
		cells = append(cells, fmt.Sprintf(format, mean(of)))
	}
	add("%.1f", func(r *report.Run) float64 { return 100 * r.HitRate })
	add("%.0f", func(r *report.Run) float64 { return r.TTFT.Mean })
	add("%.0f", func(r *report.Run) float64 { return r.TTFT.P50 })
	add("%.0f", func(r *report.Run) float64 { return r.TTFT.P99 })
	add("%.1f", func(r *report.Run) float64 { return r.ITL.Mean })
	add("%.0f", func(r *report.Run) float64 { return r.TPOT.P99 })
	add("%.0f", func(r *report.Run) float64 { return r.E2E.Mean })
	add("%.0f", func(r *report.Run) float64 { return r.E2E.P99 })
	for i := range runs[0].SLO {
		add("%.1f", func(r *report.Run) float64 { return 100 * r.SLO[i].Share })
	}
	return "| " + strings.Join(cells, " | ") + " |"
}

// limit finds the greatest rate at which nine in ten keep the first service level, to a hundredth.
func limit(c sim.Config) float64 {
	const share, step, exact = 0.9, 1.25, 1.01
	kept := func(rate float64) bool {
		c.Rate = rate
		return play(c).SLO[0].Share >= share
	}
	low, high := c.Rate, c.Rate
	for !kept(low) {
		low /= step
		if low < c.Rate/100 {
			return 0
		}
	}
	for high = max(low*step, high); kept(high); high *= step {
		low = high
	}
	for high/low > exact {
		if middle := (low + high) / 2; kept(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}
