// Command policies compares routing policies in the simulator. It plays named workloads with several seeds, and prints
// one row for each policy. The tables of bench/results/policies.md were made with this command. By default it plays one
// run after the other, so that a shared machine has cores for other work.
//
//	go run ./policies -set conversation -seeds 3
//	go run ./policies -set conversation -rates "1.2 1.4 1.6 1.8 2.0" -policies "marginal marginal@none" -parallel 2
//	go run ./policies -set conversation -policies "lmetric marginal" -capacity -level both
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/sim"
	"github.com/warmpath/warmpath/internal/workload"
)

func main() {
	names := slices.Sorted(maps.Keys(sets))
	name := flag.String("set", "conversation", "one of "+strings.Join(names, ", ")+"; or a workload for 8 workers, such as gen:burst")
	policies := flag.String("policies", "kv_aware precise_prefix_cache kv:prefill_load_scale=16 lmetric predicted_ttft marginal",
		"names, separated by spaces; NAME:KEY=VALUE,…; NAME@5s/100ms+2s/50ms or NAME@none has service levels of its own")
	levels := flag.String("service-levels", "", "at which the router aims, such as 5s/100ms,2s/50ms, or none; without this flag the router's default")
	seeds := flag.Int("seeds", 1, "means over seeds 1 to `N`, of the workload and of the routers; the ladder has at least 5")
	profile := flag.String("profile", "", "another `PROFILE` of the engines")
	rates := flag.String("rates", "", "other `RATES` than the set's, separated by spaces; a row has the mean of several rates")
	metrics := flag.Duration("metrics", 0, "between two reports of an engine's load; 0 is the gateway's second, llm-d's is 50ms")
	capacity := flag.Bool("capacity", false, "instead of a table: the rate at which 90 % keep a service level, for each seed")
	level := flag.String("level", "1", "of -capacity: `1` is 5 s to the first token and 100 ms between others, 2 is 2 s and 50 ms; or both")
	parallel := flag.Int("parallel", 1, "play `N` runs at the same time; the results do not depend on it")
	traces := flag.String("traces", cmp.Or(os.Getenv("WARMPATH_TRACES"), "../test/testenv/testdata/traces"), "`FOLDER` of the traces")
	flag.Parse()
	s, known := sets[*name]
	switch {
	case strings.Contains(*name, ":"):
		s = set{workload: *name, rate: "1", workers: 8}
	case !known:
		fail(fmt.Errorf("no set is called %q; there are %s", *name, strings.Join(names, ", ")))
	}
	if *seeds < s.seeds {
		fmt.Fprintf(os.Stderr, "policies: %s has %d seeds, because its results have two states by chance\n", *name, s.seeds)
		*seeds = s.seeds
	}
	x := s.experiment(filepath.Clean(*traces))
	x.Profile = cmp.Or(*profile, x.Profile)
	if *rates != "" {
		x.Rate = strings.Fields(*rates)
	}
	if *metrics > 0 {
		x.Metrics = *metrics
	}
	if *levels != "" {
		x.ServiceLevels = strings.Split(*levels, ",")
	}
	rows, err := parseRows(strings.Fields(*policies))
	if err == nil {
		err = configure(rows, x, max(*seeds, 1))
	}
	if err != nil {
		fail(err)
	}
	out := os.Stdout
	fmt.Fprintf(out, "%s; rate %s; seeds 1 to %d\n\n", *name, strings.Join(x.Rate, " "), max(*seeds, 1))
	if !*capacity {
		printTable(out, rows, *parallel)
		return
	}
	searched := map[string][]int{"1": {0}, "2": {1}, "both": {0, 1}}[*level]
	switch {
	case searched == nil:
		fail(fmt.Errorf("-level %q is not 1, 2 or both", *level))
	case len(x.Rate) > 1:
		fail(errors.New("the search for a capacity begins at one rate: give one in -rates"))
	}
	printCapacities(out, rows, searched, *parallel)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "policies:", err)
	os.Exit(1)
}

// row is a row of a table: a policy, with the service levels at which the router aims.
type row struct {
	name, policy string
	levels       []string       // nil: those of the flag -service-levels
	configs      [][]sim.Config // by seed, then by rate
}

// parseRows reads the flag -policies: POLICY or POLICY@LEVELS. LEVELS is none, or levels joined by +, because a comma
// separates the parameters of a policy.
func parseRows(names []string) (rows []row, err error) {
	for _, name := range names {
		policy, text, own := strings.Cut(name, "@")
		r := row{name: name, policy: policy}
		if own {
			r.levels = strings.Split(text, "+")
		}
		if policy != "all" {
			rows = append(rows, r)
			continue
		}
		for _, p := range sim.Policies() {
			rows = append(rows, row{name: strings.Replace(name, "all", p, 1), policy: p, levels: r.levels})
		}
	}
	if len(rows) == 0 {
		return nil, errors.New("no policy is given")
	}
	return rows, nil
}

// configure sets the configurations of the rows for seeds 1 to seeds.
func configure(rows []row, x sim.Experiment, seeds int) error {
	for seed := uint64(1); seed <= uint64(seeds); seed++ {
		w, err := workload.Load(x.Workload, workload.Options{Seed: seed})
		if err != nil {
			return err
		}
		for i := range rows {
			r, one := &rows[i], x
			one.Policies, one.Seeds = []string{r.policy}, []uint64{seed}
			if r.levels != nil {
				one.ServiceLevels = r.levels
			}
			configs, err := one.Configs(w, os.ReadFile)
			if err != nil {
				return fmt.Errorf("%s: %w", r.name, err)
			}
			r.configs = append(r.configs, configs)
		}
	}
	return nil
}

func play(c sim.Config) *report.Run {
	c.Samples = -1 // no table shows single requests
	r, err := sim.Run(context.Background(), c, nil)
	if err != nil {
		fail(err)
	}
	return r
}

// begin calls do with 0 to n-1, for at most parallel numbers at the same time. It returns at once, with a function that
// waits for the result of the next number, from 0 on.
func begin[T any](n, parallel int, do func(i int) T) (next func() T) {
	all := make([]chan T, n)
	for i := range all {
		all[i] = make(chan T, 1)
	}
	var taken atomic.Int64
	for range max(parallel, 1) {
		go func() { // ends when all numbers are taken
			for i := int(taken.Add(1)) - 1; i < n; i = int(taken.Add(1)) - 1 {
				all[i] <- do(i)
			}
		}()
	}
	given := 0
	return func() T {
		i := given
		given++
		return <-all[i]
	}
}
