package kvindextest

import (
	"slices"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// Learner is an index that learns blocks from the requests that were sent to holders, such as placement.Store.
type Learner interface {
	Learn(h fleet.Holder, keys []block.Key, now int64)
	Match(keys []block.Key, now int64, dst []kvindex.Match) []kvindex.Match
	Forget(h fleet.Holder)
}

// ConformanceOfLearner runs the cases of [Conformance] that only extend chains and forget holders. An index that learns
// must pass them. The remaining cases use facts that such an index never gets: removals, copies, engine blocks of other
// sizes, tiers, groups, hashes, and blocks that wait for a parent.
func ConformanceOfLearner(t *testing.T, make func(h *block.Hasher) Learner) {
	ran := 0
	for _, c := range conformance {
		if !c.learned {
			continue
		}
		ran++
		t.Run(c.name, func(t *testing.T) {
			c.run(newRig(t, func(h *block.Hasher, _ kvindex.Config) *Door { return learning(h, make(h)) }, c.size, c.config))
		})
	}
	if ran == 0 {
		t.Error("no case applies")
	}
}

// learning returns a Door for an index that learns. It turns each announcement into a request for the whole chain up to
// the announcement's last block.
func learning(h *block.Hasher, x Learner) *Door {
	type name struct {
		holder fleet.Holder
		hash   uint64
	}
	chains := map[name][]block.Key{}
	return &Door{
		Store: func(id fleet.Holder, s *kvindex.Stored) {
			chain, parent := chains[name{id, s.Parent}], h.Root(s.Scope)
			if !s.HasParent {
				chain = nil
			} else if len(chain) == 0 {
				return // the parent is unknown, and a request always has its prompt's beginning
			}
			if len(chain) > 0 {
				parent = chain[len(chain)-1]
			}
			from := len(chain)
			chain = h.Append(slices.Clone(chain), parent, from*h.Size(), s.Tokens, s.Features)
			for i, hash := range s.Hashes {
				chains[name{id, hash}] = chain[:from+i+1]
			}
			x.Learn(id, chain, 1)
		},
		Remove: func(fleet.Holder, block.Tier, int, []uint64) {},
		Clear:  func(fleet.Holder, block.Tier) {},
		Forget: x.Forget,
		Match:  func(keys []block.Key, dst []kvindex.Match) []kvindex.Match { return x.Match(keys, 1, dst) },
	}
}
