package placement

import (
	"github.com/warmpath/warmpath/fleet"
)

// fit drops placements until the store takes at most Config.Bytes. mu is held.
func (s *Store) fit() {
	if s.config.Bytes == 0 {
		return
	}
	for s.used-int64(len(s.roots))*nodeBytes > s.config.Bytes { // roots do not count: fit cannot remove them
		most := 0
		for i := range s.holders {
			if weight(&s.holders[i]) > weight(&s.holders[most]) {
				most = i
			}
		}
		for range 16 { // finding the largest holder costs more than dropping its least recently used run
			if s.used-int64(len(s.roots))*nodeBytes <= s.config.Bytes || !s.displace(fleet.Holder(most), 0) {
				break
			}
		}
	}
}

// weight returns the memory that a holder's placements would take if no other holder had the same runs.
func weight(list *holder) int64 { return list.bytes + int64(list.links)*(nodeBytes+linkBytes) }

// drop drops the holder's least recently used run. If most is above 0 and WholeRuns is not set, it drops only this
// number of bytes, rounded up to whole pages, from the end of the run. But if there is no memory for the cut, it drops
// the whole run. If the holder has no run, drop returns false. mu is held.
func (s *Store) drop(h fleet.Holder, most int64) bool {
	l := s.holders[h].oldest
	if l == 0 {
		return false
	}
	id := s.links[l].node
	if keep := len(s.nodes[id].text) - int(most); most > 0 && keep >= s.page && !s.config.WholeRuns && s.canCut(id) {
		s.split(id, keep-keep%s.page)
	}
	s.leave(h, id)
	return true
}

// canCut reports whether a holder can lose the end of a node within Config.Bytes. If the holder shares the node, the
// cut adds a node, and a placement for each of the other holders. Otherwise the cut adds nothing. mu is held.
func (s *Store) canCut(id uint32) bool {
	others := int64(len(s.nodes[id].holds) - 1)
	added := nodeBytes + others*linkBytes
	return s.config.Bytes == 0 || others == 0 || s.used+added-int64(len(s.roots))*nodeBytes <= s.config.Bytes
}

// displace drops as drop does, in order to keep a limit. If the TTL of the dropped units has not ended, displace counts
// these units as displaced. mu is held.
func (s *Store) displace(h fleet.Holder, most int64) bool {
	if l := s.holders[h].oldest; l == 0 || s.config.TTL > 0 && s.links[l].at <= s.ended(s.now) {
		return s.drop(h, most)
	}
	before := s.held
	s.drop(h, most)
	s.displaced += before - s.held
	return true
}

// shrink evicts until the holder has at most target bytes of keys. mu is held.
func (s *Store) shrink(h fleet.Holder, target int64) {
	for list := &s.holders[h]; list.bytes > target; {
		s.displace(h, list.bytes-target)
	}
}

// Evict does a step of the regular eviction: it begins a pass if Config.Interval is over at now, in Unix nanoseconds,
// or continues a pass. A pass drops the placements whose TTL has ended, and the units of each holder beyond
// HolderUnits. The first call only sets the time of the first pass. Call Evict with each request.
func (s *Store) Evict(now int64) {
	now += s.skew.Load()
	due := s.due.Load()
	switch {
	case s.config.Interval <= 0 || due != 0 && now < due:
		return
	case due == 0:
		s.due.CompareAndSwap(0, now+int64(s.config.Interval))
		return
	}
	if !s.mu.TryLock() {
		return // the lock is busy: leave the step to one of the next requests
	}
	defer s.mu.Unlock()
	if due = s.due.Load(); now < due {
		return
	}
	s.now = max(s.now, now)
	if more := s.expire(now) || s.trim(); !more {
		s.compact()
		s.due.Store(now + int64(s.config.Interval))
	}
}

// expire drops placements that are older than TTL at now, at most as many as the constant stretch. more says that there
// may be more such placements. mu is held.
func (s *Store) expire(now int64) (more bool) {
	if s.config.TTL == 0 {
		return false
	}
	left := stretch
	for i := range s.holders {
		if left -= s.expireOf(fleet.Holder(i), now, left); left == 0 {
			return true
		}
	}
	return false
}

// expireOf drops the holder's placements that are older than TTL at now. most is the greatest number of placements to
// drop, and n is the number of dropped placements. mu is held.
func (s *Store) expireOf(h fleet.Holder, now int64, most int) (n int) {
	ended := s.ended(now)
	for list := &s.holders[h]; n < most && list.oldest != 0 && s.links[list.oldest].at <= ended; n++ {
		s.drop(h, 0)
	}
	return n
}

// trim evicts units of each holder with more than HolderUnits, until HolderTarget are left. It stops after Config.Step
// units or runs; more says that there is more to do. mu is held.
func (s *Store) trim() (more bool) {
	limit, target := s.config.HolderUnits*int64(s.unit), s.config.HolderTarget*int64(s.unit)
	if limit == 0 {
		return false
	}
	left := s.config.Step
	for ; s.next < len(s.holders); s.next++ {
		list := &s.holders[s.next]
		list.trimming = list.trimming || list.bytes > limit
		for list.trimming {
			if list.bytes <= target {
				list.trimming = false
				break
			}
			most := list.bytes - target
			if s.config.Step > 0 {
				if left <= 0 {
					return true
				}
				most = min(most, int64(left)*int64(s.unit))
			}
			before := list.bytes
			s.displace(fleet.Holder(s.next), most)
			if s.config.WholeRuns {
				left--
			} else {
				left -= int(before-list.bytes) / s.unit
			}
		}
	}
	s.next = 0
	return false
}

// prune evicts the least recently used runs of all holders, until the holders together have at most target bytes of
// keys. mu is held.
func (s *Store) prune(target int64) {
	heap := s.heap[:0] // the holders; the holder with the oldest placement is the first
	for h := range s.holders {
		if s.holders[h].oldest != 0 {
			heap = append(heap, fleet.Holder(h))
		}
	}
	s.heap = heap
	for i := len(heap)/2 - 1; i >= 0; i-- {
		s.sink(heap, i)
	}
	for s.held > target && len(heap) > 0 {
		h, until := heap[0], s.second(heap)
		for s.held > target && s.holders[h].oldest != 0 && s.oldest(h) <= until {
			s.displace(h, s.held-target)
		}
		if s.holders[h].oldest == 0 {
			heap[0] = heap[len(heap)-1]
			heap = heap[:len(heap)-1]
		}
		s.sink(heap, 0)
	}
}

// oldest returns the stamp of the holder's least recently used placement. The holder must have a placement.
func (s *Store) oldest(h fleet.Holder) int64 { return s.links[s.holders[h].oldest].at }

// second returns the stamp of the oldest placement of all holders in the heap except the first one.
func (s *Store) second(heap []fleet.Holder) int64 {
	until := s.now
	for _, h := range heap[1:min(3, len(heap))] {
		until = min(until, s.oldest(h))
	}
	return until
}

func (s *Store) sink(heap []fleet.Holder, i int) {
	for {
		least := i
		for c := 2*i + 1; c < min(2*i+3, len(heap)); c++ {
			if s.oldest(heap[c]) < s.oldest(heap[least]) {
				least = c
			}
		}
		if least == i {
			return
		}
		heap[i], heap[least] = heap[least], heap[i]
		i = least
	}
}
