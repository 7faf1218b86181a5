package warmpath_test

import (
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

func TestAPromptIsNotExpectedInACacheThatIsLost(t *testing.T) {
	for name, lose := range map[string]func(r *warmpath.Router){
		"its accelerator's cache is empty": func(r *warmpath.Router) { r.Clear(0, block.TierGPU) },
		"a lower tier is empty":            func(r *warmpath.Router) { r.Clear(0, block.TierCPU) },
		"its history is lost":              func(r *warmpath.Router) { r.Forget(0) },
		"another process serves there":     func(r *warmpath.Router) { r.ForgetLearned(0) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, warmpath.Options{}, vllm())
			p, text := prompt(1, 500), []byte(story("ant", 2000))
			w.route(warmpath.Request{Tokens: p})
			w.route(warmpath.Request{Text: text})
			lose(w.router)
			for _, req := range []warmpath.Request{{Tokens: p}, {Text: text}} {
				if d := w.explain(req); d.PredictedTokens != 0 {
					t.Errorf("%s", d)
				}
			}
			if s := w.router.IndexStats()[0]; s.Speculative != 0 || s.SpeculativeDropped != 0 {
				t.Errorf("%d blocks are expected, %d were dropped", s.Speculative, s.SpeculativeDropped)
			}
		})
	}
}

// Each policy has a duration (SpeculativeTTL) for which it expects a prompt in the cache of the holder to which the
// prompt was sent. The router has one store of expected blocks for each such duration. All stores share one limit.
// Beyond the limit, the largest store drops its oldest blocks.
func TestExpectedPromptsAreBounded(t *testing.T) {
	w := newWorld(t, warmpath.Options{
		MaxSpeculative: 200,
		Policies:       []policy.Spec{{Name: "long", SpeculativeTTL: time.Minute, Chooser: func() policy.Chooser { return &recorder{} }}},
	}, vllm())
	ask := func(seed int, policy string) {
		w.route(warmpath.Request{Tokens: prompt(seed, 160), Policy: policy, Now: int64(seed)})
	}
	dropped := func(most int64) {
		t.Helper()
		s := w.router.IndexStats()[0]
		if s.Speculative > 200 || s.Speculative < 150 || s.Speculative+s.SpeculativeDropped != most || s.SpeculativeBytes == 0 {
			t.Errorf("%d blocks are expected in %d bytes, %d were dropped", s.Speculative, s.SpeculativeBytes, s.SpeculativeDropped)
		}
	}
	expected := func(seed, tokens int) {
		t.Helper()
		if d := w.explain(warmpath.Request{Tokens: prompt(seed, 161), Policy: "kv_aware", Now: 90}); d.PredictedTokens != tokens {
			t.Errorf("%d tokens of prompt %d are expected, want %d", d.PredictedTokens, seed, tokens)
		}
	}
	for i := range 30 {
		ask(i, "long")
	}
	dropped(300)
	for i := range 8 {
		ask(30+i, "kv_aware")
	}
	dropped(380)
	expected(5, 0)
	expected(29, 160)
	expected(30, 160)
	expected(37, 160)
}

// The router has one store of expected prompts for each duration (SpeculativeTTL). When the router creates a store for
// a further duration, it removes the stores that are empty. The count of dropped blocks includes blocks that removed
// stores had dropped. So the count never falls.
func TestEmptyStoresOfExpectedPromptsAreRemoved(t *testing.T) {
	second := int64(time.Second)
	w := newWorld(t, warmpath.Options{
		MaxSpeculative: 200,
		Policies:       []policy.Spec{{Name: "long", SpeculativeTTL: time.Minute, Chooser: func() policy.Chooser { return &recorder{} }}},
	}, vllm())
	for i := range 60 {
		w.route(warmpath.Request{Tokens: prompt(i, 160), Policy: "kv_aware", Now: int64(i)})
	}
	before := w.router.IndexStats()[0]
	if before.SpeculativeDropped < 400 {
		t.Fatalf("%d blocks were dropped", before.SpeculativeDropped)
	}
	for now := range int64(2) {
		w.route(warmpath.Request{Tokens: prompt(100, 160), Policy: "long", Now: (10 + now) * second})
		after := w.router.IndexStats()[0]
		if after.SpeculativeDropped != before.SpeculativeDropped || after.Speculative != 10 {
			t.Errorf("%d blocks are expected, %d were dropped, %d before", after.Speculative, after.SpeculativeDropped, before.SpeculativeDropped)
		}
	}
}

// Explain changes nothing, even if the request's time lies in the future.
func TestExplainForgetsNoExpectedPrompt(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm())
	p := prompt(1, 161)
	w.route(warmpath.Request{Tokens: p, Now: 1000})
	for _, at := range []struct{ now, tokens int64 }{{2000, 160}, {int64(time.Hour), 0}, {3000, 160}} {
		if d := w.explain(warmpath.Request{Tokens: p, Now: at.now}); int64(d.PredictedTokens) != at.tokens {
			t.Errorf("at %d: %d tokens are expected, want %d", at.now, d.PredictedTokens, at.tokens)
		}
	}
}

// Policies may expect prompts for different durations (SpeculativeTTL). One limit of memory holds for all expected
// blocks together.
func TestTheMemoryOfExpectedPromptsWithTwoTTLsIsBounded(t *testing.T) {
	const limit = 4096
	w := newWorld(t, warmpath.Options{
		MaxSpeculative: limit,
		Policies:       []policy.Spec{{Name: "long", SpeculativeTTL: time.Minute, Chooser: func() policy.Chooser { return &recorder{} }}},
	}, vllm())
	for i := range 4 * limit {
		name := "long"
		if i%3 == 0 {
			name = "kv_aware"
		}
		d := w.route(warmpath.Request{Tokens: prompt(i, 16), Policy: name, Now: int64(i)})
		d.Done(fleet.OutcomeServed, int64(i))
		d.Recycle()
		if s := w.router.IndexStats()[0]; s.SpeculativeBytes > 64*limit+1024 {
			t.Fatalf("%d blocks are expected in %d bytes", s.Speculative, s.SpeculativeBytes)
		}
	}
}

// The expected blocks of short prompts that share no prefix take at most 64 bytes for each block that MaxSpeculative
// allows.
func TestTheMemoryOfExpectedPromptsIsBounded(t *testing.T) {
	const limit = 4096
	w := newWorld(t, warmpath.Options{MaxSpeculative: limit}, vllm(), vllm())
	for i := range 3 * limit {
		d := w.route(warmpath.Request{Tokens: prompt(i, 16), Now: int64(i)})
		d.Done(fleet.OutcomeServed, int64(i))
		d.Recycle()
	}
	s := w.router.IndexStats()[0]
	if s.SpeculativeBytes > 64*limit+1024 || s.SpeculativeBytes < 32*limit || s.Speculative+s.SpeculativeDropped != 3*limit {
		t.Errorf("%d blocks are expected in %d bytes, %d were dropped", s.Speculative, s.SpeculativeBytes, s.SpeculativeDropped)
	}
}

// A decision in a large fleet looks at only a few holders. The holder at which the prompt is expected must be one of
// these.
func TestWhatIsExpectedIsFoundInALargeFleet(t *testing.T) {
	w := large(t, 500, warmpath.Options{})
	for _, h := range []fleet.Holder{30, 7, 400} { // these holders announced the first 160 tokens of the prompt
		w.store(h, prompt(1, 160), kvindex.Stored{})
	}
	sent := w.route(warmpath.Request{Tokens: prompt(1, 800), Target: w.fleet.Snapshot().Workers()[377].URL})
	sent.Done(fleet.OutcomeServed, 1)
	for random := range uint64(20) {
		d := w.explain(warmpath.Request{Tokens: prompt(1, 801), Random: random})
		if d.Holder != 377 || d.PredictedTokens != 800 || d.MatchTokens != 0 || d.Passed > 100 {
			t.Fatalf("%d candidates, %s", d.Passed, d)
		}
	}
}

// An engine with a look-ahead hashes each block together with some tokens after the block. So the router uses other
// block keys for this engine. An expected prompt is stored under the keys of the engine that gets the prompt.
func TestAPromptIsExpectedOnAnEngineWithALookAhead(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	if !w.router.SetAhead(0, 1) {
		t.Fatal("the look-ahead is refused")
	}
	p := prompt(1, 161)
	w.route(warmpath.Request{Tokens: p, Target: "http://a"})
	if d := w.explain(warmpath.Request{Tokens: p}); d.Holder != 0 || d.PredictedTokens != 160 {
		t.Errorf("%s", d)
	}
	if !w.router.SetAhead(0, 0) { // as if the engine now hashed without a look-ahead, which needs other block keys
		t.Fatal("the look-ahead stays")
	}
	if d := w.explain(warmpath.Request{Tokens: p}); d.PredictedTokens != 0 {
		t.Errorf("%s", d)
	}
}
