package kvindex

// homeBucket returns the bucket of n in which what has a hash is kept if there is room. Its order is that of hashes.
func homeBucket(h, n uint64) uint64 { return (h << 8 >> 32) * n >> 32 }

// widest is the longest step from one bucket to the next that is looked at.
const widest = 32

// nextBucket returns which bucket of n comes after another, on the way of what has no room at home: one further, then
// two, and so on. Ways that go through neighbours only run into each other, and are half as long again at a load of
// 0.8; the first step is to a neighbour because the processor fetches that along. After the widest step all follow
// one by one.
func nextBucket(b, step, n uint64) uint64 {
	if step > widest {
		step = 1
	}
	for b += step; b >= n; {
		b -= n
	}
	return b
}

// stray tells of the keys that are not in a bucket though it is their home: in the lower 4 bits how many there are,
// above them how many steps further the furthest of them may be, as an index of reaches. 15 may be more, and the
// number then stays.
//
// That is about a home, and not about a bucket that others have passed, for the sake of tables at a steady load,
// where as much comes as goes: nearly every bucket is passed by somebody there, and a search that ended at one that
// is not looked at thirty buckets for a key that is not there, at a load of 0.8; this one looks at four.
type stray uint8

// unsure is either number where it may be more.
const unsure = 15

// reaches are finer where most are; what goes further than the last may be anywhere.
var reaches = [unsure + 1]uint64{0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 17, 24, 36, 64, 128, 0}

// reach returns how many steps further one may be.
func (s stray) reach(buckets uint64) uint64 {
	if s>>4 == unsure {
		return buckets + widest
	}
	return reaches[s>>4]
}

// more returns it after one went so many steps far.
func (s stray) more(far uint64) stray {
	to := s >> 4
	for to < unsure && reaches[to] < far {
		to++
	}
	return min(s&unsure+1, unsure) | to<<4
}

// less returns it after one came back or is gone.
func (s stray) less() stray {
	switch s & unsure {
	case unsure:
		return s
	case 1:
		return 0
	}
	return s - 1
}
