package kvindex

import (
	"slices"
	"sync/atomic"

	"github.com/warmpath/warmpath/fleet"
)

// setID names a set of holders, each with its claim. 0 is the empty set. With the highest bit it is one holder and the
// number of its mask; else it is the run of a slab in which there are: a [setHead]; a hash of the members; the members,
// ascending.
//
// A set never changes while something refers to it, and is there once: two sets are the same if their ids are (but for
// hash collisions, when they may be taken for different ones, which costs a boundary between runs and nothing else).
type setID uint32

const (
	singleSet   = 1 << 31
	holderBits  = 20
	singleMasks = 1 << (31 - holderBits)
	setHeader   = 2 // words
)

// setHead is the first word of a set: the number of members in the upper half and of references in the lower, and
// setPlain.
type setHead uint64

// setPlain: all members have their blocks on the accelerator, of the first group, and are believed to have nothing.
const setPlain = 1 << 63

func (w setHead) members() int { return int(w &^ setPlain >> 32) }

// claim is what a holder has of a block: the number of a mask of tiers and groups, and above it the belief that says it
// has the block besides. 0 is nothing.
type claim uint64

const (
	maskBits   = 24
	beliefBits = 20
	claimBits  = maskBits + beliefBits
	maxMasks   = 1<<maskBits - 1<<16 // with room for what one operation may add
	maxBeliefs = 1<<beliefBits - 1
)

func claimOf(mask, belief uint32) claim { return claim(belief)<<maskBits | claim(mask) }

func (c claim) mask() uint32 { return uint32(c) & (1<<maskBits - 1) }

// plain reports whether it is on the accelerator, of the first group, with a name or without, and nothing else.
func (c claim) plain() bool { return c-plainMask <= namedMask-plainMask }

func (c claim) belief() uint32 { return uint32(c >> maskBits) }

// setMember is a holder and its claim.
type setMember uint64

func memberOf(id fleet.Holder, c claim) setMember { return setMember(id)<<claimBits | setMember(c) }

func (m setMember) holder() fleet.Holder { return fleet.Holder(m >> claimBits) }
func (m setMember) claim() claim         { return claim(m) & (1<<claimBits - 1) }

// sets keeps the sets. One writer at a time; readers copy a set's members and then check the version of the strand that
// led them to it.
type sets struct {
	slab    slab
	byHash  table // hash → run
	masks   atomic.Pointer[[]uint64]
	numbers map[uint64]uint32 // of masks
	largest int               // members of the largest set so far
	scratch []setMember
}

// The numbers of the commonest masks: the accelerator and the first group, without and with a name; and a name alone.
const (
	plainMask = 1
	namedMask = 2
	bareMask  = 3
)

// A mask has in its lowest bits where a block is, and above them what else is known of the holder and the block.
const (
	possession = 1<<(4*MaxGroups) - 1
	// maskNamed: the holder knows the block by its name in names, and the bits of possession are what it announced of
	// it.
	maskNamed = 1 << 60
	// maskCopied: some of that it has more than once, as copies tells.
	maskCopied = 1 << 61
)

// number returns a mask's number. Masks are few: combinations of tiers and groups that occur.
func (s *sets) number(mask uint64) uint32 {
	switch mask {
	case 0, 1:
		return uint32(mask)
	case 1 | maskNamed:
		return namedMask
	case maskNamed:
		return bareMask
	}
	if n, ok := s.numbers[mask]; ok {
		return n
	}
	if s.numbers == nil {
		s.numbers = map[uint64]uint32{}
	}
	all := append(s.all(), mask)
	s.numbers[mask] = uint32(len(all) - 1)
	s.masks.Store(&all)
	return uint32(len(all) - 1)
}

var firstMasks = []uint64{0, 1, 1 | maskNamed, maskNamed}

func (s *sets) all() []uint64 {
	if m := s.masks.Load(); m != nil {
		return *m
	}
	return firstMasks[:4:4]
}

// mask returns the mask of a number.
func (s *sets) mask(number uint32) uint64 {
	if number <= plainMask {
		return uint64(number)
	}
	return s.all()[number]
}

// listed returns the members, as they lie, of a set that is not single, and whether all are plain. Beside a writer
// they may be anything; false tells that they surely are not.
func (s *sets) listed(id setID) (members []uint64, plain, ok bool) {
	run := s.slab.at(uint32(id))
	if len(run) < setHeader {
		return nil, false, false
	}
	head := setHead(atomic.LoadUint64(&run[0]))
	n := head.members()
	if n > len(run)-setHeader {
		return nil, false, false
	}
	return run[setHeader : setHeader+n], head&setPlain != 0, true
}

// load appends the members of any set to dst; see listed.
func (s *sets) load(id setID, dst []setMember) ([]setMember, bool) {
	if id == 0 {
		return dst, true
	}
	if id&singleSet != 0 {
		return append(dst, id.single()), true
	}
	run, _, ok := s.listed(id)
	at, n := len(dst), len(run)
	dst = slices.Grow(dst, n)[:at+n]
	to := dst[at:]
	for i := range run {
		to[i] = setMember(atomic.LoadUint64(&run[i]))
	}
	return dst, ok
}

// single returns the member of a set that names it itself.
func (id setID) single() setMember {
	return memberOf(fleet.Holder(id&(1<<holderBits-1)), claim(id&^singleSet)>>holderBits)
}

// single returns the set of one member.
func (s *sets) single(id fleet.Holder, c claim) setID {
	if c == 0 {
		return 0
	}
	if c < singleMasks {
		return singleSet | setID(c)<<holderBits | setID(id)
	}
	s.scratch = append(s.scratch[:0], memberOf(id, c))
	return s.intern(s.scratch, hashMember(s.scratch[0]))
}

// get returns a holder's claim in a set. It is for the writer.
func (s *sets) get(id setID, h fleet.Holder) claim {
	if id == 0 {
		return 0
	}
	if id&singleSet != 0 {
		if m := id.single(); m.holder() == h {
			return m.claim()
		}
		return 0
	}
	run := s.run(id)
	i := searchMembers(run, h)
	if i < len(run) && setMember(run[i]).holder() == h {
		return setMember(run[i]).claim()
	}
	return 0
}

// run returns the members of a set that is not single. It is for the writer.
func (s *sets) run(id setID) []uint64 {
	run := s.slab.at(uint32(id))
	return run[setHeader : setHeader+setHead(run[0]).members()]
}

// seek skips the members before a holder and returns its claim, 0 when it is none of them.
func seek(members []setMember, h fleet.Holder) ([]setMember, claim) {
	for len(members) > 0 && members[0].holder() < h {
		members = members[1:]
	}
	if len(members) == 0 || members[0].holder() != h {
		return members, 0
	}
	return members, members[0].claim()
}

// searchMembers returns the place of the first member that is not before h.
func searchMembers(run []uint64, h fleet.Holder) int {
	lo, hi := 0, len(run)
	for lo < hi {
		if m := (lo + hi) / 2; setMember(run[m]).holder() < h {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}

// with returns the set in which a holder has a claim, or is not if that is 0. Nothing refers to it yet.
func (s *sets) with(id setID, h fleet.Holder, c claim) setID {
	if id == 0 {
		return s.single(h, c)
	}
	if id&singleSet != 0 && id.single().holder() == h {
		return s.single(h, c)
	}
	var one [1]uint64
	run, hash := one[:], uint64(0)
	if id&singleSet != 0 {
		one[0] = uint64(id.single())
		hash = hashMember(id.single())
	} else {
		run = s.run(id)
		hash = s.slab.at(uint32(id))[1]
	}
	members := s.scratch[:0]
	i := searchMembers(run, h)
	for _, w := range run[:i] {
		members = append(members, setMember(w))
	}
	if i < len(run) && setMember(run[i]).holder() == h {
		hash -= hashMember(setMember(run[i]))
		i++
	}
	if c != 0 {
		members = append(members, memberOf(h, c))
		hash += hashMember(memberOf(h, c))
	}
	for _, w := range run[i:] {
		members = append(members, setMember(w))
	}
	s.scratch = members
	return s.intern(members, hash)
}

// of returns the set of members, which are ascending. Nothing refers to it yet.
func (s *sets) of(members []setMember) setID {
	hash := uint64(0)
	for _, m := range members {
		hash += hashMember(m)
	}
	return s.intern(members, hash)
}

// hashMember scrambles a member. A set's hash is the sum of its members'.
func hashMember(m setMember) uint64 {
	h := uint64(m) * 0x9e3779b97f4a7c15
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	return h ^ h>>29
}

// intern returns the set of members.
func (s *sets) intern(members []setMember, hash uint64) setID {
	if len(members) == 0 {
		return 0
	}
	if len(members) == 1 && members[0].claim() < singleMasks {
		return s.single(members[0].holder(), members[0].claim())
	}
	same := s.byHash.get(hash)
	if same != 0 && equalMembers(s.run(setID(same)), members) {
		return setID(same)
	}
	ref := s.slab.alloc(setHeader + len(members))
	run := s.slab.at(ref)
	head := uint64(len(members))<<32 | setPlain
	atomic.StoreUint64(&run[1], hash)
	for i, m := range members {
		atomic.StoreUint64(&run[setHeader+i], uint64(m))
		if !m.claim().plain() {
			head &^= setPlain
		}
	}
	atomic.StoreUint64(&run[0], head)
	if same == 0 {
		s.byHash.put(hash, ref)
	}
	s.largest = max(s.largest, len(members))
	return setID(ref)
}

func equalMembers(run []uint64, members []setMember) bool {
	if len(run) != len(members) {
		return false
	}
	for i := range run {
		if setMember(run[i]) != members[i] {
			return false
		}
	}
	return true
}

// hold notes one more reference to a set.
func (s *sets) hold(id setID) {
	if id != 0 && id&singleSet == 0 {
		w := &s.slab.at(uint32(id))[0]
		atomic.StoreUint64(w, *w+1)
	}
}

// drop notes one reference less, and frees the set with the last.
func (s *sets) drop(id setID) {
	if id == 0 || id&singleSet != 0 {
		return
	}
	run := s.slab.at(uint32(id))
	if n := run[0] - 1; uint32(n) != 0 {
		atomic.StoreUint64(&run[0], n)
		return
	}
	if s.byHash.get(run[1]) == uint32(id) {
		s.byHash.del(run[1])
	}
	s.slab.release(uint32(id), setHeader+setHead(run[0]).members())
}

func (s *sets) reset() {
	s.slab.reset()
	s.byHash.clear()
	s.masks.Store(nil)
	s.numbers, s.largest, s.scratch = nil, 0, nil
}

func (s *sets) bytes() int64 {
	return s.slab.bytes() + s.byHash.bytes() + int64(len(s.numbers))*64 + int64(cap(s.scratch))*8
}

func (s *sets) growth(n int) int64 {
	return s.slab.growth(n, setHeader+s.largest+2) + s.byHash.growth(n) + 64*2
}
