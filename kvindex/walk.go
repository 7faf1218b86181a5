package kvindex

import "github.com/warmpath/warmpath/block"

// step is what lies between two points: the blocks of ours that a run of tokens completes, and what is left.
type step struct {
	keys     []block.Key
	tail     []block.Token
	features []block.Feature
	key      block.Key // the last of keys, or the one before
	end      uint32
}

// walk computes the step from a resolved point, or from a root when p is 0, over tokens. features are at absolute
// positions. What it returns is valid until the next walk.
func (x *Index) walk(p uint32, root block.Key, tokens []block.Token, features []block.Feature) step {
	key, start := root, uint32(0)
	var ex *extra
	if p != 0 {
		pt := x.points.at(p)
		key, start = pt.key, pt.end
		if pt.extra != 0 && len(x.extras.at(pt.extra).tail) > 0 {
			ex = x.extras.at(pt.extra)
		}
	}
	end := start + uint32(len(tokens))
	if ex != nil {
		x.scratch.tokens = append(append(x.scratch.tokens[:0], ex.tail...), tokens...)
		tokens = x.scratch.tokens
		start -= uint32(len(ex.tail))
		if len(ex.features) > 0 {
			x.scratch.features = append(append(x.scratch.features[:0], ex.features...), features...)
			features = x.scratch.features
		}
	}
	keys := x.hasher.Append(x.scratch.keys[:0], key, int(start), tokens, features)
	x.scratch.keys = keys
	s := step{keys: keys, key: key, end: end, tail: tokens[len(keys)*int(x.size):]}
	if n := len(keys); n > 0 {
		s.key = keys[n-1]
	}
	if len(s.tail) > 0 {
		s.features = features
	}
	return s
}

// agrees reports whether a resolved point is where a step leads to.
func (x *Index) agrees(p uint32, s *step) bool {
	pt := x.points.at(p)
	if pt.key != s.key || pt.end != s.end {
		return false
	}
	if len(s.tail) == 0 {
		return true
	}
	tail := x.extras.at(pt.extra).tail
	for i := range tail {
		if tail[i] != s.tail[i] {
			return false
		}
	}
	return true
}

// resolve gives a point its place: one step from parent, or from a root when parent is 0.
func (x *Index) resolve(h *holder, p, parent uint32, s *step) {
	pt := x.points.at(p)
	orphan := pt.parent // the unresolved parent that it waited for, or the very parent
	x.stopWaiting(h, p)
	pt.key, pt.end = s.key, s.end
	if orphan != parent {
		pt.parent = parent
		if parent != 0 {
			x.points.at(parent).kids++
		}
		if orphan != 0 {
			pt.kids++ // those that wait in a circle must not take p along
			x.points.at(orphan).kids--
			x.collect(h, orphan)
			pt.kids--
		}
	}
	if len(s.keys) > 1 || len(s.tail) > 0 {
		e := x.extraOf(h, p)
		x.weigh(h, e, -1)
		if len(s.keys) > 1 {
			e.keys = append(make([]block.Key, 0, len(s.keys)), s.keys...)
		}
		e.tail = append(make([]block.Token, 0, len(s.tail)), s.tail...)
		for _, f := range s.features {
			if f.Offset >= int(s.end)-len(s.tail) && f.Offset < int(s.end) {
				e.features = append(e.features, f)
			}
		}
		x.weigh(h, e, 1)
	}
	if x.points.at(p).prev != 0 { // children before parents
		x.unlink(h, p)
		x.link(h, p)
	}
	x.through(h, p, true)
	for r := x.points.at(p).records; r != 0; r = x.records.at(r).next {
		x.contribute(h, p, x.records.at(r), true)
	}
	if x.waiters.n > 0 && x.waiters.get(h.key(pt.handle)) != 0 {
		x.woken = append(x.woken, pt.handle)
	}
}

// through tells the ancestors that end within the first block of ours that p completes that they are part of it, and
// adds what they cover of it; or takes both back.
func (x *Index) through(h *holder, p uint32, add bool) {
	start, size := x.start(p), x.size
	if start%size == 0 {
		return
	}
	first, last := start/size, x.points.at(p).end/size
	if last == first {
		return
	}
	key, parent := x.completed(p, 0, int(last-first))
	lo := first * size
	for a := x.points.at(p).parent; a != 0 && x.points.at(a).end > lo; a = x.points.at(a).parent {
		e := x.extras.at(x.points.at(a).extra)
		x.blocks.steps++
		x.weigh(h, e, -1)
		if add {
			e.through = append(e.through, key)
		} else {
			for i := range e.through {
				x.blocks.steps++
				if e.through[i] == key {
					e.through[i] = e.through[len(e.through)-1]
					e.through = e.through[:len(e.through)-1]
					break
				}
			}
		}
		x.weigh(h, e, 1)
		for r := x.points.at(a).records; r != 0; r = x.records.at(r).next {
			rec := x.records.at(r)
			if h.groups[rec.group].kind == block.AttentionStateSpace {
				continue
			}
			x.cover(h, rec, span{key, parent, first, max(x.from(a, rec), lo) - lo, x.points.at(a).end - lo}, add)
		}
	}
}
