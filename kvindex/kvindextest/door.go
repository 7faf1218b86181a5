// Package kvindextest has the tests that any index of KV blocks must pass: a conformance suite, a model test against a
// naive reference, and tests against modelled engines. The tests call a [Maker] to make an index, and use the index
// only through its [Door].
//
//	func TestConformance(t *testing.T) { kvindextest.Conformance(t, kvindextest.Kvindex) }
//	func TestModel(t *testing.T)       { kvindextest.Model(t, kvindextest.Kvindex, kvindextest.Effort{Runs: 200, Steps: 200}) }
package kvindextest

import (
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// Door has the methods of an index as functions, so that a test can replace one of them.
type Door struct {
	Store  func(h fleet.Holder, s *kvindex.Stored)
	Remove func(h fleet.Holder, tier block.Tier, group int, hashes []uint64)
	Clear  func(h fleet.Holder, tier block.Tier)
	Forget func(h fleet.Holder)
	Match  func(keys []block.Key, dst []kvindex.Match) []kvindex.Match
	Stats  func() kvindex.Stats // nil: Model does not compare statistics; the other tests need Stats
}

// Maker makes an empty index for blocks of the hasher's size.
type Maker func(h *block.Hasher, cfg kvindex.Config) *Door

// Kvindex makes a kvindex.Index.
func Kvindex(h *block.Hasher, cfg kvindex.Config) *Door {
	x := kvindex.New(h, cfg)
	return &Door{Store: x.Store, Remove: x.Remove, Clear: x.Clear, Forget: x.Forget, Match: x.Match, Stats: x.Stats}
}
