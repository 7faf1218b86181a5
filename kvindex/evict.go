package kvindex

import (
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
)

// need is an upper bound of what an operation stores.
type need struct {
	handles int // engine blocks
	tokens  int
	size    int // of one engine block
}

// bytes returns what the index has allocated.
func (x *Index) bytes() int64 {
	return x.keys.bytes() + x.entries.bytes() + x.members.bytes() + x.specs.bytes() +
		x.handles.bytes() + x.points.bytes() + x.records.bytes() + x.extras.bytes() + x.extraBytes +
		x.covers.bytes() + x.parts.bytes() + x.waiters.bytes() +
		x.waiting.items.bytes() + x.speculative.items.bytes() +
		int64(cap(x.holders)+cap(x.views))*8 + int64(len(x.holders))*holderBytes
}

// holderBytes covers a holder and its view with a few groups.
const holderBytes = 512

// growth returns an upper bound of what the need makes the index allocate.
func (x *Index) growth(n need) int64 {
	size := int(x.size)
	blocks := max(n.tokens, n.handles*n.size)/size + 2*n.handles
	bytes := x.keys.growth(blocks) + x.entries.growth(blocks) + x.members.growth(blocks) +
		x.specs.growth(n.handles) + x.speculative.items.growth(n.handles) +
		x.handles.growth(n.handles) + x.points.growth(n.handles) + x.records.growth(n.handles) +
		x.extras.growth(n.handles) + x.waiters.growth(n.handles) + x.waiting.items.growth(n.handles) +
		x.covers.growth(blocks)
	parts := 2 * blocks
	if n.size != size {
		// Blocks that are put together: parts of their heads, and tails to remember.
		parts += 2*n.tokens + 4*size
		bytes += int64(n.handles) * int64(4*min(size, n.size+size)+8*(n.size/size+4))
	}
	return bytes + x.parts.growth(parts) + int64(8*n.tokens)
}

// fits reports whether a point that n blocks of ours run through can be stored. It is asked where nothing can be
// evicted, and only in the rare case of many continuations of one partial block.
func (x *Index) fits(n int) bool {
	if n < 32 {
		return true
	}
	return x.bytes()+x.keys.growth(n)+x.entries.growth(n)+x.members.growth(n)+x.parts.growth(2*n)+
		x.covers.growth(n) <= x.config.Bytes
}

// generous is what is asked for at a time, so that room is measured once in many operations.
var generous = need{handles: 2048, tokens: 1 << 16, size: 0}

// roomy reports whether the need fits in the budget as things are.
func (x *Index) roomy(n need) bool {
	if n.handles <= x.slack.handles && n.tokens <= x.slack.tokens && n.size == x.slack.size {
		x.slack.handles -= n.handles
		x.slack.tokens -= n.tokens
		return true
	}
	used := x.bytes()
	big := generous
	big.size = n.size
	if n.handles <= big.handles && n.tokens <= big.tokens && used+x.growth(big) <= x.config.Bytes {
		x.slack = big
		return x.roomy(n)
	}
	x.slack = need{}
	return used+x.growth(n) <= x.config.Bytes
}

// makeRoom evicts until the need fits in the budget. It reports false when it does not fit even in an empty index. It
// must not be called with tableMu held, nor while points are in hand.
func (x *Index) makeRoom(n need) bool {
	for pass := 0; !x.roomy(n); pass++ {
		if x.entries.live() == 0 && x.points.live() == 0 {
			if !x.resetArenas() {
				return x.roomy(n)
			}
			continue
		}
		x.evict(pass)
	}
	return true
}

// resetArenas gives back the memory of an index that became empty, and reports whether there was any.
func (x *Index) resetArenas() bool {
	x.tableMu.Lock()
	defer x.tableMu.Unlock()
	had := x.entries.next != 0 || x.points.next != 0 || x.specs.next != 0
	x.keys, x.handles, x.covers, x.waiters = table{}, table{}, table{}, table{}
	x.entries.reset()
	x.members.reset()
	x.specs.reset()
	x.points.reset()
	x.records.reset()
	x.extras.reset()
	x.parts.reset()
	x.waiting, x.speculative = queue{}, queue{}
	x.extraBytes, x.waitingBytes = 0, 0
	return had
}

// evict drops the least recently used sixteenth of all blocks, deepest before their parents. It looks at everything
// once, so that each dropped block costs a look at sixteen. Later passes of one makeRoom drop more.
func (x *Index) evict(pass int) {
	before := x.entries.live()
	defer func() { x.counts.evictions += int64(before - x.entries.live()) }()
	x.inherit()
	x.doom(max(1, x.entries.live()>>max(0, 4-pass)))
	for _, h := range x.holders {
		if h == nil {
			continue
		}
		x.inStretches(h.points, func(p uint32) {
			if x.condemned(p, pass) {
				x.dropRecords(h, p, func(r *record) bool {
					h.broken |= 1 << r.tier
					return true
				})
			}
		})
		x.collectAll(h)
		if pass > 8 {
			x.releaseAll(h) // what is left are points that wait for each other
		}
	}
	for e := uint32(1); e < x.entries.next; {
		x.tableMu.Lock()
		for n := 0; e < x.entries.next && n < stretch; n, e = n+1, e+1 {
			x.execute(e)
		}
		x.tableMu.Unlock()
	}
}

// inherit makes every block as recently used as its most recently used descendant.
func (x *Index) inherit() {
	for i := uint32(1); i < x.entries.next; i++ {
		e := x.entries.at(i)
		if e.members == 0 && e.specs == 0 {
			continue
		}
		used := atomic.LoadUint32(&e.used)
		for parent := e.parent; parent != 0; {
			p := x.keys.get(uint64(parent))
			if p == 0 {
				break
			}
			pe := x.entries.at(p)
			if atomic.LoadUint32(&pe.used) >= used {
				break
			}
			atomic.StoreUint32(&pe.used, used)
			parent = pe.parent
		}
	}
}

const doomBuckets = 1024

// doom marks at least n entries: the least recently used and, among those of about the same moment, the deepest. A
// block is never marked without its descendants.
func (x *Index) doom(n int) {
	var oldest, newest, deepest uint32 = 1<<32 - 1, 0, 0
	x.eachEntry(func(e *entry) {
		used := atomic.LoadUint32(&e.used)
		oldest, newest, deepest = min(oldest, used), max(newest, used), max(deepest, e.depth)
	})
	var byAge [doomBuckets]int
	age := func(e *entry) int {
		u := min(max(atomic.LoadUint32(&e.used), oldest), newest) // readers may have moved it on
		return int(uint64(u-oldest) * (doomBuckets - 1) / uint64(max(newest-oldest, 1)))
	}
	x.eachEntry(func(e *entry) { byAge[age(e)]++ })
	last := 0
	for ; last < doomBuckets-1 && byAge[last] < n; last++ {
		n -= byAge[last]
	}
	var byDepth [doomBuckets]int
	rank := func(e *entry) int { return int(uint64(e.depth) * (doomBuckets - 1) / uint64(max(deepest, 1))) }
	x.eachEntry(func(e *entry) {
		if age(e) == last {
			byDepth[rank(e)]++
		}
	})
	floor := doomBuckets - 1
	for ; floor > 0 && byDepth[floor] < n; floor-- {
		n -= byDepth[floor]
	}
	x.eachEntry(func(e *entry) {
		if a := age(e); a < last || a == last && rank(e) >= floor {
			e.depth |= doomed
		}
	})
}

func (x *Index) eachEntry(f func(*entry)) {
	for i := uint32(1); i < x.entries.next; i++ {
		if e := x.entries.at(i); e.members != 0 || e.specs != 0 {
			f(e)
		}
	}
}

func (x *Index) isDoomed(key block.Key) bool {
	e := x.keys.get(uint64(key))
	return e != 0 && x.entries.at(e).depth&doomed != 0
}

// condemned reports whether a point goes with the blocks that are marked.
func (x *Index) condemned(p uint32, pass int) bool {
	pt := x.points.at(p)
	if pt.end == 0 {
		return pass > 3 // waiting points have a bound of their own
	}
	first, last := x.start(p)/x.size, pt.end/x.size
	if last > first {
		key, _ := x.completed(p, int(last-first)-1, int(last-first))
		return x.isDoomed(key) || pass > 8
	}
	if pt.extra != 0 {
		if through := x.extras.at(pt.extra).through; len(through) > 0 {
			for _, key := range through {
				if !x.isDoomed(key) {
					return pass > 8
				}
			}
			return true
		}
	}
	// The head of a block that nobody completed: worth as little as what it follows, nothing after a root.
	return x.below(p) == 0 || x.isDoomed(pt.key) || pass > 3
}

// execute drops what is still believed of a marked entry. It needs tableMu.
func (x *Index) execute(i uint32) {
	e := x.entries.at(i)
	if e.depth&doomed == 0 {
		return
	}
	e.depth &^= doomed
	for e.specs != 0 {
		last := e.members == 0 && x.specs.at(e.specs).next == 0
		x.disbelieve(e.specs)
		if last {
			return // the entry itself is gone
		}
	}
}
