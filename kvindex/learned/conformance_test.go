package learned_test

import (
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex/kvindextest"
	"github.com/warmpath/warmpath/kvindex/learned"
)

func TestBothIndexesConform(t *testing.T) {
	for name, cfg := range map[string]learned.Config{
		"tracker":     learned.TrackerConfig(),
		"approximate": learned.ApproximateConfig(),
	} {
		t.Run(name, func(t *testing.T) {
			kvindextest.ConformanceOfLearner(t, func(h *block.Hasher) kvindextest.Learner { return learned.New(h, cfg) })
		})
	}
}
