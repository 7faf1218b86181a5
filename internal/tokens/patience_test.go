package tokens

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A patient caller waits for the budget, however little a match is worth, and gets all ids or none, also if their
// beginning is known.
func TestAPatientCallerWaitsForAllIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &templated{takes: 60 * time.Millisecond}
		refuses := false
		s, _ := newSource(map[string]handler{"a": func(r *http.Request, body string) (int, string) {
			if refuses {
				return http.StatusBadRequest, "no"
			}
			return e.answer(r, body)
		}})
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
		turns[1].Content = "How much was it?"
		late := turnsPrompt(turns)
		for _, p := range []Prompt{chat("something else"), late} {
			p.Patient = true
			began := time.Now()
			wants(t, find(t, s, p, a), TimedOut)
			if took := time.Since(began); took != s.cfg.Budget {
				t.Errorf("the caller waited %v", took)
			}
			pass(time.Second) // the late answer comes
		}
		refuses = true
		turns[1].Content = "How much will it be?"
		bad := turnsPrompt(turns)
		bad.Patient = true
		wants(t, find(t, s, bad, a), Refused)
		for _, p := range []Prompt{late, bad} {
			if _, begins := s.beginning(p.Model, turnsOf(p.Request)); !begins {
				t.Error("no beginning of the chat is known")
			}
		}
	})
}
