package warmpath_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/test/testenv"
)

// story returns a text with the given number of bytes. Stories with different names differ from their first byte on.
func story(name string, bytes int) []byte {
	line := name + " and what happened to it, at length.\n"
	return []byte(strings.Repeat(line, bytes/len(line)+1)[:bytes])
}

func TestAConversationIsFoundAgainByItsText(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm(), vllm())
	homes := map[string]fleet.Holder{}
	texts := map[string][]byte{}
	for _, name := range []string{"ant", "bee", "cat"} {
		texts[name] = story(name, 6400)
		d := w.route(warmpath.Request{Text: texts[name]})
		if d.Branch != policy.BranchMiss || !d.FromText || d.PredictedTokens != 0 || d.PromptTokens != 1600 {
			t.Errorf("first turn of %s: %+v", name, d.Record)
		}
		homes[name] = d.Holder
	}
	for turn := range 5 {
		for name, text := range texts {
			text = append(text, story(fmt.Sprint(name, turn), 800)...)
			texts[name] = text
			d := w.route(warmpath.Request{Text: text})
			if d.Holder != homes[name] || d.Branch != policy.BranchAffinity {
				t.Errorf("turn %d of %s went to %d, not %d: %s", turn, name, d.Holder, homes[name], d)
			}
			if d.MatchTokens != 0 || d.PredictedTokens < (len(text)-800)/4-16 || d.TokensKnown {
				t.Errorf("turn %d of %s: confirmed %d, predicted %d of %d tokens", turn, name, d.MatchTokens, d.PredictedTokens, d.PromptTokens)
			}
			if d.Trust != fleet.TrustApproximate {
				t.Errorf("a guess is trusted as %s", d.Trust)
			}
		}
	}
}

func TestTextNeverMeetsTokens(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	text := story("same", 6400)
	ids := make([]block.Token, len(text)/4)
	for i := range ids { // each id is the number that the router makes from four bytes of the text when it hashes the text
		ids[i] = block.Token(text[4*i]) | block.Token(text[4*i+1])<<8 | block.Token(text[4*i+2])<<16 | block.Token(text[4*i+3])<<24
	}
	w.store(0, ids, kvindex.Stored{})
	if d := w.route(warmpath.Request{Text: text}); d.PredictedTokens != 0 {
		t.Errorf("blocks of tokens matched a text: %s", d)
	}
	other := newWorld(t, warmpath.Options{}, vllm(), vllm())
	other.route(warmpath.Request{Text: text})
	if d := other.route(warmpath.Request{Tokens: ids}); d.PredictedTokens != 0 || d.FromText {
		t.Errorf("blocks of text matched tokens: %s", d)
	}
}

func TestTextIsKeptApartAndForgotten(t *testing.T) {
	text := story("one", 6400)
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	w.route(warmpath.Request{Text: text})
	for what, r := range map[string]warmpath.Request{
		"another salt":    {Text: text, Salt: "s"},
		"another adapter": {Text: text, Model: "sql"},
		"another extra":   {Text: text, Extra: "e"},
		"two minutes on":  {Text: text, Now: second * 1000},
	} {
		if d := w.route(r); d.PredictedTokens != 0 {
			t.Errorf("%s: %s", what, d)
		}
	}
	home := w.route(warmpath.Request{Text: text, Now: second * 1000}).Holder
	w.router.Forget(home)
	if d := w.route(warmpath.Request{Text: text, Now: second * 1001}); d.PredictedTokens != 0 {
		t.Errorf("after its worker was forgotten: %s", d)
	}
}

func TestAPolicyThatLooksAtNoMatchLearnsNoText(t *testing.T) {
	w := newWorld(t, warmpath.Options{Policy: policy.Spec{Name: "spread", Picker: "round_robin"}}, vllm(), vllm())
	text := story("one", 6400)
	w.route(warmpath.Request{Text: text})
	if d := w.route(warmpath.Request{Text: text}); d.FromText || len(w.router.IndexStats()) != 0 {
		t.Errorf("%s, indexes %v", d, w.router.IndexStats())
	}
}

func TestRoutingByTextDoesNotAllocate(t *testing.T) {
	if testenv.Race() {
		t.Skip("skipped: under the race detector pools drop values at random")
	}
	w := newWorld(t, warmpath.Options{}, vllm(), vllm(), vllm())
	req := request(warmpath.Request{Text: story("long", 128<<10)})
	ctx := context.Background()
	once := func() {
		req.Now += 1000
		d, err := w.router.Route(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		d.Recycle()
	}
	for range 100 {
		once()
	}
	if allocs := testing.AllocsPerRun(200, once); allocs >= 0.5 {
		t.Errorf("%v allocations", allocs)
	}
}

func BenchmarkRouteByText(b *testing.B) {
	w := newWorld(b, warmpath.Options{}, vllm(), vllm(), vllm())
	req := request(warmpath.Request{Text: story("long", 128<<10)})
	b.ReportAllocs()
	for b.Loop() {
		req.Now += 1000
		d, err := w.router.Route(context.Background(), req)
		if err != nil {
			b.Fatal(err)
		}
		d.Recycle()
	}
}

// For matches, four bytes of text count as a token. A text that is shorter than a block has no full block, and must
// still be routed.
func TestAShortTextIsRouted(t *testing.T) {
	for _, size := range []int{1, 2, 16} {
		for _, engine := range []int{0, 16} {
			facts := vllm()
			facts.BlockSize = engine
			w := newWorld(t, warmpath.Options{BlockSize: size}, facts)
			for _, text := range []string{"a", "abc", "abcd", "abcde"} {
				w.route(warmpath.Request{Text: []byte(text)})
			}
			w.route(warmpath.Request{Tokens: prompt(1, 1)})
		}
	}
}
