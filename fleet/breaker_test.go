package fleet

import (
	"testing"
	"time"
)

const second = int64(time.Second)

func TestBreaker(t *testing.T) {
	config := BreakerConfig{}.withDefaults() // Failures 3, Delay 2 s, MaxDelay 30 s, Trial 30 s
	type step struct {
		at      int64 // time of the step, in seconds
		do      string
		allowed bool // whether the breaker allows a request after the step, at the time of the step
	}
	for name, steps := range map[string][]step{
		"two failures in a row are too few": {
			{0, "failed", true}, {0, "failed", true}, {1, "served", true}, {2, "failed", true}, {2, "failed", true},
		},
		"after three failures in a row no request is allowed": {
			{0, "failed", true}, {0, "failed", true}, {0, "failed", false}, {1, "", false}, {2, "", true},
		},
		"a client that leaves proves nothing": {
			{0, "failed", true}, {0, "unknown", true}, {0, "failed", true}, {0, "unknown", true}, {0, "failed", false},
		},
		"only one trial is under way at a time": {
			{0, "failed", true}, {0, "failed", true}, {0, "failed", false},
			{2, "begin", false}, {3, "", false}, {31, "", false}, {32, "", true},
		},
		"after a good trial requests are allowed": {
			{0, "failed", true}, {0, "failed", true}, {0, "failed", false},
			{2, "begin", false}, {3, "served", true}, {3, "failed", true}, {3, "failed", true}, {3, "failed", false},
		},
		"a bad trial doubles the delay": {
			{0, "failed", true}, {0, "failed", true}, {0, "failed", false},
			{2, "begin", false}, {2, "failed", false}, {5, "", false}, {6, "begin", false}, {6, "failed", false}, {13, "", false}, {14, "", true},
		},
		"if the client of a trial leaves, another trial may follow immediately": {
			{0, "failed", true}, {0, "failed", true}, {0, "failed", false},
			{2, "begin", false}, {3, "unknown", true}, {3, "begin", false},
		},
		"a good answer to a request from before the three failures proves nothing": {
			{0, "failed", true}, {0, "failed", true}, {0, "failed", false},
			{1, "served", false}, {2, "", true},
		},
		"after failures soon after a good trial the delay is longer": {
			{0, "failed", true}, {0, "failed", true}, {0, "failed", false},
			{2, "begin", false}, {2, "served", true}, {2, "failed", true}, {2, "failed", true}, {2, "failed", false}, {5, "", false}, {6, "", true},
		},
		"failures of requests from before do not lengthen the delay": {
			{0, "failed", true}, {0, "failed", true}, {0, "failed", false},
			{1, "failed", false}, {1, "failed", false}, {1, "failed", false}, {2, "", true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var b Breaker
			for i, s := range steps {
				now := s.at * second
				switch s.do {
				case "begin":
					b.Begin(config, now)
				case "served":
					b.Observe(config, OutcomeServed, now)
				case "failed":
					b.Observe(config, OutcomeFailed, now)
				case "unknown":
					b.Observe(config, OutcomeUnknown, now)
				}
				if got := b.Allows(now); got != s.allowed {
					t.Fatalf("step %d (%s at %d s): allows %v, want %v", i+1, s.do, s.at, got, s.allowed)
				}
			}
		})
	}
}

func TestBreakerDelayIsBounded(t *testing.T) {
	config := BreakerConfig{}.withDefaults()
	for trips, want := range []time.Duration{2, 4, 8, 16, 30, 30, 30} {
		if got := config.delay(trips); got != want*time.Second {
			t.Errorf("after %d trips: delay %v, want %v", trips, got, want*time.Second)
		}
	}
	if got := config.delay(1 << 30); got != 30*time.Second {
		t.Errorf("after a billion trips: delay %v", got)
	}
}

func TestBreakerTakesAHolderOutOfTheFleetAndBack(t *testing.T) {
	f := New(Config{})
	id := f.Put("http://a", serving("m", 2))
	h := f.Snapshot().Workers()[id].Holders[1]
	other := f.Snapshot().Workers()[id].Holders[0]
	for range 3 {
		f.Observe(h, OutcomeFailed, 0)
	}
	s := f.Snapshot()
	if s.Available(h, second) || !s.Available(other, second) {
		t.Fatalf("after three failures of rank 1: rank 1 available %v, rank 0 %v", s.Available(h, second), s.Available(other, second))
	}
	if s.BlockedUntil(h) != 2*second {
		t.Errorf("blocked until %d", s.BlockedUntil(h))
	}

	// The first request after the delay is the trial.
	if !s.Available(h, 2*second) {
		t.Fatal("not available after the delay")
	}
	var trial Reservation
	f.Reserve(&trial, h, Work{}, 2*second)
	if s.Available(h, 2*second) {
		t.Fatal("available during the trial")
	}
	trial.Release(0)
	f.Observe(h, OutcomeServed, 3*second)
	if !s.Available(h, 3*second) {
		t.Fatal("not available after a good trial")
	}

	// A worker that comes back starts with a closed breaker.
	for range 3 {
		f.Observe(h, OutcomeFailed, 4*second)
	}
	f.SetHealth(id, false, "connection refused")
	f.SetHealth(id, true, "")
	if !f.Snapshot().Available(h, 4*second) {
		t.Fatal("not available after recovery")
	}
}
