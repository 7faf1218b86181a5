package learned_test

import (
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex/kvindextest"
	"github.com/warmpath/warmpath/kvindex/learned"
)

func TestBothIndexesConform(t *testing.T) {
	for name, cfg := range map[string]learned.Config{
		"tracker":     learned.TrackerConfig(),
		"approximate": learned.ApproximateConfig(),
	} {
		t.Run(name, func(t *testing.T) {
			kvindextest.ConformanceOfLearner(t, func(h *block.Hasher) kvindextest.Learner { return learner{learned.New(h, cfg)} })
		})
	}
}

// learner is an index whose prompts are all sent.
type learner struct{ *learned.Index }

func (l learner) Learn(h fleet.Holder, keys []block.Key, now int64) { l.Index.Learn(h, keys, now) }
