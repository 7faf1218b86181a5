package policy_test

import (
	"fmt"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// field returns a query and n candidates. Every third candidate has a match, except the first. Candidate 7 and every
// fiftieth after it are unavailable.
func field(n int) (policy.Query, []policy.Candidate) {
	q := policy.Query{PromptTokens: 8000, Known: true, Rank: -1, Random: 7}
	c := make([]policy.Candidate, n)
	for i := range c {
		c[i] = policy.Candidate{
			Worker:    &fleet.Worker{ID: fleet.WorkerID(i), URL: fmt.Sprintf("http://10.0.0.%d:8000", i)},
			Holder:    fleet.Holder(i),
			Hash:      block.Mix64(uint64(i)),
			Available: i%50 != 7,
			BlockSize: 16,
			Load:      fleet.Load{PrefillTokens: int64(i * 37 % 5000), ContextBlocks: int64(i * 61 % 4000)},
		}
		if i%3 == 0 {
			c[i].Match = 16 * (i % 400)
			c[i].Tier = [block.NumTiers]int{block.TierGPU: c[i].Match}
			c[i].Predicted = c[i].Match
		}
	}
	return q, c
}

func TestChooseDoesNotAllocate(t *testing.T) {
	for _, s := range specs() {
		p := build(t, s)
		for _, n := range []int{8, 64, 1024} {
			q, c := field(n)
			q.Exclude = []fleet.WorkerID{3}
			q.Session = policy.Session{Key: "alice", Source: "x-session-id"}
			q.Prompt = policy.Prompt{Text: []byte("a prompt"), Keys: make([]block.Key, 500), BlockSize: 16}
			if s.NeedsTarget {
				q.Target = c[4].Worker.URL
			}
			if allocs := testing.AllocsPerRun(20, func() { p.Choose(&q, c) }); allocs != 0 {
				t.Errorf("%s of %d: %v allocations", s.Name, n, allocs)
			}
		}
	}
}

func BenchmarkChoose(b *testing.B) {
	for _, s := range specs() {
		if s.NeedsTarget {
			continue
		}
		for _, n := range []int{8, 64, 1024} {
			b.Run(fmt.Sprintf("%s/%d", s.Name, n), func(b *testing.B) {
				p := build(b, s)
				q, c := field(n)
				b.ReportAllocs()
				for b.Loop() {
					q.Random++
					p.Choose(&q, c)
				}
			})
		}
	}
}
