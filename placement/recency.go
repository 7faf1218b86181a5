package placement

import (
	"slices"

	"github.com/warmpath/warmpath/fleet"
)

// holder is one holder's list of placements by recency.
type holder struct {
	newest, oldest uint32 // the ends of the list, as indexes in Store.links; 0: the list is empty
	bytes          int64  // the bytes of text in the holder's nodes
	links          int    // the number of placements in the list
	trimming       bool   // a pass of trim is evicting the holder's units, until HolderTarget are left
}

// link is a placement in its holder's list.
type link struct {
	node         uint32 // index in Store.nodes
	newer, older uint32 // the neighbours in the list, as indexes in Store.links; 0 ends the list
	at           int64  // the stamp: when the node was used last, Unix nanoseconds; an older link has no later stamp
}

// use is a use of a node by a holder.
type use struct {
	node   uint32
	holder fleet.Holder
	older  uint32 // the placement in the holder's list after which the node's placement belongs; 0: it is the oldest
	at     int64  // the stamp
}

// touched is what a use found.
type touched struct {
	had    bool   // the holder had the placement before the use
	before int64  // the stamp of the placement before the use
	link   uint32 // after which the next placement with the stamp of the use belongs
}

// touch gives the node's placement the stamp of u, and its place in the holder's list, unless it has a later stamp.
func (s *Store) touch(u use) touched {
	at, has := s.find(u.node, u.holder)
	list := &s.holders[u.holder]
	if !has {
		l := s.link(u)
		n := &s.nodes[u.node]
		n.holds = slices.Insert(n.holds, at, hold{u.holder, l})
		list.bytes += int64(len(n.text))
		s.held += int64(len(n.text))
		return touched{link: l}
	}
	l := s.nodes[u.node].holds[at].link
	before := s.links[l].at
	if before >= u.at {
		return touched{true, before, u.older}
	}
	s.links[l].at = u.at
	if l != u.older {
		s.take(list, l)
		s.insert(list, l, u.older)
	}
	return touched{true, before, l}
}

// longestWalk bounds how many placements are passed to find the place of an older one: below a millisecond.
const longestWalk = 1 << 14

// before returns the holder's newest placement with an earlier stamp; 0 if there is none. A placement with this stamp
// belongs directly after it. Placements with the same stamp are newer, because the run that another run continues must
// be the newer one of the two. ok is false if more than longestWalk placements have a later stamp.
func (s *Store) before(h fleet.Holder, at int64) (l uint32, ok bool) {
	l = s.holders[h].newest
	for range longestWalk {
		if l == 0 || s.links[l].at < at {
			return l, true
		}
		l = s.links[l].older
	}
	return 0, false
}

// after returns the last placement from l on, on the newer side, whose stamp is before at.
func (s *Store) after(l uint32, at int64) uint32 {
	for l != 0 {
		newer := s.links[l].newer
		if newer == 0 || s.links[newer].at >= at {
			break
		}
		l = newer
	}
	return l
}

// insert places l directly after older, on the newer side, or at the old end of the list if older is 0.
func (s *Store) insert(list *holder, l, older uint32) {
	if older == 0 {
		s.placeOldest(list, l)
		return
	}
	s.place(list, l, older)
}

// age gives a placement an earlier stamp, and moves the placement to the right position in the holder's list.
func (s *Store) age(h fleet.Holder, l uint32, at int64) {
	list := &s.holders[h]
	s.take(list, l)
	s.links[l].at = at
	older := list.newest
	for older != 0 && s.links[older].at > at {
		older = s.links[older].older
	}
	s.insert(list, l, older)
}

// link returns the id of a new placement for u.
func (s *Store) link(u use) uint32 {
	var l uint32
	if last := len(s.freeLinks) - 1; last >= 0 {
		l = s.freeLinks[last]
		s.freeLinks = s.freeLinks[:last]
	} else {
		s.links = append(s.links, link{})
		l = uint32(len(s.links) - 1)
	}
	s.links[l].node, s.links[l].at = u.node, u.at
	list := &s.holders[u.holder]
	s.insert(list, l, u.older)
	list.links++
	s.used += linkBytes
	return l
}

// unlink frees a placement.
func (s *Store) unlink(list *holder, l uint32) {
	s.take(list, l)
	s.links[l] = link{}
	s.freeLinks = append(s.freeLinks, l)
	list.links--
	s.used -= linkBytes
}

// place inserts l directly after older, on the newer side. older is 0 if the list is empty.
func (s *Store) place(list *holder, l, older uint32) {
	x := &s.links[l]
	x.older, x.newer = older, 0
	if older == 0 {
		list.newest, list.oldest = l, l
		return
	}
	x.newer = s.links[older].newer
	s.links[older].newer = l
	if x.newer == 0 {
		list.newest = l
	} else {
		s.links[x.newer].older = l
	}
}

// placeOldest inserts l at the old end of the list.
func (s *Store) placeOldest(list *holder, l uint32) {
	x := &s.links[l]
	x.older, x.newer = 0, list.oldest
	if list.oldest == 0 {
		list.newest = l
	} else {
		s.links[list.oldest].older = l
	}
	list.oldest = l
}

// take removes l from the list.
func (s *Store) take(list *holder, l uint32) {
	x := s.links[l]
	if x.newer == 0 {
		list.newest = x.older
	} else {
		s.links[x.newer].older = x.older
	}
	if x.older == 0 {
		list.oldest = x.newer
	} else {
		s.links[x.older].newer = x.newer
	}
}
