package policy_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/policy/peers"
)

// kinds are all kinds of policies, of package policy and of package peers. The tests in this file hold for all of them.
var kinds = policy.Join(policy.Own(), peers.Kinds())

// specs are the built-in policies, and kv_aware with a bound.
func specs() []policy.Spec {
	bounded := policy.DefaultKVAware().Spec("kv_aware")
	bounded.Name, bounded.ImbalanceTokens = "kv_aware bounded", policy.DefaultImbalanceTokens
	return append(kinds.BuiltIn(), bounded)
}

func TestKindsAreSorted(t *testing.T) {
	if !slices.IsSorted(kinds.Names()) {
		t.Errorf("%v", kinds.Names())
	}
}

func build(t interface{ Fatal(...any) }, s policy.Spec) *policy.Policy {
	p, err := policy.Build(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// drawQuery and drawCandidates keep numbers small so that ties are common.
func drawQuery(t *rapid.T) policy.Query {
	q := policy.Query{
		PromptTokens: rapid.IntRange(0, 400).Draw(t, "tokens"),
		Known:        rapid.Bool().Draw(t, "known"),
		Target:       rapid.SampledFrom([]string{"", "", "", "w1", "http://w2"}).Draw(t, "target"),
		Rank:         rapid.IntRange(-3, 1).Draw(t, "rank"),
		Exclude:      rapid.SliceOfN(rapid.Custom(func(t *rapid.T) fleet.WorkerID { return fleet.WorkerID(rapid.IntRange(0, 5).Draw(t, "id")) }), 0, 3).Draw(t, "exclude"),
		MaxRequests:  rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "limit"),
		Turn:         rapid.Uint64().Draw(t, "turn"),
		Random:       rapid.Uint64().Draw(t, "random"),
		Session:      policy.Session{Key: rapid.SampledFrom([]string{"", "", "alice", "bob"}).Draw(t, "session")},
		Now:          int64(rapid.IntRange(0, 100).Draw(t, "now")) * 1e9,
	}
	if n := rapid.IntRange(0, 40).Draw(t, "text"); n > 0 {
		q.Prompt.Text = []byte(strings.Repeat("text ", n))
	}
	if q.Known {
		q.Prompt.BlockSize = 16
		for i := range q.PromptTokens / 16 {
			q.Prompt.Keys = append(q.Prompt.Keys, block.Key(i+1))
		}
	}
	return q
}

func drawCandidates(t *rapid.T, q *policy.Query) []policy.Candidate {
	c := make([]policy.Candidate, rapid.IntRange(0, 8).Draw(t, "candidates"))
	for i := range c {
		id := i / 2
		c[i] = policy.Candidate{
			Worker:    &fleet.Worker{ID: fleet.WorkerID(id), URL: fmt.Sprintf("http://w%d", id)},
			Holder:    fleet.Holder(i),
			Rank:      i % 2,
			Hash:      block.Mix64(uint64(i)),
			Available: rapid.IntRange(0, 3).Draw(t, "available") > 0,
			BlockSize: 16,
			Load: fleet.Load{
				Requests:      int64(rapid.IntRange(0, 4).Draw(t, "requests")),
				PrefillTokens: int64(rapid.SampledFrom([]int{0, 0, 100, 9000, 20000}).Draw(t, "prefill")),
				ContextBlocks: int64(rapid.SampledFrom([]int{0, 0, 10, 4000}).Draw(t, "context")),
				Processed:     uint64(rapid.IntRange(0, 2).Draw(t, "processed")),
			},
		}
		c[i].Load.PendingTokens = c[i].Load.PrefillTokens / int64(rapid.IntRange(1, 2).Draw(t, "computed"))
		c[i].Load.ContextTokens = c[i].Load.ContextBlocks * int64(c[i].BlockSize)
		if q.Known && q.PromptTokens > 0 {
			setMatch(&c[i], rapid.IntRange(0, (q.PromptTokens-1)/16).Draw(t, "gpu"), q)
			c[i].Predicted = min(c[i].Match+16*rapid.IntRange(0, 2).Draw(t, "predicted"), (q.PromptTokens-1)/16*16)
		}
	}
	return c
}

func setMatch(c *policy.Candidate, blocks int, q *policy.Query) {
	c.Match = blocks * 16
	c.Tier = [block.NumTiers]int{block.TierGPU: c.Match}
	c.Predicted = max(c.Predicted, c.Match)
}

// eligible reports whether a request may go to a candidate at all. It shares no code with the filters that it checks.
func eligible(q *policy.Query, c *policy.Candidate) bool {
	return c.Available && !slices.Contains(q.Exclude, c.Worker.ID) &&
		(q.Target == "" || strings.HasSuffix(c.Worker.URL, q.Target)) &&
		(q.Rank < 0 || q.Rank == c.Rank) &&
		(q.MaxRequests == 0 || c.Load.Requests < int64(q.MaxRequests))
}

func chosen(p *policy.Policy, q policy.Query, c []policy.Candidate) (fleet.Holder, policy.Choice, []policy.Candidate) {
	c = slices.Clone(c)
	choice := p.Choose(&q, c)
	if choice.Index < 0 {
		return fleet.NoHolder, choice, c
	}
	return c[choice.Index].Holder, choice, c
}

func TestNoPolicyPicksWhatCannotBeUsed(t *testing.T) {
	for _, s := range specs() {
		t.Run(s.Name, func(t *testing.T) {
			p := build(t, s)
			rapid.Check(t, func(t *rapid.T) {
				q := drawQuery(t)
				c := drawCandidates(t, &q)
				any := slices.ContainsFunc(c, func(x policy.Candidate) bool { return eligible(&q, &x) })
				holder, choice, after := chosen(p, q, c)
				if (holder != fleet.NoHolder) != any {
					t.Fatalf("chose holder %d; whether any holder can be used: %v", holder, any)
				}
				if holder == fleet.NoHolder {
					return
				}
				if !eligible(&q, &c[holder]) {
					t.Fatalf("chose %+v", c[holder])
				}
				seen := map[fleet.Holder]bool{}
				for i := range after {
					seen[after[i].Holder] = true
					if passed := i < choice.Passed; passed != (after[i].Reason == "") {
						t.Fatalf("candidate %d of %d that passed has reason %q", i, choice.Passed, after[i].Reason)
					}
					if score := after[i].Score; math.IsNaN(score) || math.IsInf(score, 0) {
						t.Fatalf("score %v", score)
					}
					if score := after[i].Score; s.Chooser == nil && (score < 0 || score > weights(s)) {
						t.Fatalf("score %v", score)
					}
				}
				if len(seen) != len(c) {
					t.Fatalf("%d candidates before, %d after", len(c), len(seen))
				}
			})
		})
	}
}

// weights is the highest score that scorers can give.
func weights(s policy.Spec) float64 {
	sum := 0.0
	for _, w := range s.Scorers {
		sum += w.Weight
	}
	return sum
}

// exceptions lists policies for which a property does not hold, by property and by name of the policy. The value is the
// reason.
var exceptions = map[string]map[string]string{
	"order": {
		"round_robin":      "turns by position",
		"random":           "draws a position",
		"power_of_two":     "draws two positions",
		"smg_power_of_two": "draws two positions",
	},
	"load": {
		"round_robin":      "does not read load, and saturated workers change the turn",
		"random":           "does not read load",
		"power_of_two":     "draws two positions, which depend on nothing else",
		"smg_power_of_two": "draws two positions, which depend on nothing else",
	},
	"match": {},
}

// each checks a property for all policies except those that exceptions lists.
func each(t *testing.T, property string, check func(t *rapid.T, p *policy.Policy)) {
	for _, s := range specs() {
		if why := exceptions[property][s.Name]; why != "" {
			continue
		}
		t.Run(s.Name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				p := build(t, s)
				for range rapid.IntRange(0, 3).Draw(t, "before") { // so that a policy with a memory remembers something
					q := drawQuery(t)
					c := drawCandidates(t, &q)
					if choice := p.Choose(&q, c); choice.Index >= 0 {
						p.Routed(&q, &c[choice.Index])
					}
				}
				check(t, p)
			})
		})
	}
}

func TestTheOrderOfWorkersDoesNotMatter(t *testing.T) {
	each(t, "order", func(t *rapid.T, p *policy.Policy) {
		q := drawQuery(t)
		c := drawCandidates(t, &q)
		before, choice, _ := chosen(p, q, c)
		rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "shuffle"), 0)).Shuffle(len(c), func(i, j int) { c[i], c[j] = c[j], c[i] })
		after, again, _ := chosen(p, q, c)
		if before != after || choice.Branch != again.Branch {
			t.Fatalf("chose %d (%s), shuffled %d (%s)", before, choice.Branch, after, again.Branch)
		}
	})
}

func TestMoreLoadNeverAttracts(t *testing.T) {
	each(t, "load", func(t *rapid.T, p *policy.Policy) {
		q := drawQuery(t)
		c := drawCandidates(t, &q)
		if len(c) == 0 {
			return
		}
		before, _, _ := chosen(p, q, c)
		i := rapid.IntRange(0, len(c)-1).Draw(t, "loaded")
		prefill, context := int64(rapid.IntRange(0, 20000).Draw(t, "more prefill")), int64(rapid.IntRange(0, 500).Draw(t, "more context"))
		c[i].Load.PrefillTokens += prefill
		c[i].Load.PendingTokens += prefill
		c[i].Load.ContextBlocks += context
		c[i].Load.ContextTokens += context * int64(c[i].BlockSize)
		c[i].Load.Requests += int64(rapid.IntRange(0, 5).Draw(t, "more requests"))
		if after, _, _ := chosen(p, q, c); int(after) == i && before != after {
			t.Fatalf("chose holder %d, and holder %d after the load of the latter grew", before, after)
		}
	})
}

func TestMoreMatchNeverRepels(t *testing.T) {
	each(t, "match", func(t *rapid.T, p *policy.Policy) {
		q := drawQuery(t)
		c := drawCandidates(t, &q)
		before, _, _ := chosen(p, q, c)
		if before == fleet.NoHolder || !q.Known || q.PromptTokens == 0 {
			return
		}
		most := (q.PromptTokens - 1) / 16
		setMatch(&c[before], rapid.IntRange(c[before].Match/16, most).Draw(t, "more match"), &q)
		if after, _, _ := chosen(p, q, c); after != before {
			t.Fatalf("chose holder %d, and holder %d after the match of holder %d grew", before, after, before)
		}
	})
}

func TestRandomReachesEveryWorkerEvenly(t *testing.T) {
	c := make([]policy.Candidate, 4)
	for i := range c {
		c[i] = policy.Candidate{Worker: &fleet.Worker{ID: fleet.WorkerID(i)}, Holder: fleet.Holder(i), Hash: block.Mix64(uint64(i)), Available: true}
	}
	for _, name := range []string{"random", "power_of_two", "kv_aware"} {
		spec, err := builtIn(name)
		if err != nil {
			t.Fatal(err)
		}
		p := build(t, spec)
		source := rand.New(rand.NewPCG(1, 2))
		var counts [4]int
		const rounds = 40000
		for range rounds {
			h, _, _ := chosen(p, policy.Query{PromptTokens: 100, Known: true, Rank: -1, Random: source.Uint64()}, c)
			counts[h]++
		}
		for i, n := range counts {
			if n < rounds/4*95/100 || n > rounds/4*105/100 {
				t.Errorf("%s: worker %d was chosen %d times of %d", name, i, n, rounds)
			}
		}
	}
}

func TestBuildSaysAllThatIsWrong(t *testing.T) {
	_, err := policy.Build(policy.Spec{
		Scorers:         []policy.Weighted{{"wisdom", 1}, {"match", -1}},
		Picker:          "lucky",
		TierWeights:     [block.NumTiers]float64{2},
		ImbalanceTokens: -1,
	})
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"name is missing", `scorer is called "wisdom"`, "weight -1 of scorer match",
		`picker is called "lucky"`, "power_of_two", "tier weight 2 of gpu", "imbalance of -1"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
}
