// Command policy routes with a policy of its own: workers have prices, and each request goes where computing the
// uncached part of its prompt costs least.
//
//	go run ./policy
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

// lowestCost is the name of the rule that decides. It is shown in records, headers and metrics of a decision.
const lowestCost policy.Branch = "lowest_cost"

// cheapest is the policy. It remembers nothing, so that it may be called concurrently without a lock, and its Routed,
// Finished and Forget do nothing.
type cheapest struct{}

// Choose implements [policy.Chooser]. The filters have removed the workers that cannot be used now.
func (cheapest) Choose(q *policy.Query, c []policy.Candidate) policy.Pick {
	best := 0
	for i := range c {
		price, err := strconv.ParseFloat(c[i].Worker.Facts.Labels["price"], 64)
		if err != nil {
			price = 1
		}
		// The terms are what Explain shows. A higher score is better, so a cost is negative.
		c[i].Terms[0], c[i].Terms[1] = float64(c[i].Uncached(q)), price
		c[i].Score = -float64(c[i].Uncached(q)) * price
		if c[i].Score > c[best].Score {
			best = i
		}
	}
	return policy.Pick{Index: best, Ranked: true, Branch: lowestCost}
}

// Routed implements [policy.Chooser].
func (cheapest) Routed(*policy.Query, *policy.Candidate) {}

// Finished implements [policy.Chooser].
func (cheapest) Finished(*policy.Finished) {}

// Forget implements [policy.Chooser].
func (cheapest) Forget(fleet.Holder) {}

func main() {
	if err := run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(out io.Writer) error {
	workers := fleet.New(fleet.Config{})
	router, err := warmpath.New(warmpath.Options{
		Fleet: workers,
		// Policy decides each request that names no other policy. Options.Policies adds policies that requests may name.
		Policy: policy.Spec{
			Name:         "cheapest",
			Chooser:      func() policy.Chooser { return cheapest{} },
			Terms:        []string{"uncached", "price"},
			Reasons:      map[policy.Branch]string{lowestCost: "its uncached tokens cost least"},
			NeedsMatches: true, // without it the router looks up no matches, and all tokens count as uncached
		},
	})
	if err != nil {
		return err
	}
	put := func(url, price string) fleet.WorkerID {
		return workers.Put(url, fleet.Facts{
			Models: []fleet.Model{{ID: "llama"}}, BlockSize: 16, Labels: map[string]string{"price": price},
		})
	}
	put("http://spot:8000", "1")
	reserved := put("http://reserved:8000", "3")

	prompt := make([]block.Token, 64)
	for i := range prompt {
		prompt[i] = block.Token(1000 + i)
	}
	fmt.Fprintln(out, "Neither worker has the prompt:")
	if err := route(router, out, prompt); err != nil {
		return err
	}

	// In a program, package kvfeed follows the engines' events. This example has no engine: it stores three quarters of
	// the prompt for the reserved worker, and sets the worker's trust to exact, as after a complete history of events.
	for _, w := range workers.Snapshot().Workers() {
		if w.ID == reserved {
			router.Store(w.Holders[0], &kvindex.Stored{Tokens: prompt[:48], BlockSize: 16, Hashes: []uint64{1, 2, 3}})
			workers.SetTrust(w.Holders[0], fleet.TrustExact, "an example")
		}
	}
	fmt.Fprintln(out, "The reserved worker has 48 of its 64 tokens:")
	return route(router, out, prompt)
}

// route prints how the router decides for the prompt. Explain makes a decision without reserving load for the request.
// To send a request, a program calls Router.Route instead of Explain, and Decision.Done when the request has ended.
func route(router *warmpath.Router, out io.Writer, prompt []block.Token) error {
	d, err := router.Explain(context.Background(), &warmpath.Request{Model: "llama", Tokens: prompt, Now: 1e9, Random: 42})
	if err != nil {
		return err
	}
	defer d.Recycle()
	for i := range d.Candidates {
		fmt.Fprintf(out, "  %s: score %.0f, %s\n", d.Candidates[i].Worker.URL, d.Candidates[i].Score, d.Why(i))
	}
	return nil
}
