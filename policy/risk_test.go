package policy_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// underway has the same requests for each holder.
type underway []fleet.Underway

func (u underway) AppendUnderway(dst []fleet.Underway, _ fleet.Holder, _ int64) []fleet.Underway {
	return append(dst, u...)
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
