package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/policy"
)

// Goal is the goal of a plan: at least Share (0..1) of all requests meet the run's first SLO. A failed request does not
// meet the SLO.
type Goal struct {
	Share float64
	// MaxWorkers is the largest number of workers that PlanWorkers tries. MaxRate is the largest rate that PlanRate
	// tries, as a factor like Config.Rate.
	MaxWorkers int
	MaxRate    float64
}

// Plan is the answer for one policy.
type Plan struct {
	Policy string `json:"policy"`
	// Found is false if no run of the search keeps the goal.
	Found   bool          `json:"found"`
	Limited bool          `json:"limited"` // the goal is kept at MaxRate, so a higher rate may keep the goal, too
	Workers int           `json:"workers"`
	Rate    float64       `json:"rate"`
	Best    *report.Run   `json:"-"` // the run at Workers and Rate; nil if Found is false
	Runs    []*report.Run `json:"-"` // all runs, ordered by rate, then by workers; nil if ctx ended the search
}

// ratePrecision is the relative precision at which the search for a rate ends. A finer search is useless, because the
// results of two seeds differ by more than 2 %.
const ratePrecision = 0.02

// PlanRate finds the largest rate that keeps the goal, for each policy. The search starts at c.Rate, doubles or halves
// the rate until it has a lower and an upper bound, and bisects between them. When ctx ends, the search ends early, and
// a plan has the best answer so far. PlanRate calls tell, if not nil, with each plan.
func PlanRate(ctx context.Context, c Config, policies []policy.Spec, goal Goal, tell func(Plan)) ([]Plan, error) {
	return plans(ctx, policies, tell, func(p policy.Spec) (Plan, error) {
		try := trial{ctx: ctx, config: c, goal: goal}
		try.config.Policy = p
		return try.rate()
	})
}

// PlanWorkers finds the smallest number of workers that keep the goal at c.Rate, for each policy. c must have one
// group, or a group that only prefills before a group that decodes: then it finds the number of prefill workers. ctx
// and tell are as in PlanRate.
func PlanWorkers(ctx context.Context, c Config, policies []policy.Spec, goal Goal, tell func(Plan)) ([]Plan, error) {
	if n := len(c.Groups); n != 1 && !(n == 2 && c.Groups[0].Role == fleet.RolePrefill && c.Groups[1].Role == fleet.RoleDecode) {
		return nil, errors.New("plan workers: only a fleet of workers that are alike can be sized")
	}
	return plans(ctx, policies, tell, func(p policy.Spec) (Plan, error) {
		try := trial{ctx: ctx, config: c, goal: goal}
		try.config.Policy = p
		return try.workers()
	})
}

// plans searches for all policies in parallel.
func plans(ctx context.Context, policies []policy.Spec, tell func(Plan), search func(policy.Spec) (Plan, error)) ([]Plan, error) {
	results := make([]Plan, len(policies))
	errs := make([]error, len(policies))
	var mu sync.Mutex // held during calls of tell
	var all sync.WaitGroup
	for i, p := range policies {
		all.Go(func() { // ends with the search, which ends early if ctx ends
			results[i], errs[i] = search(p)
			if tell != nil && errs[i] == nil {
				mu.Lock()
				tell(results[i])
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return results, err
	}
	return results, ctx.Err()
}

// trial is the search for one policy.
type trial struct {
	ctx    context.Context
	config Config
	goal   Goal
	runs   []*report.Run
}

// keeps plays the configuration and reports whether it keeps the goal.
func (t *trial) keeps(c Config) (bool, *report.Run, error) {
	run, err := Run(t.ctx, c, nil)
	if err != nil {
		return false, nil, err
	}
	if run.Stopped {
		return false, nil, t.ctx.Err()
	}
	t.runs = append(t.runs, run)
	return run.SLO[0].Share >= t.goal.Share, run, nil
}

func (t *trial) rate() (Plan, error) {
	plan := Plan{Policy: t.config.Policy.Name, Workers: workersOf(&t.config)}
	low, high := 0.0, math.Inf(1) // the goal is kept at rate low, and not kept at rate high
	at := t.config.withDefaults().Rate
	const smallest = 0.002
	for low == 0 || high > low*(1+ratePrecision) {
		// The rate is rounded to three decimals, which are easy to type.
		at = max(math.Round(at*1000)/1000, 0.001)
		c := t.config
		c.Rate = at
		ok, run, err := t.keeps(c)
		if err != nil {
			return plan, ignoreEnd(err)
		}
		if ok {
			low, plan.Found, plan.Rate, plan.Best = at, true, at, run
		} else {
			high = at
		}
		switch {
		case low == 0 && at < smallest:
			return t.done(plan), nil
		case low == 0:
			at /= 2
		case math.IsInf(high, 1) && at >= t.goal.MaxRate:
			plan.Limited = true
			return t.done(plan), nil
		case math.IsInf(high, 1):
			at = min(at*2, t.goal.MaxRate)
		default:
			at = math.Sqrt(low * high)
		}
	}
	return t.done(plan), nil
}

func (t *trial) workers() (Plan, error) {
	plan := Plan{Policy: t.config.Policy.Name, Rate: t.config.withDefaults().Rate}
	low, high := 0, t.goal.MaxWorkers+1 // the goal is not kept with low workers, and kept with high workers
	at := min(max(t.config.Groups[0].Count, 1), t.goal.MaxWorkers)
	for high-low > 1 {
		c := t.config
		c.Groups = slices.Clone(c.Groups)
		c.Groups[0].Count = at
		ok, run, err := t.keeps(c)
		if err != nil {
			return plan, ignoreEnd(err)
		}
		if ok {
			high, plan.Found, plan.Workers, plan.Best = at, true, at, run
		} else {
			low = at
		}
		if plan.Found {
			at = (low + high) / 2
		} else {
			at = min(2*at, t.goal.MaxWorkers)
		}
	}
	return t.done(plan), nil
}

func (t *trial) done(p Plan) Plan {
	slices.SortFunc(t.runs, func(a, b *report.Run) int {
		if a.Rate != b.Rate {
			return cmp.Compare(a.Rate, b.Rate)
		}
		return a.Setup.Workers - b.Setup.Workers
	})
	p.Runs = t.runs
	return p
}

// ignoreEnd drops the error of an ended context, because the answer so far is valid.
func ignoreEnd(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil
	}
	return fmt.Errorf("plan: %w", err)
}

func workersOf(c *Config) (n int) {
	for _, g := range c.Groups {
		n += g.Count
	}
	return n
}
