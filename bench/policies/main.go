// Command policies compares routing policies in the simulator. It plays named workloads with several seeds, and prints
// one row for each policy. The tables of bench/results/policies.md were made with this command. It plays one run after
// the other, so that a shared machine has cores for other work.
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

// set is a workload with a load at which the policies differ.
type set struct {
	workload string // spec of the workload; the word TRACES in it stands for the folder of the traces
	rate     string
	workers  int
	kv       int // tokens in a worker's cache; 0: the capacity of the profile
	slow     int // number of workers at half speed
	routers  int // number of routers that do not share state; 0: one router
}

const conversation = "mooncake:TRACES/mooncake_conversation.jsonl.gz"

// sets has the sets by name. conversation, toolagent and ladder have the load at which the policies differ most. Most
// other sets have a load near the limit at which most policies no longer keep the service level.
var sets = map[string]set{
	"conversation":    {workload: conversation, rate: "1.75", workers: 8, kv: 1_500_000},
	"conversation-16": {workload: conversation, rate: "3.5", workers: 16, kv: 1_500_000},
	"conversation-32": {workload: conversation, rate: "7", workers: 32, kv: 1_500_000},
	"routers":         {workload: conversation, rate: "1.75", workers: 8, kv: 1_500_000, routers: 3},
	"unlike":          {workload: conversation, rate: "1.2", workers: 8, kv: 1_500_000, slow: 4},
	"toolagent":       {workload: "mooncake:TRACES/mooncake_toolagent_head1000.jsonl.gz", rate: "1.3", workers: 8},
	"ladder":          {workload: "gen:llmd-ladder,stages=15x50/20x30/40x30/60x25", rate: "1", workers: 8},
	"ladder-whole":    {workload: "gen:llmd-ladder", rate: "1", workers: 8},
	"code-agent":      {workload: "gen:code-agent,sessions=80,context=25000,context-max=60000,turns=15,rate=1", rate: "1", workers: 8},
	"rag":             {workload: "gen:rag,rate=40,requests=3000", rate: "1", workers: 8},
	"independent":     {workload: "gen:independent,rate=60,requests=2000,question=2000", rate: "1", workers: 8},
	"multi-round-qa":  {workload: "gen:multi-round-qa,users=100,qps=12,sessions=500,system=1000,history=8000", rate: "1", workers: 8},
	"shared-prefix":   {workload: "gen:sglang-shared-prefix,rate=60,prompts=40", rate: "1", workers: 8},
	"rollouts":        {workload: "gen:rl-rollouts", rate: "1", workers: 8},
	"chat":            {workload: "gen:interactive-chat,sessions=1000,rate=12", rate: "1", workers: 8},
}

func main() {
	names := slices.Sorted(maps.Keys(sets))
	name := flag.String("set", "conversation", "one of "+strings.Join(names, ", ")+"; or a workload for 8 workers, such as gen:burst")
	policies := flag.String("policies", "kv_aware precise_prefix_cache kv:prefill_load_scale=16 lmetric predicted_ttft marginal",
		"names, separated by spaces; NAME:KEY=VALUE,…")
	seeds := flag.Int("seeds", 1, "means over seeds 1 to `N`, of the workload and of the routers")
	profile := flag.String("profile", "", "another `PROFILE` of the engines")
	rate := flag.String("rate", "", "another `RATE` than the set's")
	metrics := flag.Duration("metrics", 0, "between two reports of an engine's load; 0 is the gateway's second, llm-d's is 50ms")
	capacity := flag.Bool("capacity", false, "instead of a table: the rate at which 90 % keep a service level, for each seed")
	level := flag.Int("level", 1, "of -capacity: 1 is 5 s to the first token and 100 ms between others, 2 is 2 s and 50 ms")
	traces := flag.String("traces", or(os.Getenv("WARMPATH_TRACES"), "../test/testenv/testdata/traces"), "`FOLDER` of the traces")
	flag.Parse()
	s, known := sets[*name]
	switch {
	case strings.Contains(*name, ":"):
		s = set{workload: *name, rate: "1", workers: 8}
	case !known:
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
	if s.slow > 0 {
		x.Fleet = []sim.Member{{Count: s.workers - s.slow}, {Count: s.slow, Speed: 0.5}}
	}
	if s.routers > 0 {
		x.Routers = s.routers
	}
	if *level < 1 || *level > 2 {
		fail(fmt.Errorf("there is no service level %d", *level))
	}
	configs, err := bySeed(&x, *seeds)
	if err != nil {
		fail(err)
	}
	if *capacity {
		for i, c := range configs[0] {
			fmt.Printf("%s:", c.Policy.Name)
			for _, of := range configs {
				fmt.Printf(" %.2f", limit(of[i], *level-1))
			}
			fmt.Println()
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

// bySeed returns, for each seed, the runs of all policies.
func bySeed(x *sim.Experiment, seeds int) (all [][]sim.Config, err error) {
	for seed := 1; seed <= max(seeds, 1); seed++ {
		w, err := workload.Load(x.Workload, workload.Options{Seed: uint64(seed)})
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

// row returns the means over the runs of a policy as one row of the table.
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

// limit returns the largest rate at which 90 % of the requests keep the service level, with an error of at most 1 %.
// level is the index of the service level.
func limit(c sim.Config, level int) float64 {
	const share, step, exact = 0.9, 1.25, 1.01
	kept := func(rate float64) bool {
		c.Rate = rate
		return play(c).SLO[level].Share >= share
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
