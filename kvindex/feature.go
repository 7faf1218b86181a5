package kvindex

import (
	"cmp"
	"slices"

	"github.com/warmpath/warmpath/block"
)

// inOrder returns features ordered by offset.
func inOrder(features []block.Feature) []block.Feature {
	byOffset := func(f, g block.Feature) int { return cmp.Compare(f.Offset, g.Offset) }
	if !slices.IsSortedFunc(features, byOffset) {
		features = slices.Clone(features)
		slices.SortStableFunc(features, byOffset)
	}
	return features
}

// within returns the features that start in the blocks from lo to hi (exclusive).
func (a *announcement) within(lo, hi int) []block.Feature {
	at := func(i int) int {
		n, _ := slices.BinarySearchFunc(a.features, i*a.BlockSize, func(f block.Feature, offset int) int { return cmp.Compare(f.Offset, offset) })
		return n
	}
	if len(a.features) == 0 {
		return nil
	}
	return a.features[at(lo):at(hi)]
}

// relative returns the features that start in the i-th block, with offsets relative to the block's first token.
func (x *Index) relative(a *announcement, i int) []block.Feature {
	return absolute(a.within(i, i+1), -i*a.BlockSize)
}

// absolute returns features with start added to their offsets. The given offsets count from a token of the chain, and
// start is the number of tokens of the chain before this token. So the new offsets count from the chain's first token.
func absolute(features []block.Feature, start int) []block.Feature {
	if len(features) == 0 {
		return nil
	}
	out := make([]block.Feature, len(features))
	for i, f := range features {
		out[i] = block.Feature{ID: f.ID, Offset: f.Offset + start}
	}
	return out
}

// copiesOfItems returns how many points (records of engine blocks) may have a copy of a multimodal item: those that end
// in the item's block of the index, and a waiting point.
func (a *announcement) copiesOfItems(size uint32) int64 {
	return 2 + min(int64(a.to-a.from), int64(size)/max(int64(a.BlockSize), 1))
}

// featuresBytes returns the memory of the multimodal items in the point's tail: the tokens between the last whole block
// of the index and the point's end. A later point that ends in the same block of the index has a copy of each item.
func (p *point) featuresBytes() int64 {
	if p == nil || p.rest == nil {
		return 0
	}
	return featuresBytes(p.rest.features)
}

// featuresBytes returns the memory of features.
func featuresBytes(features []block.Feature) (n int64) {
	for i := range features {
		n += featureBytes + int64(len(features[i].ID))
	}
	return n
}
