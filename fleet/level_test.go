package fleet_test

import (
	"fmt"
	"strings"
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

func TestAListOfServiceLevels(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		list, err := fleet.ParseServiceLevels(text)
		got := fmt.Sprint(list)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, want) {
			t.Errorf("%.40q: %v, want %s", text, got, want)
		}
		if err == nil && list == nil {
			t.Errorf("%q: the list is nil, which means the default levels", text)
		}
	}
	f("5s/100ms, 2s", "[5s/100ms 2s]")
	f(" none ", "[]")
	f("", "is not FIRST_TOKEN")
	f("5s,", "is not FIRST_TOKEN")
	f("none,5s", "is not FIRST_TOKEN")
	f("5s/100ms,5000ms/0.1s", "the service level 5s/100ms twice")
	f("1s,2s,3s,4s,5s", "more than 4 service levels")
	f(strings.Repeat("1s,", 100_000), "more than 4 service levels")
}
