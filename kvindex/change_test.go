package kvindex_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// listener writes down changes as text, because the index reuses their slices.
type listener struct{ lines []string }

func (l *listener) hear(c *kvindex.Change) {
	switch c.Kind {
	case kvindex.Regrouped:
		l.lines = append(l.lines, fmt.Sprintf("%d groups %v", c.Holder, c.Groups))
	case kvindex.Cleared:
		l.lines = append(l.lines, fmt.Sprintf("%d cleared %s", c.Holder, c.Tier))
	case kvindex.Forgotten:
		l.lines = append(l.lines, fmt.Sprintf("%d forgotten", c.Holder))
	default:
		word := map[kvindex.ChangeKind]string{kvindex.Added: "added", kvindex.Dropped: "dropped"}[c.Kind]
		l.lines = append(l.lines, fmt.Sprintf("%d %s %s/%d depth %d after %d: %v", c.Holder, word, c.Tier, c.Group, c.Depth, c.ParentHash, c.Hashes))
	}
}

func (l *listener) want(t *testing.T, lines ...string) {
	t.Helper()
	if !slices.Equal(l.lines, lines) {
		t.Errorf("told:\n%s\nwant:\n%s", strings.Join(l.lines, "\n"), strings.Join(lines, "\n"))
	}
	l.lines = nil
}

func TestChangesSayWhatTheIndexClaims(t *testing.T) {
	h, err := block.NewHasher(block.XXH3, 4)
	if err != nil {
		t.Fatal(err)
	}
	var l listener
	x := kvindex.New(h, kvindex.Config{Changed: l.hear})
	store := func(holder fleet.Holder, parent uint64, hashes ...uint64) {
		s := kvindex.Stored{Hashes: hashes, BlockSize: 4, Parent: parent, HasParent: parent != 0, Origin: kvindex.OriginNew}
		for _, hash := range hashes {
			s.Tokens = append(s.Tokens, uint32(hash), 1, 2, 3)
		}
		x.Store(holder, &s)
	}
	store(3, 0, 10, 11, 12)
	l.want(t, "3 groups [{0 full 0 4}]", "3 added gpu/0 depth 0 after 0: [10 11 12]")
	store(3, 0, 10, 11)
	l.want(t) // further copies
	x.Remove(3, block.TierGPU, 0, []uint64{11})
	l.want(t)
	x.Remove(3, block.TierGPU, 0, []uint64{12, 11})
	l.want(t, "3 dropped gpu/0 depth 2 after 11: [12]", "3 dropped gpu/0 depth 1 after 10: [11]")
	store(3, 20, 21) // the parent is not known yet
	l.want(t)
	store(3, 10, 20)
	l.want(t, "3 added gpu/0 depth 1 after 10: [20]", "3 added gpu/0 depth 2 after 20: [21]")
	x.Store(3, &kvindex.Stored{Tier: block.TierCPU, Hashes: []uint64{20}, RootUnknown: true})
	l.want(t, "3 added cpu/0 depth 1 after 10: [20]")
	x.Clear(3, block.TierGPU)
	l.want(t, "3 cleared gpu", "3 dropped gpu/0 depth 0 after 0: [10]") // the second copy of block 10 was counted apart
	x.Forget(3)
	l.want(t, "3 forgotten")
	x.Forget(3)
	l.want(t)
}

func TestToldChangesAllocateNothing(t *testing.T) {
	h, err := block.NewHasher(block.XXH3, 4)
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	allocations := func(changed func(*kvindex.Change)) float64 {
		x := kvindex.New(h, kvindex.Config{Changed: changed})
		s := kvindex.Stored{Hashes: []uint64{1, 2}, Tokens: make([]block.Token, 8), BlockSize: 4}
		gone := []uint64{2, 1}
		return testing.AllocsPerRun(1000, func() {
			x.Store(0, &s)
			x.Remove(0, block.TierGPU, 0, gone)
		})
	}
	with := allocations(func(c *kvindex.Change) { told += len(c.Keys) })
	if without := allocations(nil); with > without || told < 4000 {
		t.Errorf("%v allocations with a listener, %v without; %d blocks told", with, without, told)
	}
}
