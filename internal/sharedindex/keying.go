package sharedindex

import (
	"fmt"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// keying is how the keys of a base model's blocks are made.
type keying struct {
	algorithm block.Algorithm
	size      int  // tokens of a block
	known     bool // the router has an index of the model
}

// keyings are those of this process's router, by base model. A new one is made for each look at what writers say.
type keyings struct {
	ask  func(model string) (algorithm block.Algorithm, blockSize int, ok bool)
	told map[string]keying
}

func (r *Reader) keyings() *keyings {
	return &keyings{ask: r.parts.Keying, told: map[string]keying{}}
}

func (k *keyings) of(model string) keying {
	one, asked := k.told[model]
	if !asked {
		one.algorithm, one.size, one.known = k.ask(model)
		k.told[model] = one
	}
	return one
}

// fit reports whether the router's questions about a worker's model can find the blocks of an entry. An entry without a
// slot has none.
func (k *keyings) fit(w *fleet.Worker, e *holderEntry) bool {
	own := k.of(w.Facts.BaseModel())
	return e.Slot == 0 || !own.known || own.algorithm.String() == e.Algorithm && own.size == e.BlockSize
}

// takeSizes lets the router have the block size of the writers for models of which it would find no block. Writers and
// routers choose the size by the workers that they have met, and may have met others. If writers disagree, one whose
// size the router has is enough.
func (r *Reader) takeSizes(snap *fleet.Snapshot, best map[fleet.Holder]*holderEntry, k *keyings) {
	fitting, other := map[string]bool{}, map[string]int{}
	for _, w := range snap.Workers() {
		for _, h := range w.Holders {
			e, model := best[h], w.Facts.BaseModel()
			switch {
			case e == nil || e.Slot == 0:
			case k.fit(w, e):
				fitting[model] = true
			case other[model] == 0 && e.Algorithm == k.of(model).algorithm.String():
				other[model] = e.BlockSize
			}
		}
	}
	for model, size := range other {
		if fitting[model] {
			continue
		}
		r.parts.SetBlockSize(model, size)
		r.parts.Log.Info("the shared index has blocks of another size: the router takes its size", "model", model, "was", k.of(model).size, "is", size)
		delete(k.told, model)
	}
}

// otherKeys says why the blocks of an entry can not be found.
func otherKeys(e *holderEntry) string {
	return fmt.Sprintf("its keys are made by %s with blocks of %d tokens: set routing.block_keys and routing.block_size alike at writers and routers", e.Algorithm, e.BlockSize)
}

// unfound are the blocks of a base model that can not be found.
type unfound struct {
	model   string
	learned bool // they are learned placements
}

// tellDiffering logs the blocks that can not be found, each once while it is so.
func (r *Reader) tellDiffering(differing map[unfound]*holderEntry, k *keyings) {
	for blocks, e := range differing {
		if r.differing[blocks] != nil {
			continue
		}
		own := k.of(blocks.model)
		with := []any{"server", r.config.Address(), "model", blocks.model, "here", own.algorithm.String(), "here_block_size", own.size, "there", e.Algorithm, "there_block_size", e.BlockSize}
		if blocks.learned {
			r.parts.Log.Warn("learned placements in the shared index have other block keys than this router, which finds none of them; if another router wrote them: set routing.block_keys and routing.block_size alike at all routers", with...)
		} else {
			r.parts.Log.Error("the shared index has other block keys than this router, so no block is found: set routing.block_keys and routing.block_size alike at writers and routers", with...)
		}
	}
	r.differing = differing
}
