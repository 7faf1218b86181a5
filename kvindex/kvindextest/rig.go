package kvindextest

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// rig announces and removes blocks of texts as an engine does, and checks the index's matches.
type rig struct {
	*testing.T
	*Door
	hasher *block.Hasher
}

func newRig(t *testing.T, make Maker, size int, cfg kvindex.Config) *rig {
	t.Helper()
	h, err := block.NewHasher(block.XXH3, size)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{T: t, Door: make(h, cfg), hasher: h}
}

// words returns n tokens. Different seeds give different tokens.
func words(seed, n int) []block.Token {
	out := make([]block.Token, n)
	for i := range out {
		out[i] = block.Token(seed*100_000 + i)
	}
	return out
}

// hashesOf returns the engine hashes of the blocks of a text. Like an engine's hash, each hash depends on all tokens up
// to the block's end.
func hashesOf(tokens []block.Token, size int, salt string) []uint64 {
	h := uint64(14695981039346656037)
	for _, c := range salt {
		h = (h ^ uint64(c)) * 1099511628211
	}
	var out []uint64
	for i, tok := range tokens {
		h = (h ^ uint64(tok)) * 1099511628211
		if (i+1)%size == 0 {
			out = append(out, h)
		}
	}
	return out
}

// cut says which blocks of a text to announce or to remove, and for which holder. Stored has the remaining fields of
// the announcement.
type cut struct {
	holder   fleet.Holder
	size     int // the tokens of an engine block; 0: the index's block size
	from, to int // the range of engine blocks; to is exclusive, and 0 means up to the last block
	kvindex.Stored
}

func (r *rig) fill(tokens []block.Token, c cut) (cut, []uint64) {
	if c.size == 0 {
		c.size = r.hasher.Size()
	}
	all := hashesOf(tokens, c.size, c.Scope.Salt)
	if c.to == 0 {
		c.to = len(all)
	}
	return c, all
}

// store announces the blocks of a text that c selects, as an engine does after it has cached the blocks.
func (r *rig) store(tokens []block.Token, c cut) {
	r.Helper()
	c, all := r.fill(tokens, c)
	s := c.Stored
	s.Hashes, s.Tokens, s.BlockSize = all[c.from:c.to], tokens[c.from*c.size:c.to*c.size], c.size
	if c.from > 0 {
		s.Parent, s.HasParent = all[c.from-1], true
	}
	// The index must not keep the slices of an announcement. So the rig passes copies, and clears them afterwards.
	s.Hashes, s.Tokens, s.Features = slices.Clone(s.Hashes), slices.Clone(s.Tokens), slices.Clone(s.Features)
	r.Store(c.holder, &s)
	clear(s.Hashes)
	clear(s.Tokens)
	clear(s.Features)
}

// hint announces the hashes of the blocks that c selects, without their tokens.
func (r *rig) hint(tokens []block.Token, c cut) {
	r.Helper()
	c, all := r.fill(tokens, c)
	s := c.Stored
	s.Hashes = slices.Clone(all[c.from:c.to])
	r.Store(c.holder, &s)
}

func (r *rig) remove(tokens []block.Token, c cut) {
	r.Helper()
	c, all := r.fill(tokens, c)
	hashes := slices.Clone(all[c.from:c.to])
	slices.Reverse(hashes) // the last blocks are removed first
	r.Remove(c.holder, c.Tier, c.Group, hashes)
}

func (r *rig) keys(tokens []block.Token, scope block.Scope, features ...block.Feature) []block.Key {
	return r.hasher.Append(nil, r.hasher.Root(scope), 0, tokens, features)
}

// want compares the index's matches of a text with the wanted number of blocks of each holder. A holder that is not in
// want must have no match.
func (r *rig) want(tokens []block.Token, want map[fleet.Holder]uint32) {
	r.Helper()
	r.wantOf(r.keys(tokens, block.Scope{}), want)
}

func (r *rig) wantOf(keys []block.Key, want map[fleet.Holder]uint32) {
	r.Helper()
	got := map[fleet.Holder]uint32{}
	for _, m := range r.Match(keys, nil) {
		sum := uint32(0)
		for _, n := range m.Tier {
			sum += n
		}
		if sum != m.Blocks {
			r.Errorf("a match that contradicts itself: %+v", m)
		}
		if m.Blocks > 0 {
			got[m.Holder] = m.Blocks
		}
	}
	if len(got) == 0 && len(want) == 0 {
		return
	}
	if d := cmp.Diff(want, got); d != "" {
		r.Errorf("blocks by holder (-want +got):\n%s", d)
	}
}

// only returns an argument for want: holder 0 has this number of blocks, and no other holder has any.
func only(blocks uint32) map[fleet.Holder]uint32 {
	if blocks == 0 {
		return nil
	}
	return map[fleet.Holder]uint32{0: blocks}
}

// matchOf returns holder 0's match.
func (r *rig) matchOf(tokens []block.Token) kvindex.Match {
	for _, m := range r.Match(r.keys(tokens, block.Scope{}), nil) {
		if m.Holder == 0 {
			return m
		}
	}
	return kvindex.Match{}
}
