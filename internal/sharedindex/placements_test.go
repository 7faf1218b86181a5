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
	cfg := DefaultConfig()
	cfg.URL, cfg.Lease, cfg.Timeout = "valkey://"+s.Address, time.Second, 300*time.Millisecond
	for i := range l.readers {
		l.fleets[i] = fleetOf(3)
		log := slog.New(slog.DiscardHandler)
		l.placements[i] = NewPlacements(cfg, PlacementsParts{Fleet: l.fleets[i], Algorithm: block.XXH3, TTL: ttl, Log: log})
		l.readers[i] = NewReader(cfg, ReaderParts{Fleet: l.fleets[i], Log: log, LearnedTTL: ttl})
		ctx, stop := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { _ = l.placements[i].Run(ctx) })
		running.Go(func() { _ = l.readers[i].Run(ctx) })
		l.stops[i] = func() { stop(); running.Wait() }
		t.Cleanup(l.stops[i])
	}
	return l
}

func (l *learners) keys(seed uint64) []block.Key {
	w := &world{T: l.T, hasher: l.hasher}
	return l.hasher.Append(nil, l.hasher.Root(block.Scope{}), 0, w.tokens(seed), nil)
}

// send lets a router send a prompt to a holder, up to its first token.
func (l *learners) send(router, holder int, seed uint64) {
	p := l.placements[router]
	l.id++
	one := placed{fmt.Sprint("http://worker-", holder), 0, 16, l.keys(seed)}
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

func TestLearnedPlacementsAreSharedAndOutliveTheirRouter(t *testing.T) {
	onEach(t, func(t *testing.T, s *testenv.ValkeyServer) {
		l := learning(t, s, time.Minute)
		l.send(0, 1, 1)
		l.send(1, 2, 2)
		for router := range 2 {
			testenv.Until(t, "both routers know both prompts", func() bool {
				return l.blocks(router, 1) == [3]int{0, 40, 0} && l.blocks(router, 2) == [3]int{0, 0, 40}
			})
		}
		l.stops[0]()
		if n := l.blocks(1, 1); n != [3]int{0, 40, 0} {
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
		if n := l.blocks(1, 2); n != [3]int{} {
			t.Errorf("a prompt that the server lost counts as %v", n)
		}
	})
}

// Another holder's placements keep the records alive.
func TestLearnedPlacementsEndWithTheirTTL(t *testing.T) {
	s := testenv.StartValkey(t, "valkey")
	l := learning(t, s, 4*time.Second)
	l.send(0, 0, 1)
	testenv.Until(t, "the prompt is known", func() bool { return l.blocks(1, 1)[0] == 40 })
	testenv.Until(t, "the placement ended, and the other one counts", func() bool {
		l.send(0, 1, 1)
		n := l.blocks(1, 1)
		return n[0] == 0 && n[1] == 40
	})
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

func FuzzSlotsOfPlacements(f *testing.F) {
	f.Add("17 0 16 xxh3 http://worker-0", "3")
	f.Add("99999999999999999999 ", "-1")
	r := NewReader(DefaultConfig(), ReaderParts{Fleet: fleetOf(1), Log: slog.New(slog.DiscardHandler)})
	snap := r.parts.Fleet.Snapshot()
	places := map[string]*fleet.Worker{"http://worker-0": snap.Workers()[0]}
	f.Fuzz(func(t *testing.T, field, value string) {
		r.learnedTable(snap, places, slotsThatCount(map[string]string{"series": value, field: value}, 18))
	})
}
