package tokens

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/warmpath/warmpath/block"
)

// found is a Local that makes ids from found files. The ids were equal to the engine's ids in all probes.
type found []block.Token

func (f found) Find(context.Context, *Prompt) (Found, bool) {
	return Found{Tokens: f, Outcome: InProcess, Probed: true}, true
}

func (found) Text(string, []block.Token) string { return "" }

// While serving, the ids of the first few prompts, made from found files, are compared with the engine's ids. After
// that, one prompt in a thousand is compared.
func TestAChangeOfIDsAfterTheProbesIsDetected(t *testing.T) {
	for _, c := range []struct{ before, within int }{ // before: number of prompts before the change; within: number of prompts until the change is detected
		{0, 1},
		{checkProbed - 1, 1},
		{checkProbed, checkEvery},
		{3 * checkEvery, checkEvery},
	} {
		t.Run(fmt.Sprint("after ", c.before), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var changed atomic.Bool
				s, e := newSource(map[string]handler{"a": func(r *http.Request, body string) (int, string) {
					if changed.Load() {
						return 200, `{"token_ids":[1,2,4]}`
					}
					return rendering(r, body)
				}})
				defer s.Close()
				s.Local = found{1, 2, 3}
				serve := func() Found {
					got := find(t, s, chat("hi"), a)
					synctest.Wait() // waits for a comparison, if there is one
					return got
				}
				for range c.before {
					wants(t, serve(), InProcess, 1, 2, 3)
				}
				if n, most := e.asked("a"), checkProbed+c.before/checkEvery; n > most {
					t.Errorf("the engine was asked %d times for %d prompts, want %d at most", n, c.before, most)
				}
				changed.Store(true)
				for n := 0; s.Stats().Differed == 0; n++ {
					if n == c.within {
						t.Fatalf("it is not found out within %d prompts", n)
					}
					serve()
				}
				wants(t, serve(), Render, 1, 2, 4)
			})
		})
	}
}
