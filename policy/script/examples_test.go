package script

import (
	"fmt"
	"os"
	"testing"

	"github.com/warmpath/warmpath/policy"
)

func example(t testing.TB, name string) *policy.Policy {
	t.Helper()
	text, err := os.ReadFile("../../examples/script/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return build(t, string(text))
}

// at returns the worker that p chooses, and the reason.
func at(p *policy.Policy, q *policy.Query, list []policy.Candidate) string {
	choice := p.Choose(q, list)
	return list[choice.Index].Worker.URL[len("http://"):] + " " + string(choice.Branch) + ": " + choice.Reason
}

func TestTheExampleLeastLoadedTakesTheFewestRequests(t *testing.T) {
	list := workers(4)
	list[0].Load.Requests, list[2].Load.Requests, list[2].Load.PrefillTokens = 5, 1, 10
	if got := at(example(t, "least_loaded.star"), ask(), list); got != "w2:8000 script: 1 requests, the fewest" {
		t.Error(got)
	}
}

func TestTheExamplePrefixWithCapLeavesABusyMatch(t *testing.T) {
	p := example(t, "prefix_with_cap.star")
	const why = ":8000 script: the longest match below the cap, then the fewest requests"
	list := workers(4)
	if got := at(p, ask(), list); got != "w3"+why {
		t.Error(got)
	}
	list[3].Load.Requests = 9
	if got := at(p, ask(), list); got != "w2"+why {
		t.Error(got)
	}
	choice := p.Choose(ask(), list)
	if note := choice.Why(ask(), list, 3); note != "9 requests more than the least loaded worker" {
		t.Error(note)
	}
	q := ask()
	q.PromptTokens = 100_000 // every match is less than a tenth
	if got := at(p, q, list); got != "w0"+why {
		t.Error(got)
	}
}

func TestTheExampleTenantPinningKeepsTenantsApart(t *testing.T) {
	p := example(t, "tenant_pinning.star")
	list := workers(4)
	list[2].Worker.Facts.Labels = map[string]string{"pool": "gold"}
	list[3].Worker.Facts.Labels = map[string]string{"pool": "gold"}
	q := ask()
	if got := at(p, q, list); got != "w2:8000 script: the least work in the pool gold" {
		t.Error(got)
	}
	p.Routed(q, &list[3])
	if got := at(p, q, list); got != "w3:8000 script: the worker of tenant acme" {
		t.Error(got)
	}
	list[3].Load.Requests = 16
	if got := at(p, q, list); got != "w2:8000 script: the least work in the pool gold" {
		t.Error(got)
	}
	q.Tenant = "other"
	if got := at(p, q, list); got != "w0:8000 script: the least work in the pool shared" {
		t.Error(got)
	}
	q.Tenant = "acme"
	if got := at(p, q, list[:2]); got != "w0:8000 script: no worker of the pool gold is free: the least work" {
		t.Error(got)
	}
}

// BenchmarkChoose is the cost of a decision: a script beside the policies in Go.
func BenchmarkChoose(b *testing.B) {
	marginal, err := policy.Build(policy.DefaultMarginal().Spec("marginal"))
	if err != nil {
		b.Fatal(err)
	}
	all := []struct {
		name string
		p    *policy.Policy
	}{
		{"one_line", build(b, "def choose(request, workers):\n    return [w.match - 0.5 * w.work for w in workers]\n")},
		{"least_loaded", example(b, "least_loaded.star")}, {"prefix_with_cap", example(b, "prefix_with_cap.star")},
		{"tenant_pinning", example(b, "tenant_pinning.star")}, {"marginal", marginal},
	}
	for _, x := range all {
		for _, n := range []int{8, 64} {
			b.Run(fmt.Sprintf("%s/workers=%d", x.name, n), func(b *testing.B) {
				b.ReportAllocs()
				q, list := ask(), workers(n)
				for b.Loop() {
					if x.p.Choose(q, list).Index < 0 {
						b.Fatal("no worker")
					}
				}
			})
		}
	}
}

// BenchmarkChooseInParallel shows that calls do not wait for each other.
func BenchmarkChooseInParallel(b *testing.B) {
	p := example(b, "prefix_with_cap.star")
	b.RunParallel(func(pb *testing.PB) {
		q, list := ask(), workers(8)
		for pb.Next() {
			p.Choose(q, list)
		}
	})
}

// BenchmarkEndlessLoop is what the worst script costs each request.
func BenchmarkEndlessLoop(b *testing.B) {
	p := build(b, "def choose(request, workers):\n    for a in range(100000):\n        for b in range(100000):\n            pass\n")
	q, list := ask(), workers(8)
	for b.Loop() {
		p.Choose(q, list)
	}
}
