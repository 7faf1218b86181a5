package sharedindex

import (
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/kvindex/kvindextest"
	"github.com/warmpath/warmpath/test/testenv"
)

// cannot is the one case of the suite that the shared index does not pass. Its writer's index evicts the blocks that
// were stored and looked up least recently, and does not see the lookups of readers. So a full index may claim less
// than it could.
const cannot = "the byte budget holds, and blocks in use stay"

// The shared index passes the suite of the in-memory index, because its writers have one: here, an index, its mirror at
// a real server, and a reader of the mirror.
func TestTheSharedIndexConforms(t *testing.T) {
	onEach(t, func(t *testing.T, s *testenv.ValkeyServer) {
		b := newBench(t, s, 128)
		maker := func(h *block.Hasher, cfg kvindex.Config) *kvindextest.Door { return b.mirror(h, cfg).door() }
		kvindextest.ConformanceWithout(t, maker, cannot)
	})
}

func TestTheSharedIndexAnswersAsTheReference(t *testing.T) {
	onEach(t, func(t *testing.T, s *testenv.ValkeyServer) {
		b := newBench(t, s, 128)
		maker := func(h *block.Hasher, cfg kvindex.Config) *kvindextest.Door { return b.mirror(h, cfg).door() }
		kvindextest.Model(t, maker, kvindextest.Effort{Runs: 20, Steps: 60})
	})
}

func TestTheSharedIndexClaimsNoMoreThanEnginesHave(t *testing.T) {
	onEach(t, func(t *testing.T, s *testenv.ValkeyServer) {
		b := newBench(t, s, 128)
		maker := func(h *block.Hasher, cfg kvindex.Config) *kvindextest.Door { return b.mirror(h, cfg).door() }
		kvindextest.Truth(t, maker, kvindextest.Effort{Runs: 4, Steps: 60})
		kvindextest.Evicting(t, maker, kvindextest.Effort{Runs: 1, Steps: 15})
	})
}
