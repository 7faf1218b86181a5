package kvindex

import "github.com/warmpath/warmpath/kvindex/internal/memory"

// need is an upper bound of the elements that an operation stores.
type need struct {
	hashes int // engine blocks
	tokens int
	size   int   // of one engine block
	bytes  int64 // of multimodal items
}

// bytes returns the memory that the index has allocated.
func (x *Index) bytes() int64 {
	return x.blocks.bytes() + x.blocks.extraBytes + int64(cap(x.blocks.holders))*8 + int64(x.known)*holderBytes
}

// holderBytes covers a holder and its view with a few groups.
const holderBytes = 768

// growth returns an upper bound of the bytes that the index allocates for the need. size is the tokens of a block.
func (x *Index) growth(n need, size int) int64 {
	b := &x.blocks
	blocks, each := max(n.tokens, n.hashes*n.size)/size+1, int64(pointBytes+16+96)
	runs := 2
	if n.size != size {
		// Parts of blocks, and tails of tokens.
		blocks, runs = blocks+n.hashes, blocks+n.hashes
		each += (partsBytes+2*partBytes)*int64((n.size+size-2)/size+1) + int64(4*min(size, n.size+size)+8*(n.size/size+4))
	}
	return b.growth(blocks) + b.log.Growth(blocks, runs) + int64(n.hashes)*each + int64(4*n.tokens) + n.bytes
}

// vacant is an empty index. It is never changed.
var vacant Index

// alone returns an upper bound of the bytes that the need would take in an index with the known holders and no blocks.
func (x *Index) alone(n need) int64 {
	return int64(cap(x.blocks.holders))*16 + int64(x.known)*holderBytes + vacant.growth(n, int(x.size))
}

// slackStretches is the number of the longest stretches for which room is measured at a time, where there is much.
const slackStretches = 8

// stretches returns the need of many of the longest stretches, for engine blocks of n's size.
func (x *Index) stretches(many int, n need) need {
	hashes := many * x.stretch(n.size)
	return need{hashes: hashes, tokens: hashes * max(n.size, 2*int(x.size)), size: n.size, bytes: 32 * int64(hashes)}
}

// within reports whether room for another need is room for n.
func (n need) within(other *need) bool {
	return n.hashes <= other.hashes && n.tokens <= other.tokens && n.bytes <= other.bytes && n.size == other.size
}

// roomy reports whether the need fits in the budget as things are. Measuring costs microseconds, so that room is
// measured for several stretches at a time: for many while there is much room, else for one. If the answer must be
// ample, there must be room for one.
func (x *Index) roomy(n need, ample bool) bool {
	for many := slackStretches; many > 0 && !n.within(&x.slack); many /= slackStretches {
		x.slack = need{}
		big := x.stretches(many, n)
		ample = ample && n.within(&big)
		if n.within(&big) && x.fits(big) {
			x.slack = big
		}
	}
	if !n.within(&x.slack) {
		return !ample && x.fits(n)
	}
	x.slack.hashes -= n.hashes
	x.slack.tokens -= n.tokens
	x.slack.bytes -= n.bytes
	return true
}

// fits measures whether a need fits in the budget.
func (x *Index) fits(n need) bool {
	b, used, budget := &x.blocks, x.bytes(), x.config.Bytes
	b.heads.Tight, b.names.Tight = used > budget-budget/4, used > budget-budget/4
	return used+x.growth(n, int(x.size)) <= budget
}

// makeRoom evicts until the need fits in the budget. It reports false, before it evicts anything, when the need does
// not fit in an empty index, or is more than the share of h and a quarter of the budget: usual stretches need less than
// that. It reports false, too, when h is above its share and only blocks of holders below theirs are left. Nothing that
// was looked up before is valid after it.
func (x *Index) makeRoom(h *holder, n need) bool {
	if x.roomy(n, false) {
		return true
	}
	if alone := x.alone(n); alone > x.config.Bytes || float64(alone) > max(x.share(h), float64(x.config.Bytes/4)) {
		return false
	}
	return x.evict(h, func(ample bool) bool { return x.roomy(n, ample) })
}

// roomToSplit evicts until a removal of n blocks fits in the budget. A removal can need room: it splits segments and
// makes new sets.
func (x *Index) roomToSplit(n int) {
	b := &x.blocks
	b.steps += uint64(n)
	if x.slack.hashes >= n {
		x.slack.hashes -= n
		return
	}
	// The list of a strand's segments grows by two. It may then be of the next size class.
	most := b.sets.growth(n) + int64(n)*int64(32+2*cap(b.old)) + 2*memory.ListBytes(cap(b.old)+2) + 4096
	x.evict(nil, func(bool) bool { return x.bytes()+most <= x.config.Bytes })
}

// fit gives memory back after much was removed at once.
func (x *Index) fit() {
	x.blocks.heads.Fit()
	x.blocks.names.Fit()
	x.slack = need{}
}
