package fleet

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// cacheOf returns a fleet with one holder. The holder's cache is empty, and has room for this number of blocks of 16
// tokens.
func cacheOf(blocks int) *cacheFixture {
	f := New(Config{})
	f.Put("http://a", Facts{Models: []Model{{ID: "m"}}, BlockSize: 16, BlocksPerRank: blocks})
	f.SetTrust(0, TrustExact, "")
	return &cacheFixture{f: f}
}

type cacheFixture struct {
	f   *Fleet
	now int64
}

// chain returns the marks of a prompt of this number of blocks. Marks are the positions up to which prompts may share
// blocks. Up to the block with the number common, the prompt is the same as the prompt with the id 0.
func chain(id uint64, blocks, common int) (marks []Mark) {
	for at := NextMark(0); at <= blocks && len(marks) < MaxMarks; at = NextMark(at) {
		key := uint64(at)
		if at > common {
			key |= id << 16
		}
		marks = append(marks, Mark{Key: key * 0x9e3779b97f4a7c15, Blocks: int32(at)})
	}
	return marks
}

// send dispatches a prompt of the given number of blocks. The argument cached is the number of its blocks that are in
// the cache.
func (c *cacheFixture) send(marks []Mark, blocks, cached int) *Reservation {
	return c.sendWork(Work{UncachedTokens: 16 * (blocks - cached), PromptTokens: 16 * blocks, ContextBlocks: blocks, Marks: marks, Trust: TrustExact})
}

func (c *cacheFixture) sendWork(w Work) *Reservation {
	c.now++
	r := &Reservation{}
	c.f.Reserve(r, 0, w, c.now)
	return r
}

// compute announces the blocks that a prompt stored and removed, and reports its first token.
func (c *cacheFixture) compute(r *Reservation, stored, removed int) {
	c.now++
	c.f.Cached(0, stored, 0)
	c.f.Cached(0, 0, removed)
	r.FirstToken(c.now)
}

// serve sends, computes and ends a request whose prompt has no cached block.
func (c *cacheFixture) serve(marks []Mark, blocks, removed int) {
	r := c.send(marks, blocks, 0)
	c.compute(r, blocks, removed)
	r.Release(c.now)
}

func (c *cacheFixture) risk(marks []Mark, matched int) int {
	return c.f.Snapshot().AtRisk(0, marks, matched, 1000)
}

// evicted returns the latest generation with an evicted block; 0 is none. Blocks that were used at about the same time
// are one generation.
func (c *cacheFixture) evicted() uint32 { return c.f.Snapshot().state(0).work.recency.evicted }

func TestWhatIsUsedLeastRecentlyIsAtRiskOfThePromptsThatWait(t *testing.T) {
	c := cacheOf(100)
	a, b, w := chain(1, 40, 0), chain(2, 40, 0), chain(3, 40, 0)
	c.serve(a, 40, 0)
	c.serve(b, 40, 0)
	if n := c.risk(a, 40); n != 0 {
		t.Errorf("%d blocks are at risk although no request is under way", n)
	}
	r := c.send(w, 40, 0)
	// Prompt w needs 40 of the 100 blocks, and one more for its answer. So 59 blocks stay: b's 40 and 19 of a's 40.
	if got, want := c.risk(a, 40), 21; got != want {
		t.Errorf("%d blocks of the oldest prompt are at risk, want %d", got, want)
	}
	if n := c.risk(b, 40); n != 0 {
		t.Errorf("%d blocks of the newest prompt are at risk", n)
	}
	if n := c.risk(w, 40); n != 0 {
		t.Errorf("%d blocks of a request under way are at risk", n)
	}
	if n := c.risk(chain(4, 40, 0), 40); n != 0 {
		t.Errorf("%d blocks of an unknown prompt are at risk", n)
	}
	c.compute(r, 40, 20)
	if n := c.risk(a, 20); n > 1 { // one block may be evicted for the next block of w's answer
		t.Errorf("%d blocks are at risk once the prompt is computed", n)
	}
	r.Release(c.now)
	if n := c.risk(a, 20); n != 0 {
		t.Errorf("%d blocks are at risk after all requests ended", n)
	}
}

func TestAPromptThatIsUsedAgainIsTheLastToGo(t *testing.T) {
	c := cacheOf(100)
	a, b := chain(1, 40, 0), chain(2, 40, 0)
	c.serve(a, 40, 0)
	c.serve(b, 40, 0)
	again := c.send(a, 40, 40)
	c.compute(again, 0, 0)
	again.Release(c.now)
	c.send(chain(3, 40, 0), 40, 0)
	if n := c.risk(a, 40); n != 0 {
		t.Errorf("%d blocks of the prompt that was used last are at risk", n)
	}
	if got, want := c.risk(b, 40), 21; got != want {
		t.Errorf("%d blocks of the other prompt are at risk, want %d", got, want)
	}
}

// A prefix that a newer prompt shares with an older one stays. The older prompt's own blocks are evicted.
func TestASharedBeginningIsAsRecentAsItsLastUse(t *testing.T) {
	c := cacheOf(100)
	a, b := chain(1, 40, 20), chain(2, 40, 20)
	c.serve(a, 40, 0)
	r := c.send(b, 40, 20)
	c.compute(r, 20, 0)
	r.Release(c.now)
	c.send(chain(3, 64, 0), 64, 0) // 35 blocks stay cached: 20 shared blocks, and 15 of b's own
	if got, want := c.risk(a, 40), 20; got != want {
		t.Errorf("%d blocks of the older prompt are at risk, want its own %d", got, want)
	}
	if got, want := c.risk(b, 40), 5; got != want {
		t.Errorf("%d blocks of the newer prompt are at risk, want %d", got, want)
	}
}

// An eviction shows which blocks the engine evicts next. The count of all blocks does not show this, because the router
// does not see the cache hits of other clients.
func TestWhatWasEvictedTellsWhatGoesNext(t *testing.T) {
	c := cacheOf(1000)
	a, b, d := chain(1, 40, 0), chain(2, 40, 0), chain(3, 40, 0)
	c.f.Cached(0, 880, 0) // blocks of other clients; the engine evicts them before a, b and d, unless other clients use them again
	for _, marks := range [][]Mark{a, b, d} {
		c.serve(marks, 40, 0)
	}
	c.send(chain(4, 30, 0), 30, 0)
	if n := c.risk(b, 40); n != 0 {
		t.Errorf("%d blocks are at risk although there are much older blocks", n)
	}
	if n := c.risk(a, 20); n != 20 {
		t.Errorf("the end of a prompt was evicted, and %d of its other blocks are at risk, want all 20", n)
	}
	c.send(a, 40, 20)
	// The two requests will store 30 and 20 blocks, and one more each: 52 in all. So b's 40 blocks and 12 of d's will be
	// evicted.
	if n := c.risk(b, 40); n != 40 {
		t.Errorf("%d blocks of the oldest prompt are at risk, want all 40", n)
	}
	if n := c.risk(d, 40); n != 12 {
		t.Errorf("%d blocks of the second oldest prompt are at risk, want 12", n)
	}
}

func TestAnAnswerAndThePromptsEndArePartOfTheOrder(t *testing.T) {
	c := cacheOf(100)
	a := chain(1, 40, 0)
	c.serve(a, 40, 0)
	r := c.send(chain(2, 39, 0), 39, 0) // the last mark of the prompt is at block 32
	c.compute(r, 39, 0)
	r.Tokens(10*16, c.now)
	c.f.Cached(0, 10, 0)
	r.Release(c.now)
	c.send(chain(3, 30, 0), 30, 0) // 69 blocks stay cached: 49 of the second prompt, 20 of a
	if got, want := c.risk(a, 40), 20; got != want {
		t.Errorf("%d blocks are at risk, want %d", got, want)
	}
}

func TestPromptsOfOthersOnlyPushOlderOnesOut(t *testing.T) {
	c := cacheOf(100)
	a, b := chain(1, 40, 0), chain(2, 20, 0)
	c.serve(a, 40, 0)
	c.f.Cached(0, 40, 0)
	c.serve(b, 20, 0)
	c.send(chain(3, 30, 0), 30, 0) // 69 blocks stay cached: 20 of b, 40 of other clients, 9 of a
	if got, want := c.risk(a, 40), 31; got != want {
		t.Errorf("%d blocks are at risk, want %d", got, want)
	}
	if n := c.risk(b, 20); n != 0 {
		t.Errorf("%d blocks of the prompt that was used last are at risk", n)
	}
}

func TestNothingIsAtRiskInAnEmptyOrUnknownCache(t *testing.T) {
	c := cacheOf(100)
	a := chain(1, 40, 0)
	c.serve(a, 40, 0)
	c.serve(chain(2, 40, 0), 40, 0)
	c.f.Emptied(0)
	r := c.send(a, 40, 0)
	if n := c.risk(chain(2, 40, 0), 40); n != 0 {
		t.Errorf("%d blocks are at risk in a cache that was emptied", n)
	}
	r.Release(c.now)

	unknown := cacheOf(0)
	unknown.serve(a, 40, 0)
	unknown.send(chain(2, 400, 0), 400, 0)
	if n := unknown.risk(a, 40); n != 0 {
		t.Errorf("%d blocks are at risk in a cache of unknown size", n)
	}
	if n := c.f.Snapshot().AtRisk(7, a, 40, 40); n != 0 {
		t.Errorf("%d blocks are at risk on a holder that does not exist", n)
	}
}

// An engine computes at least one token of each prompt. So the last block of a prompt of whole blocks never counts as
// cached.
func TestTheLastBlockOfARepeatedPromptIsNotEvicted(t *testing.T) {
	c := cacheOf(100)
	a, b := chain(1, 40, 0), chain(2, 40, 0)
	c.serve(a, 40, 0)
	c.serve(b, 40, 0)
	waiting := c.send(chain(3, 30, 0), 30, 0) // 69 blocks stay cached: 40 of b and 29 of a
	if n := c.f.Snapshot().AtRisk(0, b, 39, 39); n != 0 {
		t.Errorf("%d blocks of the newest prompt are at risk, although all blocks that its engine can use are cached", n)
	}
	waiting.Release(c.now)
	again := c.send(b, 40, 39)
	c.compute(again, 0, 0)
	again.Release(c.now)
	if g := c.evicted(); g != 0 {
		t.Errorf("the router learned from a repeated prompt that generation %d is evicted", g)
	}
	again = c.send(b, 40, 38) // 38 of the 39 blocks that the engine could use are cached: one block was evicted
	if g := c.evicted(); g == 0 {
		t.Error("the router learned no eviction from the missing block")
	}
	again.Release(c.now)
}

// A missing match of a known block means an eviction only if the router has the complete history of the cache.
func TestWhatIsNotKnownIsNotEvicted(t *testing.T) {
	for _, trust := range []Trust{TrustNone, TrustApproximate, TrustDegraded} {
		c := cacheOf(100)
		a, b := chain(1, 40, 0), chain(2, 40, 0)
		c.serve(a, 40, 0)
		c.serve(b, 40, 0)
		c.f.SetTrust(0, trust, "")
		again := c.sendWork(Work{UncachedTokens: 640, PromptTokens: 640, ContextBlocks: 40, Marks: b, Trust: trust})
		c.compute(again, 0, 0)
		again.Release(c.now)
		if g := c.evicted(); g != 0 {
			t.Errorf("trust %v: the router learned from a prompt without a match that generation %d is evicted", trust, g)
		}
		c.send(chain(3, 30, 0), 30, 0)
		if n := c.risk(b, 32); n != 0 {
			t.Errorf("trust %v: %d blocks are at risk because of a missing match", trust, n)
		}
	}
}

// If a request ends before it is computed, the router no longer expects events about its blocks, even while other
// requests are under way.
func TestARequestThatEndsBeforeItIsComputedAnnouncesNothing(t *testing.T) {
	for name, whole := range map[string]bool{"a stream": false, "an answer in one piece": true} {
		c := cacheOf(100)
		other := c.send(chain(9, 60, 0), 60, 0)
		c.compute(other, 60, 0)
		refused := c.sendWork(Work{UncachedTokens: 640, PromptTokens: 640, ContextBlocks: 40, Marks: chain(1, 40, 0), Trust: TrustExact, Whole: whole})
		refused.Release(c.now)
		if n := c.f.Snapshot().state(0).work.recency.unannounced; n != 0 {
			t.Errorf("%s: after the request was refused, the router expects events for %d tokens", name, n)
		}
		other.Release(c.now)
	}
}

// The blocks of an answer in one piece are announced before its length is known.
func TestAnAnswerInOnePieceIsCountedOnce(t *testing.T) {
	c := cacheOf(100)
	other := c.send(chain(9, 20, 0), 20, 0)
	c.compute(other, 20, 0)
	r := c.sendWork(Work{UncachedTokens: 320, PromptTokens: 320, ContextBlocks: 20, Trust: TrustExact, Whole: true})
	c.compute(r, 30, 0) // 20 blocks of the prompt and 10 of the answer
	r.Tokens(160, c.now)
	r.Release(c.now)
	l := &c.f.Snapshot().state(0).work
	if n := l.recency.unannounced; n != 0 {
		t.Errorf("the router expects events for %d tokens, want 0", n)
	}
	if n := l.recency.newer(0); n != 30 {
		t.Errorf("%d blocks are in the order of last use, want 30", n)
	}
}

// The blocks of a refused prompt are not in the order of last use: the prompt never entered the cache.
func TestARefusedPromptEntersNoOrder(t *testing.T) {
	c := cacheOf(100)
	a := chain(1, 40, 0)
	refused := c.sendWork(Work{UncachedTokens: 640, PromptTokens: 640, ContextBlocks: 40, Marks: a, Trust: TrustExact, Whole: true})
	refused.Release(c.now)
	l := &c.f.Snapshot().state(0).work
	if n := l.recency.newer(0); n != 0 {
		t.Errorf("%d blocks of a refused prompt are in the order of last use", n)
	}
	c.send(a, 40, 0)
	if g := c.evicted(); g != 0 {
		t.Errorf("the router learned from a refused prompt, which is not cached, that generation %d is evicted", g)
	}
}

// A router that starts after a cache was filled does not know the cache's content. The removals in the cache's events
// show that the cache is full.
func TestACacheOfUnknownHistoryIsFullOnceItRemovesBlocks(t *testing.T) {
	for trust, want := range map[Trust]int{TrustDegraded: 21, TrustExact: 0} {
		c := cacheOf(100)
		c.f.SetTrust(0, trust, "")
		a, b := chain(1, 40, 0), chain(2, 40, 0)
		for _, marks := range [][]Mark{a, b} {
			r := c.send(marks, 40, 0)
			c.f.Cached(0, 0, 40) // each new block takes the place of another block
			c.compute(r, 40, 0)
			r.Release(c.now)
		}
		c.send(chain(3, 40, 0), 40, 0)
		if got := c.risk(a, 40); got != want { // 0 with an exact history, which shows free blocks
			t.Errorf("trust %v: %d blocks of the oldest prompt are at risk, want %d", trust, got, want)
		}
		if n := c.risk(b, 40); n != 0 {
			t.Errorf("trust %v: %d blocks of the newest prompt are at risk", trust, n)
		}
		for range 100 { // prompts of other routers
			c.f.Cached(0, 0, 40)
			c.f.Cached(0, 40, 0)
		}
		if held := c.f.Snapshot().state(0).work.recency.held; held > 100 {
			t.Errorf("trust %v: %d of 100 blocks are cached", trust, held)
		}
	}
}

// A request that was refused leaves no blocks in the order of last use.
func TestARequestThatWasRefusedLeavesNoTrace(t *testing.T) {
	c := cacheOf(100)
	a := chain(1, 40, 0)
	c.serve(a, 40, 0)
	for i := range 10 {
		r := c.send(chain(uint64(10+i), 80, 0), 80, 0)
		r.Release(c.now)
	}
	r := c.send(chain(2, 40, 0), 40, 0)
	if n := c.risk(a, 40); n != 0 {
		t.Errorf("%d blocks are at risk although there is room for all blocks", n)
	}
	r.Release(c.now)
}

// After any sequence of events, the counted blocks do not exceed the cache, and the blocks at risk do not exceed the
// match.
func TestRecencyStaysWithinBounds(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 1))
		c := cacheOf(1 + random.IntN(500))
		var live []*Reservation
		for range 2000 {
			c.now++
			switch random.IntN(6) {
			case 0, 1:
				blocks := 1 + random.IntN(200)
				cached := random.IntN(blocks + 1)
				live = append(live, c.send(chain(uint64(random.IntN(20)), blocks, random.IntN(60)), blocks, cached))
			case 2:
				c.f.Cached(0, random.IntN(300), 0)
			case 3:
				c.f.Cached(0, 0, random.IntN(300))
			case 4:
				if random.IntN(50) == 0 {
					c.f.Emptied(0)
				}
			case 5:
				if random.IntN(50) == 0 { // the router learns the cache's size, or another size
					c.f.Put("http://a", Facts{Models: []Model{{ID: "m"}}, BlockSize: 16, BlocksPerRank: random.IntN(500)})
				}
			}
			if len(live) > 0 && random.IntN(2) == 0 {
				i := random.IntN(len(live))
				live[i].FirstToken(c.now)
				live[i].Tokens(random.IntN(100), c.now)
				if random.IntN(2) == 0 {
					live[i].Release(c.now)
					live[i].Release(c.now) // a second call of Release changes nothing
					live = append(live[:i], live[i+1:]...)
				}
			}
			matched := random.IntN(200)
			if n := c.risk(chain(uint64(random.IntN(20)), 200, random.IntN(60)), matched); n < 0 || n > matched {
				t.Fatalf("seed %d: %d of %d matched blocks are at risk", seed, n, matched)
			}
		}
		for _, r := range live {
			r.Release(c.now)
		}
		l := &c.f.Snapshot().state(0).work
		if l.blocks.Load() != 0 || l.computing != 0 || l.recency.held < 0 || slices.Min(l.recency.generations[:]) < 0 {
			t.Errorf("seed %d: %d blocks used, %d tokens computing, %d cached, generations %v after all requests", seed, l.blocks.Load(), l.computing,
				l.recency.held, l.recency.generations)
		}
	}
}

func TestRecencyAllocatesNothing(t *testing.T) {
	c := cacheOf(2048)
	var r Reservation
	chains := [8][]Mark{}
	for i := range chains {
		chains[i] = chain(uint64(i), 375, 250)
		c.serve(chains[i], 375, 0)
	}
	i := 0
	waiting := c.send(chains[0], 375, 0)
	defer waiting.Release(c.now)
	if n := testing.AllocsPerRun(500, func() {
		marks := chains[i%len(chains)]
		i++
		c.f.Snapshot().AtRisk(0, marks, 375, 375)
		c.f.Reserve(&r, 0, Work{UncachedTokens: 16, PromptTokens: 6000, ContextBlocks: 375, Marks: marks}, int64(i))
		c.f.Cached(0, 1, 1)
		r.FirstToken(int64(i))
		r.Release(int64(i))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAtRisk(b *testing.B) {
	c := cacheOf(2048)
	chains := [16][]Mark{}
	for i := range chains {
		chains[i] = chain(uint64(i), 375, 250)
		c.serve(chains[i], 375, 0)
	}
	c.send(chain(99, 375, 0), 375, 0)
	s := c.f.Snapshot()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		s.AtRisk(0, chains[i%len(chains)], 375, 375)
		i++
	}
}
