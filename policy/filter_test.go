package policy_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
)

func three() []policy.Candidate {
	c := make([]policy.Candidate, 3)
	for i := range c {
		c[i] = policy.Candidate{Worker: &fleet.Worker{ID: fleet.WorkerID(i), URL: fmt.Sprintf("http://w%d", i)}, Holder: fleet.Holder(i), Hash: block.Mix64(uint64(i + 1)),
			Available: true, BlockSize: 16, Trust: fleet.TrustExact}
	}
	return c
}

// eachAlone runs a test with each built-in policy, except policies that refuse requests without a named worker.
func eachAlone(t *testing.T, test func(t *testing.T, p *policy.Policy)) {
	for _, s := range kinds.BuiltIn() {
		p, err := policy.Build(s)
		if err != nil {
			t.Fatal(err)
		}
		if !p.NeedsTarget() {
			t.Run(s.Name, func(t *testing.T) { test(t, p) })
		}
	}
}

// TestSlowStartWorksForEveryPolicy: a holder that returned is idle, and the other holders are busy. Without slow start,
// a policy that compares loads would send every request to the returned holder.
func TestSlowStartWorksForEveryPolicy(t *testing.T) {
	eachAlone(t, func(t *testing.T, p *policy.Policy) {
		rnd := rand.New(rand.NewPCG(1, 2))
		chosen := 0
		const requests = 2000
		for i := range requests {
			c := three()
			c[0].Withheld = 0.9
			for j := range c[1:] {
				c[j+1].Load = fleet.Load{Requests: 5, PrefillTokens: 9000, ContextBlocks: 700, Processed: 100}
			}
			q := policy.Query{Rank: -1, PromptTokens: 100, Turn: uint64(i), Random: rnd.Uint64(), Session: policy.Session{Key: fmt.Sprint(i), Source: "user"}}
			if choice := p.Choose(&q, c); c[choice.Index].Holder == 0 {
				chosen++
			}
		}
		if chosen > requests*13/100 {
			t.Errorf("%d of %d requests go to a holder that gets a tenth of its share", chosen, requests)
		}
		c := three()[:1]
		c[0].Withheld = 0.9
		for i := range 100 {
			if choice := p.Choose(&policy.Query{Rank: -1, Random: rnd.Uint64(), Turn: uint64(i)}, c); choice.Index != 0 {
				t.Fatal("the only holder is left out while it starts slowly")
			}
		}
	})
}

func TestASuspectIsTheLastToBeAsked(t *testing.T) { lastToBeAsked(t, fleet.BarSuspect) }

func TestAHolderWithUselessAnswersIsTheLastToBeAsked(t *testing.T) {
	lastToBeAsked(t, fleet.BarUseless)
}

func lastToBeAsked(t *testing.T, bar fleet.Bar) {
	eachAlone(t, func(t *testing.T, p *policy.Policy) {
		rnd := rand.New(rand.NewPCG(1, 2))
		q := func() *policy.Query {
			return &policy.Query{Rank: -1, PromptTokens: 100, Random: rnd.Uint64(), MaxRequests: 10}
		}
		for range 100 {
			c := three()
			c[0].Bar, c[2].Withheld = bar, 0.9
			c[1].Load.Requests = 5
			if choice := p.Choose(q(), c); c[choice.Index].Holder == 0 {
				t.Fatal("the holder with the bar was chosen although others can take the request")
			}
		}
		c := three()
		for i := range c {
			c[i].Bar = bar
		}
		if choice := p.Choose(q(), c); choice.Index < 0 {
			t.Error("no holder was chosen where there is no other")
		}
		c[1].Bar, c[1].Load.Requests = fleet.BarNone, 10
		if choice := p.Choose(q(), c); choice.Index >= 0 {
			t.Error("the holder with the bar was chosen although another holder will have room")
		}
	})
}

// TestASessionIsLetInOnceAndStays: while the share of a holder in slow start grows, a session moves to the holder once
// and does not move back.
func TestASessionIsLetInOnceAndStays(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	p := parsed(t, "random")
	for i := range 200 {
		in := false
		for withheld := 0.9; withheld > -0.05; withheld -= 0.1 {
			c := three()
			c[0].Withheld = withheld
			q := policy.Query{Rank: -1, Random: rnd.Uint64(), Session: policy.Session{Key: fmt.Sprint(i)}}
			p.Choose(&q, c)
			now := c[slices.IndexFunc(c, func(x policy.Candidate) bool { return x.Holder == 0 })].Reason == ""
			if in && !now {
				t.Fatalf("session %d moved to the returned holder and away from it", i)
			}
			in = now
		}
		if !in {
			t.Fatalf("session %d has not moved to the returned holder at the end of slow start", i)
		}
	}
}
