package policy_test

import (
	"testing"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// legQuery is a long prompt, and one holder with answers under way.
func legQuery(leg fleet.Leg, requests int) (policy.Query, policy.Candidate) {
	c := alikeHolders(func(a, _ *policy.Candidate) {
		a.Load.Requests, a.Load.ContextTokens = int64(requests), int64(2000*requests)
	})[0]
	q := policy.Query{PromptTokens: 12_000, Known: true, Rank: -1, Model: "m", Leg: leg, Now: 1e18, Levels: fleet.DefaultServiceLevels()}
	q.Requests = running(requests, q.Now)
	return q, c
}

func TestTheWeigherCountsADelayedAnswerAtEachLeg(t *testing.T) {
	w := policy.NewWeigher()
	for _, leg := range []fleet.Leg{fleet.LegWhole, fleet.LegPrefill} {
		q, busy := legQuery(leg, 40)
		without := q
		without.Requests = running(0, q.Now)
		if w.Cost(&q, &busy) <= w.Cost(&without, &busy) {
			t.Errorf("%v: answers that may break their levels cost nothing", leg)
		}
	}
}

func TestTheWeigherCountsTheRiskOfADividedRequestOnce(t *testing.T) {
	w := policy.NewWeigher()
	cost := func(leg fleet.Leg, levels []fleet.ServiceLevel) float64 {
		q, c := legQuery(leg, 0)
		c.Load.PendingTokens, c.Load.Backlog = 200_000, 20e9 // every level for the first token is broken
		q.Levels = levels
		return w.Cost(&q, &c)
	}
	for leg, counted := range map[fleet.Leg]bool{fleet.LegWhole: true, fleet.LegPrefill: false, fleet.LegDecode: true} {
		if with, without := cost(leg, fleet.DefaultServiceLevels()), cost(leg, nil); with > without != counted {
			t.Errorf("%v: with levels %.0f ms, without %.0f", leg, with, without)
		}
	}
}

func TestADecodeLegWaitsForNoPromptThatEndsBeforeItsPrefillLeg(t *testing.T) {
	w := policy.NewWeigher()
	cost := func(prefilled float64) float64 {
		q, c := legQuery(fleet.LegDecode, 0)
		q.Levels, q.Prefilled = nil, prefilled
		c.Load.PendingTokens, c.Load.Backlog = 20_000, 1e9
		return w.Cost(&q, &c)
	}
	now, soon, late := cost(0), cost(600), cost(5000)
	if d := now - soon; d < 599 || d > 601 {
		t.Errorf("a prefill leg of 600 ms saves %.0f ms of a wait of a second", d)
	}
	if d := now - late; d < 900 || d > 1200 {
		t.Errorf("a prefill leg of 5 s saves %.0f ms of a wait of a second", d)
	}
}

// TestALegWaitsForTheMemoryOfItsPrompt: answers that run at a full worker keep the memory that a prefill leg needs, and
// the memory into which the blocks of a decode leg are read.
func TestALegWaitsForTheMemoryOfItsPrompt(t *testing.T) {
	w := policy.NewWeigher()
	cost := func(leg fleet.Leg, role fleet.Role, room int) float64 {
		q, c := legQuery(leg, 20)
		worker := *c.Worker
		worker.Facts.Role, worker.Facts.BlocksPerRank = role, room
		c.Worker, c.Load.ContextBlocks, c.Load.ContextTokens = &worker, 2500, 40_000
		if leg == fleet.LegDecode {
			c.Fetched = q.PromptTokens
		}
		return w.Cost(&q, &c)
	}
	for _, leg := range []fleet.Leg{fleet.LegPrefill, fleet.LegDecode} {
		full, free := cost(leg, fleet.RoleBoth, 2600), cost(leg, fleet.RoleBoth, 10_000)
		if full-free < 100 {
			t.Errorf("%v: a full worker costs %.0f ms, a free one %.0f", leg, full, free)
		}
	}
	full, free := cost(fleet.LegPrefill, fleet.RolePrefill, 2600), cost(fleet.LegPrefill, fleet.RolePrefill, 10_000)
	if full-free > 100 {
		t.Errorf("at a worker that only prefills, memory is free soon: %.0f ms, %.0f with room", full, free)
	}
}
