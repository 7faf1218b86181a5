package warmpath

import (
	"maps"
	"slices"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// A look-ahead is the number of tokens after a block that an engine's hash of the block also covers. A holder is one
// data-parallel rank of a worker, with a KV cache of its own.
//
// maxWidths bounds the different look-aheads of one model's holders, because a request's prompt is hashed once for each
// look-ahead. maxWorkerWidths bounds the different look-aheads of one worker. All ranks of a worker run the same engine
// with one look-ahead, but they are restarted one after another, so two look-aheads can exist for a while.
const maxWidths, maxWorkerWidths = 4, 2

// aheads lists the holders whose engines hash blocks with a look-ahead. It is immutable.
type aheads struct {
	of     map[fleet.Holder]int // the look-ahead of each of these holders, in tokens
	widths []int                // the different look-aheads, ascending
}

func newAheads(of map[fleet.Holder]int) *aheads {
	if len(of) == 0 {
		return nil
	}
	return &aheads{of: of, widths: widths(of, func(fleet.Holder) bool { return true })}
}

// widths returns the different look-aheads, ascending, of the holders for which include returns true.
func widths(of map[fleet.Holder]int, include func(fleet.Holder) bool) (all []int) {
	for h, n := range of {
		if i, known := slices.BinarySearch(all, n); !known && include(h) {
			all = slices.Insert(all, i, n)
		}
	}
	return all
}

// aheadKeys holds the keys of a request's prompt for engines that hash blocks with a look-ahead of width tokens.
type aheadKeys struct {
	width int
	keys  []block.Key
}

// SetAhead notes that h's engine has a look-ahead: its hash of a block also covers this number of tokens after the
// block, at most block.MaxAhead. The router then compares h's blocks with keys of the prompt that cover these tokens,
// too. Call SetAhead before the first block with this look-ahead is stored for h. SetAhead with 0 tokens, and
// [Router.Forget], remove the look-ahead.
//
// If the holders of the model, or of h's worker, would have too many different look-aheads, SetAhead returns false and
// changes nothing. In that case h's blocks must not be stored with their tokens. SetAhead also returns false if h
// serves no known model, or tokens is out of range.
func (r *Router) SetAhead(h fleet.Holder, tokens int) bool {
	x := r.of(h)
	if x == nil || tokens < 0 || tokens > block.MaxAhead {
		return false
	}
	if tokens == 0 {
		r.forgetAhead(x, h)
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	of := map[fleet.Holder]int{}
	if old := x.aheads.Load(); old != nil {
		of = maps.Clone(old.of)
	}
	of[h] = tokens
	a := newAheads(of)
	snap := r.fleet.Snapshot()
	w := snap.Worker(h)
	own := widths(of, func(other fleet.Holder) bool { return w != nil && snap.Worker(other) == w })
	if len(a.widths) > maxWidths || len(own) > maxWorkerWidths {
		return false
	}
	x.aheads.Store(a)
	return true
}

func (r *Router) forgetAhead(x *modelIndex, h fleet.Holder) {
	if a := x.aheads.Load(); a == nil || a.of[h] == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := x.aheads.Load(); a != nil {
		of := maps.Clone(a.of)
		delete(of, h)
		x.aheads.Store(newAheads(of))
	}
}

// matchAhead matches the prompt against the holders whose engines hash blocks with a look-ahead. A block of such an
// engine matches only if the look-ahead's tokens after the block are equal, too. So a block whose look-ahead reaches
// beyond the end of the prompt matches nowhere. k has the keys for the index of these holders.
func (p *Prepared) matchAhead(k *promptKeys, at *moment) {
	p.hashAhead(k)
	for i := range k.ahead {
		a := &k.ahead[i]
		usable := usableTokens(len(p.request.Tokens)-a.width, at.engine)
		p.addMatches(k.index, k.first(a.keys, usable), at.now)
	}
}

// hashAhead makes the prompt's keys for each look-ahead of the holders of k's index, unless the keys have been made
// already.
func (p *Prepared) hashAhead(k *promptKeys) {
	a := k.index.aheads.Load()
	if a == k.aheads {
		return
	}
	if k.aheads != nil { // decisions may still read the old keys, so their memory is not reused
		k.ahead = nil
	}
	k.aheads = a
	if a == nil {
		return
	}
	req := p.request
	for _, width := range a.widths {
		if len(req.Tokens) <= width {
			break
		}
		i := len(k.ahead)
		if i < cap(k.ahead) {
			k.ahead = k.ahead[:i+1] // this entry has a buffer from an earlier request
		} else {
			k.ahead = append(k.ahead, aheadKeys{})
		}
		p.features = shift(p.features[:0], req.Features, width)
		hasher, next := k.index.hasher, &k.ahead[i]
		next.width = width
		next.keys = hasher.Append(next.keys[:0], hasher.Ahead(k.root, req.Tokens[:width]), 0, req.Tokens[width:], p.features)
	}
}

// shift appends features with their offsets in a prompt whose first width tokens are cut off. A feature that begins
// within the cut gets offset 0.
func shift(dst, features []block.Feature, width int) []block.Feature {
	for _, f := range features {
		f.Offset = max(f.Offset-width, 0)
		dst = append(dst, f)
	}
	return dst
}

// mergeMatches merges others into matches. The two lists and the result are sorted by holder. If a holder is in both
// lists, its longer match counts, because an engine hashes its blocks in only one way.
func mergeMatches(matches, others []kvindex.Match) []kvindex.Match {
	appended := false
	known := matches
	for i := range others {
		o := &others[i]
		at, both := slices.BinarySearchFunc(known, o.Holder, func(m kvindex.Match, h fleet.Holder) int { return int(m.Holder) - int(h) })
		switch {
		case !both:
			matches = append(matches, *o)
			appended = true
		case o.Blocks > known[at].Blocks:
			matches[at] = *o
		}
	}
	if appended {
		slices.SortFunc(matches, func(a, b kvindex.Match) int { return int(a.Holder) - int(b.Holder) })
	}
	return matches
}

// keysOn returns the keys of the prompt's blocks for the engine of h. If this engine has a look-ahead, the keys are
// made with the look-ahead.
func (d *Decision) keysOn(x *modelIndex, h fleet.Holder) []block.Key {
	if a := x.aheads.Load(); a != nil && a.of[h] > 0 {
		for i := range d.ahead {
			if d.ahead[i].width == a.of[h] {
				return d.ahead[i].keys
			}
		}
	}
	return d.keys
}
