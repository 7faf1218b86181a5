package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath/internal/workload"
)

func newWorkload() *cobra.Command {
	c := &cobra.Command{
		Use:   "workload",
		Short: "Look at request traces and generators: statistics, conversion",
		Long: `A workload is requests over time: a trace, FORMAT:FILE (gzip or not), or a generator,
gen:NAME,PARAMETER=VALUE,… Several workloads are merged by arrival time. "warmpath workload list" lists
formats and generators.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newWorkloadStats(), newWorkloadList(), newWorkloadConvert())
	return c
}

// workloadFlags are the flags that change a workload, the same in the commands workload stats, workload convert and
// load.
type workloadFlags struct {
	shape workload.Shape
	seed  uint64
}

func (f *workloadFlags) add(flags *pflag.FlagSet) {
	flags.Float64Var(&f.shape.Rate, "rate", 1, "`X` times as fast as recorded")
	flags.IntVar(&f.shape.Limit, "requests", 0, "take only the first `N` requests (0: all)")
	flags.DurationVar(&f.shape.Duration, "duration", 0, "take only the requests that arrive before `TIME` of the recorded time (0: all)")
	flags.DurationVar(&f.shape.Jitter, "jitter", 0, "add a uniform random time below `TIME` to each arrival")
	flags.IntVar(&f.shape.MaxInput, "max-input", 0, "cut prompts to `TOKENS` (0: never)")
	flags.IntVar(&f.shape.MaxOutput, "max-output", 0, "cut answers to `TOKENS` (0: never)")
	flags.Uint64Var(&f.seed, "seed", 0, "seed `N` of jitter and generators")
}

// load reads the workloads, merges them and applies the flags.
func (f *workloadFlags) load(specs []string, raw bool) (*workload.Workload, error) {
	o := workload.Options{Seed: f.seed, Raw: raw}
	if len(specs) == 1 {
		o.Limit = f.shape.Limit
	}
	var all []*workload.Workload
	for _, spec := range specs {
		w, err := workload.Load(spec, o)
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	w := all[0]
	if len(all) > 1 {
		var err error
		if w, err = workload.Merge(all...); err != nil {
			return nil, err
		}
	}
	f.shape.Seed = f.seed
	return f.shape.Apply(w)
}

// specArgs refuses a command line without a workload.
func specArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usageError{errors.New("name a workload: FORMAT:FILE or gen:NAME (see `warmpath workload list`)")}
	}
	return nil
}

func newWorkloadStats() *cobra.Command {
	var flags workloadFlags
	var asJSON, headFirst bool
	var capacities string
	var size int
	c := &cobra.Command{
		Use:   "stats FORMAT:FILE|gen:NAME …",
		Short: "Lengths, rates, unique blocks and hit rates, by cache size",
		Long: `Measure a workload: lengths, rates, unique blocks and the hit rate of an infinite cache. With
--capacity-tokens also the hit rates of caches of these sizes under LRU, FIFO and the optimum
(Belady). Hit rates are shares of prompt tokens, for one cache that all requests pass in order.
Traces are measured as recorded, without the jitter that is added when they are played.`,
		Example: "  warmpath workload stats mooncake:conversation_trace.jsonl --capacity-tokens 1M,3M,10M",
		Args:    specArgs,
		RunE: func(c *cobra.Command, args []string) error {
			o := workload.StatsOptions{Block: size, HeadFirst: headFirst}
			var err error
			if o.Capacities, err = tokenCounts(capacities); err != nil {
				return usageError{err}
			}
			if size < 0 || size > workload.MaxTokens {
				return usageError{fmt.Errorf("--block %d: want a positive number of tokens", size)}
			}
			w, err := flags.load(args, true)
			if err != nil {
				return err
			}
			s := workload.Measure(w, o)
			if asJSON {
				return writeIndented(c.OutOrStdout(), s)
			}
			return writeStats(c.OutOrStdout(), s)
		},
	}
	flags.add(c.Flags())
	c.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	c.Flags().StringVar(&capacities, "capacity-tokens", "", "cache sizes to measure, in `TOKENS`: 1M,3M,500k")
	c.Flags().IntVar(&size, "block", 0, "`TOKENS` in a block (0: the trace's own, or 16)")
	c.Flags().BoolVar(&headFirst, "head-first", false, "touch a prompt's blocks from first to last (engines free them from last to first)")
	return c
}

// tokenCounts parses a list of numbers such as 1M,3M,500k,2000.
func tokenCounts(s string) ([]int, error) {
	if s == "" {
		return nil, nil
	}
	var out []int
	for _, part := range strings.Split(s, ",") {
		text, factor := strings.TrimSpace(part), 1.0
		switch {
		case strings.HasSuffix(text, "M"):
			text, factor = strings.TrimSuffix(text, "M"), 1e6
		case strings.HasSuffix(text, "k"):
			text, factor = strings.TrimSuffix(text, "k"), 1e3
		}
		v, err := strconv.ParseFloat(text, 64)
		if err != nil || !(v > 0) || v*factor > min(1e12, math.MaxInt) {
			return nil, fmt.Errorf("%q is not a number of tokens like 1M, 500k or 2000", part)
		}
		out = append(out, int(v*factor))
	}
	return out, nil
}

func writeStats(out io.Writer, s *workload.Stats) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(format string, args ...any) { fmt.Fprintf(t, format+"\t\n", args...) }
	fmt.Fprintf(out, "%s (%s)\n%d requests in %s, %.2f a second on average, %.2f in the busiest minute\n",
		s.Name, s.Source, s.Requests, (time.Duration(s.Span * float64(time.Second))).Round(time.Second), s.Rate, s.Peak)
	if s.Sessions > 0 {
		fmt.Fprintf(out, "%d sessions; %d requests wait for an earlier one\n", s.Sessions, s.Closed)
	}
	fmt.Fprintln(out)
	row("\tmean\tp50\tp95\tp99\tmax")
	lengths := func(name string, l workload.Lengths) {
		if l.Max > 0 {
			row("%s\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f", name, l.Mean, l.P50, l.P95, l.P99, l.Max)
		}
	}
	lengths("prompt tokens", s.Input)
	lengths("output tokens", s.Output)
	lengths("turns", s.Turns)
	lengths("think time, s", s.Think)
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(out, "\n%d blocks of %d tokens, %d of them unique\n", s.Blocks, s.Block, s.Unique)
	fmt.Fprintf(out, "hit rate of an infinite cache: %.1f %%; second half of the requests: %.1f %%\n", 100*s.Infinite.All, 100*s.Infinite.SecondHalf)
	if len(s.Capacity) > 0 {
		fmt.Fprintln(out)
		row("cache, tokens\tLRU\tFIFO\toptimum\tLRU, 2nd half")
		for _, c := range s.Capacity {
			row("%d\t%.1f %%\t%.1f %%\t%.1f %%\t%.1f %%", c.Tokens, 100*c.LRU.All, 100*c.FIFO.All, 100*c.Optimal.All, 100*c.LRU.SecondHalf)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	for _, n := range s.Notes {
		fmt.Fprintf(out, "note: %s\n", n)
	}
	return nil
}

func newWorkloadList() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List the formats, the generators with their parameters, and our own format",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			out := c.OutOrStdout()
			fmt.Fprintln(out, "Formats (FORMAT:FILE):")
			for _, f := range workload.Formats() {
				fmt.Fprintf(out, "  %-10s %s\n", f[0], f[1])
			}
			fmt.Fprintln(out, "\nGenerators (gen:NAME,PARAMETER=VALUE,…; every one takes seed=N):")
			for _, g := range workload.Generators() {
				fmt.Fprintf(out, "  %s\n      %s\n      from %s\n      %s\n", g[0], g[1], g[2], g[3])
			}
			_, err := fmt.Fprintf(out, "\nThe format \"warmpath\":\n%s", workload.FormatDoc)
			return err
		},
	}
}

func newWorkloadConvert() *cobra.Command {
	var flags workloadFlags
	var output string
	c := &cobra.Command{
		Use:   "convert FORMAT:FILE|gen:NAME …",
		Short: "Write a workload in our own format",
		Args:  specArgs,
		RunE: func(c *cobra.Command, args []string) error {
			w, err := flags.load(args, false)
			if err != nil {
				return err
			}
			if output == "" || output == "-" {
				return workload.Write(c.OutOrStdout(), w)
			}
			return writeFile(output, func(out io.Writer) error { return workload.Write(out, w) })
		},
	}
	flags.add(c.Flags())
	c.Flags().StringVarP(&output, "output", "o", "", "`FILE` to write (default: standard output)")
	return c
}
