package policy_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/test/testenv"
)

// underway has the same requests for each holder.
type underway []fleet.Underway

func (u underway) AppendUnderway(dst []fleet.Underway, _ fleet.Holder, _ int64, most int) (list []fleet.Underway, every int) {
	every = max((len(u)+most-1)/most, 1)
	for i := 0; i < len(u); i += every {
		dst = append(dst, u[i])
	}
	return dst, every
}

// running returns n requests in the middle of their answers. All have levels.
func running(n int, now int64) underway {
	u := make(underway, n)
	for i := range u {
		since := int64(i%40+1) * int64(100*time.Millisecond)
		u[i] = fleet.Underway{Levels: fleet.DefaultServiceLevels(), Arrived: now - since - int64(300*time.Millisecond), First: now - since, Output: i % 40}
		if i%4 == 0 {
			u[i].Waiting, u[i].First, u[i].Output = true, now+int64(50*time.Millisecond), 0
		}
	}
	return u
}

// withRequests is field with n candidates that have 8 requests each.
func withRequests(n int) (policy.Query, []policy.Candidate) {
	q, c := field(n)
	q.Now, q.Model = 1e18, "m"
	q.Requests = running(8, q.Now)
	for i := range c {
		c[i].Load.Requests, c[i].Load.ContextTokens = 8, 8000
	}
	return q, c
}

// TestWithoutLevelsTheRiskChangesNothing: a request for which nobody can break a level is routed as with risk=0.
func TestWithoutLevelsTheRiskChangesNothing(t *testing.T) {
	without := parsed(t, "marginal:risk=0")
	rapid.Check(t, func(rt *rapid.T) {
		q := drawQuery(rt)
		a := drawCandidates(rt, &q)
		b := append([]policy.Candidate(nil), a...)
		with := parsed(t, "marginal")
		want := without.Choose(&q, b)
		q.Requests = underway(nil)
		got := with.Choose(&q, a)
		switch {
		case got.Index < 0 || want.Index < 0:
			if got.Index != want.Index {
				rt.Fatalf("%+v, want %+v", got, want)
			}
		case a[got.Index].Holder != b[want.Index].Holder:
			rt.Fatalf("holder %d, want %d", a[got.Index].Holder, b[want.Index].Holder)
		}
	})
}

// TestTheRiskIsNeverNegative: one more request cannot make another answer faster.
func TestTheRiskIsNeverNegative(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		q := drawQuery(rt)
		c := drawCandidates(rt, &q)
		var u underway
		for range rapid.IntRange(0, 300).Draw(rt, "requests") {
			r := fleet.Underway{
				Levels:  []fleet.ServiceLevel{{FirstToken: time.Duration(rapid.IntRange(1, 5000).Draw(rt, "first")) * time.Millisecond, PerToken: time.Duration(rapid.IntRange(0, 200).Draw(rt, "token")) * time.Millisecond}},
				Waiting: rapid.Bool().Draw(rt, "waiting"), Output: rapid.IntRange(0, 3000).Draw(rt, "output"), MostTokens: rapid.IntRange(0, 100).Draw(rt, "most"),
			}
			r.First = q.Now + int64(rapid.IntRange(-90_000, 20_000).Draw(rt, "at"))*1e6
			r.Arrived = r.First - int64(rapid.IntRange(0, 9000).Draw(rt, "waited"))*1e6
			u = append(u, r)
		}
		q.Requests = u
		p := parsed(t, "marginal")
		choice := p.Choose(&q, c)
		for i := range c[:choice.Passed] {
			if risk := c[i].Terms[len(p.Terms())-1]; !(risk >= 0) {
				rt.Fatalf("candidate %d: risk %v", i, risk)
			}
		}
	})
}

// TestManyRequestsAreSampled: the risk of a holder with many alike requests grows with their number, though only some
// of them are looked at.
func TestManyRequestsAreSampled(t *testing.T) {
	risk := func(n int) float64 {
		q, c := withRequests(1)
		one := fleet.Underway{Levels: fleet.DefaultServiceLevels(), Arrived: q.Now - 9.2e9, First: q.Now - 9e9, Output: 170}
		u := make(underway, n)
		for i := range u {
			u[i] = one
		}
		q.Requests = u
		p := parsed(t, "marginal")
		p.Choose(&q, c)
		return c[0].Terms[len(p.Terms())-1]
	}
	single := risk(1)
	if single <= 0 {
		t.Fatal("one answer at its limit has no risk")
	}
	for _, n := range []int{2, 128, 129, 500, 10_000} {
		if got := risk(n) / single; got < 0.95*float64(n) || got > 1.05*float64(n)+2 {
			t.Errorf("%d requests have the risk of %.1f", n, got)
		}
	}
}

func TestTheRiskAllocatesNothing(t *testing.T) {
	if testenv.Race() {
		t.Skip("skipped: the race detector makes sync.Pool drop values at random")
	}
	for _, n := range []int{1, 8, 64} {
		q, c := withRequests(n)
		p := parsed(t, "marginal")
		p.Choose(&q, c)
		if allocs := testing.AllocsPerRun(100, func() { p.Choose(&q, c) }); allocs != 0 {
			t.Errorf("of %d candidates: %v allocations", n, allocs)
		}
	}
}

// BenchmarkRisk is a decision among 64 candidates, with and without requests that have service levels.
func BenchmarkRisk(b *testing.B) {
	for _, requests := range []int{0, 8, 64, 512} {
		b.Run(fmt.Sprintf("requests=%d", requests), func(b *testing.B) {
			q, c := withRequests(64)
			q.Requests = running(requests, q.Now)
			p := parsed(b, "marginal")
			for n := range 300 {
				p.Finished(&policy.Finished{Model: "m", Outcome: fleet.OutcomeServed, OutputTokens: n})
			}
			b.ReportAllocs()
			for b.Loop() {
				q.Random++
				p.Choose(&q, c)
			}
		})
	}
}

// riskAt returns the risk of one candidate, with the given requests under way there. change may change the query and
// the candidate: a prompt of 8,000 tokens, and ten requests with a context of 2,000 tokens each.
func riskAt(t *testing.T, p *policy.Policy, u underway, change func(q *policy.Query, c *policy.Candidate)) float64 {
	t.Helper()
	q := policy.Query{PromptTokens: 8000, Known: true, Rank: -1, Model: "m", Now: 1e18, Requests: u}
	c := []policy.Candidate{{Worker: &fleet.Worker{}, Available: true, BlockSize: 16}}
	c[0].Load.Requests, c[0].Load.ContextTokens = 10, 20_000
	if change != nil {
		change(&q, &c[0])
	}
	if got := p.Choose(&q, c); got.Index != 0 {
		t.Fatalf("%+v", got)
	}
	return c[0].Terms[len(p.Terms())-1]
}

// atLimit is an answer that just keeps 50 ms for each token if it has no more delay.
func atLimit() fleet.Underway {
	return fleet.Underway{Levels: fleet.DefaultServiceLevels(), Arrived: 1e18 - 9.2e9, First: 1e18 - 9e9, Output: 170}
}

// TestTheLengthsOfTheLastAnswersCount: a delay of half a second breaks the level of a short answer, and a long answer
// has time to make up for it. Answers of requests with the same beginning tell which it is.
func TestTheLengthsOfTheLastAnswersCount(t *testing.T) {
	p := parsed(t, "marginal")
	for range 8 {
		p.Finished(&policy.Finished{Model: "m", Class: 1, Outcome: fleet.OutcomeServed, OutputTokens: 20})
		p.Finished(&policy.Finished{Model: "m", Class: 2, Outcome: fleet.OutcomeServed, OutputTokens: 2000})
	}
	of := func(class uint64) float64 {
		u := fleet.Underway{Levels: fleet.DefaultServiceLevels(), Arrived: 1e18 - 6e8, First: 1e18 - 5e8, Output: 10, Class: class}
		return riskAt(t, p, underway{u}, nil)
	}
	short, long, either := of(1), of(2), of(0)
	if short < 500 || long > 1 || either < 0.3*short || either > 0.7*short {
		t.Errorf("the risk of a short answer is %.1f, of a long one %.1f, and of one of both kinds %.1f", short, long, either)
	}
}

func TestPromptsThatWaitDelayAnswersInAnyCase(t *testing.T) {
	p := parsed(t, "marginal")
	backlog := func(ms float64) func(*policy.Query, *policy.Candidate) {
		return func(_ *policy.Query, c *policy.Candidate) { c.Load.Backlog = time.Duration(ms * 1e6) }
	}
	strict := atLimit()
	strict.Levels = strict.Levels[1:]
	if free, waits := riskAt(t, p, underway{strict}, backlog(0)), riskAt(t, p, underway{strict}, backlog(5000)); free < 100 || waits > 1 {
		t.Errorf("a level that is broken by the prompts that wait has the risk %.1f, and without them %.1f", waits, free)
	}
	// Of two requests that wait, the last one is delayed by no other prompt that waits.
	waiting := func(first float64) float64 {
		u := fleet.Underway{Levels: fleet.DefaultServiceLevels(), Arrived: 1e18, First: 1e18 + int64(first*1e6), Waiting: true, MostTokens: 8}
		return riskAt(t, p, underway{u}, backlog(500))
	}
	if first, last := waiting(50), waiting(500); last > 0.7*first {
		t.Errorf("the first of the queue has the risk %.1f, and the last one %.1f", first, last)
	}
}

func TestCachedTokensDelayNobody(t *testing.T) {
	p := parsed(t, "marginal")
	cold := riskAt(t, p, underway{atLimit()}, nil)
	warm := riskAt(t, p, underway{atLimit()}, func(_ *policy.Query, c *policy.Candidate) {
		c.Match, c.Predicted, c.Tier[0] = 7984, 7984, 7984
	})
	if cold < 100 || warm > cold/3 {
		t.Errorf("the risk is %.1f without a match and %.1f with one", cold, warm)
	}
}

// TestASlowHolderPutsOthersAtRiskButNotItself: the answers of others are predicted by the holder's own times. The new
// request's own risk uses the mean of all holders, or a slow holder would get no requests.
func TestASlowHolderPutsOthersAtRiskButNotItself(t *testing.T) {
	f := func(q policy.Query) [2]float64 {
		t.Helper()
		p := parsed(t, "marginal")
		c := make([]policy.Candidate, 2)
		for i := range c {
			c[i] = policy.Candidate{Worker: &fleet.Worker{ID: fleet.WorkerID(i)}, Holder: fleet.Holder(i), Available: true, BlockSize: 16}
			c[i].Load.Timing = fleet.DefaultTiming
			c[i].Load.Timing.Samples = 1000
		}
		slow := &c[1].Load.Timing
		slow.Base, slow.Token, slow.Context = 2*slow.Base, 2*slow.Token, 2*slow.Context
		q.PromptTokens, q.Known, q.Rank, q.Model, q.Now = 500, true, -1, "m", 1e18
		p.Choose(&q, c)
		risks := [2]float64{}
		for i := range c {
			risks[c[i].Holder] = c[i].Terms[len(p.Terms())-1]
		}
		return risks
	}
	if got := f(policy.Query{Requests: underway{}, Levels: []fleet.ServiceLevel{{FirstToken: 5 * time.Second, PerToken: 37 * time.Millisecond}}}); got[0] != got[1] || got[0] < 100 {
		t.Errorf("the own risk is %v", got)
	}
	u := fleet.Underway{Levels: fleet.DefaultServiceLevels(), Arrived: 1e18 - 5e9, First: 1e18 - 4.9e9, Output: 100}
	if got := f(policy.Query{Requests: underway{u}}); got[1] < 3*got[0]+10 {
		t.Errorf("the risk of an answer is %.1f at a fast holder and %.1f at a slow one", got[0], got[1])
	}
}

// TestADifferenceInLoadCountsLessOnABusyFleet: routing levels the difference before the answer ends.
func TestADifferenceInLoadCountsLessOnABusyFleet(t *testing.T) {
	slowed := func(crowd int64) float64 {
		p := parsed(t, "marginal")
		for range 2000 {
			c := policy.Candidate{}
			c.Load.Requests = crowd
			p.Routed(&policy.Query{Model: "m"}, &c)
		}
		q := policy.Query{PromptTokens: 100, Known: true, Rank: -1, Model: "m"}
		c := alikeHolders(func(a, _ *policy.Candidate) { a.Load.Requests, a.Load.ContextTokens = 100, 1_000_000 })
		p.Choose(&q, c)
		decode := slices.Index(p.Terms(), "decode")
		return math.Abs(c[0].Terms[decode] - c[1].Terms[decode])
	}
	if got := slowed(48) / slowed(12); got < 0.24 || got > 0.26 {
		t.Errorf("with 48 requests at each holder a difference counts %.2f times as much as with 12, want a quarter", got)
	}
}

// TestLevelsBuyNoPrecedence: a long limit for the first token, or many levels, do not make a request's risk greater
// than that of usual levels.
func TestLevelsBuyNoPrecedence(t *testing.T) {
	p := parsed(t, "marginal")
	of := func(levels string) float64 {
		u := atLimit()
		var err error
		if u.Levels, err = fleet.ParseServiceLevels(levels); err != nil {
			t.Fatal(err)
		}
		return riskAt(t, p, underway{u}, nil)
	}
	usual := of("5s/54ms")
	for _, levels := range []string{"1h/54ms", "5s/54ms,2s/54ms", "60s/54ms,61s/54ms,62s/54ms,63s/54ms"} {
		if got := of(levels); got < usual || got > 1.41*usual {
			t.Errorf("%s has the risk %.1f, and 5s/54ms %.1f", levels, got, usual)
		}
	}
}

// TestAnAnswerOfOneTokenHasNoFurtherTokens, so that no delay can break their limit.
func TestAnAnswerOfOneTokenHasNoFurtherTokens(t *testing.T) {
	u := fleet.Underway{Levels: fleet.DefaultServiceLevels(), Arrived: 1e18, First: 1e18 + 2e8, Waiting: true, MostTokens: 1}
	if got := riskAt(t, parsed(t, "marginal"), underway{u}, nil); got != 0 {
		t.Errorf("its risk is %v", got)
	}
}
