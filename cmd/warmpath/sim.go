package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/sim"
	"github.com/warmpath/warmpath/internal/workload"
)

func newSim() *cobra.Command {
	x := sim.DefaultExperiment()
	var out output
	var file string
	var parallel int
	c := &cobra.Command{
		Use:   "sim",
		Short: "Play a trace against modelled engines, with the real router, under one policy or many",
		Long: `Play a workload in virtual time against a fleet of modelled engines. The decisions are made by
the production router with its index, policies and fleet. Every combination of --policies,
--workers, --rate, --blocks and --seed is a run; runs are made in parallel. --slo says what the
results measure, and --service-levels what the router aims at.

  warmpath sim --workload mooncake:conversation.jsonl.gz --policies all --workers 8 --rate 1,1.5,2 --html report.html

In the table, times are from the arrival of a request: TTFT to its first token, E2E to its last
one. ITL is the time between two tokens. "SLO % A/B" is the share of requests with a TTFT of at most
A and a mean time of at most B between tokens. Failed and rejected requests count as not kept. If
there are any, the share of the answered requests stands in brackets beside the share of all.
"work max/mean" is the prompt tokens that the busiest worker computed, over the mean of all workers:
1 is an even load.

Engine profiles:
` + profileList() + `
docs/simulator.md says what is modelled and what is not.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := readExperiment(c.Flags(), file, &x); err != nil {
				return err
			}
			w, configs, err := prepare(&x)
			if err != nil {
				return err
			}
			p := newSweepLine(c.ErrOrStderr())
			runs, err := sim.Sweep(c.Context(), configs, parallel, p.sweep)
			p.clear()
			if err != nil {
				return err
			}
			r := newReport(c, w, configs)
			for _, run := range runs {
				if run != nil && run.Requests.Sent > 0 {
					r.Runs = append(r.Runs, run)
				}
				r.Interrupted = r.Interrupted || run == nil || run.Stopped
			}
			return out.write(c, r)
		},
	}
	flags := c.Flags()
	flags.StringVar(&file, "experiment", "", "YAML `FILE` with the same settings; flags override it")
	experimentFlags(flags, &x)
	flags.IntVar(&parallel, "parallel", 0, "most runs at the same time; 0 for one on each core")
	out.flags(flags)
	return c
}

// experimentFlags adds the flags that sim and plan share.
func experimentFlags(f *pflag.FlagSet, x *sim.Experiment) {
	f.StringVar(&x.Workload, "workload", x.Workload, "`FORMAT:FILE` (mooncake, azure, qwen, burstgpt, ragpulse, agent, openai, warmpath) or gen:NAME,PARAMETER=VALUE")
	f.IntVar(&x.Limit, "limit", x.Limit, "play only the first `N` requests; 0 for all")
	f.StringSliceVar(&x.Policies, "policies", x.Policies, "`NAMES`: "+strings.Join(sim.Policies(), ", ")+", or KIND:KEY=VALUE,… with parameters (kv_aware:imbalance_tokens=0 follows a match without a limit); or all")
	f.IntSliceVar(&x.Workers, "workers", x.Workers, "`N` workers; several values make several runs")
	f.StringSliceVar(&x.Rate, "rate", x.Rate, "`X` times as fast as recorded, or X/s for requests a second; several values make several runs")
	f.IntSliceVar(&x.Blocks, "blocks", x.Blocks, "`N` engine blocks in a worker's cache (default: the profile's); several values make several runs")
	f.IntSliceVar(&x.KVTokens, "kv-tokens", x.KVTokens, "`TOKENS` in a worker's cache, in place of --blocks; several values make several runs")
	f.StringVar(&x.Profile, "profile", x.Profile, "`NAME` or file of the engines' profile")
	f.IntVar(&x.BlockSize, "block-size", x.BlockSize, "`TOKENS` of an engine block; 0 for the profile's block size")
	f.IntVar(&x.Grain, "grain", x.Grain, "`TOKENS` of a modelled block; 0 for the trace's blocks if they are larger than the engines' blocks")
	f.IntVar(&x.CPUTokens, "cpu-tokens", x.CPUTokens, "`TOKENS` of host memory behind each cache; 0 for none")
	f.BoolVar(&x.OnEvict, "cpu-on-evict", x.OnEvict, "move blocks to host memory when they are evicted, not when they are stored")
	f.IntVar(&x.Ranks, "ranks", x.Ranks, "data-parallel ranks of a worker")
	f.IntVar(&x.Decode, "decode-workers", x.Decode, "`N` workers that decode and serve whole requests; then the --workers only prefill; 0: no worker has a role")
	f.StringSliceVar(&x.Disaggregation, "disaggregation", x.Disaggregation, "`MODE`: auto, always or never divide requests into a prefill leg and a decode leg; or the rule of another router: llm-d:TOKENS, dynamo; several values make several runs (default auto with --decode-workers, otherwise workers exchange no KV blocks)")
	f.IntVar(&x.Threshold, "pd-uncached-token-threshold", x.Threshold, "in the mode auto, requests with fewer uncached `TOKENS` are not divided; 0 for the router's default, negative for none")
	f.Float64Var(&x.LinkGBs, "link-gb-s", x.LinkGBs, "`GB/s` at which a worker sends KV blocks, and at which it receives them; 0 for the profile's")
	f.BoolVar(&x.Fetch, "fetch", x.Fetch, "workers may read the beginning of a prompt from another worker's cache")
	f.IntVar(&x.Routers, "routers", x.Routers, "number of routers in front of the same workers; each has an index and load counts of its own; see --sync-delay")
	f.StringSliceVar(&x.SyncDelay, "sync-delay", x.SyncDelay, "`DELAY` after which routers hear of each other's requests, such as 10ms; off: they tell each other nothing; several values make several runs (default off)")
	f.DurationVar(&x.Lag, "event-lag", x.Lag, "time until routers have applied a pass's KV events")
	f.DurationVar(&x.LagJitter, "event-jitter", x.LagJitter, "random time that is added to --event-lag")
	f.Float64Var(&x.Loss, "event-loss", x.Loss, "`SHARE` of event batches that are lost")
	f.BoolVar(&x.NoReplay, "no-replay", x.NoReplay, "lost events cannot be replayed: the router forgets the worker's blocks")
	f.DurationVar(&x.Speculative, "speculative", x.Speculative, "how long a dispatched prompt counts as cached before its KV events come; 0 for the router's default, negative for never")
	f.DurationVar(&x.Metrics, "metrics-interval", x.Metrics, "pause between two reports of an engine's load; 0 for the gateway's default, negative for never")
	f.DurationVar(&x.MetricsLag, "metrics-lag", x.MetricsLag, "age of a load report when the router gets it")
	f.DurationVar(&x.Hop, "hop", x.Hop, "time from the client through the router to the engine, and back")
	f.IntVar(&x.MaxRequests, "max-requests", x.MaxRequests, "a worker with `N` requests is saturated; 0 for no limit")
	f.IntVar(&x.Queue, "queue", x.Queue, "`N` requests that may wait in a router while all workers are saturated")
	f.StringVar(&x.QueueOrder, "queue-order", x.QueueOrder, "order of the waiting requests: `fcfs` or shortest, as queue.order of the gateway")
	f.IntVar(&x.InFlight, "in-flight", x.InFlight, "keep at most `N` requests under way; 0 for no limit")
	f.StringSliceVar(&x.Faults, "fault", x.Faults, "`AT:WORKER:DOWN`, such as 60s:2:30s: the second worker dies after a minute for half a minute")
	f.StringSliceVar(&x.ServiceLevels, "service-levels", x.ServiceLevels, "`TTFT/TPOT` at which the router aims, several with commas; or none (default 5s/100ms,2s/50ms)")
	slo := "`TTFT/TPOT` that good requests keep"
	if len(x.SLO) == 0 {
		slo += " (default 5s/100ms,2s/50ms)"
	}
	f.StringSliceVar(&x.SLO, "slo", x.SLO, slo)
	f.Var(&seedFlag{seeds: &x.Seeds}, "seed", "seed `N` of all random numbers; several values make several runs")
}

// seedFlag is a list of seeds. The first seed on the command line replaces the default; each further seed is added to
// the list.
type seedFlag struct {
	seeds *[]uint64
	given bool
}

func (s *seedFlag) Type() string { return "N" }

func (s *seedFlag) String() string {
	if s.seeds == nil {
		return ""
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(*s.seeds), " ", ","), "[]")
}

func (s *seedFlag) Set(text string) error {
	if !s.given {
		*s.seeds, s.given = nil, true
	}
	for _, part := range strings.Split(text, ",") {
		var n uint64
		if _, err := fmt.Sscanf(strings.TrimSpace(part)+"\n", "%d\n", &n); err != nil {
			return fmt.Errorf("%q is not a whole number of 0 or more", part)
		}
		*s.seeds = append(*s.seeds, n)
	}
	return nil
}

// readExperiment sets x: the file overrides the defaults, and the command line overrides the file.
func readExperiment(flags *pflag.FlagSet, file string, x *sim.Experiment) error {
	if file == "" {
		return nil
	}
	given := *x
	*x = sim.DefaultExperiment()
	if err := config.ReadDocument(file, x); err != nil {
		return usageError{err}
	}
	overrides := map[string]func(){
		"workload": func() { x.Workload = given.Workload }, "limit": func() { x.Limit = given.Limit },
		"policies": func() { x.Policies = given.Policies }, "workers": func() { x.Workers = given.Workers },
		"rate": func() { x.Rate = given.Rate }, "blocks": func() { x.Blocks, x.KVTokens = given.Blocks, nil },
		"kv-tokens": func() { x.KVTokens, x.Blocks = given.KVTokens, nil }, "seed": func() { x.Seeds = given.Seeds },
		"profile": func() { x.Profile = given.Profile }, "block-size": func() { x.BlockSize = given.BlockSize },
		"grain": func() { x.Grain = given.Grain }, "cpu-tokens": func() { x.CPUTokens = given.CPUTokens },
		"cpu-on-evict": func() { x.OnEvict = given.OnEvict }, "ranks": func() { x.Ranks = given.Ranks },
		"decode-workers": func() { x.Decode = given.Decode }, "disaggregation": func() { x.Disaggregation = given.Disaggregation },
		"pd-uncached-token-threshold": func() { x.Threshold = given.Threshold }, "link-gb-s": func() { x.LinkGBs = given.LinkGBs },
		"fetch": func() { x.Fetch = given.Fetch }, "routers": func() { x.Routers = given.Routers },
		"sync-delay": func() { x.SyncDelay = given.SyncDelay },
		"event-lag":  func() { x.Lag = given.Lag }, "event-jitter": func() { x.LagJitter = given.LagJitter },
		"event-loss": func() { x.Loss = given.Loss }, "no-replay": func() { x.NoReplay = given.NoReplay },
		"speculative": func() { x.Speculative = given.Speculative }, "hop": func() { x.Hop = given.Hop },
		"metrics-interval": func() { x.Metrics = given.Metrics }, "metrics-lag": func() { x.MetricsLag = given.MetricsLag },
		"max-requests": func() { x.MaxRequests = given.MaxRequests }, "queue": func() { x.Queue = given.Queue },
		"queue-order": func() { x.QueueOrder = given.QueueOrder }, "in-flight": func() { x.InFlight = given.InFlight },
		"service-levels": func() { x.ServiceLevels = given.ServiceLevels },
		"fault":          func() { x.Faults = given.Faults }, "slo": func() { x.SLO = given.SLO },
	}
	flags.Visit(func(f *pflag.Flag) {
		if override, ok := overrides[f.Name]; ok {
			override()
		}
	})
	return nil
}

// prepare reads the workload and makes the runs.
func prepare(x *sim.Experiment) (*workload.Workload, []sim.Config, error) {
	if x.Workload == "" {
		return nil, nil, usageError{errors.New("there is no workload: give --workload FORMAT:FILE or gen:NAME (see `warmpath workload --help`)")}
	}
	w, err := workload.Load(x.Workload, workload.Options{Limit: x.Limit})
	if err != nil {
		return nil, nil, err
	}
	configs, err := x.Configs(w, os.ReadFile)
	if err != nil {
		return nil, nil, usageError{err}
	}
	return w, configs, nil
}

func newReport(c *cobra.Command, w *workload.Workload, configs []sim.Config) *report.Report {
	r := &report.Report{Kind: report.Simulated, Command: commandLine(c), Version: version(), Workload: sim.Describe(w)}
	if len(configs) > 0 {
		r.Assumptions = configs[0].Assumptions()
	}
	return r
}

// commandLine returns the command that repeats the experiment.
func commandLine(c *cobra.Command) string {
	parts := []string{c.CommandPath()}
	c.Flags().Visit(func(f *pflag.Flag) {
		value := f.Value.String()
		if list, ok := f.Value.(pflag.SliceValue); ok {
			value = strings.Join(list.GetSlice(), ",")
		}
		switch f.Name {
		case "json", "markdown", "html", "parallel":
			return
		}
		if f.Value.Type() == "bool" {
			parts = append(parts, "--"+f.Name)
			return
		}
		if strings.ContainsAny(value, " '\"$&;|<>()*?\\") {
			value = "'" + strings.ReplaceAll(value, "'", `'\''`) + "'"
		}
		parts = append(parts, "--"+f.Name, value)
	})
	return strings.Join(parts, " ")
}

func profileList() string {
	var b strings.Builder
	for _, p := range engine.Profiles() {
		fmt.Fprintf(&b, "  %-14s %s; %s tokens of KV\n", p.Name, p.About, report.Count(int64(p.KVTokens)))
	}
	b.WriteString("  FILE           a profile in JSON: measured table, roofline, or coefficients that `warmpath calibrate` wrote\n")
	return b.String()
}

// stopped reports whether the command was interrupted.
func stopped(ctx context.Context) bool { return ctx.Err() != nil }
