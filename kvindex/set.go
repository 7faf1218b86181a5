package kvindex

import (
	"slices"
	"sync/atomic"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex/internal/memory"
)

// setID names a set of holders, each with its claim. 0 is the empty set. With the highest bit it is one holder and the
// number of its state; else it is the run of a slab in which there are: a [setHead]; a hash of the members; the
// members, ascending.
//
// A set never changes while it is referred to, and is stored once: two sets are equal if and only if their ids are
// equal. The exception is a hash collision: two equal sets may then have different ids, which costs only a boundary
// between segments.
type setID uint32

const (
	singleSet    = 1 << 31
	holderBits   = 20
	singleStates = 1 << (31 - holderBits)
	setHeader    = 2 // words
)

// setHead is the first word of a set: flags, the number of members in the upper half, the number of references in the
// lower.
type setHead uint64

const (
	setSimple = 1 << 63 // all members have their blocks on the accelerator, in the first group, and nothing is believed
	setKnown  = 1 << 62 // some member knows the blocks by their hashes
)

func (w setHead) members() int { return int(w &^ (setSimple | setKnown) >> 32) }

// state says what a holder has of a block: a bit for each tier and group, and flags above them.
type state struct {
	named   uint64 // announced under the block's hash
	covered uint64 // covered by engine blocks that are points
}

const (
	possession = 1<<(4*MaxGroups) - 1
	// Flags of named. known: the holder knows the block by its hash. unnamed: the block is kept as a parent, but the
	// hash means another block to the holder now. copied: of some of it the holder has more than one copy, see
	// holder.copies.
	known   = 1 << 60
	unnamed = 1 << 61
	copied  = 1 << 62
	// pinned, of covered where that has nothing else: the block is kept for points, see holder.pins.
	pinned = 1 << 60
)

// held returns the tiers and groups on which the holder has the block.
func (s state) held() uint64 { return (s.named | s.covered) & possession }

// claim is what a holder has of a block: the number of a state, and above it the belief that says it has the block
// besides. 0 is nothing.
type claim uint64

const (
	stateBits  = 24
	beliefBits = 20
	claimBits  = stateBits + beliefBits
	maxBeliefs = 1<<beliefBits - 1
)

func claimOf(state, belief uint32) claim { return claim(belief)<<stateBits | claim(state) }

func (c claim) state() uint32  { return uint32(c) & (1<<stateBits - 1) }
func (c claim) belief() uint32 { return uint32(c >> stateBits) }

// member is a holder and its claim.
type member uint64

func memberOf(id fleet.Holder, c claim) member { return member(id)<<claimBits | member(c) }

func (m member) holder() fleet.Holder { return fleet.Holder(m >> claimBits) }
func (m member) claim() claim         { return claim(m) & (1<<claimBits - 1) }

// sets keeps the sets. One writer at a time; readers copy a set's members and then check the version of the strand that
// led them to it.
type sets struct {
	slab    memory.Slab
	byHash  memory.Table // hash → run
	states  atomic.Pointer[[]state]
	numbers map[state]uint32
	largest int // members of the largest set so far
	scratch []member
}

// number returns a state's number. States are few: combinations of tiers and groups that occur.
func (s *sets) number(st state) uint32 {
	if st == (state{}) {
		return 0
	}
	if n, ok := s.numbers[st]; ok {
		return n
	}
	if s.numbers == nil {
		s.numbers = map[state]uint32{}
	}
	all := append(s.all(), st)
	n := uint32(len(all) - 1)
	s.numbers[st] = n
	s.states.Store(&all)
	return n
}

var noStates = []state{{}}

func (s *sets) all() []state {
	if all := s.states.Load(); all != nil {
		return *all
	}
	return noStates[:1:1]
}

// state returns the state of a claim, for the writer.
func (s *sets) state(c claim) state { return s.all()[c.state()] }

// load appends the members of a set to dst. While a writer changes the sets, they may be wrong; false says that they
// certainly are.
func (s *sets) load(id setID, dst []member) ([]member, bool) {
	if id == 0 {
		return dst, true
	}
	if id&singleSet != 0 {
		return append(dst, id.single()), true
	}
	run, _, ok := s.listed(id)
	at := len(dst)
	dst = slices.Grow(dst, len(run))[:at+len(run)]
	for i, to := 0, dst[at:]; i < len(run); i++ {
		to[i] = member(atomic.LoadUint64(&run[i]))
	}
	return dst, ok
}

// listed returns the stored members of a set that is not single, and whether all of them are simple. While a writer
// changes the sets, they may be wrong; ok is false when they certainly are.
func (s *sets) listed(id setID) (members []uint64, simple, ok bool) {
	run := s.slab.At(uint32(id))
	if len(run) < setHeader {
		return nil, false, false
	}
	head := setHead(atomic.LoadUint64(&run[0]))
	n := head.members()
	if n > len(run)-setHeader {
		return nil, false, false
	}
	return run[setHeader : setHeader+n], head&setSimple != 0, true
}

// single returns the member of a set that names it itself.
func (id setID) single() member {
	return memberOf(fleet.Holder(id&(1<<holderBits-1)), claim(id&^singleSet)>>holderBits)
}

// members returns the members of a set. It is for the writer; what it returns is valid until sets change.
func (s *sets) members(id setID, one *[1]uint64) []uint64 {
	switch {
	case id == 0:
		return nil
	case id&singleSet != 0:
		one[0] = uint64(id.single())
		return one[:]
	}
	run := s.slab.At(uint32(id))
	return run[setHeader : setHeader+setHead(run[0]).members()]
}

// get returns a holder's claim in a set. It is for the writer.
func (s *sets) get(id setID, h fleet.Holder) claim {
	var one [1]uint64
	run := s.members(id, &one)
	if i := search(run, h); i < len(run) && member(run[i]).holder() == h {
		return member(run[i]).claim()
	}
	return 0
}

// search returns the place of the first member that is not before h.
func search(run []uint64, h fleet.Holder) int {
	lo, hi := 0, len(run)
	for lo < hi {
		if m := (lo + hi) / 2; member(run[m]).holder() < h {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}

// known reports whether some member of a set knows the blocks by their hashes.
func (s *sets) known(id setID) bool {
	switch {
	case id == 0:
		return false
	case id&singleSet != 0:
		return s.state(id.single().claim()).named&known != 0
	}
	return s.slab.At(uint32(id))[0]&setKnown != 0
}

// with returns the set in which a holder has a claim, or is not if that is 0. Nothing refers to it yet.
func (s *sets) with(id setID, h fleet.Holder, c claim) setID {
	var one [1]uint64
	run := s.members(id, &one)
	i := search(run, h)
	members := s.scratch[:0]
	for _, w := range run[:i] {
		members = append(members, member(w))
	}
	if i < len(run) && member(run[i]).holder() == h {
		i++
	}
	if c != 0 {
		members = append(members, memberOf(h, c))
	}
	for _, w := range run[i:] {
		members = append(members, member(w))
	}
	s.scratch = members
	return s.of(members)
}

// of returns the set of members, which are ascending. Nothing refers to it yet.
func (s *sets) of(members []member) setID {
	if len(members) == 0 {
		return 0
	}
	if one := members[0]; len(members) == 1 && one.claim() < singleStates {
		return singleSet | setID(one.claim())<<holderBits | setID(one.holder())
	}
	hash := uint64(len(members))
	for _, m := range members {
		hash = (hash ^ uint64(m)) * 0x9e3779b97f4a7c15
		hash ^= hash >> 32
	}
	h := s.byHash.Hash(hash)
	same := s.byHash.Find(h)
	for ref := same.Next(); ref != 0; ref = same.Next() {
		if run := s.slab.At(uint32(ref)); run[1] == hash && equalMembers(run[setHeader:setHeader+setHead(run[0]).members()], members) {
			return setID(ref)
		}
	}
	ref := s.slab.Alloc(setHeader + len(members))
	run := s.slab.At(ref)
	head := uint64(len(members))<<32 | setSimple
	atomic.StoreUint64(&run[1], hash)
	for i, m := range members {
		atomic.StoreUint64(&run[setHeader+i], uint64(m))
		st := s.state(m.claim())
		if st.held() != 1 || m.claim().belief() != 0 {
			head &^= setSimple
		}
		if st.named&known != 0 {
			head |= setKnown
		}
	}
	atomic.StoreUint64(&run[0], head)
	s.byHash.Put(h, uint64(ref))
	s.largest = max(s.largest, len(members))
	return setID(ref)
}

func equalMembers(run []uint64, members []member) bool {
	if len(run) != len(members) {
		return false
	}
	for i := range run {
		if member(run[i]) != members[i] {
			return false
		}
	}
	return true
}

// hold notes one more reference to a set.
func (s *sets) hold(id setID) {
	if id != 0 && id&singleSet == 0 {
		w := &s.slab.At(uint32(id))[0]
		atomic.StoreUint64(w, *w+1)
	}
}

// drop notes one reference less, and frees the set with the last.
func (s *sets) drop(id setID) {
	if id == 0 || id&singleSet != 0 {
		return
	}
	run := s.slab.At(uint32(id))
	if n := run[0] - 1; uint32(n) != 0 {
		atomic.StoreUint64(&run[0], n)
		return
	}
	s.byHash.Delete(s.byHash.Hash(run[1]), uint64(id))
	s.slab.Release(uint32(id), setHeader+setHead(run[0]).members())
}

func (s *sets) clear() {
	s.slab.Clear()
	s.byHash.Clear()
	s.states.Store(nil)
	s.numbers, s.largest, s.scratch = nil, 0, nil
}

func (s *sets) bytes() int64 {
	return s.slab.Bytes() + s.byHash.Bytes() + int64(len(s.numbers))*64 + int64(cap(s.scratch))*8
}

func (s *sets) growth(n int) int64 {
	return s.slab.Growth(n, setHeader+s.largest+2) + s.byHash.Growth(n) + 64*2
}
