package sim

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/queue"
	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/workload"
	"github.com/warmpath/warmpath/policy"
)

// Config describes one run. Workload, Policy and Groups are required. Every other field may be zero.
type Config struct {
	Workload *workload.Workload
	Policy   policy.Spec
	Groups   []Group
	// Disaggregation says which requests are divided into two legs at different workers. nil: none, because workers do
	// not exchange KV blocks.
	Disaggregation *Disaggregation

	// Rate is a factor on the arrival rate of requests with recorded times: with 2 these requests arrive twice as fast.
	// 0 means 1. Think times do not change.
	Rate float64
	Seed uint64 // seed of every random choice

	// Routers is the number of routers. Each request goes to a random router. Each router has an index and a fleet of
	// its own. Without Sync, it knows the load from other routers only by the engines' reports. 0 means 1.
	Routers int
	// Sync says that routers tell each other of their requests, as the gateway does with sync. A router hears of a
	// placement, a first token or an end after SyncDelay.
	Sync      bool
	SyncDelay time.Duration
	// Lag is the time from the end of an engine's pass until a router has applied the pass's KV events. LagJitter is
	// the upper bound of a uniformly random time that is added to Lag, drawn for each batch of events. The batches of
	// one rank stay in order.
	Lag, LagJitter time.Duration
	// Loss is the share of event batches that are lost. The router notices the gap with the next batch. With Replay the
	// router then gets the lost batch and applies it. Without Replay the router forgets all blocks of the rank, as the
	// gateway does if an engine's event publisher offers no replay.
	Loss   float64
	Replay bool
	// Speculative is how long a router expects the blocks of a sent prompt in the worker's cache before events confirm
	// them. 0: the router's default, 2 s; negative: the router does not expect them.
	Speculative time.Duration
	// Metrics is the interval at which routers read each engine's load metrics, as the gateway's scraper does. 0: 1 s,
	// the gateway's default; negative: never. MetricsLag is the age of these metrics when they reach the routers.
	Metrics, MetricsLag time.Duration
	// Hop is the network delay of a request from the client through the router to the engine. A token needs the same
	// time for the way back.
	Hop time.Duration

	MaxRequests int // a worker with this number of requests is saturated; 0: no limit
	// Queue is the largest number of requests that wait in a router while all workers are saturated. Further requests
	// are rejected.
	Queue int
	// QueueOrder is the order in which the router sends waiting requests. fcfs is the order of arrival. shortest sends
	// the request with the fewest uncached tokens first; a second of waiting counts as 500 tokens less. "" means fcfs.
	QueueOrder string

	// InFlight is the largest number of requests that all clients together have under way, like the number of threads
	// of a load generator. Further requests wait at the client. The latency of a request counts from the time when the
	// client sends it. 0: no limit.
	InFlight int

	Faults       []Fault
	Disturbances []Disturbance
	Autoscale    *Autoscale

	// Levels are the service levels at which the router aims. nil: the router's default levels; empty but not nil:
	// none. SLOs are the service levels that the result measures; no router sees them. nil: report.DefaultSLOs.
	Levels  []fleet.ServiceLevel
	SLOs    []report.SLO
	Samples int    // number of requests that the result lists; see report.Options
	Label   string // a note in the result
}

// Group is a number of workers with the same hardware.
type Group struct {
	Count     int
	Role      fleet.Role
	Profile   engine.Profile
	BlockSize int     // tokens in a block; 0: as in the profile
	KVTokens  int     // size of a rank's cache in tokens; 0: as in the profile
	CPUTokens int     // size of a rank's CPU tier in tokens; 0: no CPU tier
	OnEvict   bool    // copy blocks to the CPU tier on eviction from the GPU; false: when they are stored on the GPU
	Speed     float64 // passes are faster than in the profile by this factor; 0 means 1
	Ranks     int     // data-parallel ranks of a worker, each with an engine of its own; 0 means 1
	Noise     float64 // standard deviation of the random change of a pass's duration, as a share of the duration
	Declared  int     // number of ranks that get requests, as the operator configures it; 0: at most fleet.DefaultRanks
	Frontend  Frontend
}

// used returns the number of a worker's ranks that get requests.
func (g *Group) used() int {
	facts := fleet.Facts{Ranks: g.Ranks, DeclaredRanks: g.Declared}
	return facts.UsedRanks()
}

// Fault is the death of a rank. When the rank comes back, its cache is empty.
type Fault struct {
	At     time.Duration // time after the first arrival
	Worker int           // index of the rank, counted from 0 over the ranks of all groups
	Down   time.Duration // time until the rank answers again; 0: never
}

// Autoscale adds and drains workers according to the number of requests for each worker. It works with one group only.
type Autoscale struct {
	Min, Max int
	High     float64 // a worker is added above this number of requests per ready worker
	Low      float64 // a worker is drained below this number of requests per ready worker
	// Interval is the time between two comparisons with High and Low. 0: 15 s, as in the Kubernetes autoscaler.
	Interval time.Duration
	Start    time.Duration // time that a new worker needs to load its model; 0: 60 s, as for a 32B model from local disk
}

// maxWorkers is the largest number of ranks of all workers. It bounds the memory of a run, because each rank has an
// engine with a block pool.
const maxWorkers = 4096

// minMetrics is the shortest interval that the gateway's scraper allows.
const minMetrics = 50 * time.Millisecond

// longest bounds the times in a Config that are added to the clock, and the arrival of the last request. The bound of
// more than a year lets about 250 such times be added without an overflow. After an overflow a run would never end.
const longest = 10_000 * time.Hour

// minScale is the shortest interval of the autoscaler. With an interval of a few nanoseconds a run would not end in
// practice.
const minScale = 100 * time.Millisecond

func (c Config) withDefaults() Config {
	if c.Rate == 0 {
		c.Rate = 1
	}
	if c.Routers == 0 {
		c.Routers = 1
	}
	if c.Metrics == 0 {
		c.Metrics = time.Second
	}
	if c.QueueOrder == "" {
		c.QueueOrder = queue.FCFS
	}
	if c.Levels == nil {
		c.Levels = fleet.DefaultServiceLevels()
	}
	if c.SLOs == nil {
		c.SLOs = report.DefaultSLOs
	}
	c.Groups = slices.Clone(c.Groups)
	for i := range c.Groups {
		g := &c.Groups[i]
		if g.BlockSize == 0 {
			g.BlockSize = g.Profile.BlockSize
		}
		if g.KVTokens == 0 {
			g.KVTokens = g.Profile.KVTokens
		}
		if g.Speed == 0 {
			g.Speed = 1
		}
		g.Ranks = max(g.Ranks, 1)
	}
	if a := c.Autoscale; a != nil {
		scale := *a
		if scale.Interval == 0 {
			scale.Interval = 15 * time.Second
		}
		if scale.Start == 0 {
			scale.Start = time.Minute
		}
		c.Autoscale = &scale
	}
	return c
}

func (c *Config) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(c.Workload != nil && len(c.Workload.Requests) > 0, "the workload has no requests")
	check(c.Rate > 0 && c.Rate < 1e6, "rate %v is not above 0", c.Rate)
	check(c.Routers >= 1 && c.Routers <= 64, "%d routers are not within 1..64", c.Routers)
	check(c.Lag >= 0 && c.LagJitter >= 0 && c.Hop >= 0 && c.MetricsLag >= 0 && c.SyncDelay >= 0, "a lag is negative")
	check(max(c.SyncDelay, c.Lag, c.LagJitter, c.Hop, c.MetricsLag, c.Metrics) <= longest, "a lag, the hop or metrics are longer than %v", longest)
	if c.Workload != nil && c.Rate > 0 {
		c.checkTimes(check)
	}
	check(c.Metrics < 0 || c.Metrics >= minMetrics, "metrics every %v: at least %v, or negative for never", c.Metrics, minMetrics)
	check(c.Loss >= 0 && c.Loss < 1, "loss %v is not within 0..1", c.Loss)
	check(c.MaxRequests >= 0 && c.Queue >= 0 && c.InFlight >= 0, "a limit is negative")
	check(c.Queue == 0 || c.MaxRequests > 0, "a router queue needs a limit of requests for each worker: nothing would ever wait")
	if err := checkOrder(c.QueueOrder); err != nil {
		errs = append(errs, err)
	}
	check(c.QueueOrder == queue.FCFS || c.Queue > 0, "a queue order needs a router queue")
	if err := fleet.ValidateServiceLevels(c.Levels); err != nil {
		errs = append(errs, err)
	}
	c.checkDivision(check)
	workers := 0
	for _, g := range c.Groups {
		check(g.Count >= 1, "a group has %d workers", g.Count)
		check(g.Speed >= 1e-3 && g.Speed <= 1e3, "speed %v is not within 0.001..1000", g.Speed)
		check(g.Noise >= 0 && g.Noise <= 1, "noise %v is not within 0..1", g.Noise)
		check(g.Frontend.valid(), "the API server's times %+v are not within 0 and a minute", g.Frontend)
		check(g.BlockSize < 1 || g.KVTokens/g.BlockSize >= 1, "a cache of %d tokens holds no block of %d", g.KVTokens, g.BlockSize)
		workers += g.Count * g.used()
	}
	check(workers >= 1 && workers <= maxWorkers, "%d workers are not within 1..%d", workers, maxWorkers)
	for _, f := range c.Faults {
		check(f.Worker >= 0 && f.Worker < workers, "a fault is for worker %d of %d", f.Worker, workers)
		check(f.At >= 0 && f.Down >= 0, "a fault has a negative time")
		check(max(f.At, f.Down) <= longest, "a fault has a time of more than %v", longest)
	}
	for _, d := range c.Disturbances {
		check(d.Worker >= 0 && d.Worker < workers, "a disturbance is for worker %d of %d", d.Worker, workers)
		check(d.At >= 0 && d.For >= 0 && max(d.At, d.For) <= longest, "a disturbance has a time that is not within 0..%v", longest)
		check(d.Factor >= 1e-3 && d.Factor <= 1e3, "a disturbance's factor %v is not within 0.001..1000", d.Factor)
	}
	if a := c.Autoscale; a != nil {
		check(len(c.Groups) == 1 && c.Groups[0].Ranks == 1, "autoscaling needs workers that are alike and of one rank: leave fleet or ranks out")
		check(a.Min >= 1 && a.Max >= a.Min && a.Max <= maxWorkers, "autoscaling within %d..%d workers", a.Min, a.Max)
		check(a.Low >= 0 && a.High > a.Low, "autoscaling between %v and %v requests per worker", a.Low, a.High)
		check(a.Interval >= minScale && a.Interval <= longest, "autoscaling looks every %v: not within %v..%v", a.Interval, minScale, longest)
		check(a.Start >= 0 && a.Start <= longest, "autoscaling starts a worker in %v: not within 0..%v", a.Start, longest)
	}
	return errors.Join(errs...)
}

// checkDivision checks the roles of the workers, and the exchange of KV blocks.
func (c *Config) checkDivision(check func(ok bool, format string, args ...any)) {
	answers, roles := false, false
	for i := range c.Groups {
		answers = answers || c.Groups[i].Role != fleet.RolePrefill
		roles = roles || c.Groups[i].Role != fleet.RoleBoth
	}
	check(answers, "all workers only prefill, and none generates answers: add decode workers")
	d := c.Disaggregation
	if d == nil {
		check(!roles, "workers with roles need a disaggregation")
		return
	}
	check(len(c.Faults) == 0 && c.Autoscale == nil, "faults and autoscaling are not modelled for workers that exchange KV blocks")
	check(d.LinkGBs >= 0 && d.LinkGBs <= 1e6, "a link of %v GB/s is not within 0..1000000", d.LinkGBs)
	for i := range c.Groups {
		g := &c.Groups[i]
		check(g.BlockSize == c.Groups[0].BlockSize, "workers with blocks of %d and %d tokens do not exchange KV blocks", c.Groups[0].BlockSize, g.BlockSize)
		check(d.linkSpeed(g) > 0, "profile %s has no bandwidth between workers: give the speed of the links", g.Profile.Name)
	}
}

// checkTimes checks that no arrival and no think time is too long.
func (c *Config) checkTimes(check func(ok bool, format string, args ...any)) {
	last, think := time.Duration(0), time.Duration(0)
	for i := range c.Workload.Requests {
		last = max(last, c.Workload.Requests[i].Arrival)
		think = max(think, c.Workload.Requests[i].Think)
	}
	check(float64(last)/c.Rate <= float64(longest), "at rate %v the last request arrives after more than %v", c.Rate, longest)
	check(think <= longest, "a think time of %v is longer than %v", think, longest)
}

// engineConfig returns the configuration of the engine of one rank in group g.
func (w *world) engineConfig(g *Group) engine.Config {
	cfg := g.Profile.Config(g.BlockSize, g.KVTokens/g.BlockSize)
	cfg.CPUBlocks = g.CPUTokens / g.BlockSize
	if g.OnEvict {
		cfg.Offload = engine.OffloadOnEvict
	}
	if g.Speed != 1 {
		cfg.Timing = scaled{cfg.Timing, g.Speed}
	}
	if w.runs {
		cfg.Hash = identity(g.BlockSize)
	}
	return cfg
}

// scaled is a profile's timing with passes that are faster by the factor speed.
type scaled struct {
	engine.Timing
	speed float64
}

func (s scaled) Duration(b *engine.Batch) time.Duration {
	return time.Duration(float64(s.Timing.Duration(b)) / s.speed)
}

// Assumptions returns the assumptions behind a result, in sentences.
func (c Config) Assumptions() []string {
	c = c.withDefaults()
	var all []string
	add := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	add("Router, index, policies and fleet are the production code; engines, network and time are modelled (docs/simulator.md).")
	seen := map[string]bool{}
	for _, g := range c.Groups {
		p := &g.Profile
		if seen[p.Name] {
			continue
		}
		seen[p.Name] = true
		add("Engine profile %s: %s. Source: %s.", p.Name, p.About, p.Source)
		if l, ok := p.Timing.(engine.Linear); ok {
			add("%s: a pass takes %g ms + Σ prefill (%g·n + %g·n·(context + n/2)) + %g·context + %g per decode + %g per token from host memory; at most %d tokens and %d requests.",
				p.Name, l.Base, l.Token, l.Attention, l.Context, l.Sequence, l.Load, p.MaxBatchTokens, p.MaxSequences)
		}
		if g.BlockSize != p.BlockSize {
			add("Caches are modelled in blocks of %d tokens (the engine's are %d); their capacity in tokens is as given.", g.BlockSize, p.BlockSize)
		}
	}
	add("KV events reach routers %v%s after a pass; %g %% of batches are lost%s.", c.Lag, jitterText(c.LagJitter), 100*c.Loss, lossText(c.Loss, c.Replay))
	if c.Metrics > 0 {
		add("Routers ask each engine every %v how busy it is; the answer is %v old.", c.Metrics, c.MetricsLag)
	} else {
		add("Routers do not ask engines how busy they are: each knows what it sent itself.")
	}
	if c.Routers > 1 {
		add("Each request goes to one of %d routers at random. %s", c.Routers, c.syncText())
	}
	if c.Hop > 0 {
		add("A request takes %v to its engine, and a token as long back.", c.Hop)
	} else {
		add("The network, HTTP, tokenisation and the router's own time are not in the times.")
	}
	if d := c.Disaggregation; d != nil {
		all = append(all, d.assumptions(&c.Groups[0])...)
	}
	add("%s", levelsText(c.Levels))
	if c.Queue > 0 {
		add("Each router holds up to %d requests while every worker has %d, and sends them in the order %s of the production queue.", c.Queue, c.MaxRequests, c.QueueOrder)
	}
	if c.InFlight > 0 {
		add("Clients have %d requests under way at most; further ones are sent late, and their times count from then.", c.InFlight)
	}
	if c.Workload != nil {
		all = append(all, c.Workload.Notes...)
	}
	return all
}

func levelsText(levels []fleet.ServiceLevel) string {
	if len(levels) == 0 {
		return "Requests have no service levels."
	}
	var names []string
	for _, l := range levels {
		names = append(names, l.String())
	}
	return "Requests have the service levels " + strings.Join(names, ", ") + ". A policy may aim at them."
}

func jitterText(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprintf(" to %v more", d)
}

func lossText(loss float64, replay bool) string {
	switch {
	case loss == 0:
		return ""
	case replay:
		return " and replayed when the next one shows the gap"
	}
	return ", and the router then forgets the worker"
}

// ParsePolicy returns the policy that s describes. s is KIND or KIND:KEY=VALUE,KEY=VALUE. Parameters that s leaves out
// have the gateway's defaults: for example, kv_aware follows a match only up to a load difference of
// [policy.DefaultImbalanceTokens]. The key imbalance is short for imbalance_tokens; imbalance=0 removes the bound.
func ParsePolicy(s string) (policy.Spec, error) {
	name, settings, set := strings.Cut(s, ":")
	if _, ok := warmpath.PolicyKinds().Find(name); !ok {
		return policy.Spec{}, fmt.Errorf("no policy is called %q (known: %s)", name, strings.Join(Policies(), ", "))
	}
	text := name
	if set {
		keys := strings.Split(settings, ",")
		for i, key := range keys {
			if value, short := strings.CutPrefix(key, "imbalance="); short {
				keys[i] = "imbalance_tokens=" + value
			}
		}
		text += ":" + strings.Join(keys, ",")
	}
	spec, err := warmpath.PolicyKinds().Parse(text)
	switch {
	case err != nil:
		return spec, err
	case spec.NeedsTarget:
		return spec, fmt.Errorf("policy %q: no request of a workload names its worker", name)
	}
	if name == "kv_aware" && !strings.Contains(text, "imbalance_tokens=") {
		spec.ImbalanceTokens = policy.DefaultImbalanceTokens
	}
	spec.Name = s
	return spec, nil
}

// Policies returns the names of the built-in policies that a simulation can use.
func Policies() []string {
	var names []string
	for _, spec := range warmpath.PolicyKinds().BuiltIn() {
		if !spec.NeedsTarget && spec.Name != needsController {
			names = append(names, spec.Name)
		}
	}
	return names
}

// needsController is the policy that queries an external LMCache controller. The simulator has no such controller.
// Without a controller only the policy's fallback would run.
const needsController = "lmcache_aware"

// SplitPolicies repairs a list that a command line has split at every comma. A policy KIND:KEY=VALUE,KEY=VALUE becomes
// one element again.
func SplitPolicies(list []string) []string {
	var names []string
	for _, part := range list {
		if n := len(names); n > 0 && strings.Contains(part, "=") && !strings.Contains(part, ":") && strings.Contains(names[n-1], ":") {
			names[n-1] += "," + part
			continue
		}
		names = append(names, part)
	}
	return names
}
