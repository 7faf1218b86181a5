package network_test

import (
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/network"
)

// lateAnswers records late answers until the server is left alone. It returns for how long, and after how many answers.
func lateAnswers(w *network.Lateness, now time.Time) (rest time.Duration, n int) {
	for n = 1; n < 100; n++ {
		if rest = w.Late(now); rest > 0 {
			return rest, n
		}
	}
	return 0, n
}

func TestAServerThatIsLateAgainAndAgainIsLeftAloneLonger(t *testing.T) {
	w, now := new(network.Lateness), time.Unix(1000, 0)
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		rest, n := lateAnswers(w, now)
		if rest != want*time.Second || n != network.MostLate {
			t.Fatalf("rest %d: %v after %d late answers, want %v s after %d", i, rest, n, int(want), network.MostLate)
		}
		if !w.Resting(now.Add(rest-1)) || w.Late(now) != 0 {
			t.Fatalf("rest %d: no rest, or late answers count during it", i)
		}
		if now = now.Add(rest); w.Resting(now) {
			t.Fatalf("rest %d does not end", i)
		}
	}
	if rest, _ := lateAnswers(w, now.Add(61*time.Second)); rest != time.Second {
		t.Errorf("long after the last rest: %v, want 1 s", rest)
	}
}

// A server that pauses for 200 ms now and then is left alone for a second each time. Each question of a pause is late.
func TestAServerWithShortPausesIsNotLeftAloneForLong(t *testing.T) {
	l, now, rested := new(network.Lateness), time.Unix(1000, 0), time.Duration(0)
	for range 20 { // pauses, one each 10 s
		for i := range 1000 {
			if now = now.Add(10 * time.Millisecond); l.Resting(now) {
				rested += 10 * time.Millisecond
			} else if i < 20 {
				l.Late(now)
			} else {
				l.InTime()
			}
		}
	}
	if rested < 15*time.Second || rested > 25*time.Second {
		t.Errorf("the server is left alone for %v of 200 s, want about 20 s", rested)
	}
}

func TestAServerThatIsMostlyInTimeIsAsked(t *testing.T) {
	w, now := new(network.Lateness), time.Unix(1000, 0)
	for i := range 1000 {
		w.InTime()
		if rest := w.Late(now); rest != 0 {
			t.Fatalf("after %d answers in time and as many late ones it is left alone for %v", i+1, rest)
		}
	}
	for i := range 1000 {
		if w.Late(now) > 0 {
			return
		}
		if i%2 == 0 {
			w.InTime()
		}
	}
	t.Error("a server of whose answers two of three are late is asked for ever")
}
