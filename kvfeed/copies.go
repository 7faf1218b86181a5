package kvfeed

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvindex"
)

// removals says what a removal event of vLLM means for a block that the engine has several copies of. vLLM may compute
// a block again and keep both copies. Then it sends a stored event for each copy. Up to version 0.33 it also sends a
// removal for each copy. Pull requests that are still open would send one removal for the last copy (vllm#55092), or
// report how many copies remain (vllm#48933). docs/design/0031 says how the router distinguishes these versions.
type removals uint8

const (
	// perCopy: the engine sends a removal for each copy. The index counts the copies, and the last removal removes the
	// block.
	perCopy removals = iota
	// unproven: it is not known what this version does. The router does not count copies, so the first removal removes
	// the block. If the engine still has other copies, this is too early.
	unproven
	// lastCopy: the engine sends one removal, when it removes the last copy. The router knows this because a removal event
	// said so, or because counting copies led to more blocks than the engine's cache can hold.
	lastCopy
)

// lastCounted is the newest version of vLLM that is known to send a removal for each copy.
var lastCounted = [3]int{0, 33, 0}

// removalsOf returns what the removals of an engine version mean.
func removalsOf(e fleet.Engine, version string) removals {
	if e != fleet.EngineVLLM {
		return perCopy // other engines have one copy of each block
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

// factsDelay is the time after a new connection or a restart of the stream in which the worker's facts may still be of
// the process before. Discovery probes a worker every minute; the rest is for a probe that is late.
const factsDelay = 2 * time.Minute

// copyOrigin tells the index whether a stored event may add a copy of a block that the index already has.
func (s *stream) copyOrigin(e *kvevent.Event) kvindex.Origin {
	if s.announcesNoRemovals(e) {
		return kvindex.OriginReused
	}
	if s.removals == perCopy || e.Tier != block.TierGPU {
		return kvindex.OriginUnknown
	}
	return kvindex.OriginReused
}

// lastRemoved records a removal event that says that no copy is left. s.mu is held, and so is s.turn.
func (s *stream) lastRemoved() {
	if s.removals == perCopy {
		s.drop("its removals say how many copies remain, which is not known of its version: the copies counted before are dropped")
		s.broken = true
	}
	s.removals = lastCopy
}

// judgeCopies compares the meaning in s.removals with the figures that askIndex got last from the index. If the figures
// contradict this meaning, judgeCopies changes s.removals and reports true. s.mu is held.
func (s *stream) judgeCopies() (changed bool) {
	st := &s.indexSaid
	switch s.removals {
	case unproven:
		// If the history is whole, only the removal of a block's second copy can be a removal of an unknown block.
		whole := s.complete && st.Whole && s.unread == "" && s.mixed == "" && !s.offloads
		if whole && s.wholeThen && st.UnknownRemoved > s.unknownThen {
			s.removals, changed = perCopy, true
			s.log.Info("the engine removes each copy of a block by itself: copies are counted from now on")
		}
		s.wholeThen, s.unknownThen = whole, st.UnknownRemoved
	case perCopy:
		if !s.connected || time.Now().Before(s.factsFrom) {
			return false // the worker's facts and the blocks in the index may be of different processes
		}
		w := s.fleet.Snapshot().Worker(s.holder)
		if s.engine != fleet.EngineVLLM || w == nil || s.offloads || len(st.Groups) != 1 || st.Groups[0].Attention != block.AttentionFull {
			return false // the figures below compare only for vLLM with one full-attention cache and no offloading
		}
		room := int64(w.Facts.BlocksPerRank) * int64(max(w.Facts.BlockSize, s.blockSize))
		held := st.Blocks[block.TierGPU] * int64(s.router.BlockSize(s.holder))
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
