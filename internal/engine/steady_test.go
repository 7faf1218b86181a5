package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/warmpath/warmpath/block"
)

// happening is something that must be the same with single Steps and with steady passes: the begin, the first token or
// the end of a request, or an event.
type happening struct {
	At   time.Duration
	What string
}

// play draws requests with a seed and runs them on e, with single Steps or with steady passes.
func play(t *testing.T, e *Engine, seed uint64, steady bool) (seen []happening, stats Stats) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 7))
	type arrival struct {
		at time.Duration
		r  *Request
	}
	var arrivals []arrival
	at := time.Duration(0)
	for i := range 60 {
		at += time.Duration(random.IntN(200)) * time.Millisecond
		both := append(tokens(1000*random.IntN(4), 1+random.IntN(60)), tokens(5000+100*i, 1+random.IntN(50))...)
		split := 1 + random.IntN(len(both)-1)
		arrivals = append(arrivals, arrival{at, &Request{Prompt: both[:split], Output: both[split:], Owner: i}})
	}
	now := time.Duration(0)
	var s Step
	for len(arrivals) > 0 || !e.Idle() {
		if e.Idle() {
			now = max(now, arrivals[0].at)
		}
		for len(arrivals) > 0 && arrivals[0].at <= now {
			if err := e.Submit(arrivals[0].r); err != nil {
				t.Fatal(err)
			}
			arrivals = arrivals[1:]
		}
		if n := e.Steady(); steady && n > 0 {
			until := time.Duration(1 << 62)
			if len(arrivals) > 0 {
				until = arrivals[0].at - now
			}
			total := e.Forecast(n)
			made, took := e.Advance(n, until)
			if made == n && took != total {
				t.Fatalf("forecast %v, took %v", total, took)
			}
			now += took
			continue
		}
		e.Step(&s)
		for _, r := range s.Admitted {
			seen = append(seen, happening{now, fmt.Sprint("begins ", r.Owner)})
		}
		now += s.Duration
		for _, v := range s.Events {
			seen = append(seen, happening{now, fmt.Sprint(v.Kind, v.Tier, v.Hashes)})
		}
		for _, o := range s.Outputs {
			if o.First || o.Last {
				seen = append(seen, happening{now, fmt.Sprint("token of ", o.Request.Owner, o.Token, o.First, o.Last)})
			}
		}
	}
	return seen, e.Stats()
}

func TestSteadyPassesEqualSingleSteps(t *testing.T) {
	for seed := range uint64(20) {
		change := func(c *Config) {
			c.Blocks, c.MaxBatchTokens, c.MaxSequences = 40+int(seed)*10, 64, 3+int(seed%5)
			c.BlockSize = 4 << (seed % 3)
			if seed%4 == 3 {
				c.CPUBlocks = 20
			}
		}
		one, oneStats := play(t, small(t, change), seed, false)
		many, manyStats := play(t, small(t, change), seed, true)
		if diff := cmp.Diff(one, many); diff != "" {
			t.Fatalf("seed %d (-steps +steady):\n%s", seed, diff)
		}
		if diff := cmp.Diff(oneStats, manyStats); diff != "" {
			t.Fatalf("seed %d: stats (-steps +steady):\n%s", seed, diff)
		}
	}
}

func TestReceivedTokensAreNotComputedAgain(t *testing.T) {
	e := small(t, nil)
	r := &Request{Prompt: tokens(0, 30), Output: tokens(900, 3), Received: 30}
	if err := e.Submit(r); err != nil {
		t.Fatal(err)
	}
	var s Step
	e.Step(&s)
	if s.Tokens != 1 || len(s.Outputs) != 1 || !s.Outputs[0].First {
		t.Errorf("the first pass computed %d tokens and gave %d, want the last prompt token alone", s.Tokens, len(s.Outputs))
	}
	if r.Cached != 0 {
		t.Errorf("received tokens were reported as %d cached ones", r.Cached)
	}
	// Received blocks are cached in the same way as computed blocks.
	for e.Step(&s) {
	}
	again := &Request{Prompt: tokens(0, 30), Output: tokens(900, 1)}
	serve(t, e, again)
	if again.Cached != 28 {
		t.Errorf("a later request found %d tokens, want 28", again.Cached)
	}
}

func TestARecycledRequestServesAnother(t *testing.T) {
	e := small(t, nil)
	r := &Request{Prompt: tokens(0, 20), Output: tokens(900, 4)}
	serve(t, e, r)
	r.Recycle()
	r.Prompt, r.Output = tokens(0, 12), tokens(50, 2)
	serve(t, e, r)
	if r.Cached != 8 || r.emitted != 2 {
		t.Errorf("cached %d and gave %d tokens, want 8 and 2", r.Cached, r.emitted)
	}
}

func TestPromptAndAnswerInOneArrayAreNotCopied(t *testing.T) {
	e := small(t, nil)
	both := tokens(0, 40)
	r := &Request{Prompt: both[:30], Output: both[30:]}
	if err := e.Submit(r); err != nil {
		t.Fatal(err)
	}
	if &r.tokens[0] != &both[0] {
		t.Error("the prompt was copied")
	}
	var out []block.Token
	var s Step
	for e.Step(&s) {
		for _, o := range s.Outputs {
			out = append(out, o.Token)
		}
	}
	if diff := cmp.Diff(tokens(30, 10), out); diff != "" {
		t.Errorf("answer (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(tokens(0, 40), both); diff != "" {
		t.Errorf("the array was changed:\n%s", diff)
	}
}
