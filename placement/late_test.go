package placement

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
)

// The reference keeps the latest use of each beginning of a key.
func TestALateUseCountsFromWhenItWas(t *testing.T) {
	const ttl = 60_000
	type beginning struct {
		h    fleet.Holder
		key  block.Key // the last key of a beginning names it
		size int
	}
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 5))
		x := newBlocks(Config{TTL: ttl, Interval: 1})
		latest := map[beginning]int64{}
		var m Matches
		now := int64(0)
		for range 200 {
			now += int64(r.IntN(8000))
			keys := prompt(r.IntN(3), r.IntN(2)*2, 2+r.IntN(6))
			keys, h := keys[:1+r.IntN(len(keys))], fleet.Holder(r.IntN(2))
			age := r.Int64N(2) * r.Int64N(80_000)
			use := func() Receipt {
				return x.LearnAt(First, h, BlockBytes(keys), Moment{Now: now, Age: time.Duration(age)})
			}
			x.Store.Match(First, BlockBytes(keys), now, &m)
			if r.IntN(4) == 0 && m.Of(h) == 0 {
				x.Unlearn(h, keys, use()) // changes nothing: the holder had nothing of it
			} else if use(); age < ttl && now > age {
				for i, key := range keys {
					at := beginning{h, key, i + 1}
					latest[at] = max(latest[at], now-age)
				}
			}
			x.Evict(now)
			check(t, x.Store)
			for h := range fleet.Holder(2) {
				x.Store.Match(First, BlockBytes(keys), now, &m)
				low, high := 0, 0
				for i, key := range keys {
					at, known := latest[beginning{h, key, i + 1}]
					if known && now-at < ttl-1000 { // stamps differ by some nanoseconds, so that each is used once
						low = i + 1
					}
					if known && now-at < ttl+1000 {
						high = i + 1
					}
				}
				if got := m.Of(h); got < low || got > high {
					t.Fatalf("seed %d at %d: %d blocks match at holder %d, want %d to %d", seed, now, got, h, low, high)
				}
			}
		}
	}
}

func TestALateUseOfASessionMovesItNotBack(t *testing.T) {
	s := NewSessions(SessionConfig{Homes: 1, Most: 1 << 20, Idle: time.Minute})
	home := func(now int64) fleet.Holder {
		if homes, known := s.Homes(1, now, nil); known {
			return homes[0]
		}
		return fleet.NoHolder
	}
	at := int64(time.Hour)
	s.LearnAt(1, 3, Moment{Now: at, Age: 61 * time.Second})
	if h := home(at); h != fleet.NoHolder {
		t.Errorf("a session that was idle for too long is at holder %d", h)
	}
	s.LearnAt(1, 3, Moment{Now: at, Age: 50 * time.Second})
	if a, b := home(at), home(at+int64(11*time.Second)); a != 3 || b != fleet.NoHolder {
		t.Errorf("a session that was used 50 s ago is at holder %d, and 11 s later at %d", a, b)
	}
	s.Learn(1, 4, at)
	s.LearnAt(1, 3, Moment{Now: at + 1, Age: time.Second})
	if h := home(at + 1); h != 4 {
		t.Errorf("an older request moved the session to holder %d", h)
	}
	s.Learn(1, 3, at-int64(time.Hour)) // the clock was set back
	if h := home(at - int64(time.Hour)); h != 3 {
		t.Errorf("after the clock was set back, the session stays at holder %d", h)
	}
}

func TestALateUseOfABusyHolderIsNotLearned(t *testing.T) {
	x := newBlocks(Config{Units: 1 << 20})
	for i := range longestWalk + 1 {
		x.Learn(0, []block.Key{block.Key(i)}, int64(time.Minute)+int64(i))
	}
	x.LearnAt(First, 0, BlockBytes([]block.Key{1 << 40}), Moment{Now: int64(2 * time.Minute), Age: 100 * time.Second})
	check(t, x.Store)
	if got := x.Units(0); got != longestWalk+1 {
		t.Errorf("the holder has %d blocks, want %d", got, longestWalk+1)
	}
}
