package kvindex

import (
	"slices"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex/internal/memory"
)

// setID names a set of holders, each with its claim: the tiers and groups on which the holder has some blocks. Each
// segment (a part of a run of blocks) refers to the set of the holders that have its blocks. 0 is the empty set. If the
// highest bit is set, the id contains the only holder and its claim; else the id is the index of a [storedSet].
//
// A set does not change while a strand refers to it. Equal sets have the same id.
type setID uint32

const (
	singleSet    = 1 << 31
	holderBits   = 20
	singleStates = 1 << (31 - holderBits)
)

// single returns the claim of a set with one holder.
func (id setID) single() claim { return claim(id&^singleSet) >> holderBits }

// storedSet is a set of several members, or of a member whose claim does not fit in a setID.
type storedSet struct {
	members memory.List // of type member, ascending by holder
	// simple is 1 if all members have their blocks on the accelerator, in the first group, and nowhere else. Readers
	// read it atomically.
	simple uint32
	refs   uint32 // the number of segments that refer to the set
}

// claim is a holder's claim on a block, as the number of its state. 0 means that the holder has no claim.
type claim uint32

const claimBits = 32

// member is a member of a set: a holder in the upper half, and its claim in the lower half.
type member uint64

func memberOf(id fleet.Holder, c claim) member { return member(id)<<claimBits | member(c) }

func (m member) holder() fleet.Holder { return fleet.Holder(m >> claimBits) }
func (m member) claim() claim         { return claim(m & (1<<claimBits - 1)) }

// sets stores the sets and the states. There is one writer at a time. Readers read a set's members, which never change.
// Then they check the version of the strand from which they have the set's id.
type sets struct {
	stored  memory.Arena[storedSet]
	lists   memory.Lists // counts the memory of the sets' members
	byHash  memory.Table // hash of the members → index in stored
	states  memory.Arena[storedState]
	byState memory.Table // hash of a state → claim
	largest int          // the number of members of the largest set so far
	scratch []uint64
}

// storedState is a state and the number of references to it. A [storedSet] refers once to the state of each member. If
// a setID contains its only member, each reference to the set counts as a reference to the state.
type storedState struct {
	state // readers read its fields atomically
	refs  uint32
}

// claim returns the number of a state, and stores the state if it is new. The state exists until its last reference is
// dropped.
func (s *sets) claim(st state) claim {
	if st == (state{}) {
		return 0
	}
	h := s.hash(st)
	for v, p := s.byState.Find(h); v != 0; v, p = p.Next() {
		if s.state(claim(v)) == st {
			return claim(v)
		}
	}
	i := s.states.Alloc()
	e := s.states.At(i)
	atomic.StoreUint64(&e.named, st.named)
	atomic.StoreUint64(&e.covered, st.covered)
	e.refs = 0
	s.byState.Put(h, uint64(i))
	return claim(i)
}

func (s *sets) hash(st state) uint64 { return s.byState.Hash(st.named ^ s.byState.Hash(st.covered)) }

// state returns the state of a claim, for the writer.
func (s *sets) state(c claim) state {
	if c == 0 {
		return state{}
	}
	return s.states.At(uint32(c)).state
}

// held returns the tiers and groups of a claim, for readers. ok is false if the memory of the claim was given back.
func (s *sets) held(c claim) (held uint64, ok bool) {
	e := s.states.At(uint32(c))
	if c == 0 || e == nil {
		return 0, c == 0
	}
	return state{atomic.LoadUint64(&e.named), atomic.LoadUint64(&e.covered)}.held(), true
}

// unref drops one reference to a state, and frees the state with its last reference.
func (s *sets) unref(c claim) {
	e := s.states.At(uint32(c))
	if e.refs--; e.refs == 0 {
		s.byState.Delete(s.hash(e.state), uint64(c))
		s.states.Release(uint32(c))
	}
}

// load returns a copy of the members of a set, for a writer that changes sets while it reads the members.
func (s *sets) load(id setID) []uint64 {
	var one [1]uint64
	return slices.Clone(s.members(id, &one))
}

// listed returns the members of a set, and whether all of them have their blocks on the accelerator only, in the first
// group only. If a writer changes the sets meanwhile, the members may be wrong. ok is false if they are certainly
// wrong. The parameter one is the memory for the result if the id contains the only member.
func (s *sets) listed(id setID, one *[1]uint64) (members []uint64, simple, ok bool) {
	switch {
	case id == 0:
		return nil, true, true
	case id&singleSet != 0:
		c := id.single()
		held, ok := s.held(c)
		one[0] = uint64(memberOf(fleet.Holder(id&(1<<holderBits-1)), c))
		return one[:], held == 1, ok
	}
	e := s.stored.At(uint32(id))
	if e == nil {
		return nil, false, false
	}
	members = e.members.Words()
	return members, atomic.LoadUint32(&e.simple) != 0, len(members) > 0
}

// members returns the members of a set, for the writer.
func (s *sets) members(id setID, one *[1]uint64) []uint64 {
	members, _, _ := s.listed(id, one)
	return members
}

// get returns a holder's claim in a set, for the writer.
func (s *sets) get(id setID, h fleet.Holder) claim {
	var one [1]uint64
	return find(s.members(id, &one), h)
}

// find returns the claim of a holder among members, or 0 if the holder is not a member.
func find(members []uint64, h fleet.Holder) claim {
	if i := search(members, h); i < len(members) {
		if m := member(members[i]); m.holder() == h {
			return m.claim()
		}
	}
	return 0
}

// search returns the place of the first member whose holder is h or larger.
func search(members []uint64, h fleet.Holder) int {
	lo, hi := 0, len(members)
	for lo < hi {
		if m := (lo + hi) / 2; member(members[m]).holder() < h {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}

// known reports whether some member of a set knows the blocks by their hashes.
func (s *sets) known(id setID) bool {
	var one [1]uint64
	for _, w := range s.members(id, &one) {
		if s.state(member(w).claim()).named&known != 0 {
			return true
		}
	}
	return false
}

// with returns a set like id in which holder h has the claim c, or has no claim if c is 0. The caller must refer to the
// set: hold counts references.
func (s *sets) with(id setID, h fleet.Holder, c claim) setID {
	var one [1]uint64
	old := s.members(id, &one)
	i := search(old, h)
	members := append(s.scratch[:0], old[:i]...)
	if i < len(old) && member(old[i]).holder() == h {
		i++
	}
	if c != 0 {
		members = append(members, uint64(memberOf(h, c)))
	}
	s.scratch = append(members, old[i:]...)
	return s.of(s.scratch)
}

// of returns the set of the given members, which must ascend by holder. A new set has no references yet.
func (s *sets) of(members []uint64) setID {
	if len(members) == 0 {
		return 0
	}
	if one := member(members[0]); len(members) == 1 && one.claim() < singleStates {
		return singleSet | setID(one.claim())<<holderBits | setID(one.holder())
	}
	h := s.hashOf(members)
	for id, same := s.byHash.Find(h); id != 0; id, same = same.Next() {
		if slices.Equal(s.stored.At(uint32(id)).members.Words(), members) {
			return setID(id)
		}
	}
	id := s.stored.Alloc()
	e, simple := s.stored.At(id), uint32(1)
	for _, m := range members {
		st := s.states.At(uint32(member(m).claim()))
		if st.refs++; st.held() != 1 {
			simple = 0
		}
	}
	s.lists.Set(&e.members, members)
	atomic.StoreUint32(&e.simple, simple)
	s.byHash.Put(h, uint64(id))
	s.largest = max(s.largest, len(members))
	return setID(id)
}

// hashOf returns the hash of a set's members in the table byHash.
func (s *sets) hashOf(members []uint64) uint64 {
	hash := uint64(len(members))
	for _, m := range members {
		hash = (hash ^ m) * block.Golden
		hash ^= hash >> 32
	}
	return s.byHash.Hash(hash)
}

// hold adds one reference to a set.
func (s *sets) hold(id setID) {
	switch {
	case id == 0:
	case id&singleSet != 0:
		s.states.At(uint32(id.single())).refs++
	default:
		s.stored.At(uint32(id)).refs++
	}
}

// drop removes one reference to a set, and frees the set with its last reference.
func (s *sets) drop(id setID) {
	if id == 0 {
		return
	}
	if id&singleSet != 0 {
		s.unref(id.single())
		return
	}
	e := s.stored.At(uint32(id))
	if e.refs--; e.refs > 0 {
		return
	}
	members := e.members.Words()
	for _, m := range members {
		s.unref(member(m).claim())
	}
	s.byHash.Delete(s.hashOf(members), uint64(id))
	s.lists.Set(&e.members, nil)
	s.stored.Release(uint32(id))
}

func (s *sets) clear() {
	s.stored.Clear()
	s.lists.Clear()
	s.byHash.Clear()
	s.states.Clear()
	s.byState.Clear()
	s.largest, s.scratch = 0, nil
}

func (s *sets) bytes() int64 {
	return s.stored.Bytes() + s.lists.Bytes() + s.byHash.Bytes() + s.states.Bytes() + s.byState.Bytes() +
		int64(cap(s.scratch))*8
}

func (s *sets) growth(n int) int64 {
	return s.tablesGrowth(n) + int64(n)*memory.ListBytes(s.largest+2)
}

// tablesGrowth returns an upper bound of the memory that n more sets and states take, without the lists of members.
func (s *sets) tablesGrowth(n int) int64 {
	return s.stored.Growth(n) + s.byHash.Growth(n) + s.statesGrowth(n)
}

// statesGrowth returns an upper bound of the memory that n more states take.
func (s *sets) statesGrowth(n int) int64 { return s.states.Growth(n) + s.byState.Growth(n) }
