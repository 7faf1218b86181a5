package kvindex

import (
	"slices"
	"strings"

	"github.com/warmpath/warmpath/block"
)

// point is a record of one holder's engine block that a claim cannot express. There are five reasons: the engine block
// has another size than the index's blocks, it does not begin where a block of the index begins, its hash names another
// block for other holders, it waits for its parent, or the holder has several copies of it. A point is kept while it
// has a record or a child: children need the key of a removed parent.
type point struct {
	hash   uint64    // the engine hash
	parent *point    // the point before this point; nil: the point follows a block or the root, or waits
	under  spot      // the block that the point follows, if the holder knows this block by its hash; else 0
	at     spot      // the last block of the index that ends at or before end; 0: none
	root   block.Key // the root key of the chain, if at is 0
	start  uint32    // the number of tokens of the chain before the engine block
	end    uint32    // the number of tokens of the chain up to the end of the engine block; 0: the point waits
	kids   uint32    // the number of points whose parent is this point

	twin    bool // the point stands beside a claim: the same hash also names the block that ends at end, see pair
	records []record
	rest    *rest    // nil: the engine block ends where a block of the index ends
	wait    *waiting // nil: the point does not wait

	links [ofParent]link
}

// rest is the part of a chain between the last block of the index before a point's end and the point's end. Its tokens
// may begin in an engine block before the point's own.
type rest struct {
	tail     []block.Token
	features []block.Feature // multimodal items that start in the tail, with offsets from the chain's first token
	through  []spot          // blocks of the index that later points complete, one for each point; see mostThrough
}

// tail returns the tokens between the last block of the index before the point's end and the point's end.
func (p *point) tail() []block.Token {
	if p.rest == nil {
		return nil
	}
	return p.rest.tail
}

// record is the announcement of a point's engine block on one tier in one group.
type record struct {
	tier  block.Tier
	group uint8
	count uint32 // the number of copies
	size  uint32 // the number of tokens before the point's end that the record covers; 0: all tokens from the point's start
}

// pin keeps a block in the index because points of a holder need it. The pin at spot 0 has the points before whose end
// no block of the index ends.
type pin struct {
	points   list // the points for which point.at is this block
	anchored int  // the number of points for which point.under is this block
}

// list is a list of points. A point can be in one list of each kind.
type list struct{ first, last *point }

type link struct{ prev, next *point }

const (
	ofHolder = iota    // all points of a holder
	ofQueue            // the waiting points of a holder, oldest first
	ofParent           // the points that wait for one parent
	ofPin    = ofQueue // the points of one pin: they do not wait, so they are not in a queue
)

func (p *point) link(kind int) *link {
	if kind == ofParent {
		return &p.wait.siblings
	}
	return &p.links[kind]
}

func (l *list) push(kind int, p *point) {
	if p.link(kind).prev = l.last; l.last != nil {
		l.last.link(kind).next = p
	} else {
		l.first = p
	}
	l.last = p
}

func (l *list) remove(kind int, p *point) {
	k := p.link(kind)
	if k.prev != nil {
		k.prev.link(kind).next = k.next
	} else {
		l.first = k.next
	}
	if k.next != nil {
		k.next.link(kind).prev = k.prev
	} else {
		l.last = k.prev
	}
	*k = link{}
}

// The memory of points and their parts in bytes, including entries of maps.
const (
	pointBytes   = 240 // a point with one record, its pin and its hash
	waitingBytes = 172 // the part of pointBytes that counts for Config.WaitingBytes if the point waits
	recordBytes  = 16
	restBytes    = 100
	partsBytes   = 96 // a list of parts in holder.parts
	partBytes    = 16
	featureBytes = 32
)

func (r *rest) bytes() int64 {
	return restBytes + 4*int64(len(r.tail)) + featuresBytes(r.features) + 8*int64(cap(r.through))
}

// refer returns what an engine hash means to a holder: a point, a block of the index that the hash names, or both. If
// both, they end at the same place. If the hash is not known, refer returns neither.
func (x *Index) refer(h *holder, hash uint64) (p *point, at spot) {
	if h.byHash.len() > 0 {
		if p = h.byHash.get(hash); p != nil && !p.twin {
			return p, 0
		}
	}
	if at = x.blocks.named(hash); at != 0 && x.blocks.stateAt(at, h.id).named&known != 0 {
		return p, at
	}
	return nil, 0
}

// position is a place in a chain: the next blocks of the chain follow there.
type position struct {
	at    spot      // the last complete block before the position; 0: none
	root  block.Key // the root key of the chain, if at is 0
	end   uint32    // the number of tokens before the position
	point *point    // the point that ends at the position; nil: a block that its hash names ends there, or the chain begins
}

// after returns the position after a point or a block, as refer returned them, and whether the position is known.
func (x *Index) after(p *point, at spot) (position, bool) {
	switch {
	case at != 0:
		return position{at: at, end: x.blocks.end(at) * x.size}, true
	case p != nil && p.end != 0:
		return position{p.at, p.root, p.end, p}, true
	}
	return position{}, false
}

// key returns the key that the next block at the position follows.
func (x *Index) key(pos *position) block.Key {
	if pos.at != 0 {
		return x.blocks.key(pos.at)
	}
	return pos.root
}

// step is the part of a chain that some tokens add after a position: the keys of whole blocks, and the tokens after the
// last whole block.
type step struct {
	keys     []block.Key
	tail     []block.Token
	features []block.Feature
	end      uint32 // the number of tokens of the chain up to the end of the step
}

// next computes the step over some tokens after a position. features have offsets from the chain's first token. The
// step is valid until the next call of next.
func (x *Index) next(pos *position, tokens []block.Token, features []block.Feature) step {
	s, start := step{end: pos.end + uint32(len(tokens))}, pos.end
	if p := pos.point; p != nil && len(p.tail()) > 0 {
		x.scratch.tokens = append(append(x.scratch.tokens[:0], p.tail()...), tokens...)
		tokens = x.scratch.tokens
		start -= uint32(len(p.tail()))
		if len(p.rest.features) > 0 {
			x.scratch.features = append(append(x.scratch.features[:0], p.rest.features...), features...)
			features = x.scratch.features
		}
	}
	s.keys = x.hasher.Append(x.scratch.keys[:0], x.key(pos), int(start), tokens, features)
	x.scratch.keys = s.keys
	if s.tail = tokens[len(s.keys)*int(x.size):]; len(s.tail) > 0 {
		s.features = features
	}
	return s
}

// agrees reports whether an announcement gives a hash the same place as before. The parameters p and at are the point
// and the block that the hash means, as refer returned them. The position and the step are the place in the
// announcement.
func (x *Index) agrees(p *point, at spot, pos *position, s *step) bool {
	var tail []block.Token
	root, end := block.Key(0), uint32(0)
	if p != nil {
		at, root, end, tail = p.at, p.root, p.end, p.tail()
	} else {
		end = x.blocks.end(at) * x.size
	}
	if end != s.end || !slices.Equal(tail, s.tail) {
		return false
	}
	if n := len(s.keys); n > 0 {
		return x.blocks.key(at) == s.keys[n-1]
	}
	return at == pos.at && (at != 0 || root == pos.root)
}

// add returns a new point of a holder. The point has no place yet, and waits for nothing.
func (x *Index) add(h *holder, hash uint64) *point {
	p := &point{hash: hash}
	h.byHash.put(hash, p)
	h.points.push(ofHolder, p)
	h.pointed++
	x.pointed++
	x.blocks.account(h, pointBytes)
	return p
}

// pair adds a point beside the claim on a block, under the hash that names the block. The point gets the records that a
// claim cannot have: copies, and announcements of another size.
func (x *Index) pair(h *holder, hash uint64, at spot) *point {
	p := x.add(h, hash)
	p.twin, p.under, p.at, p.end = true, at, at, x.blocks.end(at)*x.size
	p.start = p.end - x.size
	pin := x.pinOf(h, at)
	pin.anchored++
	pin.points.push(ofPin, p)
	h.twins++
	return p
}

// resolve gives a point its place in the chain. The point's engine block begins at the position, and its tokens are the
// step.
func (x *Index) resolve(h *holder, p *point, pos *position, s *step) {
	x.stopWaiting(h, p)
	p.start, p.end, p.at, p.root = pos.end, s.end, pos.at, pos.root
	switch {
	case pos.point != nil:
		p.parent = pos.point
		p.parent.kids++
	case pos.at != 0:
		p.under = pos.at
		x.pinOf(h, p.under).anchored++
	}
	if len(s.keys) > 0 {
		p.at = x.extend(h, pos.at, s.keys)
	}
	if len(s.tail) > 0 {
		p.rest = &rest{tail: slices.Clone(s.tail)}
		for _, f := range s.features {
			if f.Offset >= int(s.end)-len(s.tail) && f.Offset < int(s.end) {
				f.ID = strings.Clone(f.ID)
				p.rest.features = append(p.rest.features, f)
			}
		}
		x.blocks.account(h, p.rest.bytes())
	}
	x.pinOf(h, p.at).points.push(ofPin, p)
	x.through(h, p, true)
	for i := range p.records {
		x.contribute(h, p, p.records[i], true)
	}
	if h.waiters.get(p.hash) != nil {
		h.woken = append(h.woken, p.hash)
	}
}

// extend adds the blocks of keys after a spot, where they are not there yet, and returns the spot of the last block.
func (x *Index) extend(h *holder, at spot, keys []block.Key) spot {
	b := &x.blocks
	for len(keys) > 0 {
		first, n := b.follow(at, keys)
		if n == 0 {
			return b.grow(h, at, keys, x.tick())
		}
		b.strands.At(first.strand()).use(x.tick())
		at, keys = first+spot(n)-1, keys[n:]
	}
	return at
}

// pinOf returns the pin of a block for a holder's points. It makes the pin if there is none.
func (x *Index) pinOf(h *holder, at spot) *pin {
	p := h.pins.get(at)
	if p == nil {
		p = &pin{}
		h.pins.put(at, p)
		if at != 0 && x.blocks.stateAt(at, h.id).covered == 0 {
			x.blocks.paintOne(at, change{h: h, add: state{covered: pinned}})
		}
	}
	return p
}

// unpin drops the pin of a block if no point needs the block.
func (x *Index) unpin(h *holder, at spot) {
	if p := h.pins.get(at); p.points.first != nil || p.anchored > 0 {
		return
	}
	h.pins.drop(at)
	if at != 0 {
		x.blocks.paintOne(at, change{h: h, drop: state{covered: pinned}})
		x.blocks.trim(at.strand())
	}
}

// find returns the index of a point's record on a tier in a group, or -1.
func (p *point) find(tier block.Tier, group uint8) int {
	return slices.IndexFunc(p.records, func(r record) bool { return r.tier == tier && r.group == group })
}

// record appends a record to a point's records.
func (x *Index) record(h *holder, p *point, r record) {
	before := cap(p.records)
	p.records = append(withRoom(p.records), r)
	x.blocks.account(h, recordBytes*int64(cap(p.records)-before))
}

// note adds a record to a point. If the point has a record on this tier and in this group, note adds a copy to that
// record, if copies is true.
func (x *Index) note(h *holder, p *point, r record, copies bool) {
	h.changes++
	i := p.find(r.tier, r.group)
	if i < 0 {
		r.count = 1
		x.record(h, p, r)
		if p.end != 0 {
			x.contribute(h, p, r, true)
		}
		return
	}
	rec := &p.records[i]
	if copies {
		rec.count++
	}
	switch {
	case rec.size == r.size:
	case p.end == 0:
		rec.shrink(r.size)
	case p.from(r.size) > p.from(rec.size):
		// The copies have different sizes. It is not known which copy the engine evicts first, so only the tokens of the
		// smaller copy are sure.
		x.contribute(h, p, *rec, false)
		rec.size = r.size
		x.contribute(h, p, *rec, true)
	}
}

// shrink makes a record of a waiting point cover no more than size tokens. A size of 0 is not known.
func (r *record) shrink(size uint32) {
	if r.size == 0 || size != 0 && size < r.size {
		r.size = size
	}
}

// dropRecords removes the records of a point that the parameter which selects, with all copies. If no record is left
// and nothing needs the point, dropRecords frees the point.
func (x *Index) dropRecords(h *holder, p *point, which func(r *record) bool) {
	for i := 0; i < len(p.records); {
		r := p.records[i]
		if !which(&r) {
			i++
			continue
		}
		h.changes++
		before := cap(p.records)
		p.records = without(p.records, i)
		x.blocks.account(h, recordBytes*int64(cap(p.records)-before))
		if p.end != 0 {
			x.contribute(h, p, r, false)
		}
	}
	x.collect(h, p)
}

// collect frees a point if it has no record and no child. Then it does the same for the point's parent.
func (x *Index) collect(h *holder, p *point) {
	for p != nil {
		x.blocks.steps++
		if len(p.records) > 0 || p.kids > 0 || p.end == 0 && h.waiters.get(p.hash) != nil {
			return
		}
		p = x.free(h, p)
	}
}

// free frees a point without records and children, and returns its parent if the parent is a point.
func (x *Index) free(h *holder, p *point) (kept *point) {
	x.leave(h, p)
	if p.end == 0 {
		x.stopWaiting(h, p)
		return nil
	}
	x.through(h, p, false)
	if p.rest != nil {
		x.blocks.account(h, -p.rest.bytes())
	}
	h.pins.get(p.at).points.remove(ofPin, p)
	x.unpin(h, p.at)
	if p.under != 0 {
		x.release(h, p.under)
	}
	if p.parent != nil {
		p.parent.kids--
	}
	return p.parent
}

// leave removes a point from its holder's lists.
func (x *Index) leave(h *holder, p *point) {
	if h.byHash.get(p.hash) == p { // else disown gave the hash to another block
		h.byHash.drop(p.hash)
	}
	h.points.remove(ofHolder, p)
	h.pointed--
	x.pointed--
	if p.twin {
		h.twins--
	}
	x.blocks.account(h, -pointBytes-recordBytes*int64(cap(p.records)))
}

// release notes that a point no longer follows the block at a spot. If nothing else needs the block, release drops it.
func (x *Index) release(h *holder, at spot) {
	h.pins.get(at).anchored--
	x.unpin(h, at)
	x.blocks.dropBare(h, at)
}

// disown drops the meaning that a hash has for a holder, because the hash names another place now. The old point or
// block is kept as a parent while it has children. The new place begins at the position: disown does not free the point
// or the block before the position, because the caller needs it.
func (x *Index) disown(h *holder, p *point, at spot, pos *position) {
	switch {
	case pos.point != nil:
		pos.point.kids++
		defer func() { pos.point.kids-- }()
	case pos.at != 0:
		x.pinOf(h, pos.at).anchored++
		defer func() {
			h.pins.get(pos.at).anchored--
			x.unpin(h, pos.at)
		}()
	}
	if at != 0 {
		h.disowned = true
		x.blocks.paintOne(at, change{h: h, drop: state{named: possession | known}, add: state{named: unnamed}})
	}
	if p != nil {
		h.byHash.drop(p.hash)
		x.dropRecords(h, p, func(*record) bool { return true })
		return
	}
	x.blocks.dropBare(h, at)
}
