package kvindex

import "github.com/warmpath/warmpath/kvindex/internal/memory"

// need is an upper bound of what an operation stores. The index makes room for the need before the operation.
type need struct {
	hashes int   // the number of engine blocks
	tokens int   // the number of tokens of these blocks
	size   int   // the tokens of one engine block
	bytes  int64 // the memory of multimodal items
}

// bytes returns the memory that the index has allocated.
func (x *Index) bytes() int64 {
	return x.blocks.bytes() + x.blocks.extraBytes + int64(cap(x.blocks.holders))*8 + int64(x.known)*holderBytes
}

// holderBytes is the memory of a holder with a few cache groups, as the budget counts it.
const holderBytes = 768

// growth returns an upper bound of the bytes that the index allocates for the need. size is the number of tokens of a
// block of the index.
func (x *Index) growth(n need, size int) int64 {
	b := &x.blocks
	blocks, each := max(n.tokens, n.hashes*n.size)/size+1, int64(pointBytes+16+96)
	runs := 2
	if n.size != size {
		// Engine blocks of another size take memory for parts of blocks, and for tokens after the last whole block.
		blocks, runs = blocks+n.hashes, blocks+n.hashes
		each += coverBytes*int64((n.size+size-2)/size+1) + int64(4*min(size, n.size+size)+40*(n.size/size+4))
	}
	return b.growth(blocks) + b.log.Growth(blocks, runs) + int64(n.hashes)*each + int64(4*n.tokens) + n.bytes
}

// vacant is an empty index, used to measure what a need takes in an empty index.
var vacant Index

// alone returns an upper bound of the bytes that the need would take in an index that has the known holders and no
// blocks.
func (x *Index) alone(n need) int64 {
	return int64(cap(x.blocks.holders))*16 + int64(x.known)*holderBytes + vacant.growth(n, int(x.size))
}

// slackStretches is the number of stretches for which the index measures room at a time, if there is much room. A
// stretch is the blocks that a writer changes before it lets other writers in between.
const slackStretches = 8

// stretches returns the need of a number of stretches of the greatest length, for engine blocks of the size in n.
func (x *Index) stretches(many int, n need) need {
	hashes := many * x.stretch(n.size)
	return need{hashes: hashes, tokens: hashes * max(n.size, 2*int(x.size)), size: n.size, bytes: 32 * int64(hashes)}
}

// within reports whether room for the other need is enough room for n.
func (n need) within(other *need) bool {
	return n.hashes <= other.hashes && n.tokens <= other.tokens && n.bytes <= other.bytes && n.size == other.size
}

// roomy reports whether the need fits in the budget without an eviction. Measuring takes microseconds, so roomy
// measures room for slackStretches stretches at a time, or for one stretch if there is less room. x.slack is the part
// of this room that no operation has used. If ample is true, roomy reports false unless there is room for a whole
// stretch.
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

// makeRoom evicts until the need fits in the budget, and reports whether it fits. makeRoom evicts nothing and reports
// false if the need does not fit in an empty index, or is more than both the share of h and a quarter of the budget:
// usual stretches need less. It also reports false if h is above its share and all remaining blocks have holders below
// their shares. After makeRoom, spots and points that the caller looked up before may be gone.
func (x *Index) makeRoom(h *holder, n need) bool {
	if x.roomy(n, false) {
		return true
	}
	if alone := x.alone(n); alone > x.config.Bytes || float64(alone) > max(x.share(h), float64(x.config.Bytes/4)) {
		return false
	}
	return x.evict(h, func(ample bool) bool { return x.roomy(n, ample) })
}

// splitNeed returns an upper bound of the memory that a removal of n blocks takes. A removal can need room: it splits
// segments and makes new sets. It adds up to two segments to a strand. A longer list may be of the next size class of
// Go's heap, which has up to a quarter more memory.
func (x *Index) splitNeed(n int) int64 {
	b := &x.blocks
	lists := min(int64(n)*int64(2*cap(b.old)), b.segments.Bytes()/4) + 2*memory.ListBytes(cap(b.old)+2)
	return b.sets.growth(n) + int64(n)*32 + lists + 4096
}

// splits returns how many of n blocks one step of a removal takes, so that splitNeed is a small part of the budget. The
// bound is far above what a usual removal takes, and blocks of other holders are evicted to make room for it.
func (x *Index) splits(n int) int {
	if x.slack.hashes >= n {
		return n
	}
	for n > 1 && x.splitNeed(n) > x.config.Bytes>>6 {
		n /= 2
	}
	return n
}

// roomToSplit evicts until a removal of n blocks fits in the budget.
func (x *Index) roomToSplit(n int) {
	b := &x.blocks
	b.steps += uint64(n)
	if x.slack.hashes >= n {
		x.slack.hashes -= n
		return
	}
	most := x.splitNeed(n)
	x.evict(nil, func(bool) bool { return x.bytes()+most <= x.config.Bytes })
}

// shrink gives back memory of tables that have become too large for their entries, a part of it at a time. An eviction
// calls it often.
func (x *Index) shrink() {
	x.blocks.heads.Shrink()
	x.blocks.names.Shrink()
	x.slack = need{}
}

// fit gives back all memory of tables that have become too large for their entries.
func (x *Index) fit() {
	x.blocks.heads.Fit()
	x.blocks.names.Fit()
	x.slack = need{}
}
