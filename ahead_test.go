package warmpath_test

import (
	"slices"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
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

// The engine of the holder has blocks under other keys if it has a look-ahead. SentKeys returns those, as a placement
// has them.
func TestSentKeysAreThoseOfTheHoldersEngine(t *testing.T) {
	var now int64
	c := &crier{now: &now}
	w := newWorld(t, warmpath.Options{Observer: c}, vllm(), vllm())
	if !w.router.SetAhead(1, 3) {
		t.Fatal("the look-ahead is refused")
	}
	for target, ahead := range map[string]bool{"a": false, "b": true} {
		d := w.route(warmpath.Request{Tokens: prompt(1, 200), Target: target, Now: second})
		keys, size := d.SentKeys([]block.Key{7})
		want := c.told.Keys
		if ahead {
			want = c.told.AheadKeys
		}
		if len(want) != 12 || size != 16 || keys[0] != 7 || !slices.Equal(keys[1:], want) {
			t.Errorf("worker %s: %d keys of %d tokens, want %d", target, len(keys)-1, size, len(want))
		}
		if slices.Equal(keys[1:], d.Keys()) == ahead {
			t.Errorf("worker %s: the keys have a look-ahead: %v, want %v", target, !ahead, ahead)
		}
		d.Done(fleet.OutcomeServed, second)
		d.Recycle()
	}
}
