package tokens

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/warmpath/warmpath/test/testenv"
)

// spelling is a Local that makes ids from files in a folder. It decodes all ids to the same text, which stands for a
// client's prompt.
type spelling struct{ made }

func (spelling) Text(string, []uint32) string { return "what a client wrote" }

func (spelling) Folder(model string, _ Kind) string { return "/models/" + model }

// The ids of the first 200 requests differ from the engine's ids. The log must name this difference once. At level INFO
// the log must not show the prompt.
func TestADifferenceIsLoggedOnceAndWithoutThePrompt(t *testing.T) {
	for _, level := range []slog.Level{slog.LevelInfo, slog.LevelDebug} {
		t.Run(level.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var right atomic.Bool
				s, _ := newSource(map[string]handler{"a": func(r *http.Request, body string) (int, string) {
					if right.Load() {
						return 200, `{"token_ids":[7,8]}`
					}
					return rendering(r, body)
				}})
				defer s.Close()
				var log testenv.Buffer
				s.Log, s.Local = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: level})), spelling{made{7, 8}}
				serve := func(text string) {
					find(t, s, of("m", chat(text)), a)
					synctest.Wait() // waits until the comparison has ended
				}
				for i := range 200 {
					serve(fmt.Sprint("wrong ", i))
				}
				if got, want := s.Compared("m"), (Comparison{true, 64, 64, a.URL}); got != want {
					t.Errorf("compared: %+v, want %+v", got, want)
				}
				if got := s.Compared("other"); got != (Comparison{}) {
					t.Errorf("of a model that was never asked for: %+v", got)
				}
				warned := slices.Collect(func(yield func(string) bool) {
					for line := range strings.Lines(log.String()) {
						if !strings.Contains(line, "level=DEBUG") && !yield(line) {
							return
						}
					}
				})
				if len(warned) != 1 {
					t.Fatalf("%d lines above debug, want one: %s", len(warned), warned)
				}
				for _, want := range []string{"level=WARN", "model=m", "worker=http://a ", "made_from=/models/m",
					"--model-path m=DIR"} {
					if !strings.Contains(warned[0], want) {
						t.Errorf("%q is not in %s", want, warned[0])
					}
				}
				if strings.Contains(warned[0], "what a client wrote") ||
					strings.Contains(log.String(), "what a client wrote") != (level == slog.LevelDebug) {
					t.Errorf("a prompt's text at level %s:\n%.2000s", level, log.String())
				}
				right.Store(true)
				for i := range checkPasses {
					serve(fmt.Sprint("right ", i))
				}
				if got := s.Compared("m"); got.Distrusted || strings.Count(log.String(), "agree with the engine's again") != 1 {
					t.Errorf("after %d equal prompts: %+v", checkPasses, got)
				}
			})
		})
	}
}

func TestAModelThatIsNotServedIsForgotten(t *testing.T) {
	s := New(DefaultConfig(), http.DefaultClient)
	defer s.Close()
	s.Local = found{1}
	for i := range 1000 {
		model := fmt.Sprint("m", i)
		s.Matched(model, true)
		s.checks.note(model, "http://a", false)
		s.checks.note(imagesOf(model), "http://a", false)
		s.remember(model, &promptTurns{textChat: true, steps: make([]step, 2)}, &Found{Tokens: make([]uint32, 100)})
		s.Keep(func(served string) bool { return served == model })
	}
	if len(s.hitRates.models) != 1 || len(s.checks.models) != 2 || len(s.beginnings.models) != 1 {
		t.Errorf("of one model %d chances, %d comparisons, %d beginnings are kept", len(s.hitRates.models),
			len(s.checks.models), len(s.beginnings.models))
	}
	if got := s.Find(context.Background(), of("m999", chat("x")), nil); got.Outcome == InProcess {
		t.Error("the model that stayed is believed again")
	}
}
