package policy_test

import (
	"testing"

	"github.com/warmpath/warmpath/policy"
)

// TestTheReasonForATieNamesTheFigureThatDecided: candidates a and b have the same score, and the policy takes a. The
// reason why b was not taken must be the figure by which the policy decided, and not another figure that b has more of.
func TestTheReasonForATieNamesTheFigureThatDecided(t *testing.T) {
	for name, c := range map[string]struct {
		policy string
		change func(a, b *policy.Candidate)
		want   string
	}{
		"kv_aware compares work before turns": {"kv_aware", func(a, b *policy.Candidate) {
			a.Load.Turns, b.Load.PrefillTokens = 9000, 100
		}, "as good, with more work"},
		"kv_aware compares turns before the requests so far": {"kv_aware", func(a, b *policy.Candidate) {
			a.Load.Processed, b.Load.Turns = 2, 1000
		}, "as good, with more requests so far for its pace"},
		"kv_aware does not compare requests under way": {"kv_aware", func(a, b *policy.Candidate) {
			b.Load.Requests, b.Load.Processed = 5, 1
		}, "as good, with more requests so far"},
		"a match beyond the prompt saves no work": {"lmetric", func(a, b *policy.Candidate) {
			a.Predicted, b.Predicted, b.Load.Turns = 6000, 5000, 1000
		}, "as good, with more requests so far for its pace"},
		"the highest score by chance does not compare work": {"precise_prefix_cache", func(a, b *policy.Candidate) {
			b.Load.PrefillTokens = 100
		}, "as good: decided by hash"},
		"kv compares nothing": {"kv:track_prefill_tokens=false", func(a, b *policy.Candidate) {
			b.Load.PrefillTokens, b.Load.Requests = 100, 5
		}, "as good: decided by hash"},
		"cache_aware compares requests, not work": {"cache_aware", func(a, b *policy.Candidate) {
			b.Load.PrefillTokens, b.Load.Processed = 100, 1
		}, "as good, with more requests so far"},
	} {
		p := parsed(t, c.policy)
		q := policy.Query{PromptTokens: 5000, Known: true, Rank: -1, Model: "m"}
		candidates := alikeHolders(c.change)
		choice := p.Choose(&q, candidates)
		for choice.Index != 0 && q.Random < 100 { // if a hash decides, it takes a for some random number
			q.Random++
			choice = p.Choose(&q, candidates)
		}
		if got := choice.Why(&q, candidates, 1); choice.Index != 0 || got != c.want {
			t.Errorf("%s: took candidate %d, reason %q, want %q", name, choice.Index, got, c.want)
		}
	}
}
