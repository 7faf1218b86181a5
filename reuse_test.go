package warmpath_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// A holder that gets the id of one that left has no match, learned or expected, of the other.
func TestAnIDThatIsUsedAgainRemembersNothing(t *testing.T) {
	for _, name := range []string{"kv_aware", "marginal", "cache_aware"} {
		w := newWorld(t, warmpath.Options{}, vllm())
		p := prompt(1, 320)
		w.store(0, p[:160], kvindex.Stored{})
		d := w.route(warmpath.Request{Tokens: p, Text: []byte(fmt.Sprint(p)), Policy: name})
		w.fleet.Remove(d.Worker.ID)
		d.Done(fleet.OutcomeServed, 0)
		for _, at := range []time.Duration{0, 90 * time.Minute} {
			w.router.Reclaim(int64(at))
		}
		w.fleet.Put("http://new", vllm())
		w.fleet.SetTrust(0, fleet.TrustExact, "test")
		if n := w.fleet.Snapshot().Holders(); n != 1 {
			t.Errorf("%s: %d ids", name, n)
		}
		e, err := w.router.Explain(t.Context(), request(warmpath.Request{Tokens: p, Text: []byte(fmt.Sprint(p)), Policy: name, Now: int64(2 * time.Hour)}))
		if err != nil {
			t.Fatal(name, err)
		}
		if e.Worker.URL != "http://new" || e.MatchTokens != 0 || e.PredictedTokens != 0 {
			t.Errorf("%s: %s", name, e)
		}
	}
}

// Workers come and go one after another: the fleet does not need more ids.
func TestAFleetMayBeReplacedForEver(t *testing.T) {
	w := newWorld(t, warmpath.Options{})
	p := prompt(1, 160)
	for i := range int64(300) {
		now := i * int64(2*time.Hour)
		url := fmt.Sprint("http://", i)
		id := w.fleet.Put(url, vllm())
		h := w.fleet.Snapshot().ByID(id).Holders[0]
		w.fleet.SetTrust(h, fleet.TrustExact, "test")
		w.store(h, p, kvindex.Stored{})
		if d := w.route(warmpath.Request{Tokens: p, Now: now}); d.Worker.URL != url || d.MatchTokens == 0 {
			t.Fatalf("worker %d: %s", i, d)
		} else {
			d.Done(fleet.OutcomeServed, now)
			d.Recycle()
		}
		w.fleet.Remove(id)
		w.router.Reclaim(now)
	}
	if n := w.fleet.Snapshot().Holders(); n > 3 {
		t.Errorf("%d ids for one holder at a time", n)
	}
}
