package policy_test

import (
	"strings"
	"testing"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// alikeHolders returns two equal holders; change may make them different.
func alikeHolders(change func(a, b *policy.Candidate)) []policy.Candidate {
	c := make([]policy.Candidate, 2)
	for i := range c {
		c[i] = policy.Candidate{Worker: &fleet.Worker{ID: fleet.WorkerID(i)}, Holder: fleet.Holder(i), Hash: uint64(i), Available: true, BlockSize: 16, Trust: fleet.TrustExact}
		c[i].Load.Requests, c[i].Load.Room, c[i].Load.RoomKnown = 1, 1, true
	}
	change(&c[0], &c[1])
	return c
}

func priced(t *testing.T, q policy.Query, c []policy.Candidate) policy.Choice {
	t.Helper()
	q.Known, q.Rank, q.Model = true, -1, "m"
	return build(t, policy.DefaultMarginal().Spec("marginal")).Choose(&q, c)
}

func TestWhatIsAtRiskCountsAsComputedAgain(t *testing.T) {
	c := alikeHolders(func(a, b *policy.Candidate) { a.Predicted, a.AtRisk, b.Predicted = 4000, 3000, 2000 })
	if got := priced(t, policy.Query{PromptTokens: 5000}, c); got.Index != 1 || got.Branch != policy.BranchAffinity {
		t.Errorf("%+v: the second holder keeps more of the prompt", got)
	}
	c = alikeHolders(func(a, b *policy.Candidate) { a.Predicted, a.AtRisk, b.Predicted = 4000, 1000, 2000 })
	if got := priced(t, policy.Query{PromptTokens: 5000}, c); got.Index != 0 || got.Branch != policy.BranchAffinity {
		t.Errorf("%+v: the first holder still keeps more of the prompt than the second", got)
	}
}

// TestAMissSaysWhetherAMatchIsAtRisk: an operator who sees a long match and the word miss must learn why the match does
// not count. The policy's own reasons must say this, and the general reasons, too.
func TestAMissSaysWhetherAMatchIsAtRisk(t *testing.T) {
	doomed := func(a, _ *policy.Candidate) { a.Predicted, a.AtRisk = 4000, 4000 }
	for _, c := range []struct {
		change     func(a, b *policy.Candidate)
		named, not string
	}{
		{doomed, "is expected to be evicted before it is scheduled: the lowest predicted cost", "no worker has"},
		{func(_, _ *policy.Candidate) {}, "no worker has a part of the prompt: the lowest predicted cost", "evicted"},
	} {
		got := priced(t, policy.Query{PromptTokens: 5000}, alikeHolders(c.change))
		if got.Branch != policy.BranchMiss || !strings.Contains(got.Reason, c.named) || strings.Contains(got.Reason, c.not) {
			t.Errorf("%s: %q, want %q", got.Branch, got.Reason, c.named)
		}
	}
	c := alikeHolders(doomed)
	if got := parsed(t, "kv_aware").ReasonAmong(policy.BranchMiss, c); !strings.HasSuffix(got, "scheduled: least load") {
		t.Errorf("the general words are %q", got)
	}
}
