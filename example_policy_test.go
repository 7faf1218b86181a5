package warmpath_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

// quickest is a policy that prefers the holder whose recent requests got their first token soonest. The router calls
// Routed after each choice, and Finished when the request has ended.
type quickest struct {
	mu    sync.Mutex
	took  map[fleet.Holder]float64 // running mean of the time to the first token, in seconds
	asked map[fleet.Holder]int     // number of requests under way; it makes a holder that has stalled look slow
}

func (p *quickest) Choose(_ *policy.Query, c []policy.Candidate) policy.Pick {
	p.mu.Lock()
	defer p.mu.Unlock()
	best := 0
	for i := range c {
		h := c[i].Holder
		c[i].Terms[0], c[i].Terms[1] = p.took[h], float64(p.asked[h])
		c[i].Score = 0 - p.took[h]*float64(1+p.asked[h]) // a higher score is better, so a cost is negative
		if c[i].Score > c[best].Score {
			best = i
		}
	}
	return policy.Pick{Index: best, Ranked: true}
}

func (p *quickest) Routed(_ *policy.Query, c *policy.Candidate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked[c.Holder]++
}

func (p *quickest) Finished(f *policy.Finished) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked[f.Holder]--
	if f.FirstTokenAt > 0 {
		p.took[f.Holder] += 0.2 * (float64(f.FirstTokenAt-f.RoutedAt)/1e9 - p.took[f.Holder])
	}
}

func (p *quickest) Forget(h fleet.Holder) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.took, h) // asked needs no reset: each Routed is followed by its Finished
}

// This example adds a policy written in Go. The policy chooses a worker, and learns the results of its choices.
func Example_policy() {
	workers := fleet.New(fleet.Config{})
	router, err := warmpath.New(warmpath.Options{Fleet: workers, Policy: policy.Spec{
		Name:  "quickest",
		Terms: []string{"seconds", "asked"}, // names that Explain gives to the parts of a score
		Chooser: func() policy.Chooser {
			return &quickest{took: map[fleet.Holder]float64{}, asked: map[fleet.Holder]int{}}
		},
	}})
	if err != nil {
		panic(err)
	}
	facts := fleet.Facts{Models: []fleet.Model{{ID: "llama"}}, BlockSize: 16}
	workers.Put("http://slow:8000", facts)
	workers.Put("http://quick:8000", facts)

	for second := int64(1); second <= 4; second++ {
		now := second * 1e9
		d, err := router.Route(context.Background(), &warmpath.Request{Model: "llama", PromptBytes: 400, Now: now})
		if err != nil {
			panic(err)
		}
		fmt.Println(d.Worker.URL)
		took := int64(20e6)
		if d.Worker.URL == "http://slow:8000" {
			took = 400e6
		}
		d.FirstToken(now + took)
		d.Done(fleet.OutcomeServed, now+500e6)
		d.Recycle()
	}
	// Output:
	// http://slow:8000
	// http://quick:8000
	// http://quick:8000
	// http://quick:8000
}
