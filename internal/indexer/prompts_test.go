package indexer

import (
	"context"
	"slices"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/tokens"
	"github.com/warmpath/warmpath/kvindex"
)

// made is a tokens.Local that has ids for each prompt.
type made struct{ tokens.Found }

func (m made) Find(context.Context, *tokens.Prompt) (tokens.Found, bool) { return m.Found, true }

func (made) Text(string, []block.Token) string { return "" }

// finds runs a service that finds these ids for texts and chats, with a worker that has all their blocks under each
// salt.
func finds(t *testing.T, found tokens.Found, salts ...string) *world {
	t.Helper()
	source := tokens.New(tokens.DefaultConfig(), nil)
	t.Cleanup(source.Close)
	source.Local = made{found}
	w := serve(t, Config{}, func(p *Parts) { p.Tokens = source })
	a := w.worker("http://a", nil)
	for i, salt := range append(salts, "") {
		w.store(a.Holders[0], found.Tokens[:len(found.Tokens)-32*i], kvindex.Stored{Scope: block.Scope{Salt: salt}})
	}
	return w
}

// A chat has its cache salt in its body. The feed must hear of it, so that it counts the blocks of the engine's events.
func TestTheSaltOfAChatCounts(t *testing.T) {
	w := finds(t, tokens.Found{Tokens: prompt(1, 160), Outcome: tokens.InProcess}, "inner", "outer")
	const chat, salted = `{"messages":[{"role":"user","content":"x"}]}`, `{"cache_salt":"inner","messages":[{"role":"user","content":"x"}]}`
	for _, c := range []struct {
		body, salt string
		matched    int
		heard      string
	}{{salted, "", 144, "http://a inner/"}, {chat, "outer", 128, "http://a outer/"}, {salted, "outer", 128, "http://a outer/"}, {chat, "", 96, ""}} {
		w.service.scoping.mu.Lock()
		clear(w.service.scoping.told)
		w.service.scoping.mu.Unlock()
		w.mu.Lock()
		w.scoped = nil
		w.mu.Unlock()
		var a answer
		if err := w.dial().Invoke(t.Context(), rpcName+"Score", &question{model: "m", body: []byte(c.body), salt: c.salt}, &a); err != nil || len(a.scores) != 1 || a.scores[0].matched != c.matched {
			t.Errorf("%s with the salt %q: %+v, want %d: %v", c.body, c.salt, a, c.matched, err)
		}
		w.mu.Lock()
		if c.heard == "" && len(w.scoped) > 0 || c.heard != "" && !slices.Equal(w.scoped, []string{c.heard}) {
			t.Errorf("%s with the salt %q: the feed heard of %q, want %q", c.body, c.salt, w.scoped, c.heard)
		}
		w.mu.Unlock()
	}
}

// The ids after the first Sure ones stand for text whose ids are not known: no engine has them.
func TestOnlyIDsThatAreKnownCount(t *testing.T) {
	w := finds(t, tokens.Found{Tokens: prompt(1, 160), Outcome: tokens.Beginning, Sure: 48})
	var a answer
	if err := w.dial().Invoke(t.Context(), rpcName+"Score", &question{model: "m", text: "x", hasText: true}, &a); err != nil || a.tokens != 48 || len(a.scores) != 1 || a.scores[0].matched != 32 {
		t.Errorf("%+v: %v", a, err)
	}
}
