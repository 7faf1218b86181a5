package kvevent_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvevent"
)

func TestRemovalsJoinsConsecutiveEventsOfOneTierAndGroup(t *testing.T) {
	removed := func(tier block.Tier, group int, hashes ...kvevent.Hash) kvevent.Event {
		return kvevent.Event{Kind: kvevent.Removed, Tier: tier, Group: group, Hashes: hashes}
	}
	b := kvevent.Batch{Events: []kvevent.Event{
		removed(block.TierGPU, 0, 1, 2), removed(block.TierGPU, 0, 3),
		removed(block.TierGPU, 1, 4),
		{Kind: kvevent.Stored, Hashes: []kvevent.Hash{5}},
		removed(block.TierGPU, 1, 6), removed(block.TierCPU, 1, 7),
	}}
	type answer struct {
		N      int
		Hashes []kvevent.Hash
	}
	var got []answer
	for i := range b.Events {
		n, hashes := b.Removals(i, nil)
		got = append(got, answer{n, hashes})
	}
	want := []answer{
		{2, []kvevent.Hash{1, 2, 3}}, {1, []kvevent.Hash{3}}, {1, []kvevent.Hash{4}}, {0, nil}, {1, []kvevent.Hash{6}},
		{1, []kvevent.Hash{7}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
