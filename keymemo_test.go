package warmpath_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvindex"
)

// mark returns the block.Prefix that names the beginning of a prompt: its first n tokens.
func mark(tokens []block.Token, n int) block.Prefix {
	var m uint64 = 1
	for _, t := range tokens[:n] {
		m = m*0x100000001b3 ^ uint64(t)
	}
	return block.Prefix{Tokens: n, Mark: [2]uint64{m, uint64(n)}}
}

// A request may name two beginnings of its prompt, so that the router remembers their block keys: an earlier request
// had the beginning Known, and later requests will probably have the beginning Stable. The prompt's match must be the
// same with and without Known and Stable.
func TestKeysFromMemoryAreTheKeys(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	plain, remembers := newWorld(t, warmpath.Options{}, vllm(), vllm()), newWorld(t, warmpath.Options{}, vllm(), vllm())
	prompts := [][]block.Token{prompt(1, 3000), prompt(2, 9000)}
	for range 300 {
		base := prompts[r.IntN(len(prompts))]
		tokens := slices.Clone(base[:min(len(base), 1000+r.IntN(12000))])
		known := mark(tokens, r.IntN(len(tokens)+1))
		for range r.IntN(800) {
			tokens = append(tokens, block.Token(r.IntN(3)))
		}
		stable := mark(tokens, known.Tokens+r.IntN(len(tokens)-known.Tokens+1))
		if len(tokens) > 60000 {
			tokens = tokens[:60000]
			stable = mark(tokens, min(stable.Tokens, len(tokens)))
		}
		prompts = append(prompts, tokens)
		req := warmpath.Request{Tokens: tokens, Salt: []string{"", "s"}[r.IntN(2)], Model: []string{"llama", "sql"}[r.IntN(2)]}
		if r.IntN(5) == 0 {
			req.Features = []block.Feature{{ID: "image", Offset: r.IntN(len(tokens))}}
		}
		want := plain.route(req)
		req.Known, req.Stable = known, stable
		got := remembers.route(req)
		if got.PredictedTokens != want.PredictedTokens || got.Holder != want.Holder || got.MatchTokens != want.MatchTokens {
			t.Fatalf("with %d known and %d stable of %d tokens: %s, without: %s", known.Tokens, stable.Tokens, len(tokens), got, want)
		}
	}
}

func TestConfirmedBlocksAreFoundByKeysFromMemory(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	p := prompt(1, 20000)
	w.store(0, p[:16000], kvindex.Stored{})
	w.route(warmpath.Request{Tokens: p[:16000], Stable: mark(p, 15000)})
	d := w.route(warmpath.Request{Tokens: p, Known: mark(p, 15000), Stable: mark(p, 19000)})
	if d.MatchTokens != 16000 {
		t.Errorf("%s", d)
	}
	if d := w.route(warmpath.Request{Tokens: p, Known: mark(p, 15000), Stable: mark(p, 19000), Salt: "other"}); d.MatchTokens != 0 {
		t.Errorf("keys of another salt: %s", d)
	}
}

// BenchmarkRouteAGrowingConversation routes the turns of conversations. A conversation begins with 100,000 tokens and
// grows by 600 tokens with each turn.
func BenchmarkRouteAGrowingConversation(b *testing.B) {
	const from, to, more = 100_000, 130_000, 600
	tokens := prompt(1, to)
	for _, kept := range []bool{false, true} {
		b.Run(map[bool]string{false: "hashed anew", true: "keys kept"}[kept], func(b *testing.B) {
			w := newWorld(b, warmpath.Options{}, vllm(), vllm(), vllm(), vllm())
			w.store(1, tokens[:from], kvindex.Stored{})
			req := request(warmpath.Request{})
			n, conversation := from, uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				req.Now += 1000
				if n += more; n > to {
					n = from
					conversation++
				}
				req.Tokens = tokens[:n]
				if kept {
					req.Known = req.Stable
					req.Stable = block.Prefix{Tokens: n - 10, Mark: [2]uint64{conversation, uint64(n)}}
				}
				d, err := w.router.Explain(context.Background(), req)
				if err != nil {
					b.Fatal(err)
				}
				d.Recycle()
			}
		})
	}
}
