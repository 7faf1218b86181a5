package sharedindex

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// learners are two routers that learn placements, without any writer.
type learners struct {
	*testing.T
	fleets     [2]*fleet.Fleet
	placements [2]*Placements
	readers    [2]*Reader
	stops      [2]func()
	config     Config
	patience   time.Duration
	hasher     *block.Hasher
	id         uint64
}

func learning(t *testing.T, s *testenv.ValkeyServer, ttl time.Duration) *learners {
	t.Helper()
	h, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		t.Fatal(err)
	}
	l := &learners{T: t, hasher: h}
	l.config = DefaultConfig()
	l.config.URL, l.config.Lease, l.config.Timeout = "valkey://"+s.Address, time.Second, 300*time.Millisecond
	for i := range l.readers {
		l.start(i, ttl)
	}
	return l
}

// start starts a router, which knows nothing yet of the workers' processes.
func (l *learners) start(router int, ttl time.Duration) {
	f, log := fleetOf(3), slog.New(slog.DiscardHandler)
	p := NewPlacements(l.config, PlacementsParts{Fleet: f, Algorithm: block.XXH3, TTL: ttl, Log: log})
	p.patience = l.patience
	r := NewReader(l.config, ReaderParts{Fleet: f, Keying: anyKeys, Log: log, LearnedTTL: ttl})
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = p.Run(ctx) })
	running.Go(func() { _ = r.Run(ctx) })
	l.fleets[router], l.placements[router], l.readers[router] = f, p, r
	l.stops[router] = func() { stop(); running.Wait() }
	l.Cleanup(l.stops[router])
}

// answered lets a router hear when the process of a worker began.
func (l *learners) answered(router, worker int, started float64) {
	f := l.fleets[router]
	f.Answered(f.Snapshot().Workers()[worker].ID, fleet.Signs{Started: started})
}

func (l *learners) keys(seed uint64) []block.Key {
	w := &world{T: l.T, hasher: l.hasher}
	return l.hasher.Append(nil, l.hasher.Root(block.Scope{}), 0, w.tokens(seed), nil)
}

// send lets a router send a prompt to a holder, up to its first token.
func (l *learners) send(router, holder int, seed uint64) {
	p := l.placements[router]
	l.id++
	url := fmt.Sprint("http://worker-", holder)
	id, _ := l.fleets[router].Find(url)
	one := placed{worker: url, id: id, incarnation: l.fleets[router].Snapshot().ByID(id).Incarnation, size: 16, keys: l.keys(seed)}
	p.mu.Lock()
	p.sending[l.id] = one
	p.keys += len(one.keys)
	p.mu.Unlock()
	p.PrefillCompleted(l.id)
}

// blocks returns what a router finds of a prompt at each holder.
func (l *learners) blocks(router int, seed uint64) (n [3]int) {
	q := warmpath.Lookup{Model: "m", BlockSize: 16, Algorithm: block.XXH3, Keys: l.keys(seed)}
	if err := l.readers[router].Match(context.Background(), &q); err != nil {
		return [3]int{-1, -1, -1}
	}
	for _, m := range q.Matches {
		if w := l.fleets[router].Snapshot().Worker(m.Holder); w != nil {
			n[w.URL[len(w.URL)-1]-'0'] = int(m.Blocks)
		}
	}
	return n
}

// answer returns what blocks returns, once the shared index answers: this machine may be so busy that a lookup is late.
func (l *learners) answer(router int, seed uint64) (n [3]int) {
	l.Helper()
	testenv.Until(l, "the shared index answers", func() bool {
		n = l.blocks(router, seed)
		return n[0] >= 0
	})
	return n
}

func TestLearnedPlacementsAreSharedAndOutliveTheirRouter(t *testing.T) {
	onEach(t, func(t *testing.T, s *testenv.ValkeyServer) {
		l := learning(t, s, time.Hour)
		l.send(0, 1, 1)
		l.send(1, 2, 2)
		for router := range 2 {
			testenv.Until(t, "both routers know both prompts", func() bool {
				return l.blocks(router, 1) == [3]int{0, 40, 0} && l.blocks(router, 2) == [3]int{0, 0, 40}
			})
		}
		l.stops[0]()
		if n := l.answer(1, 1); n != [3]int{0, 40, 0} {
			t.Errorf("after its router ended, a prompt counts as %v", n)
		}
		l.fleets[1].SetTrust(1, fleet.TrustExact, "") // now somebody follows its events
		testenv.Until(t, "what is known better is not learned", func() bool { return l.blocks(1, 1) == [3]int{} })
		l.fleets[1].SetTrust(1, fleet.TrustApproximate, "")
		testenv.Until(t, "it counts again", func() bool { return l.blocks(1, 1) == [3]int{0, 40, 0} })
		w := l.fleets[1].Snapshot().Workers()[1]
		l.fleets[1].Remove(w.ID)
		l.fleets[1].Put(w.URL, w.Facts) // another process
		testenv.Until(t, "the cache of a worker that began anew is empty", func() bool { return l.blocks(1, 1) == [3]int{} })
		command(t, s, "FLUSHALL")
		l.send(1, 2, 3)
		testenv.Until(t, "placements are shared after FLUSHALL", func() bool { return l.blocks(1, 3) == [3]int{0, 0, 40} })
		if n := l.answer(1, 2); n != [3]int{} {
			t.Errorf("a prompt that the server lost counts as %v", n)
		}
	})
}

// Another holder's placements keep the records alive.
func TestLearnedPlacementsEndWithTheirTTL(t *testing.T) {
	s := testenv.StartValkey(t, "valkey")
	l := learning(t, s, 4*time.Second)
	testenv.Until(t, "the prompt is known", func() bool {
		l.send(0, 0, 1) // again, if the machine was busy for so long that it ended
		return l.blocks(1, 1)[0] == 40
	})
	testenv.Until(t, "the placement ended, and the other one counts", func() bool {
		l.send(0, 1, 1)
		n := l.blocks(1, 1)
		return n[0] == 0 && n[1] == 40
	})
}

// No router runs while a worker begins anew.
func TestALearnedPlacementCountsOnlyAtTheProcessThatComputedIt(t *testing.T) {
	onEach(t, func(t *testing.T, s *testenv.ValkeyServer) {
		l := learning(t, s, time.Hour)
		for router := range 2 {
			l.answered(router, 1, 100.25)
			l.answered(router, 2, 100.5)
		}
		l.send(0, 1, 1)
		l.send(0, 2, 2)
		testenv.Until(t, "the other router knows both prompts", func() bool {
			return l.blocks(1, 1) == [3]int{0, 40, 0} && l.blocks(1, 2) == [3]int{0, 0, 40}
		})
		l.stops[0]()
		l.stops[1]()
		for router := range 2 {
			l.start(router, time.Hour)
			l.answered(router, 1, 200)
			l.answered(router, 2, 100.5)
			testenv.Until(t, "what the worker that stayed has is known", func() bool { return l.blocks(router, 2) == [3]int{0, 0, 40} })
			if n := l.answer(router, 1); n != [3]int{} {
				t.Errorf("a prompt that an earlier process computed counts as %v", n)
			}
		}
		l.send(0, 1, 3)
		testenv.Until(t, "the new process has a prompt", func() bool { return l.blocks(1, 3) == [3]int{0, 40, 0} })
	})
}

// Router 0 sees first that worker 1 began anew. What it places there stays when router 1 sees it.
func TestARouterThatIsLateForgetsNoPlacementAtTheNewProcess(t *testing.T) {
	l := learning(t, testenv.StartValkey(t, "valkey"), time.Hour)
	l.answered(0, 1, 100)
	l.answered(1, 1, 100)
	l.send(1, 1, 1)
	testenv.Until(t, "the prompt is known", func() bool { return l.blocks(0, 1) == [3]int{0, 40, 0} })
	l.answered(0, 1, 200)
	testenv.Until(t, "router 0 forgets it", func() bool { return l.blocks(0, 1) == [3]int{} })
	l.send(0, 1, 2)
	testenv.Until(t, "router 0 knows the new prompt", func() bool { return l.blocks(0, 2) == [3]int{0, 40, 0} })
	testenv.Until(t, "the old one is forgotten by all", func() bool { return l.blocks(1, 1) == [3]int{} })
	l.answered(1, 1, 200)
	testenv.Until(t, "router 1 knows the new prompt", func() bool { return l.blocks(1, 2) == [3]int{0, 40, 0} })
	l.send(1, 0, 3) // after router 1 forgot what it had to forget
	testenv.Until(t, "router 1 wrote", func() bool { return l.blocks(0, 3) == [3]int{40, 0, 0} })
	if n := l.answer(0, 2); n != [3]int{0, 40, 0} {
		t.Errorf("after router 1 saw the new process, the new prompt counts as %v", n)
	}
}

func TestPromptsAtAProcessThatEndedAreNotShared(t *testing.T) {
	f := fleetOf(3)
	p := NewPlacements(DefaultConfig(), PlacementsParts{Fleet: f, Algorithm: block.XXH3})
	var some []placed
	for _, w := range f.Snapshot().Workers() {
		some = append(some, placed{worker: w.URL, id: w.ID, incarnation: w.Incarnation, size: 16})
	}
	f.Remove(some[0].id)
	f.Refused(some[1].id)
	f.Answered(some[1].id, fleet.Signs{})
	f.Answered(some[2].id, fleet.Signs{Started: 100.25, Seed: 7})
	left, holders, _ := p.holders(some)
	if len(left) != 1 || len(holders) != 1 || holders[0] != "100250/7 0 16 xxh3 http://worker-2" {
		t.Errorf("%v at %q", left, holders)
	}
}

// A router that starts may place prompts before the first answer about load.
func TestPromptsWaitUntilTheProcessIsKnown(t *testing.T) {
	l := learning(t, testenv.StartValkey(t, "valkey"), time.Hour)
	l.stops[0]()
	l.patience = time.Hour
	l.start(0, time.Hour)
	for router := range 2 {
		l.answered(router, 2, 100)
	}
	l.answered(1, 1, 200)
	l.send(0, 1, 1)
	l.send(0, 2, 2)
	testenv.Until(t, "the prompt at a process that is known is written", func() bool { return l.blocks(1, 2) == [3]int{0, 0, 40} })
	if n := l.placements[0].Stats(); n.PlacementsWritten > 1 || n.PlacementsDropped != 0 {
		t.Errorf("%d prompts were written, %d dropped", n.PlacementsWritten, n.PlacementsDropped)
	}
	l.answered(0, 1, 200)
	testenv.Until(t, "the other one is written, too", func() bool { return l.blocks(1, 1) == [3]int{0, 40, 0} })
	p := l.placements[0]
	testenv.Until(t, "nothing waits", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.waiting) == 0 && p.keys == 0
	})
}

// load lets short prompts wait at a holder all the time, until the test ends.
func (l *learners) load(router, holder int) {
	p, url := l.placements[router], fmt.Sprint("http://worker-", holder)
	id, _ := l.fleets[router].Find(url)
	one := placed{worker: url, id: id, incarnation: l.fleets[router].Snapshot().ByID(id).Incarnation, size: 16, keys: []block.Key{1}}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		testenv.Poll(time.Hour, func() bool {
			p.mu.Lock()
			for len(p.waiting) < 30_000 { // more than the server takes until the next call
				p.waiting, p.keys = append(p.waiting, one), p.keys+1
			}
			p.mu.Unlock()
			select {
			case p.wake <- struct{}{}:
			default:
			}
			return ctx.Err() != nil
		})
	})
	l.Cleanup(func() { stop(); running.Wait() })
}

// More prompts than the server takes wait all the time. Meanwhile worker 1 begins anew, and worker 2 tells its process.
func TestOverloadHidesNoProcess(t *testing.T) {
	l := learning(t, testenv.StartValkey(t, "valkey"), time.Hour)
	l.stops[0]()
	l.patience = time.Hour
	l.start(0, time.Hour)
	for router := range 2 {
		l.answered(router, 0, 100)
		l.answered(router, 1, 100)
	}
	l.answered(1, 2, 100)
	l.send(0, 1, 1)
	testenv.Until(t, "the prompt at worker 1 is known", func() bool { return l.blocks(1, 1) == [3]int{0, 40, 0} })
	l.load(0, 0)
	l.send(0, 2, 2)
	l.answered(0, 1, 200)
	testenv.Until(t, "the prompt at the old process is forgotten", func() bool { return l.blocks(1, 1) == [3]int{} })
	if n := l.answer(1, 2); n != [3]int{} {
		t.Errorf("the prompt at a worker whose process is not known counts as %v", n)
	}
	l.answered(0, 2, 100)
	testenv.Until(t, "the prompt at the process that is known now is written", func() bool { return l.blocks(1, 2) == [3]int{0, 0, 40} })
}

// One write takes the server not too long.
func TestAWriteHasABoundOfKeys(t *testing.T) {
	p := NewPlacements(DefaultConfig(), PlacementsParts{})
	for _, n := range []int{keysPerWrite / 2, keysPerWrite / 2, 1, 3 * keysPerWrite, 1} {
		p.putBack([]placed{{keys: make([]block.Key, n)}})
	}
	p.putBack(make([]placed, placedPerWrite))
	for i, want := range []int{2, 1, 1, placedPerWrite, 1, 0} {
		if n := len(p.take()); n != want {
			t.Errorf("write %d has %d prompts, want %d", i, n, want)
		}
	}
	if p.keys != 0 {
		t.Errorf("%d keys are left", p.keys)
	}
}

// Routers with different TTLs share no placements, and do not disturb each other.
func TestEachTTLHasPlacementsOfItsOwn(t *testing.T) {
	l := learning(t, testenv.StartValkey(t, "valkey"), time.Hour)
	l.stops[1]()
	l.start(1, 2*time.Hour)
	for seed := range uint64(3) {
		l.send(0, 1, seed)
		testenv.Until(t, "router 0 knows its prompt", func() bool { return l.blocks(0, seed) == [3]int{0, 40, 0} })
		l.send(1, 2, seed)
		testenv.Until(t, "router 1 knows its prompt", func() bool { return l.blocks(1, seed) == [3]int{0, 0, 40} })
	}
	for seed := range uint64(3) {
		testenv.Until(t, "both still know all their prompts", func() bool {
			return l.blocks(0, seed) == [3]int{0, 40, 0} && l.blocks(1, seed) == [3]int{0, 0, 40}
		})
	}
}

func TestPromptsThatWereNotComputedAreNotShared(t *testing.T) {
	p := NewPlacements(DefaultConfig(), PlacementsParts{})
	for id, e := range map[uint64]warmpath.Ending{1: {Unsent: true, Outcome: fleet.OutcomeServed}, 2: {Outcome: fleet.OutcomeFailed}, 3: {Outcome: fleet.OutcomeServed}} {
		p.sending[id] = placed{keys: make([]block.Key, id)}
		p.keys += int(id)
		p.Freed(id, e)
		p.Freed(id, e)
		p.PrefillCompleted(id)
	}
	if some := p.take(); len(some) != 1 || len(some[0].keys) != 3 || p.keys != 0 || len(p.sending) != 0 {
		t.Errorf("%d prompts are written, %d keys are left", len(some), p.keys)
	}
}

// Old slots are at the server until a router writes in a new period.
func TestASlotCountsInItsPeriodAndTheThreeAfterIt(t *testing.T) {
	const now = 100
	for field, want := range map[string]bool{"96 a": false, "97 a": true, "100 a": true, "101 a": false, "99": false, "x a": false} {
		if n := len(slotsThatCount(map[string]string{"series": "abcd", field: "7"}, now).slots); (n == 1) != want {
			t.Errorf("in period %d, %d slots of the field %q count", now, n, field)
		}
	}
	for value, want := range map[string]bool{"0": false, "1": true, "16777215": true, "16777216": false, "-1": false, "x": false} {
		if n := len(slotsThatCount(map[string]string{"100 a": value}, now).slots); (n == 1) != want {
			t.Errorf("slot %q counts: %v", value, n == 1)
		}
	}
}

func FuzzSlotsOfPlacements(f *testing.F) {
	f.Add("17 0/0 0 16 xxh3 http://worker-0", "3")
	f.Add("99999999999999999999 ", "-1")
	r := NewReader(DefaultConfig(), ReaderParts{Fleet: fleetOf(1), Keying: anyKeys, Log: slog.New(slog.DiscardHandler)})
	snap := r.parts.Fleet.Snapshot()
	places := map[string]*fleet.Worker{"http://worker-0": snap.Workers()[0]}
	f.Fuzz(func(t *testing.T, field, value string) {
		r.learnedTable(snap, places, slotsThatCount(map[string]string{"series": value, field: value}, 18), r.keyings(), map[unfound]*holderEntry{})
	})
}
