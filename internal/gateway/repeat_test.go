package gateway_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/gateway"
)

// parrotsInVirtualTime returns a gateway in virtual time in front of two workers, which are one parrot.
func parrotsInVirtualTime(t *testing.T, mode string, p *parrot) *fixture {
	t.Helper()
	cfg := gateway.DefaultConfig()
	cfg.StreamRecovery, cfg.Attempts = mode, 4
	x := askEnginesAs(t, rig{gateway: cfg, answer: p.ServeHTTP}, 2, time.Millisecond, time.Millisecond)
	for _, w := range x.fleet.Snapshot().Workers() {
		x.fleet.Put(w.URL, fleet.Facts{Engine: fleet.EngineVLLM, Version: "0.32.0", Models: []fleet.Model{{ID: "m", MaxModelLen: 4096}}})
	}
	return &fixture{Gateway: x.Gateway, fleet: x.fleet}
}

// streamed sends a request and returns what the client sees, and how long it took.
func (f *fixture) streamed(t *testing.T, path, body string) (stream, time.Duration) {
	t.Helper()
	began := time.Now()
	w := httptest.NewRecorder()
	f.ServeHTTP(w, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
	return readStream(t, w.Body.String()), time.Since(began)
}

// losing makes the parrot's answers end behind so many chunks, one after another; then they are whole.
func losing(cuts ...int) func(asked int) (int, string) {
	return func(asked int) (int, string) {
		if asked > len(cuts) {
			return -1, ""
		}
		return cuts[asked-1], "die"
	}
}

// No worker says which text the ids have. A worker that repeats the whole text continues the stream exactly.
func TestAStreamContinuesAlthoughNoWorkerSaysTheTextOfItsIds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, mute := range []string{"hangs", "fails", "closed", "nonsense"} {
			for i, cuts := range [][]int{{1}, {9}, {30}, {30, 11}, {75}, {75, 70, 3}} {
				for _, stop := range []string{"null", `"absent from the text"`} {
					path, body := "/v1/chat/completions", fmt.Sprintf(greedyChat, 90, stop)
					if i%2 == 1 {
						path, body = "/v1/completions", fmt.Sprintf(greedyCompletion, 90, stop)
					}
					want, _ := parrotsInVirtualTime(t, gateway.RecoverExact, &parrot{}).streamed(t, path, body)
					f := parrotsInVirtualTime(t, gateway.RecoverExact, &parrot{mute: mute, loses: losing(cuts...)})
					got, took := f.streamed(t, path, body)
					if got.text != want.text || got.finish != want.finish || got.usage != want.usage || got.roles != want.roles ||
						len(got.ids) != 1 || got.failures != 0 || !got.done {
						t.Errorf("/detokenize %s, cut behind %v:\n%s\nwant\n%s", mute, cuts, got.raw, want.raw)
					}
					if rec := f.Telemetry.Last(1)[0]; len(rec.Recovered) != len(cuts) {
						t.Errorf("/detokenize %s, cut behind %v: lost %v", mute, cuts, rec.Recovered)
					}
					if limit := time.Duration(len(cuts))*5*time.Second + time.Second; took > limit {
						t.Errorf("/detokenize %s, cut behind %v: the stream took %v", mute, cuts, took)
					}
				}
			}
		}
	})
}

// Another text than before is no repetition, and a sampled text is never repeated.
func TestOnlyTheSameTextIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct{ mode, body, reason string }{
			{gateway.RecoverExact, fmt.Sprintf(greedyChat, 40, "null"), "diverged"},
			{gateway.RecoverValid, strings.Replace(fmt.Sprintf(greedyChat, 40, "null"), `"temperature":0`, `"temperature":0.7`, 1), "detokenize"},
		} {
			p := &parrot{mute: "fails"}
			p.loses = func(asked int) (int, string) {
				if p.drift = asked - 1; asked > 1 {
					return -1, ""
				}
				return 20, "die"
			}
			f := parrotsInVirtualTime(t, c.mode, p)
			got, _ := f.streamed(t, "/v1/chat/completions", c.body)
			if got.done || got.failures != 1 || !strings.Contains(f.metrics(t), `{outcome="refused",reason="`+c.reason+`"} 1`) {
				t.Errorf("%s: %s", c.reason, got.raw)
			}
		}
	})
}

// A client waits for half a minute at most until its text is repeated.
func TestTheTimeForRepeatingATextIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name        string
			cut         int
			first, then time.Duration // for a chunk, at the first worker and at the others
			least, most time.Duration // until the stream has ended
			done        bool
		}{
			{"in time", 20, time.Second, time.Second, 0, time.Hour, true},
			{"it took too long before", 40, time.Second, time.Second, 40 * time.Second, 42 * time.Second, false},
			{"it takes too long now", 20, time.Second, 2 * time.Second, 50 * time.Second, 54 * time.Second, false},
		} {
			p := &parrot{mute: "closed"}
			p.loses = func(asked int) (int, string) {
				if p.delay = c.first; asked > 1 {
					p.delay = c.then
					return -1, ""
				}
				return c.cut, "die"
			}
			f := parrotsInVirtualTime(t, gateway.RecoverExact, p)
			got, took := f.streamed(t, "/v1/chat/completions", fmt.Sprintf(greedyChat, 60, "null"))
			if got.done != c.done || (got.failures == 0) != c.done || took < c.least || took > c.most {
				t.Errorf("%s: after %v\n%s", c.name, took, got.raw)
			}
			if refused := strings.Contains(f.metrics(t), `{outcome="refused",reason="detokenize"} 1`); refused == c.done {
				t.Errorf("%s: counted as refused: %v", c.name, refused)
			}
		}
	})
}

// The time for repeating a text does not count for a later continuation of ids.
func TestAStreamThatWasRepeatedContinuesLaterFromItsIds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		body := fmt.Sprintf(greedyChat, 90, `"absent from the text"`)
		want, _ := parrotsInVirtualTime(t, gateway.RecoverExact, &parrot{}).streamed(t, "/v1/chat/completions", body)
		for cut := 55; cut < 75; cut++ { // some cuts leave text that the continuation repeats in several events
			p := &parrot{mute: "closed", delay: time.Second}
			p.loses = func(asked int) (int, string) {
				switch asked {
				case 1:
					return 10, "die"
				case 2: // it repeats the text in time, and dies long after that
					p.mute = ""
					return cut, "die"
				}
				return -1, ""
			}
			f := parrotsInVirtualTime(t, gateway.RecoverExact, p)
			if got, _ := f.streamed(t, "/v1/chat/completions", body); got.text != want.text || got.failures != 0 || !got.done {
				t.Errorf("cut behind %d: %s\nwant\n%s", cut, got.raw, want.raw)
			}
		}
	})
}
