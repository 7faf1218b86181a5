package main

import (
	"strings"

	"github.com/warmpath/warmpath/internal/sim"
)

// set is a workload with a load at which the policies differ.
type set struct {
	workload string // spec of the workload; the word TRACES in it stands for the folder of the traces
	rate     string
	workers  int
	kv       int // tokens in a worker's cache; 0: the capacity of the profile
	slow     int // number of workers at half speed
	routers  int // number of routers that do not share state; 0: one router
	seeds    int // fewest seeds; 0: one
}

const conversation = "mooncake:TRACES/mooncake_conversation.jsonl.gz"

// ladderSeeds is the fewest seeds of the ladder. At its highest stages the fleet either keeps up or falls behind, by
// chance: with three settings that hardly differ, the mean time to the first token was 221, 118 and 271 ms. One seed
// compares the states of two runs, and not two policies.
const ladderSeeds = 5

// sets has the sets by name. conversation, toolagent and ladder have the load at which the policies differ most. Most
// other sets have a load near the limit at which most policies no longer keep the service level.
var sets = map[string]set{
	"conversation":    {workload: conversation, rate: "1.75", workers: 8, kv: 1_500_000},
	"conversation-16": {workload: conversation, rate: "3.5", workers: 16, kv: 1_500_000},
	"conversation-32": {workload: conversation, rate: "7", workers: 32, kv: 1_500_000},
	"routers":         {workload: conversation, rate: "1.75", workers: 8, kv: 1_500_000, routers: 3},
	"unlike":          {workload: conversation, rate: "1.2", workers: 8, kv: 1_500_000, slow: 4},
	"toolagent":       {workload: "mooncake:TRACES/mooncake_toolagent_head1000.jsonl.gz", rate: "1.3", workers: 8},
	"ladder":          {workload: "gen:llmd-ladder,stages=15x50/20x30/40x30/60x25", rate: "1", workers: 8, seeds: ladderSeeds},
	"ladder-whole":    {workload: "gen:llmd-ladder", rate: "1", workers: 8, seeds: ladderSeeds},
	"code-agent":      {workload: "gen:code-agent,sessions=80,context=25000,context-max=60000,turns=15,rate=1", rate: "1", workers: 8},
	"rag":             {workload: "gen:rag,rate=40,requests=3000", rate: "1", workers: 8},
	"independent":     {workload: "gen:independent,rate=60,requests=2000,question=2000", rate: "1", workers: 8},
	"multi-round-qa":  {workload: "gen:multi-round-qa,users=100,qps=12,sessions=500,system=1000,history=8000", rate: "1", workers: 8},
	"shared-prefix":   {workload: "gen:sglang-shared-prefix,rate=60,prompts=40", rate: "1", workers: 8},
	"rollouts":        {workload: "gen:rl-rollouts", rate: "1", workers: 8},
	"chat":            {workload: "gen:interactive-chat,sessions=1000,rate=12", rate: "1", workers: 8},
}

// experiment returns the runs of the set, without policies and seeds. traces is the folder of the traces.
func (s *set) experiment(traces string) sim.Experiment {
	x := sim.DefaultExperiment()
	x.Workload = strings.ReplaceAll(s.workload, "TRACES", traces)
	x.Rate, x.Workers = []string{s.rate}, []int{s.workers}
	if s.kv > 0 {
		x.KVTokens = []int{s.kv}
	}
	if s.slow > 0 {
		x.Fleet = []sim.Member{{Count: s.workers - s.slow}, {Count: s.slow, Speed: 0.5}}
	}
	if s.routers > 0 {
		x.Routers = s.routers
	}
	return x
}
