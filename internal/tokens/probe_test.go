package tokens

import (
	"net/http"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/api"
)

func TestAskAsksOneWorkerIndependentlyOfRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := func(status int, text string) handler {
			return func(*http.Request, string) (int, string) { return status, text }
		}
		s, e := newSource(map[string]handler{"a": rendering, "b": tokenizing, "refuses": answer(400, "{}"),
			"lacks": answer(404, ""), "fails": answer(500, "")})
		defer s.Close()
		for host, want := range map[string]Outcome{"a": Render, "b": Tokenize, "refuses": Refused, "lacks": Unsupported,
			"fails": Failed} {
			for range 5 {
				if got := s.Ask(t.Context(), Worker{URL: "http://" + host}, chat("hi")); got.Outcome != want {
					t.Fatalf("%s: outcome %s, want %s", host, got.Outcome, want)
				}
			}
		}
		if st := s.Stats(); st.Opened != 0 || st.Entries != 0 || st.Asked != 25 {
			t.Errorf("asking left %+v", st)
		}
		if calls := e.calls(); !slices.Contains(calls, "b/tokenize") {
			t.Errorf("calls %v", calls)
		}
	})
}

// probed is a Prober that makes ids from found files. agree has the URLs of the workers whose ids were equal in all
// probes.
type probed struct {
	made
	agree []string
}

func (p probed) Agrees(_ string, w Worker) bool { return slices.Contains(p.agree, w.URL) }

func TestIDsOfProbedFilesAreForwardedToWorkersThatAgreed(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Forward = ForwardAuto
	s := New(cfg, http.DefaultClient)
	defer s.Close()
	s.Local = probed{agree: []string{a.URL}}
	p := prompt(api.OpenAICompletions, `{"model":"m","prompt":"hi"}`)
	forward := func(to Worker) bool {
		_, ok := s.AppendForwarded(nil, &Forward{Request: p.Request, Model: "m", To: to,
			Found: &Found{Tokens: []block.Token{1}, Outcome: InProcess, Probed: true}})
		return ok
	}
	if !forward(a) || forward(b) {
		t.Error("ids must go to the worker that agreed, and to no other")
	}
	s.checks.note("m", "", false)
	if forward(a) {
		t.Error("ids go on after a difference")
	}
	s.Renew("m")
	if !forward(a) {
		t.Error("a difference of earlier files counts against the new ones")
	}
}
