package sim

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/workload"
	"github.com/warmpath/warmpath/policy"
)

// Experiment is a sweep: a run for every combination of policies, worker numbers, rates, cache sizes and seeds. A file
// or a command line describes it. Start from [DefaultExperiment].
type Experiment struct {
	Workload string   `yaml:"workload"` // FORMAT:FILE or gen:NAME,…
	Limit    int      `yaml:"limit"`    // number of requests of the workload to play; 0: all
	Policies []string `yaml:"policies"` // names, or KIND:KEY=VALUE,KEY=VALUE; "all"
	Workers  []int    `yaml:"workers"`
	Rate     []string `yaml:"rate"`      // "1.5": factor on the recorded arrival rate; "20/s": requests a second
	Blocks   []int    `yaml:"blocks"`    // cache size in engine blocks
	KVTokens []int    `yaml:"kv_tokens"` // cache size in tokens; if Blocks and KVTokens are both empty: as in the profile
	Seeds    []uint64 `yaml:"seeds"`

	Profile   string `yaml:"profile"`    // name, or path of a profile file
	BlockSize int    `yaml:"block_size"` // tokens in an engine block; 0: as in the profile
	// Grain is the number of tokens in a block of the simulated caches. 0: the method grain chooses.
	Grain     int      `yaml:"grain"`
	CPUTokens int      `yaml:"cpu_tokens"` // size of each rank's CPU tier in tokens; 0: none
	OnEvict   bool     `yaml:"cpu_on_evict"`
	Ranks     int      `yaml:"ranks"`
	Fleet     []Member `yaml:"fleet"` // groups of workers, in place of Workers
	// Decode is the number of decode workers beside Workers, which then only prefill. 0: no worker has a role.
	Decode int `yaml:"decode_workers"`
	// Disaggregation has modes (auto, always, never) and rules of other projects (see ParseRule). Empty: auto with
	// decode workers; otherwise workers do not exchange KV blocks.
	Disaggregation []string `yaml:"disaggregation"`
	Threshold      int      `yaml:"pd_uncached_token_threshold"` // see warmpath.Legs.UncachedTokenThreshold
	LinkGBs        float64  `yaml:"link_gb_s"`                   // see Disaggregation.LinkGBs
	Fetch          bool     `yaml:"fetch"`                       // see Disaggregation.Fetch
	Routers        int      `yaml:"routers"`
	// SyncDelay has the delays after which routers hear of each other's requests; "off": they tell nothing. Empty: off.
	SyncDelay []string      `yaml:"sync_delay"`
	Lag       time.Duration `yaml:"event_lag"`
	LagJitter time.Duration `yaml:"event_jitter"`
	Loss      float64       `yaml:"event_loss"`
	NoReplay  bool          `yaml:"no_replay"`
	// Speculative is how long a router expects the blocks of a sent prompt before events confirm them. Negative: not at
	// all.
	Speculative time.Duration `yaml:"speculative"`
	// Metrics is the interval at which routers read each engine's load metrics. 0: 1 s; negative: never.
	Metrics     time.Duration `yaml:"metrics_interval"`
	MetricsLag  time.Duration `yaml:"metrics_lag"`
	Hop         time.Duration `yaml:"hop"`
	MaxRequests int           `yaml:"max_requests"`
	Queue       int           `yaml:"queue"`
	QueueOrder  string        `yaml:"queue_order"` // fcfs or shortest; "": fcfs
	// InFlight is the largest number of requests that all clients together have under way. 0: no limit.
	InFlight int `yaml:"in_flight"`
	// Faults has elements "AT:WORKER" or "AT:WORKER:DOWN". WORKER counts the ranks of all workers from 1: "60s:2:30s"
	// kills the second rank after 60 s, for 30 s.
	Faults    []string `yaml:"faults"`
	Autoscale *Scaling `yaml:"autoscale"`
	// ServiceLevels are the levels at which the router aims, such as "5s/100ms". nil: the router's default levels;
	// empty, or "none": none. SLO has the levels that the results measure; see report.DefaultSLOs.
	ServiceLevels []string `yaml:"service_levels"`
	SLO           []string `yaml:"slo"`
}

// Member is a group of workers with the same hardware.
type Member struct {
	Count    int     `yaml:"count"`
	Profile  string  `yaml:"profile"`
	Blocks   int     `yaml:"blocks"`
	KVTokens int     `yaml:"kv_tokens"`
	Speed    float64 `yaml:"speed"`
	Role     string  `yaml:"role"` // prefill, decode or both; "": both
}

// Scaling is [Autoscale] as a file describes it.
type Scaling struct {
	Min      int           `yaml:"min"`
	Max      int           `yaml:"max"`
	High     float64       `yaml:"high"`
	Low      float64       `yaml:"low"`
	Interval time.Duration `yaml:"interval"`
	Start    time.Duration `yaml:"start"`
}

// DefaultExperiment compares the default policy with kv_aware and random, on 8 workers.
func DefaultExperiment() Experiment {
	return Experiment{
		Policies: []string{"marginal", "kv_aware", "random"}, Workers: []int{8}, Rate: []string{"1"}, Seeds: []uint64{1},
		Profile: engine.Profiles()[0].Name, Routers: 1, Ranks: 1,
	}
}

// maxRuns bounds the runs of a sweep: a larger number is probably a typing error.
const maxRuns = 10_000

// Files reads a profile file. The caller provides this function, because this package reads no files itself.
type Files func(path string) ([]byte, error)

// profile finds a profile by its name, or reads it from a file. A name with a dot or a slash is the path of a file,
// unless a profile has this name.
func (f Files) profile(name string) (engine.Profile, error) {
	if f == nil || !strings.ContainsAny(name, "./\\") {
		return engine.FindProfile(name)
	}
	if p, err := engine.FindProfile(name); err == nil { // llama-3.1-8b has a dot
		return p, nil
	}
	data, err := f(name)
	if err != nil {
		return engine.Profile{}, fmt.Errorf("read profile: %w (profiles known by name: see `warmpath sim --help`)", err)
	}
	p, err := engine.ReadProfile(data)
	if err != nil {
		return p, fmt.Errorf("%s: %w", name, err)
	}
	if p.Name == "" {
		p.Name = name
	}
	return p, nil
}

// Configs returns the runs of the experiment with workload w. The runs are ordered by rate, then by workers, cache
// size, sync delay, policy, disaggregation and seed.
func (x *Experiment) Configs(w *workload.Workload, files Files) ([]Config, error) {
	base, err := x.base(w)
	if err != nil {
		return nil, err
	}
	policies, err := x.policies()
	if err != nil {
		return nil, err
	}
	profile, err := files.profile(x.Profile)
	if err != nil {
		return nil, err
	}
	memory, err := x.memory(&profile)
	if err != nil {
		return nil, err
	}
	if len(x.Workers) == 0 || len(x.Seeds) == 0 || len(x.Rate) == 0 {
		return nil, errors.New("workers, rate and seeds each need a value")
	}
	divisions, err := x.divisions()
	if err != nil {
		return nil, err
	}
	syncs, err := x.syncs()
	if err != nil {
		return nil, err
	}
	if n := len(syncs) * len(policies) * len(x.Workers) * len(x.Rate) * len(memory) * len(divisions) * len(x.Seeds); n > maxRuns {
		return nil, fmt.Errorf("%d runs are more than %d", n, maxRuns)
	}
	var all []Config
	for _, rate := range x.Rate {
		speed, err := parseRate(rate, w)
		if err != nil {
			return nil, err
		}
		for _, workers := range x.Workers {
			for _, kv := range memory {
				groups, err := x.groups(w, files, &profile, workers, kv)
				if err != nil {
					return nil, err
				}
				base.Rate, base.Groups = speed, groups
				for _, s := range syncs {
					base.Sync, base.SyncDelay = s.Sync, s.SyncDelay
					runs, err := x.runs(base, policies, divisions)
					if err != nil {
						return nil, err
					}
					all = append(all, runs...)
				}
			}
		}
	}
	return all, nil
}

// runs returns the runs with the rate and the workers of c.
func (x *Experiment) runs(c Config, policies []policy.Spec, divisions []*Disaggregation) (all []Config, err error) {
	for _, p := range policies {
		for _, d := range divisions {
			for _, seed := range x.Seeds {
				c.Policy, c.Seed, c.Disaggregation, c.Label = p, seed, d, ""
				if d != nil {
					c.Label = d.String()
				}
				if err := c.check(); err != nil {
					return nil, err
				}
				all = append(all, c)
			}
		}
	}
	return all, nil
}

// divisions returns the modes and rules to play.
func (x *Experiment) divisions() (all []*Disaggregation, err error) {
	names := x.Disaggregation
	if len(names) == 0 && x.Decode > 0 {
		names = []string{policy.ModeAuto.String()}
	}
	for _, name := range names {
		d := &Disaggregation{LinkGBs: x.LinkGBs, Fetch: x.Fetch}
		d.UncachedTokenThreshold = x.Threshold
		if d.Mode, d.Rule, err = parseDivision(name); err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	if len(all) == 0 {
		if x.Threshold != 0 || x.LinkGBs != 0 || x.Fetch {
			return nil, errors.New("pd_uncached_token_threshold, link_gb_s and fetch need disaggregation or decode_workers: workers do not exchange KV blocks otherwise")
		}
		all = append(all, nil)
	}
	return all, nil
}

// check returns the errors of c with its defaults filled in.
func (c *Config) check() error {
	full := c.withDefaults()
	return full.validate()
}

// base returns the part of the configuration that all runs have in common.
func (x *Experiment) base(w *workload.Workload) (Config, error) {
	c := Config{
		Workload: w, Routers: x.Routers, Lag: x.Lag, LagJitter: x.LagJitter, Loss: x.Loss, Replay: !x.NoReplay,
		Speculative: x.Speculative, Metrics: x.Metrics, MetricsLag: x.MetricsLag, Hop: x.Hop, MaxRequests: x.MaxRequests, Queue: x.Queue, QueueOrder: x.QueueOrder, InFlight: x.InFlight,
	}
	if a := x.Autoscale; a != nil {
		c.Autoscale = &Autoscale{Min: a.Min, Max: a.Max, High: a.High, Low: a.Low, Interval: a.Interval, Start: a.Start}
	}
	for _, s := range x.Faults {
		f, err := parseFault(s)
		if err != nil {
			return c, err
		}
		c.Faults = append(c.Faults, f)
	}
	var err error
	if c.Levels, err = ParseServiceLevels(x.ServiceLevels); err != nil {
		return c, err
	}
	for _, s := range x.SLO {
		slo, err := ParseSLO(s)
		if err != nil {
			return c, err
		}
		c.SLOs = append(c.SLOs, slo)
	}
	return c, nil
}

func (x *Experiment) policies() ([]policy.Spec, error) {
	names := SplitPolicies(x.Policies)
	if len(names) == 1 && names[0] == "all" {
		names = Policies()
	}
	var specs []policy.Spec
	for _, name := range names {
		p, err := ParsePolicy(name)
		if err != nil {
			return nil, err
		}
		specs = append(specs, p)
	}
	if len(specs) == 0 {
		return nil, errors.New("no policy is given")
	}
	return specs, nil
}

// memory returns the cache sizes to play, in tokens. The size 0 stands for the profile's own size.
func (x *Experiment) memory(p *engine.Profile) ([]int, error) {
	if len(x.Blocks) > 0 && len(x.KVTokens) > 0 {
		return nil, errors.New("blocks and kv_tokens say the same: give one")
	}
	all := append([]int(nil), x.KVTokens...)
	for _, n := range x.Blocks {
		all = append(all, n*x.blockSize(p))
	}
	for _, n := range all {
		if n < x.blockSize(p) {
			return nil, fmt.Errorf("a cache of %d tokens holds no block of %d", n, x.blockSize(p))
		}
	}
	if len(all) == 0 {
		all = []int{0}
	}
	return all, nil
}

func (x *Experiment) blockSize(p *engine.Profile) int {
	if x.BlockSize > 0 {
		return x.BlockSize
	}
	return p.BlockSize
}

// groups returns the worker groups of a run.
func (x *Experiment) groups(w *workload.Workload, files Files, p *engine.Profile, workers, kv int) ([]Group, error) {
	one := func(p engine.Profile, count, kv int, speed float64) Group {
		if kv == 0 {
			kv = p.KVTokens
		}
		return Group{
			Count: count, Profile: p, BlockSize: x.grain(w, &p, kv), KVTokens: kv, CPUTokens: x.CPUTokens, OnEvict: x.OnEvict,
			Speed: speed, Ranks: x.Ranks, Declared: x.Ranks,
		}
	}
	if len(x.Fleet) == 0 {
		groups := []Group{one(*p, workers, kv, 0)}
		if x.Decode > 0 {
			decode := groups[0]
			groups[0].Role, decode.Role, decode.Count = fleet.RolePrefill, fleet.RoleDecode, x.Decode
			groups = append(groups, decode)
		}
		return groups, nil
	}
	if x.Decode > 0 {
		return nil, errors.New("fleet and decode_workers do not go together: give the groups of the fleet a role")
	}
	var groups []Group
	for _, m := range x.Fleet {
		mp := *p
		if m.Profile != "" {
			var err error
			if mp, err = files.profile(m.Profile); err != nil {
				return nil, err
			}
		}
		size := kv
		switch {
		case m.Blocks > 0:
			size = m.Blocks * x.blockSize(&mp)
		case m.KVTokens > 0:
			size = m.KVTokens
		}
		g := one(mp, m.Count, size, m.Speed)
		var err error
		if g.Role, err = fleet.ParseRole(m.Role); err != nil {
			return nil, fmt.Errorf("fleet: %w", err)
		}
		groups = append(groups, g)
	}
	return groups, nil
}

// grain returns the size of blocks in the simulated caches, in tokens. By default grain uses the block size of the
// trace if it is a multiple of the engine's: a trace with one hash for 512 tokens has no information about smaller
// blocks. Blocks of 16 tokens would make such a run 13 times as long and change the hit rate by only 0.2 percentage
// points (docs/simulator.md). If a cache would have fewer than 256 such blocks, grain halves the size, because the
// partly full last blocks would waste too much of the cache.
func (x *Experiment) grain(w *workload.Workload, p *engine.Profile, kv int) int {
	if x.Grain > 0 {
		return x.Grain
	}
	size := x.blockSize(p)
	const enough = 256 // smallest number of blocks in a cache
	for g := w.Block; g > size; g /= 2 {
		if g%size == 0 && kv/g >= enough {
			return g
		}
	}
	return size
}

// parseRate reads "1.5" or "20/s", and returns a factor on the workload's own rate.
func parseRate(s string, w *workload.Workload) (float64, error) {
	number, absolute := strings.CutSuffix(strings.TrimSpace(s), "/s")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !(v > 0) || v > 1e6 {
		return 0, fmt.Errorf("rate %q is neither a factor such as 1.5 nor requests a second such as 20/s", s)
	}
	if !absolute {
		return v, nil
	}
	if len(w.Requests) == 0 {
		return 0, fmt.Errorf("rate %q: the workload has no requests", s)
	}
	c := clocked{workload: w}
	span := c.span().Seconds()
	if span <= 0 {
		return 0, fmt.Errorf("rate %q: all requests of the workload arrive at once", s)
	}
	return v * span / float64(len(w.Requests)), nil
}

// parseFault reads "AT:WORKER" or "AT:WORKER:DOWN".
func parseFault(s string) (Fault, error) {
	parts := strings.Split(s, ":")
	bad := fmt.Errorf("fault %q is not AT:WORKER or AT:WORKER:DOWN, such as 60s:2:30s", s)
	if len(parts) < 2 || len(parts) > 3 {
		return Fault{}, bad
	}
	at, err := time.ParseDuration(parts[0])
	worker, err2 := strconv.Atoi(parts[1])
	if err != nil || err2 != nil || worker < 1 {
		return Fault{}, bad
	}
	f := Fault{At: at, Worker: worker - 1}
	if len(parts) == 3 {
		if f.Down, err = time.ParseDuration(parts[2]); err != nil {
			return Fault{}, bad
		}
	}
	return f, nil
}

// ParseServiceLevels reads service levels at which a router aims, such as "5s/100ms" and "2s/50ms". A nil list gives
// nil. An empty list, or the only element "none", gives an empty list.
func ParseServiceLevels(list []string) ([]fleet.ServiceLevel, error) {
	if list == nil {
		return nil, nil
	}
	if len(list) == 0 {
		return []fleet.ServiceLevel{}, nil
	}
	return fleet.ParseServiceLevels(strings.Join(list, ","))
}

// ParseSLO reads "TTFT/TPOT" or "TTFT".
func ParseSLO(s string) (report.SLO, error) {
	first, second, both := strings.Cut(s, "/")
	ttft, err := time.ParseDuration(strings.TrimSpace(first))
	var tpot time.Duration
	if err == nil && both {
		tpot, err = time.ParseDuration(strings.TrimSpace(second))
	}
	if err != nil || ttft <= 0 || tpot < 0 || both && tpot == 0 {
		return report.SLO{}, fmt.Errorf("SLO %q is not TTFT/TPOT or TTFT, such as 5s/100ms", s)
	}
	return report.SLO{TTFT: ttft, TPOT: tpot}, nil
}
