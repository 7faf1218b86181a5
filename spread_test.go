package warmpath_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

// talk is a conversation in virtual time. If a turn is running, next is the time at which this turn ends. Otherwise
// next is the time at which the next turn begins.
type talk struct {
	tokens   []block.Token
	turns    int
	next     int64
	decision *warmpath.Decision
}

// converse runs 32 conversations of 8 turns on 4 workers. All conversations have the same system prompt of 1,024
// tokens. Each turn adds 300 tokens and takes 3 s. The pauses between turns are up to 2 s. The event with a turn's
// blocks arrives when the turn ends. converse returns three results: turns, the number of turns of each worker;
// majority, the share of decisions after the first 3 s at which one worker had more than half of the running turns; and
// matched, the share of prompt tokens that matched.
func converse(t *testing.T, spec policy.Spec) (turns []int, majority float64, matched float64) {
	w := newWorld(t, warmpath.Options{Policy: spec}, vllm(), vllm(), vllm(), vllm())
	system := prompt(0, 1024)
	pauses := rand.New(rand.NewPCG(1, 2))
	talks := make([]talk, 32)
	for i := range talks {
		talks[i] = talk{tokens: slices.Concat(system, prompt(1+i, 300)), next: int64(i) * int64(50*time.Millisecond)}
	}
	turns = make([]int, 4)
	running := make([]int, 4)
	var asked, hit, decisions, majorities int
	for {
		c := &talks[0]
		for i := range talks {
			if talks[i].turns < 8 && (c.turns == 8 || talks[i].next < c.next) {
				c = &talks[i]
			}
		}
		if c.turns == 8 {
			return turns, float64(majorities) / float64(decisions), float64(hit) / float64(asked)
		}
		now := c.next
		if d := c.decision; d != nil {
			d.FirstToken(now)
			d.Done(fleet.OutcomeServed, now)
			w.store(d.Holder, c.tokens, kvindex.Stored{})
			running[d.Holder]--
			pause := time.Duration(pauses.Int64N(int64(2 * time.Second)))
			c.decision, c.turns, c.next = nil, c.turns+1, now+int64(pause)
			c.tokens = slices.Concat(c.tokens, prompt(100+len(c.tokens), 300))
			continue
		}
		d := w.route(warmpath.Request{Tokens: c.tokens, Now: now, Random: uint64(now) * 0x9e3779b97f4a7c15})
		turns[d.Holder]++
		running[d.Holder]++
		asked, hit = asked+len(c.tokens), hit+d.PredictedTokens
		if now > int64(3*time.Second) {
			decisions++
			if 2*slices.Max(running) > running[0]+running[1]+running[2]+running[3] {
				majorities++
			}
		}
		c.decision, c.next = d, now+3*second
	}
}

// A policy that looks only at the longest match sends all conversations with the same system prompt to one worker. The
// bound ImbalanceTokens prevents that: see the comment of package policy.
func TestASharedSystemPromptGathersAllUnlessBounded(t *testing.T) {
	turns, majority, matched := converse(t, policy.DefaultKVAware().Spec("kv_aware"))
	t.Logf("without a bound: turns %v, one worker had more than half of them at %.0f %% of the decisions, %.1f %% matched", turns, 100*majority, 100*matched)
	if slices.Max(turns) != 32*8 {
		t.Errorf("without a bound all turns go to the first holder; turns: %v", turns)
	}

	spec := policy.DefaultKVAware().Spec("kv_aware")
	spec.ImbalanceTokens = policy.DefaultImbalanceTokens
	turns, majority, bounded := converse(t, spec)
	t.Logf("with the bound: turns %v, one worker had more than half of them at %.0f %% of the decisions, %.1f %% matched", turns, 100*majority, 100*bounded)
	if slices.Max(turns) > 32*8*35/100 || majority > 0.1 {
		t.Errorf("with the bound one worker has %d of %d turns, and more than half of the turns under way at a share of %.2f of the decisions", slices.Max(turns), 32*8, majority)
	}
	if bounded < matched-0.05 {
		t.Errorf("the bound costs matches: a share of %.3f matched with it, %.3f without it", bounded, matched)
	}

	turns, majority, even := converse(t, policy.Spec{Name: "round_robin", Picker: "round_robin"})
	t.Logf("round robin: turns %v, one worker had more than half of them at %.0f %% of the decisions, %.1f %% matched", turns, 100*majority, 100*even)
	if bounded < even {
		t.Errorf("bounded kv_aware matches less (%.3f) than round robin (%.3f)", bounded, even)
	}
}

// Requests come one after another, so all workers are idle when a request comes. A new conversation has no match and
// goes to the worker with the fewest requests so far. The router knows only the timing of the worker that was used
// first. This must not make that worker look better than the others.
func TestConversationsOneAfterAnotherUseAllWorkers(t *testing.T) {
	w := newWorld(t, warmpath.Options{Policy: policy.DefaultMarginal().Spec("marginal")}, vllm(), vllm(), vllm())
	for h := range 3 {
		w.fleet.SetTrust(fleet.Holder(h), fleet.TrustExact, "complete since the cache was empty")
	}
	used := map[fleet.Holder]int{}
	for i := range 6 {
		tokens := prompt(1+i, 400)
		var home fleet.Holder
		for turn := range 3 {
			now := int64(10*i+turn) * second
			d := w.route(warmpath.Request{Tokens: tokens, Now: now, Random: uint64(now)})
			if turn == 0 {
				home = d.Holder
				used[home]++
			} else if d.Holder != home {
				t.Errorf("conversation %d turn %d goes to holder %d, its prompt is with %d\n%s", i, turn, d.Holder, home, d)
			}
			d.FirstToken(now + 30*int64(time.Millisecond))
			d.Tokens(8, now+80*int64(time.Millisecond))
			w.store(d.Holder, tokens, kvindex.Stored{})
			d.Done(fleet.OutcomeServed, now+90*int64(time.Millisecond))
			tokens = slices.Concat(tokens, prompt(100+10*i+turn, 80))
		}
	}
	if len(used) != 3 {
		t.Errorf("conversations begun by holder: %v, want all three used", used)
	}
}
