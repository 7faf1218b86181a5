package warmpath_test

import (
	"context"
	"strings"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

// Another prompt waits at the only worker. When the engine computes this prompt, it will evict the last blocks of the
// oldest prompt. So these blocks are at risk for a request with the oldest prompt.
func TestAPredictionLeavesOutWhatIsAtRisk(t *testing.T) {
	for _, spec := range []policy.Spec{policy.DefaultKVAware().Spec("kv_aware"), policy.DefaultMarginal().Spec("marginal")} {
		t.Run(spec.Name, func(t *testing.T) {
			facts := vllm()
			facts.BlocksPerRank = 100
			w := newWorld(t, warmpath.Options{Policy: spec}, facts)
			now := second
			serve := func(text int) {
				p := prompt(text, 40*16)
				d := w.route(warmpath.Request{Tokens: p, Now: now})
				w.store(0, p, kvindex.Stored{})
				d.FirstToken(now)
				// 10 s later the blocks are not speculative any more, so only the blocks from the event count.
				now += 10 * second
				d.Done(fleet.OutcomeServed, now)
				d.Recycle()
			}
			serve(1)
			serve(2)
			oldest := append(prompt(1, 40*16), 7)
			ask := func() warmpath.Record {
				t.Helper()
				d, err := w.router.Explain(context.Background(), request(warmpath.Request{Tokens: oldest, Now: now}))
				if err != nil {
					t.Fatal(err)
				}
				defer d.Recycle()
				return d.Clone(-1)
			}
			if r := ask(); r.AtRiskTokens != 0 || r.PredictedTokens != 640 {
				t.Errorf("on an idle worker: %s", r.String())
			}
			waiting := w.route(warmpath.Request{Tokens: prompt(3, 40*16), Now: now})
			r := ask()
			if r.MatchTokens != 640 || r.AtRiskTokens != 21*16 || r.PredictedTokens != 19*16 {
				t.Errorf("while a prompt waits: %s", r.String())
			}
			if !strings.Contains(r.String(), "336 at risk") {
				t.Errorf("the summary does not mention the risk: %s", r.String())
			}
			d := w.route(warmpath.Request{Tokens: oldest, Now: now})
			if d.AtRiskTokens != 21*16 || d.PredictedTokens != 19*16 {
				t.Errorf("routed: %s", d)
			}
			// If the policy needs the risk, the tokens at risk also count as work of the holder.
			want := int64(640 + 641 - 640)
			if spec.NeedsAtRisk {
				want += 21 * 16
			}
			if got := w.fleet.Snapshot().Load(0).PrefillTokens; got != want {
				t.Errorf("%d tokens wait to be computed, want %d", got, want)
			}
			d.Done(fleet.OutcomeServed, now)
			waiting.Done(fleet.OutcomeServed, now)
		})
	}
}
