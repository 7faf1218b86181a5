package fleet_test

import (
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
)

func TestAServiceLevelLimitsTheFirstTokenAndTheMeanOfTheOthers(t *testing.T) {
	f := func(level string, first, total time.Duration, tokens int, want bool) {
		t.Helper()
		l, err := fleet.ParseServiceLevel(level)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.Kept(first, total, tokens); got != want {
			t.Errorf("%s: first token after %v, %d tokens after %v: kept is %v", level, first, tokens, total, got)
		}
	}
	f("2s/50ms", 2*time.Second, 7*time.Second, 101, true)
	f("2s/50ms", 2001*time.Millisecond, 7*time.Second, 101, false)
	f("2s/50ms", 2*time.Second, 7001*time.Millisecond, 101, false)
	f("2s/50ms", time.Second, 7*time.Second, 101, false) // a fast first token buys no time for the others
	f("2s/50ms", time.Second, time.Hour, 1, true)
	f("2s/50ms", time.Second, time.Hour, 0, true)
	f("2s", time.Second, time.Hour, 101, true)
}

func TestAnAnswerInOnePieceHasTheTimeOfBothLimits(t *testing.T) {
	l := fleet.ServiceLevel{FirstToken: 2 * time.Second, PerToken: 50 * time.Millisecond}
	if !l.KeptWhole(7*time.Second, 101) || l.KeptWhole(7001*time.Millisecond, 101) {
		t.Error("101 tokens may take 2 s + 100 · 50 ms")
	}
	if l.KeptWhole(2001*time.Millisecond, 0) {
		t.Error("an answer without tokens may take 2 s")
	}
	if l = (fleet.ServiceLevel{FirstToken: time.Second}); !l.KeptWhole(time.Hour, 10) {
		t.Error("without a limit for each token, the end of an answer says nothing about its first token")
	}
}

func TestServiceLevelsAreReadAsTheyAreWritten(t *testing.T) {
	for _, s := range []string{"5s/100ms", "2s/50ms", "1.5s", "250ms/1.5ms"} {
		l, err := fleet.ParseServiceLevel(s)
		if err != nil {
			t.Error(err)
			continue
		}
		if back, err := fleet.ParseServiceLevel(l.String()); err != nil || back != l {
			t.Errorf("%q became %v, and then %v, %v", s, l, back, err)
		}
	}
	for _, s := range []string{"", "/", "5", "5s/", "5s/0s", "0s/50ms", "-1s", "5s/-1ms", "2h", "1s/2h", "5s/100ms/1s", "∞"} {
		if l, err := fleet.ParseServiceLevel(s); err == nil {
			t.Errorf("%q was read as %v", s, l)
		}
	}
}
