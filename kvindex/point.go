package kvindex

import (
	"slices"

	"github.com/warmpath/warmpath/block"
)

// point is the end of an engine block that a claim cannot express: its size differs from the index's, it does not begin
// where one of the index's blocks does, its hash names another block for other holders, it waits for its parent, or the
// holder has several copies of it. A point is kept while it has a record or a child: children need the key of a removed
// parent.
type point struct {
	hash   uint64
	parent *point    // the point before it; nil: a block that the holder knows by its hash or the root is, or it waits
	under  spot      // that block; 0: none
	at     spot      // the last block of the index that ends at or before end; 0: none
	root   block.Key // of its chain, where at is 0
	start  uint32    // tokens of the chain before its own first
	end    uint32    // tokens of the chain up to its end; 0: it waits
	kids   uint32    // points whose parent it is

	twin    bool // the holder knows the block that ends there by the same hash, see pair
	records []record
	rest    *rest    // nil: it ends with a block
	wait    *waiting // nil: it does not wait

	links [ofParent]link
}

// rest is the part of a point after the last block that ends at or before it.
type rest struct {
	tail     []block.Token
	features []block.Feature // that start in the tail, at absolute positions
	through  []spot          // blocks in which it ends, once for each descendant that completes one
}

// tail returns the tokens of the rest.
func (p *point) tail() []block.Token {
	if p.rest == nil {
		return nil
	}
	return p.rest.tail
}

// record is an announcement of a point on one tier in one group.
type record struct {
	tier  block.Tier
	group uint8
	count uint32 // copies
	size  uint32 // tokens that it covers, up to the point; 0: as many as the point added to its parent
}

// pin keeps a block for a holder's points. The pin at spot 0 is for points that complete no block.
type pin struct {
	points   list // that end at the block or after it, before the next one's end
	anchored int  // points that follow the block, which the holder knows by its hash
}

// list is a list of points. A point can be in one list of each kind.
type list struct{ first, last *point }

type link struct{ prev, next *point }

const (
	ofHolder = iota    // all of a holder
	ofQueue            // all that wait, oldest first
	ofParent           // points that wait for one parent
	ofPin    = ofQueue // points of one pin: they do not wait
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

// The memory of exceptions, with their shares of maps.
const (
	pointBytes   = 240 // a point with one record, its pin and its hash
	waitingBytes = 172 // of them, of a point that waits
	restBytes    = 80
	partsBytes   = 96 // a list of parts
	partBytes    = 16
	featureBytes = 32
)

// bytes returns the memory of the rest, without through.
func (r *rest) bytes() int64 { return restBytes + 4*int64(len(r.tail)) + featuresBytes(r.features) }

// featuresBytes returns the memory of features.
func featuresBytes(features []block.Feature) (n int64) {
	for i := range features {
		n += featureBytes + int64(len(features[i].ID))
	}
	return n
}

// refer returns what a hash means to a holder: a point, a block that it names, or both, which then end at one place;
// neither if it is not known.
func (x *Index) refer(h *holder, hash uint64) (p *point, at spot) {
	if len(h.byHash) > 0 {
		if p = h.byHash[hash]; p != nil && !p.twin {
			return p, 0
		}
	}
	if at = x.blocks.named(hash); at != 0 && x.blocks.stateAt(at, h.id).named&known != 0 {
		return p, at
	}
	return nil, 0
}

// line is a position in a chain, at which it continues.
type line struct {
	at    spot      // the last complete block; 0: none
	root  block.Key // of the chain, where at is 0
	end   uint32    // tokens up to there
	point *point    // that ends there; nil: the block is known by its hash, or it is the root
}

// after returns the line after what a hash means, and whether its place is known.
func (x *Index) after(p *point, at spot) (line, bool) {
	switch {
	case at != 0:
		return line{at: at, end: x.blocks.end(at) * x.size}, true
	case p != nil && p.end != 0:
		return line{p.at, p.root, p.end, p}, true
	}
	return line{}, false
}

// key returns the key that the line's next block follows.
func (x *Index) key(l *line) block.Key {
	if l.at != 0 {
		return x.blocks.key(l.at)
	}
	return l.root
}

// step is the part of a chain that a run of tokens adds to a line: blocks of the index, and tokens that are left.
type step struct {
	keys     []block.Key
	tail     []block.Token
	features []block.Feature
	end      uint32
}

// next computes the step from a line over tokens. features are at absolute positions. The step is valid until next is
// called again.
func (x *Index) next(l *line, tokens []block.Token, features []block.Feature) step {
	s, start := step{end: l.end + uint32(len(tokens))}, l.end
	if p := l.point; p != nil && len(p.tail()) > 0 {
		x.scratch.tokens = append(append(x.scratch.tokens[:0], p.tail()...), tokens...)
		tokens = x.scratch.tokens
		start -= uint32(len(p.tail()))
		if len(p.rest.features) > 0 {
			x.scratch.features = append(append(x.scratch.features[:0], p.rest.features...), features...)
			features = x.scratch.features
		}
	}
	s.keys = x.hasher.Append(x.scratch.keys[:0], x.key(l), int(start), tokens, features)
	x.scratch.keys = s.keys
	if s.tail = tokens[len(s.keys)*int(x.size):]; len(s.tail) > 0 {
		s.features = features
	}
	return s
}

// agrees reports whether a hash names the place to which a step from a line leads.
func (x *Index) agrees(p *point, at spot, l *line, s *step) bool {
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
	return at == l.at && (at != 0 || root == l.root)
}

// add returns a new point, which waits for nothing yet and has no place.
func (x *Index) add(h *holder, hash uint64) *point {
	p := &point{hash: hash}
	put(&h.byHash, hash, p)
	h.points.push(ofHolder, p)
	h.pointed++
	x.pointed++
	x.blocks.account(h, pointBytes)
	return p
}

// pair returns the point for records that the claim on a block cannot have, of a hash that names the block.
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

// resolve gives a point its place: a step from a line.
func (x *Index) resolve(h *holder, p *point, l *line, s *step) {
	x.stopWaiting(h, p)
	p.start, p.end, p.at, p.root = l.end, s.end, l.at, l.root
	switch {
	case l.point != nil:
		p.parent = l.point
		p.parent.kids++
	case l.at != 0:
		p.under = l.at
		x.pinOf(h, p.under).anchored++
	}
	if len(s.keys) > 0 {
		p.at = x.extend(h, l.at, s.keys)
	}
	if len(s.tail) > 0 {
		p.rest = &rest{tail: slices.Clone(s.tail)}
		for _, f := range s.features {
			if f.Offset >= int(s.end)-len(s.tail) && f.Offset < int(s.end) {
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
	if h.waiters[p.hash] != nil {
		x.woken = append(x.woken, p.hash)
	}
}

// extend makes sure that the blocks of keys are there after a spot, and returns the last one's.
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

// pinOf returns the pin of a block for a holder's points, and makes it if there is none.
func (x *Index) pinOf(h *holder, at spot) *pin {
	p := h.pins[at]
	if p == nil {
		p = &pin{}
		put(&h.pins, at, p)
		if at != 0 && x.blocks.stateAt(at, h.id).covered == 0 {
			x.blocks.paintOne(at, change{h: h, add: state{covered: pinned}})
		}
	}
	return p
}

// unpin drops the pin of a block if no point needs it.
func (x *Index) unpin(h *holder, at spot) {
	if p := h.pins[at]; p.points.first != nil || p.anchored > 0 {
		return
	}
	drop(&h.pins, at)
	if at != 0 {
		x.blocks.paintOne(at, change{h: h, drop: state{covered: pinned}})
		x.blocks.trim(at.strand())
	}
}

// find returns the place of a point's record on a tier in a group, -1 when there is none.
func (p *point) find(tier block.Tier, group uint8) int {
	return slices.IndexFunc(p.records, func(r record) bool { return r.tier == tier && r.group == group })
}

// note adds a record to a point, or a copy to the record that it has.
func (x *Index) note(h *holder, p *point, r record, copies bool) {
	h.changes++
	i := p.find(r.tier, r.group)
	if i < 0 {
		r.count = 1
		p.records = append(p.records, r)
		x.blocks.account(h, 16)
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
		// Copies of different sizes: it is unknown which copy is evicted first, so only the smaller one is sure.
		x.contribute(h, p, *rec, false)
		rec.size = r.size
		x.contribute(h, p, *rec, true)
	}
}

// shrink makes a record of a point that waits cover no more than size, if that is known.
func (r *record) shrink(size uint32) {
	if r.size == 0 || size != 0 && size < r.size {
		r.size = size
	}
}

// dropRecords removes the records of a point that which chooses, with all copies, and the point with the last record if
// nothing needs it.
func (x *Index) dropRecords(h *holder, p *point, which func(r *record) bool) {
	for i := 0; i < len(p.records); {
		r := p.records[i]
		if !which(&r) {
			i++
			continue
		}
		p.records = slices.Delete(p.records, i, i+1)
		x.blocks.account(h, -16)
		if p.end != 0 {
			x.contribute(h, p, r, false)
		}
	}
	x.collect(h, p)
}

// collect frees a point that has no record and no child, and then its parent if nothing else needs that.
func (x *Index) collect(h *holder, p *point) {
	for p != nil {
		x.blocks.steps++
		if len(p.records) > 0 || p.kids > 0 || p.end == 0 && h.waiters[p.hash] != nil {
			return
		}
		p = x.free(h, p)
	}
}

// free frees a point without records and children, and returns its parent if that is a point.
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
	h.pins[p.at].points.remove(ofPin, p)
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
	if h.byHash[p.hash] == p { // else the hash names another place now, see disown
		drop(&h.byHash, p.hash)
	}
	h.points.remove(ofHolder, p)
	h.pointed--
	x.pointed--
	if p.twin {
		h.twins--
	}
	x.blocks.account(h, -pointBytes-16*int64(len(p.records)))
}

// release ends that a point follows a block that its holder knows by its hash.
func (x *Index) release(h *holder, at spot) {
	h.pins[at].anchored--
	x.unpin(h, at)
	x.blocks.dropBare(h, at)
}

// disown drops the meaning of a hash at a holder, because the hash names another place now. It is kept as a parent
// while it has children. The line l stays, even if nothing else needs it.
func (x *Index) disown(h *holder, p *point, at spot, l *line) {
	x.counts.Conflicts++
	switch {
	case l.point != nil:
		l.point.kids++
		defer func() { l.point.kids-- }()
	case l.at != 0:
		x.pinOf(h, l.at).anchored++
		defer func() {
			h.pins[l.at].anchored--
			x.unpin(h, l.at)
		}()
	}
	if at != 0 {
		h.disowned = true
		x.blocks.paintOne(at, change{h: h, drop: state{named: possession | known}, add: state{named: unnamed}})
	}
	if p != nil {
		drop(&h.byHash, p.hash)
		x.dropRecords(h, p, func(*record) bool { return true })
		return
	}
	x.blocks.dropBare(h, at)
}
