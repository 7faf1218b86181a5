// Command disaggregation plays traces on four workers, with and without divided requests, and prints a table: four
// workers that exchange no KV blocks; four that do; and two prefill workers beside two decode workers. See
// results/disaggregation.md.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/sim"
	"github.com/warmpath/warmpath/internal/workload"
)

// set is a workload with the rates at which four workers of each profile are busy, and still answer.
type set struct {
	name  string
	specs []string          // workloads that are merged; the word TRACES stands for the folder of the traces
	speed []float64         // how much faster each of several workloads arrives than it was recorded
	limit []int             // number of requests of each workload; 0: all
	rates map[string]string // by profile
}

// mixedGrain is the number of tokens in a modelled block of merged workloads. The conversations have no smaller blocks
// than 512 tokens, and the code completions share nothing.
const mixedGrain = 128

const (
	large = "qwen3-32b"
	small = "llama-3.1-8b"
)

var sets = []set{
	{"conversation", []string{"mooncake:TRACES/mooncake_conversation.jsonl.gz"}, nil, []int{1000}, map[string]string{large: "0.5", small: "1"}},
	{"azure code", []string{"azure:TRACES/azure2023_code.csv.gz"}, nil, []int{2500}, map[string]string{large: "2", small: "4"}},
	{"mixed", []string{"mooncake:TRACES/mooncake_conversation.jsonl.gz", "azure:TRACES/azure2023_code.csv.gz"}, []float64{1, 4}, []int{300, 900}, map[string]string{large: "0.35", small: "0.7"}},
	{"toolagent", []string{"mooncake:TRACES/mooncake_toolagent_head1000.jsonl.gz"}, nil, []int{1000}, map[string]string{large: "0.4", small: "0.8"}},
	{"azure conv", []string{"azure:TRACES/azure2023_conv.csv.gz"}, nil, []int{2000}, map[string]string{large: "4"}},
	{"miniswe", []string{"agent:TRACES/lmcache_agent_miniswe.jsonl.gz"}, nil, []int{0}, map[string]string{large: "1"}},
	{"magagent", []string{"agent:TRACES/lmcache_agent_magagent.jsonl.gz"}, nil, []int{0}, map[string]string{large: "1"}},
}

// load returns the workload of the set.
func (s *set) load(traces string, seed uint64) (*workload.Workload, error) {
	var all []*workload.Workload
	for i, spec := range s.specs {
		w, err := workload.Load(strings.ReplaceAll(spec, "TRACES", traces), workload.Options{Seed: seed, Limit: s.limit[i]})
		if err != nil {
			return nil, err
		}
		if s.speed != nil {
			for k := range w.Requests {
				w.Requests[k].Arrival = time.Duration(float64(w.Requests[k].Arrival) / s.speed[i])
			}
		}
		all = append(all, w)
	}
	if len(all) == 1 {
		return all[0], nil
	}
	return workload.Merge(all...)
}

// row is a line of the table.
type row struct {
	fleet, mode, link string
	config            sim.Config
	run               *report.Run
}

func main() {
	traces := flag.String("traces", cmp.Or(os.Getenv("WARMPATH_TRACES"), "../test/testenv/testdata/traces"), "`FOLDER` of the traces")
	only := flag.String("set", "", "only the set of this `NAME`")
	profile := flag.String("profile", "", "only this `PROFILE`")
	links := flag.String("links", "50,3", "speeds of a worker's link in `GB/s`")
	seed := flag.Uint64("seed", 1, "seed `N` of the workload and of the routers")
	parallel := flag.Int("parallel", 1, "play `N` runs at the same time; the results do not depend on it")
	flag.Parse()
	for i := range sets {
		s := &sets[i]
		for _, p := range []string{large, small} {
			if s.rates[p] == "" || *only != "" && *only != s.name || *profile != "" && *profile != p {
				continue
			}
			if err := table(s, p, *traces, strings.Split(*links, ","), *seed, *parallel); err != nil {
				fmt.Fprintln(os.Stderr, "disaggregation:", err)
				os.Exit(1)
			}
		}
	}
}

// table plays a set with a profile and prints its table.
func table(s *set, profile, traces string, links []string, seed uint64, parallel int) error {
	w, err := s.load(traces, seed)
	if err != nil {
		return err
	}
	var rows []row
	add := func(fleet string, workers, decode int, link string, modes ...string) error {
		x := sim.DefaultExperiment()
		x.Policies, x.Workers, x.Decode, x.Seeds = []string{"marginal"}, []int{workers}, decode, []uint64{seed}
		if len(s.specs) > 1 {
			x.Grain = mixedGrain
		}
		x.Profile, x.Rate, x.Disaggregation = profile, []string{s.rates[profile]}, modes
		if link != "" {
			if _, err := fmt.Sscan(link, &x.LinkGBs); err != nil {
				return fmt.Errorf("link %q is no speed in GB/s: %w", link, err)
			}
		}
		configs, err := x.Configs(w, os.ReadFile)
		for i := range configs {
			mode := "none"
			if modes != nil {
				mode = modes[i]
			}
			rows = append(rows, row{fleet: fleet, mode: mode, link: link, config: configs[i]})
		}
		return err
	}
	err = cmp.Or(add("4", 4, 0, ""), add("2 + 2", 2, 2, links[0], "never"))
	for _, link := range links {
		err = cmp.Or(err, add("4, exchange", 4, 0, link, "auto", "always"), add("2 + 2", 2, 2, link, "auto", "always", "llm-d:512", "dynamo"))
	}
	if err != nil {
		return err
	}
	configs := make([]sim.Config, len(rows))
	for i := range rows {
		configs[i] = rows[i].config
	}
	runs, err := sim.Sweep(context.Background(), configs, parallel, nil)
	if err != nil {
		return err
	}
	for i := range rows {
		rows[i].run = runs[i]
	}
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(order(a.fleet), order(b.fleet)) })
	fmt.Printf("### %s, %s, rate %s\n\n", s.name, profile, s.rates[profile])
	fmt.Println("| workers | GB/s | divided by | divided % | hit % | TTFT mean | p99 | TPOT mean | p99 | E2E mean | SLO % 5 s/100 ms | 2 s/50 ms |")
	fmt.Println("|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
	for _, r := range rows {
		run, link := r.run, r.link
		if link == "" || r.mode == "never" {
			link = "–"
		}
		fmt.Printf("| %s | %s | %s | %.0f | %.1f | %s | %s | %.1f ms | %s | %s | %.1f | %.1f |\n", r.fleet, link, r.mode,
			100*float64(run.Transfers.Divided)/float64(max(run.Requests.Sent, 1)), 100*run.HitRate, report.Milliseconds(run.TTFT.Mean),
			report.Milliseconds(run.TTFT.P99), run.TPOT.Mean, report.Milliseconds(run.TPOT.P99), report.Milliseconds(run.E2E.Mean),
			100*run.SLO[0].Share, 100*run.SLO[1].Share)
	}
	fmt.Println()
	return nil
}

func order(fleet string) int { return slices.Index([]string{"4", "4, exchange", "2 + 2"}, fleet) }
