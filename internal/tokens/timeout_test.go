package tokens

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// The breaker counts failures, and then stops calls for a while. A slow answer is no failure. A call without an answer
// within callTimeout is a failure.
func TestCallsWithoutAnAnswerOpenTheBreaker(t *testing.T) {
	for _, c := range []struct {
		answer time.Duration
		opens  bool
	}{{callTimeout - time.Second, false}, {callTimeout + time.Second, true}} {
		synctest.Test(t, func(t *testing.T) {
			s, _ := newSource(map[string]handler{"a": after(c.answer)})
			defer s.Close()
			for i := range s.cfg.Failures {
				find(t, s, chat(fmt.Sprint(i)), a)
				pass(callTimeout + time.Second)
			}
			if got := s.Stats().Opened > 0; got != c.opens {
				t.Errorf("answers after %v: the breaker opened: %v, want %v", c.answer, got, c.opens)
			}
		})
	}
}
