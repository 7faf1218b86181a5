package tokens

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/api"
)

// textOnly is a Local that makes the ids of texts. If image is set, it also makes the ids of prompts with images, and
// gives every image the name in image.
type textOnly struct{ image string }

func (l *textOnly) Find(_ context.Context, p *Prompt) (Found, bool) {
	if !p.Request.Multimodal {
		return Found{Tokens: []block.Token{1, 2}, Outcome: InProcess}, true
	}
	if l.image == "" || p.Root == "" {
		return Found{}, false
	}
	return Found{Tokens: []block.Token{1, 7, 7}, Features: []block.Feature{{ID: l.image, Offset: 1}}, Outcome: InProcess},
		true
}

func (*textOnly) Text(string, []block.Token) string { return "" }

const withImage = `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"see"},{"type":"image_url","image_url":{"url":"http://a/i.png"}}]}]}`

// seeing is an engine that gives every image the name "theirs" and the position 1.
func seeing(*http.Request, string) (int, string) {
	return 200, `{"token_ids":[1,7,7],"features":{"mm_hashes":{"image":["theirs"]},"mm_placeholders":{"image":[{"offset":1,"length":2}]}}}`
}

func of(model string, p Prompt) Prompt {
	p.Model = model
	return p
}

func TestOnlyPromptsWithImagesLeaveTheProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the bubble's clock makes the wait independent of the machine
		s, e := newSource(map[string]handler{"a": seeing})
		defer s.Close()
		s.Local = &textOnly{}
		// all first comparisons count as done, so that there are no calls for comparisons
		s.checks.of("m").started = map[string]int{a.URL: checkFirst}
		wants(t, find(t, s, of("m", chat("hello")), a), InProcess, 1, 2)
		if calls := e.calls(); len(calls) != 0 {
			t.Errorf("a text was asked for: %v", calls)
		}
		got := find(t, s, of("m", prompt(api.OpenAIChat, withImage)), a)
		wants(t, got, Render, 1, 7, 7)
		if want := []block.Feature{{ID: "theirs", Offset: 1}}; !slices.Equal(got.Features, want) {
			t.Errorf("features %v", got.Features)
		}
		wants(t, find(t, s, of("m", chat("hello again")), a), InProcess, 1, 2)
		if calls := e.calls(); !slices.Equal(calls, []string{"a/v1/chat/completions/render"}) {
			t.Errorf("calls %v", calls)
		}
	})
}

func TestAPromptWithImagesNeedsTheImagesNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the bubble's clock makes the wait independent of the machine
		s, e := newSource(map[string]handler{"a": tokenizing})
		defer s.Close()
		got := find(t, s, of("m", prompt(api.OpenAIChat, withImage)), a)
		wants(t, got, Unsupported)
		if got.Outcome != Text || len(got.Text) == 0 {
			t.Errorf("by %s with %d bytes of text", got.Outcome, len(got.Text))
		}
		wants(t, find(t, s, chat("a text"), a), Tokenize, 4, 5) // the worker still gives ids for texts
		if calls := e.calls(); !slices.Equal(calls, []string{"a/v1/chat/completions/render", "a/tokenize"}) {
			t.Errorf("calls %v", calls)
		}
	})
}

func TestPromptsWithImagesAreCheckedSeparately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the bubble's clock makes the wait independent of the machine
		s, _ := newSource(map[string]handler{"a": seeing})
		defer s.Close()
		local := &textOnly{image: "ours"}
		s.Local = local
		w := Worker{URL: "http://a", Root: "org/m", Version: "0.32.1"}
		wants(t, find(t, s, of("m", prompt(api.OpenAIChat, withImage)), w), InProcess, 1, 7, 7)
		s.calls.Wait() // waits for the comparison in the background
		if s.checks.believed("m (images)") || !s.checks.believed("m") {
			t.Errorf("distrusted: %v", s.checks.distrusted())
		}
		got := find(t, s, of("m", prompt(api.OpenAIChat, withImage)), w)
		wants(t, got, Render, 1, 7, 7)
		if got.Features[0].ID != "theirs" {
			t.Errorf("features %v", got.Features)
		}
	})
}

func TestImagesAreNamedInProcessOnlyForEnginesThatAgree(t *testing.T) {
	good := Worker{URL: "http://a", Root: "org/m", Version: "0.32.0"}
	with := func(change func(*Worker)) Worker { w := good; change(&w); return w }
	for _, c := range []struct {
		workers []Worker
		want    string
	}{
		{[]Worker{good}, "org/m"},
		{[]Worker{good, with(func(w *Worker) { w.Version = "1.0" })}, "org/m"},
		{[]Worker{good, with(func(w *Worker) { w.Root = "/models/m" })}, ""},
		{[]Worker{good, with(func(w *Worker) { w.Version = "0.31.2" })}, ""},
		{[]Worker{with(func(w *Worker) { w.Version = "" })}, ""},
		{[]Worker{with(func(w *Worker) { w.Kind = SGLang })}, ""},
		{nil, ""},
	} {
		if got := rootOf(c.workers); got != c.want {
			t.Errorf("%v: %q, not %q", c.workers, got, c.want)
		}
	}
}
