// Command disaggregation plays traces on four workers, with and without divided requests, and prints tables: four
// workers that exchange no KV blocks; four that do; and two prefill workers beside two decode workers. See
// results/disaggregation.md.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/sim"
)

// mixedGrain is the number of tokens in a modelled block of merged workloads. The conversations have no smaller blocks
// than 512 tokens, and the code completions share nothing.
const mixedGrain = 128

// row is a line of a table: a fleet, and how it divides requests. It has a run for each seed.
type row struct {
	fleet, link, mode string
	fetch             bool
	runs              []*report.Run
}

// The fleets.
const (
	alone    = "4"
	exchange = "4, exchange"
	apart    = "2 + 2"
)

// rows returns the rows of a table in their order.
func rows(links []string) []*row {
	all := []*row{{fleet: alone, mode: "none"}}
	for _, f := range []struct {
		fleet string
		modes []string
	}{{exchange, []string{"auto", "always"}}, {apart, []string{"auto", "always", "llm-d:512", "dynamo"}}} {
		if f.fleet == apart {
			all = append(all, &row{fleet: apart, mode: "never", link: links[0]})
		}
		for _, link := range links {
			for _, mode := range f.modes {
				all = append(all, &row{fleet: f.fleet, link: link, mode: mode})
			}
			if f.fleet == exchange {
				all = append(all, &row{fleet: f.fleet, link: link, mode: "never", fetch: true})
			}
			all = append(all, &row{fleet: f.fleet, link: link, mode: "auto", fetch: true})
		}
	}
	return all
}

// config returns the run of the row with this seed.
func (r *row) config(s *set, profile, traces string, seed uint64) (c sim.Config, err error) {
	w, err := s.load(traces, seed)
	if err != nil {
		return c, err
	}
	x := sim.DefaultExperiment()
	x.Policies, x.Seeds, x.Profile, x.Rate = []string{"marginal"}, []uint64{seed}, profile, []string{s.rates[profile]}
	x.Workers, x.Fetch = []int{4}, r.fetch
	if len(s.parts) > 1 {
		x.Grain = mixedGrain
	}
	if r.fleet == apart {
		x.Workers, x.Decode = []int{2}, 2
	}
	if r.link != "" {
		x.Disaggregation = []string{r.mode}
		if x.LinkGBs, err = strconv.ParseFloat(r.link, 64); err != nil {
			return c, fmt.Errorf("link %q is no speed in GB/s: %w", r.link, err)
		}
	}
	all, err := x.Configs(w, os.ReadFile)
	if err != nil {
		return c, err
	}
	return all[0], nil
}

func main() {
	traces := flag.String("traces", cmp.Or(os.Getenv("WARMPATH_TRACES"), "../test/testenv/testdata/traces"), "`FOLDER` of the traces")
	only := flag.String("set", "", "only the sets of these `NAMES`, with commas between them")
	profile := flag.String("profile", "", "only this `PROFILE`")
	links := flag.String("links", "50,3", "speeds of a worker's link in `GB/s`")
	seeds := flag.Int("seeds", 3, "play `N` runs of each row, each with another seed and, where the trace is long enough, with other requests")
	parallel := flag.Int("parallel", 1, "play `N` runs at the same time; the results do not depend on it")
	flag.Parse()
	var beside []string
	for i := range sets {
		s := &sets[i]
		for _, p := range []string{large, small} {
			if *only != "" && !strings.Contains(","+*only+",", ","+s.name+",") || *profile != "" && *profile != p {
				continue
			}
			all := rows(strings.Split(*links, ","))
			if err := play(all, s, p, *traces, *seeds, *parallel); err != nil {
				fmt.Fprintln(os.Stderr, "disaggregation:", err)
				os.Exit(1)
			}
			figures(all, s.name+", "+p+", rate "+s.rates[p])
			beside = append(beside, compare(all, s.name+", "+p)...)
		}
	}
	heads()
	fmt.Println(strings.Join(beside, "\n"))
}

// play plays all rows with a set and a profile.
func play(all []*row, s *set, profile, traces string, seeds, parallel int) error {
	var configs []sim.Config
	for _, r := range all {
		for seed := range seeds {
			c, err := r.config(s, profile, traces, uint64(seed)+1)
			if err != nil {
				return err
			}
			configs = append(configs, c)
		}
	}
	runs, err := sim.Sweep(context.Background(), configs, parallel, nil)
	if err != nil {
		return err
	}
	for i, r := range all {
		r.runs = runs[i*seeds : (i+1)*seeds]
	}
	return nil
}
