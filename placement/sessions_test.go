package placement

import (
	"slices"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

// sessionKey returns the key of session i. The keys are spread evenly over the numbers below 2^61, as hashes are
// spread.
func sessionKey(i int) uint64 { return uint64(i+1) * 0x9e3779b97f4a7c15 >> 3 }

func TestSessionsAreBounded(t *testing.T) {
	s := NewSessions(SessionConfig{Homes: 2, Most: 640, Idle: time.Hour, Sweep: time.Minute})
	for i := range 10000 {
		s.Learn(sessionKey(i), fleet.Holder(i%4), int64(i))
	}
	kept, counted := 0, int64(0)
	for i := range s.shards {
		kept += len(s.shards[i].byKey)
	}
	for h := range fleet.Holder(4) {
		counted += s.Count(h)
	}
	if kept > 640 || kept < 600 || counted != int64(kept) {
		t.Errorf("%d sessions are kept, %d counted", kept, counted)
	}
}

func TestIdleSessionsAreSwept(t *testing.T) {
	s := NewSessions(SessionConfig{Homes: 1, Most: 1 << 16, Idle: time.Hour, Sweep: time.Minute})
	for i := range 1000 {
		s.Learn(sessionKey(i), 1, 0)
	}
	late := int64(2 * time.Hour)
	if _, known := s.Homes(sessionKey(7), late, nil); known {
		t.Error("an idle session is known")
	}
	for i := range 1000 {
		s.Learn(sessionKey(5000+i), 2, late)
	}
	if a, b := s.Count(1), s.Count(2); a != 0 || b != 1000 {
		t.Errorf("%d old and %d new sessions", a, b)
	}
}

func TestASessionKeepsItsTwoLatestHomes(t *testing.T) {
	s := NewSessions(SessionConfig{Homes: 2, Most: 640, Idle: time.Hour, Sweep: time.Minute})
	for _, h := range []fleet.Holder{3, 5, 3, 7} {
		s.Learn(1, h, 0)
	}
	if homes, known := s.Homes(1, 0, nil); !known || !slices.Equal(homes, []fleet.Holder{5, 7}) {
		t.Errorf("the homes are %v", homes)
	}
}

func TestAForgottenHolderIsNoHome(t *testing.T) {
	for _, gone := range [][]fleet.Holder{{1}, {9}, {1, 9}, {0, 2}, {2, 1, 0}} {
		s := NewSessions(SessionConfig{Homes: 2, Most: 6400, Idle: time.Hour, Sweep: time.Minute})
		for i := range 300 {
			s.Learn(sessionKey(i), fleet.Holder(i%3), 0)
			if i%2 == 0 {
				s.Learn(sessionKey(i), fleet.Holder((i+1)%3), 0)
			}
		}
		s.Forget(gone...)
		counts := map[fleet.Holder]int64{}
		for i := range 300 {
			homes, _ := s.Homes(sessionKey(i), 0, nil)
			for _, h := range homes {
				counts[h]++
			}
		}
		for h := range fleet.Holder(3) {
			if counts[h] != s.Count(h) || slices.Contains(gone, h) != (counts[h] == 0) {
				t.Errorf("holder %d is the home of %d sessions, %d counted, after %v left", h, counts[h], s.Count(h), gone)
			}
		}
	}
}

func TestKnownSessionsCostNoMemory(t *testing.T) {
	s := NewSessions(SessionConfig{Homes: 2, Most: 1 << 16, Idle: time.Hour, Sweep: time.Minute})
	s.Learn(9, 1, 0)
	var space [2]fleet.Holder
	if n := testing.AllocsPerRun(100, func() { s.Homes(9, 0, space[:0]); s.Learn(9, 1, 0) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
