package kvindextest

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// Replayed makes a kvindex.Index beside a naive index that knows only the changes that the first one tells. Match
// panics if their answers differ.
func Replayed(h *block.Hasher, cfg kvindex.Config) *Door {
	r := NewReplay(h)
	cfg.Changed = r.Apply
	x := kvindex.New(h, cfg)
	d := &Door{Store: x.Store, Remove: x.Remove, Clear: x.Clear, Forget: x.Forget, Stats: x.Stats}
	asked := 0
	d.Match = func(keys []block.Key, dst []kvindex.Match) []kvindex.Match {
		if asked++; asked%97 == 0 { // everything told again must be the same
			r.forget()
			for id := fleet.Holder(0); id < 128; id++ {
				for next := 0; next >= 0; {
					next = x.TellAgain(id, next)
				}
			}
		}
		first := len(dst)
		dst = x.Match(keys, dst)
		if got := r.Match(keys, nil); !slices.Equal(got, dst[first:]) {
			panic(fmt.Sprintf("the changes give %v, the index %v", got, dst[first:]))
		}
		if got := r.measure(keys); !slices.Equal(got, dst[first:]) {
			panic(fmt.Sprintf("measured %v, the index says %v", got, dst[first:]))
		}
		return dst
	}
	return d
}

// Replay is a naive index that applies the changes of another index, and does not know how they came about. All methods
// are safe for concurrent use.
type Replay struct {
	mu sync.Mutex
	x  *reference
}

// NewReplay returns an empty Replay for blocks of the hasher's size.
func NewReplay(h *block.Hasher) *Replay {
	return &Replay{x: &reference{hasher: h, holders: map[fleet.Holder]*refHolder{}}}
}

// Match answers as [kvindex.Index.Match] does.
func (r *Replay) Match(keys []block.Key, dst []kvindex.Match) []kvindex.Match {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.x.match(keys, dst)
}

// measure answers as Match does, by kvindex.Measure.
func (r *Replay) measure(keys []block.Key) (all []kvindex.Match) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, h := range r.x.holders {
		var groups []kvindex.GroupStats
		for _, g := range h.groups {
			groups = append(groups, kvindex.GroupStats{Group: g.id, Attention: g.kind, Window: g.window, BlockSize: g.unit})
		}
		held := make([]uint64, len(keys))
		for at, blocks := range h.held {
			for i, key := range keys {
				if blocks[key] {
					held[i] |= kvindex.Place(at.tier, at.group)
				}
			}
		}
		m := kvindex.NewMeasure(r.x.hasher.Size(), groups, h.anyTier, h.tooMany).Match(held)
		if m.Holder = id; m.Blocks > 0 || m.Full > 0 {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b kvindex.Match) int { return cmp.Compare(a.Holder, b.Holder) })
	return all
}

func (r *Replay) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.x.holders)
}

// Apply applies one change. It keeps nothing of c.
func (r *Replay) Apply(c *kvindex.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.Kind == kvindex.Forgotten {
		delete(r.x.holders, c.Holder)
		return
	}
	h := r.x.holder(c.Holder)
	if h.held == nil {
		h.held = map[place]map[block.Key]bool{}
	}
	h.asked = map[asked]kvindex.Match{}
	at := place{c.Tier, h.place(c.Group)}
	switch c.Kind {
	case kvindex.Regrouped:
		h.regroup(c)
	case kvindex.Cleared:
		for p := range h.held {
			if p.tier == c.Tier {
				delete(h.held, p)
			}
		}
	case kvindex.Added:
		if h.held[at] == nil {
			h.held[at] = map[block.Key]bool{}
		}
		for _, key := range c.Keys {
			h.held[at][key] = true
		}
	case kvindex.Dropped:
		for _, key := range c.Keys {
			delete(h.held[at], key)
		}
	}
}

// place returns the place of a group among a holder's groups. Regrouped tells a group before its blocks are added.
func (h *refHolder) place(group int) int {
	return slices.IndexFunc(h.groups, func(g refGroup) bool { return g.id == group })
}

func (h *refHolder) regroup(c *kvindex.Change) {
	h.anyTier, h.tooMany = c.AnyTierOrder, c.Unprovable
	h.groups = h.groups[:0]
	for _, g := range c.Groups {
		h.groups = append(h.groups, refGroup{id: g.Group, window: g.Window, unit: g.BlockSize, kind: g.Attention})
	}
}
