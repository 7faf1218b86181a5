package tokens

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A patient caller waits for the budget, however little a match is worth, and gets all ids.
func TestAPatientCallerWaitsForAllIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &templated{takes: 60 * time.Millisecond}
		s, _ := e.source()
		defer s.Close()
		system := words("s", 400)
		conversation(t, s, e, system, "A", 4)
		conversation(t, s, e, system, "B", 4)
		turns := []turn{{"system", system}, {"user", "How much is it?"}}
		p := turnsPrompt(turns)
		if got := find(t, s, p, a); got.Outcome != Beginning {
			t.Errorf("a request gets its ids by %s", got.Outcome)
		}
		turns[1].Content = "And how much is it now?"
		p = turnsPrompt(turns)
		p.Patient = true
		if got, right := find(t, s, p, a), e.ids(turns); got.Sure != len(right) || !slices.Equal(got.Tokens, right) {
			t.Errorf("%d of %d ids are known, by %s", got.Sure, len(right), got.Outcome)
		}
		e.takes = s.cfg.Budget + time.Millisecond
		p = chat("something else")
		p.Patient = true
		began := time.Now()
		wants(t, find(t, s, p, a), TimedOut)
		if took := time.Since(began); took != s.cfg.Budget {
			t.Errorf("the caller waited %v", took)
		}
	})
}
