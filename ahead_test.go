package warmpath_test

import (
	"testing"

	"github.com/warmpath/warmpath"
)

// A look-ahead is the number of tokens after a block that the engine's hash of the block also covers. Each rank of a
// worker may report a different look-ahead. The number of different look-aheads of a model is limited, and one worker
// must not use up this limit.
func TestAWorkerTakesNotAllLookAheads(t *testing.T) {
	ranks := vllm()
	ranks.Ranks = 8
	w := newWorld(t, warmpath.Options{}, ranks, vllm(), vllm())
	snap := w.fleet.Snapshot()
	hostile, one, other := snap.Workers()[0].Holders, snap.Workers()[1].Holders[0], snap.Workers()[2].Holders[0]
	taken := 0
	for i, h := range hostile {
		if w.router.SetAhead(h, 1+i) {
			taken++
		}
	}
	if taken != 2 {
		t.Errorf("%d of %d look-aheads of one worker are matched, want those of two ranks", taken, len(hostile))
	}
	if !w.router.SetAhead(one, 11) || !w.router.SetAhead(other, 12) {
		t.Error("nothing is left for the other workers")
	}
	// Ranks with the same look-ahead count once in the limit. After a restart with another look-ahead, the ranks report
	// the new look-ahead one after another, and no rank may be refused.
	for _, h := range hostile {
		w.router.Forget(h)
	}
	for _, tokens := range []int{3, 5, 7} {
		for _, h := range hostile {
			w.router.Forget(h)
			if !w.router.SetAhead(h, tokens) {
				t.Fatalf("the look-ahead of %d tokens is refused", tokens)
			}
		}
	}
	w.fleet.Remove(snap.Workers()[0].ID)
	w.router.SetAhead(hostile[0], 9) // SetAhead must not panic for a holder that left
}
