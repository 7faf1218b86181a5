package kvfeed

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvindex"
)

// removals says what a removal of a block by vLLM means. Its cache may have several copies of a block, and it announces
// each. Up to 0.33 it sends a removal for each copy. Open changes would send one removal for the last copy
// (vllm#55092), or report how many copies remain (#48933). docs/design/0031 says how the router distinguishes them.
type removals uint8

const (
	// perCopy: each copy is removed by an event of its own. Copies are counted.
	perCopy removals = iota
	// unproven: it is not known what this version does. Copies are not counted, so that the first removal removes the
	// block. If other copies remain, this is too early.
	unproven
	// lastCopy: a removal is for the last copy. The event says so, or counting copies led to more blocks than the engine's
	// cache can hold.
	lastCopy
)

// lastCounted is the newest version of vLLM that is known to send a removal for each copy.
var lastCounted = [3]int{0, 33, 0}

// removalsOf returns what the removals of an engine version mean.
func removalsOf(e fleet.Engine, version string) removals {
	if e != fleet.EngineVLLM {
		return perCopy // they have each block once
	}
	v, ok := release(version)
	for i, n := range v {
		if !ok || n > lastCounted[i] {
			return unproven
		}
		if n < lastCounted[i] {
			break
		}
	}
	return perCopy
}

// release parses the numbers at the beginning of a version: "0.33.1.dev5+g1" is 0.33.1.
func release(version string) (v [3]int, ok bool) {
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 4)
	if len(parts) < 2 {
		return v, false
	}
	for i, part := range parts[:min(len(parts), 3)] {
		digits := len(part) - len(strings.TrimLeft(part, "0123456789"))
		n, err := strconv.Atoi(part[:digits])
		if err != nil {
			return v, false
		}
		v[i] = n
	}
	return v, true
}

// origin tells the index whether an announcement may add a copy.
func (s *stream) origin(e *kvevent.Event) kvindex.Origin {
	if s.announcesNoRemovals(e) {
		return kvindex.OriginReused
	}
	if s.removals == perCopy || e.Tier != block.TierGPU {
		return kvindex.OriginUnknown
	}
	return kvindex.OriginReused
}

// lastRemoved notes a removal that says that no copy is left. s.mu is held, and the stream has its turn.
func (s *stream) lastRemoved() {
	if s.removals == perCopy {
		s.drop("its removals say how many copies remain, which is not known of its version: the copies counted before are dropped")
		s.broken = true
	}
	s.removals = lastCopy
}

// judgeCopies compares the last figures of the index with the two possible meanings of removals. It changes the
// stream's meaning if the figures contradict it, and reports whether it did. s.mu is held.
func (s *stream) judgeCopies() (changed bool) {
	st := &s.indexSaid
	switch s.removals {
	case unproven:
		// With a whole history, a removal of an unknown block can only be that of a second copy.
		whole := s.complete && st.Whole && s.unread == "" && s.mixed == "" && !s.offloads
		if whole && s.wholeThen && st.UnknownRemoved > s.unknownThen {
			s.removals, changed = perCopy, true
			s.log.Info("the engine removes each copy of a block by itself: copies are counted from now on")
		}
		s.wholeThen, s.unknownThen = whole, st.UnknownRemoved
	case perCopy:
		w := s.fleet.Snapshot().Worker(s.holder)
		if s.engine != fleet.EngineVLLM || w == nil || s.offloads || len(st.Groups) != 1 || st.Groups[0].Attention != block.AttentionFull {
			return false // the blocks in the index are in several caches
		}
		room := int64(w.Facts.BlocksPerRank) * int64(max(w.Facts.BlockSize, s.blockSize))
		held := st.Blocks[block.TierGPU] * int64(s.router.BlockSize(s.holder, s.model))
		if room > 0 && held > room {
			s.removals, changed = lastCopy, true
			s.forget(fmt.Sprintf("its removals seem to be of last copies: by counting copies it had %d tokens in a cache of %d", held, room))
			s.broken = true
			s.indexSaid = kvindex.HolderStats{}
			s.warn("copies", "counting copies of blocks led to more than the engine's cache holds: forgetting the holder; "+
				"from now on one removal takes all copies", "tokens", held, "room", room)
		}
	}
	return changed
}
