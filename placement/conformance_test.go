package placement

import (
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex/kvindextest"
)

func TestBlocksConform(t *testing.T) {
	for name, cfg := range map[string]Config{
		"tracker":     tracked,
		"approximate": believed,
	} {
		t.Run(name, func(t *testing.T) {
			kvindextest.ConformanceOfLearner(t, func(*block.Hasher) kvindextest.Learner { return learner{newBlocks(cfg)} })
		})
	}
}

// learner is a store for the conformance tests. All prompts that it learns count as sent.
type learner struct{ *blocks }

func (l learner) Learn(h fleet.Holder, keys []block.Key, now int64) { l.blocks.Learn(h, keys, now) }
