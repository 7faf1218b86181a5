package sim

import (
	"context"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/policy"
)

// planned returns a configuration and two policies. The SLO is so short that requests miss it if an engine prefills
// three prompts in one pass.
func planned() (Config, []policy.Spec) {
	c := config(families(24, 400, 100*time.Millisecond), "random", func(c *Config) {
		c.SLOs = []report.SLO{{TTFT: 250 * time.Millisecond}}
	})
	aware, err := ParsePolicy("kv_aware")
	if err != nil {
		panic(err)
	}
	return c, []policy.Spec{aware, c.Policy}
}

func TestAPlanFindsTheLargestRateThatKeepsTheGoal(t *testing.T) {
	c, policies := planned()
	plans, err := PlanRate(context.Background(), c, policies, Goal{Share: .9, MaxRate: 64}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range plans {
		if !p.Found || p.Limited {
			t.Fatalf("%s: %+v", p.Policy, p)
		}
		share := func(rate float64) float64 {
			try := c
			try.Policy, try.Rate = policies[i], rate
			return run(t, try).SLO[0].Share
		}
		if at, above := share(p.Rate), share(p.Rate*1.1); at < .9 || above >= .9 {
			t.Errorf("%s: %.3f of requests are good at rate %v and %.3f a tenth above", p.Policy, at, p.Rate, above)
		}
	}
	if plans[0].Rate <= plans[1].Rate {
		t.Errorf("kv_aware takes rate %v, random %v", plans[0].Rate, plans[1].Rate)
	}
}

func TestAPlanFindsTheFewestWorkers(t *testing.T) {
	c, policies := planned()
	c.Rate = 3
	plans, err := PlanWorkers(context.Background(), c, policies, Goal{Share: .9, MaxWorkers: 64}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range plans {
		share := func(workers int) float64 {
			try := c
			try.Policy = policies[i]
			try.Groups = []Group{c.Groups[0]}
			try.Groups[0].Count = workers
			return run(t, try).SLO[0].Share
		}
		if !p.Found || p.Workers < 2 || share(p.Workers) < .9 || share(p.Workers-1) >= .9 {
			t.Errorf("%s: %d workers", p.Policy, p.Workers)
		}
	}
}

func TestAPlanSaysWhenThereIsNoAnswer(t *testing.T) {
	c, policies := planned()
	c.SLOs = []report.SLO{{TTFT: time.Millisecond}}
	for _, search := range []func(context.Context, Config, []policy.Spec, Goal, func(Plan)) ([]Plan, error){PlanRate, PlanWorkers} {
		plans, err := search(context.Background(), c, policies, Goal{Share: .9, MaxWorkers: 16, MaxRate: 4}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if plans[0].Found || plans[0].Best != nil || len(plans[0].Runs) == 0 {
			t.Errorf("a goal that nothing keeps: %+v", plans[0])
		}
	}
	c.SLOs = []report.SLO{{TTFT: time.Hour}}
	plans, err := PlanRate(context.Background(), c, policies, Goal{Share: .9, MaxRate: 4}, nil)
	if err != nil || !plans[0].Found || !plans[0].Limited || plans[0].Rate != 4 {
		t.Errorf("a goal that everything keeps: %+v, %v", plans[0], err)
	}
}
