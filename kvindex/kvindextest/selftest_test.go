package kvindextest

import (
	"strings"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

func TestTheReferenceConforms(t *testing.T) {
	for _, c := range concat(chainCases, copyCases, cutCases, tierCases, groupCases) {
		t.Run(c.name, func(t *testing.T) { c.run(newRig(t, Reference, c.size, c.config)) })
	}
}

// mutants are indexes with one defect each. The indexes of other projects have most of these defects.
var mutants = map[string]func(h *block.Hasher, d *Door) Door{
	"a hole is jumped over": func(hasher *block.Hasher, d *Door) Door {
		m, alone := besideReference(hasher, d)
		m.Match = func(keys []block.Key, dst []kvindex.Match) []kvindex.Match {
			dst = d.Match(keys, dst)
			held := map[fleet.Holder]uint32{}
			for i := range keys {
				for _, one := range alone.Match(keys[i:i+1], nil) {
					held[one.Holder] += one.Blocks
				}
			}
			for i := range dst {
				dst[i].Blocks = max(dst[i].Blocks, held[dst[i].Holder])
			}
			return dst
		}
		return m
	},
	"the deepest block stands for all before it": func(hasher *block.Hasher, d *Door) Door {
		m, alone := besideReference(hasher, d)
		m.Match = func(keys []block.Key, dst []kvindex.Match) []kvindex.Match {
			dst = d.Match(keys, dst)
			for i := range keys {
				for _, one := range alone.Match(keys[i:i+1], nil) {
					if one.Blocks > 0 {
						dst = raise(dst, one.Holder, uint32(i+1))
					}
				}
			}
			return dst
		}
		return m
	},
	"a set is taken for another of the same size": func(hasher *block.Hasher, d *Door) Door {
		// The mutant takes two positions of a prompt for equal if the same number of holders has them.
		m, alone := besideReference(hasher, d)
		m.Match = func(keys []block.Key, dst []kvindex.Match) []kvindex.Match {
			dst = d.Match(keys, dst)
			for i := len(keys) - 1; i > 0; i-- {
				if n := len(alone.Match(keys[i:i+1], nil)); n > 0 && n == len(d.Match(keys[:1], nil)) {
					for _, one := range d.Match(keys[:1], nil) {
						dst = raise(dst, one.Holder, uint32(i+1))
					}
					break
				}
			}
			return dst
		}
		return m
	},
	"copies are not counted": func(_ *block.Hasher, d *Door) Door {
		m := *d
		m.Store = func(h fleet.Holder, s *kvindex.Stored) { c := *s; c.Origin = kvindex.OriginReused; d.Store(h, &c) }
		return m
	},
	"reports are counted as copies": func(_ *block.Hasher, d *Door) Door {
		m := *d
		m.Store = func(h fleet.Holder, s *kvindex.Stored) { c := *s; c.Origin = kvindex.OriginNew; d.Store(h, &c) }
		return m
	},
	"children of unknown parents are dropped": func(_ *block.Hasher, d *Door) Door {
		m, known := *d, map[uint64]bool{}
		m.Store = func(h fleet.Holder, s *kvindex.Stored) {
			if s.HasParent && !known[s.Parent] {
				return
			}
			for _, hash := range s.Hashes {
				known[hash] = true
			}
			d.Store(h, s)
		}
		return m
	},
	"a removed block takes its descendants along": func(_ *block.Hasher, d *Door) Door {
		m, children := *d, map[uint64][]uint64{}
		m.Store = func(h fleet.Holder, s *kvindex.Stored) {
			parent := s.Parent
			for i, hash := range s.Hashes {
				if i > 0 || s.HasParent {
					children[parent] = append(children[parent], hash)
				}
				parent = hash
			}
			d.Store(h, s)
		}
		m.Remove = func(h fleet.Holder, tier block.Tier, group int, hashes []uint64) {
			for _, hash := range hashes {
				d.Remove(h, tier, group, children[hash])
			}
			d.Remove(h, tier, group, hashes)
		}
		return m
	},
	"only the first of many removals is seen": func(_ *block.Hasher, d *Door) Door {
		m := *d
		m.Remove = func(h fleet.Holder, tier block.Tier, group int, hashes []uint64) {
			d.Remove(h, tier, group, hashes[:min(1, len(hashes))])
		}
		return m
	},
	"clearing one tier clears all": func(_ *block.Hasher, d *Door) Door {
		m := *d
		m.Clear = func(h fleet.Holder, _ block.Tier) {
			for t := range block.Tier(block.NumTiers) {
				d.Clear(h, t)
			}
		}
		return m
	},
	"clearing leaves stale blocks": func(_ *block.Hasher, d *Door) Door {
		m := *d
		m.Clear = func(fleet.Holder, block.Tier) {}
		return m
	},
	"a forgotten holder is still known": func(_ *block.Hasher, d *Door) Door {
		m := *d
		m.Forget = func(fleet.Holder) {}
		return m
	},
	"blocks of other sizes are dropped": func(h *block.Hasher, d *Door) Door {
		m := *d
		m.Store = func(id fleet.Holder, s *kvindex.Stored) {
			if s.BlockSize == h.Size() {
				d.Store(id, s)
			}
		}
		return m
	},
	"unknown roots are guessed": func(_ *block.Hasher, d *Door) Door {
		m := *d
		m.Store = func(h fleet.Holder, s *kvindex.Stored) { c := *s; c.RootUnknown = false; d.Store(h, &c) }
		return m
	},
	"images are forgotten": func(_ *block.Hasher, d *Door) Door {
		m := *d
		m.Store = func(h fleet.Holder, s *kvindex.Stored) { c := *s; c.Features = nil; d.Store(h, &c) }
		return m
	},
	"groups are not told apart": func(_ *block.Hasher, d *Door) Door {
		m := *d
		m.Store = func(h fleet.Holder, s *kvindex.Stored) { c := *s; c.Group = 0; d.Store(h, &c) }
		m.Remove = func(h fleet.Holder, tier block.Tier, _ int, hashes []uint64) { d.Remove(h, tier, 0, hashes) }
		return m
	},
	"windows are taken for full attention": func(_ *block.Hasher, d *Door) Door {
		m := *d
		m.Match = func(keys []block.Key, dst []kvindex.Match) []kvindex.Match {
			dst = d.Match(keys, dst)
			for i := range dst {
				dst[i].Blocks = max(dst[i].Blocks, dst[i].Full)
			}
			return dst
		}
		return m
	},
	"tiers are not told apart": func(_ *block.Hasher, d *Door) Door {
		m := *d
		m.Store = func(h fleet.Holder, s *kvindex.Stored) { c := *s; c.Tier = 0; d.Store(h, &c) }
		m.Remove = func(h fleet.Holder, _ block.Tier, group int, hashes []uint64) { d.Remove(h, 0, group, hashes) }
		return m
	},
}

// besideReference returns a copy of d, and a reference that gets the same events as the copy. A mutant looks up single
// blocks in the reference, because only the reference matches a block without the blocks before it.
func besideReference(hasher *block.Hasher, d *Door) (m Door, alone *Door) {
	m, alone = *d, Reference(hasher, kvindex.Config{})
	m.Store = func(h fleet.Holder, s *kvindex.Stored) { d.Store(h, s); alone.Store(h, s) }
	m.Remove = func(h fleet.Holder, tier block.Tier, group int, hashes []uint64) {
		d.Remove(h, tier, group, hashes)
		alone.Remove(h, tier, group, hashes)
	}
	m.Clear = func(h fleet.Holder, tier block.Tier) { d.Clear(h, tier); alone.Clear(h, tier) }
	m.Forget = func(h fleet.Holder) { d.Forget(h); alone.Forget(h) }
	return m, alone
}

// raise raises a holder's match in dst to the given number of blocks.
func raise(dst []kvindex.Match, h fleet.Holder, blocks uint32) []kvindex.Match {
	for i := range dst {
		if dst[i].Holder == h {
			dst[i].Blocks = max(dst[i].Blocks, blocks)
			return dst
		}
	}
	return append(dst, kvindex.Match{Holder: h, Blocks: blocks})
}

func TestBrokenIndexesFailTheModel(t *testing.T) {
	for name, mutate := range mutants {
		t.Run(name, func(t *testing.T) {
			maker := func(h *block.Hasher, cfg kvindex.Config) *Door {
				d := mutate(h, Kvindex(h, cfg))
				d.Stats = nil // the model must find the defect by the matches alone
				return &d
			}
			err := runModel(maker, 1, Effort{Runs: 100, Steps: 120})
			if err == nil {
				t.Fatal("it passes")
			}
			if n := strings.Count(err.Error(), "\n  holder "); n > 12 {
				t.Errorf("the history was not shrunk:\n%v", err)
			}
		})
	}
}

func TestAFailureIsReadable(t *testing.T) {
	maker := func(h *block.Hasher, cfg kvindex.Config) *Door {
		d := mutants["only the first of many removals is seen"](h, Kvindex(h, cfg))
		d.Stats = nil
		return &d
	}
	err := runModel(maker, 1, Effort{Runs: 100, Steps: 120})
	if err == nil {
		t.Fatal("it passes")
	}
	t.Log(err)
	for _, want := range []string{"seed 1, history ", "blocks of ", "store ", "remove ", "(- reference, + index)"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in the failure", want)
		}
	}
}
