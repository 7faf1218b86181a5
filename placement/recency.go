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

// touch makes the node's placement the holder's most recent one. had says whether the holder had the placement before
// the call, and before is the placement's stamp before the call.
func (s *Store) touch(id uint32, h fleet.Holder) (had bool, before int64) {
	at, has := s.find(id, h)
	list := &s.holders[h]
	if !has {
		l := s.link(h, id, list.newest, s.now)
		n := &s.nodes[id]
		n.holds = slices.Insert(n.holds, at, hold{h, l})
		list.bytes += int64(len(n.text))
		s.held += int64(len(n.text))
		return false, 0
	}
	l := s.nodes[id].holds[at].link
	before = s.links[l].at
	s.links[l].at = s.now
	if l != list.newest {
		s.take(list, l)
		s.place(list, l, list.newest)
	}
	return true, before
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
	if older == 0 {
		s.placeOldest(list, l)
		return
	}
	s.place(list, l, older)
}

// link returns the id of a new placement of the holder in node id. The placement comes directly after older in the
// holder's list, on the newer side.
func (s *Store) link(h fleet.Holder, id, older uint32, at int64) uint32 {
	var l uint32
	if last := len(s.freeLinks) - 1; last >= 0 {
		l = s.freeLinks[last]
		s.freeLinks = s.freeLinks[:last]
	} else {
		s.links = append(s.links, link{})
		l = uint32(len(s.links) - 1)
	}
	s.links[l].node, s.links[l].at = id, at
	list := &s.holders[h]
	s.place(list, l, older)
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
