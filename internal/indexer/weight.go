package indexer

import (
	"fmt"

	"github.com/warmpath/warmpath/fleet"
)

const (
	// maxRegisteredRanks bounds the ranks of all registered workers: 5,000 workers of eight ranks. A rank takes some 6 KB.
	maxRegisteredRanks = 40000
	// maxRegisteredBytes bounds the names of models and event sources of all registered workers. Each model counts
	// modelBytes beside its names, because the fleet has a pool for it.
	maxRegisteredBytes = 32 << 20
	modelBytes         = 256
)

// weight is what a registered worker takes.
type weight struct{ ranks, bytes int }

// weightOf returns what a worker with these facts takes. The ranks between two registered ranks count, because the
// fleet knows only ranges of ranks.
func weightOf(f *fleet.Facts) weight {
	w := weight{ranks: f.Ranks, bytes: len(f.Version)}
	for i := range f.Models {
		m := &f.Models[i]
		w.bytes += modelBytes + len(m.ID) + len(m.Root) + len(m.Parent)
	}
	for i := range f.Events {
		s := &f.Events[i]
		w.bytes += len(s.Endpoint) + len(s.Replay) + len(s.Topic)
	}
	return w
}

// change replaces what one worker takes in the weight of all.
func (w *weight) change(before, after weight) {
	w.ranks += after.ranks - before.ranks
	w.bytes += after.bytes - before.bytes
}

// room returns an error that wraps errFull if there is no room for a worker that grows from before to after.
func (w weight) room(before, after weight) error {
	w.change(before, after)
	switch {
	case after.ranks > before.ranks && w.ranks > maxRegisteredRanks:
		return fmt.Errorf("%w: all workers together have more than %d ranks", errFull, maxRegisteredRanks)
	case after.bytes > before.bytes && w.bytes > maxRegisteredBytes:
		return fmt.Errorf("%w: the names of all workers together have more than %d bytes", errFull, maxRegisteredBytes)
	}
	return nil
}
