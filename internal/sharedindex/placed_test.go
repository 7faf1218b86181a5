package sharedindex

import (
	"context"
	"log/slog"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy/peers"
)

// placedPrompt routes a prompt of 100,000 tokens to a worker without events, and calls observe in place of
// Placements.Placed. The policy learns from tokens.
func placedPrompt(tb testing.TB, observe func(p *Placements, d *warmpath.Decision)) {
	tb.Helper()
	f := fleetOf(1)
	f.SetTrust(0, fleet.TrustApproximate, "test")
	p := NewPlacements(DefaultConfig(), PlacementsParts{Fleet: f, Algorithm: block.XXH3, TTL: time.Minute, Log: slog.New(slog.DiscardHandler)})
	kind := peers.DefaultCacheAware()
	kind.By = "tokens"
	router, err := warmpath.New(warmpath.Options{Fleet: f, Policy: kind.Spec("cache_aware"), Observer: placing{p, observe}})
	if err != nil {
		tb.Fatal(err)
	}
	tokens := make([]block.Token, 100_000)
	for i := range tokens {
		tokens[i] = block.Token(i)
	}
	if _, err := router.Route(context.Background(), &warmpath.Request{Model: "m", Tokens: tokens, Now: 1}); err != nil {
		tb.Fatal(err)
	}
}

// placing calls observe for a request that is placed: a Decision has its prompt only then.
type placing struct {
	*Placements
	observe func(p *Placements, d *warmpath.Decision)
}

func (o placing) Placed(d *warmpath.Decision) { o.observe(o.Placements, d) }

func TestAPlacedRequestLeavesOnlyItsKeys(t *testing.T) {
	called := false
	placedPrompt(t, func(p *Placements, d *warmpath.Decision) {
		called = true
		p.Placed(d)
		one := p.sending[d.ID()]
		if !slices.Equal(one.keys, d.Keys()) || len(one.keys) != 100_000/16 || one.worker != "http://worker-0" || one.size != 16 || one.id != d.Worker.ID {
			t.Fatalf("%d keys of %d tokens at %s", len(one.keys), one.size, one.worker)
		}
		const calls = 20
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range calls {
			p.Placed(d)
			p.Freed(d.ID(), warmpath.Ending{Unsent: true})
		}
		runtime.ReadMemStats(&after)
		if n, keys := (after.TotalAlloc-before.TotalAlloc)/calls, uint64(8*len(one.keys)); n > 3*keys {
			t.Errorf("a call allocates %d bytes, and the keys have %d: the tokens are copied, too", n, keys)
		}
	})
	if !called {
		t.Error("the request was not placed")
	}
}

// Of a worker with events the writer knows better. Keys of a text are no keys of blocks.
func TestOnlyTokensAtWorkersWithoutEventsAreShared(t *testing.T) {
	placedPrompt(t, func(p *Placements, d *warmpath.Decision) {
		candidate := &d.Candidates[d.Chosen]
		for _, c := range []struct {
			trust fleet.Trust
			text  bool
			want  int
		}{
			{fleet.TrustApproximate, false, 1}, {fleet.TrustApproximate, true, 0}, {fleet.TrustExact, false, 0}, {fleet.TrustDegraded, false, 0}, {fleet.TrustNone, false, 0},
		} {
			candidate.Trust, d.FromText = c.trust, c.text
			p.Placed(d)
			if len(p.sending) != c.want {
				t.Errorf("trust %v, from a text %v: %d prompts are shared, want %d", c.trust, c.text, len(p.sending), c.want)
			}
			p.Freed(d.ID(), warmpath.Ending{Unsent: true})
		}
		candidate.Trust, d.FromText = fleet.TrustApproximate, false
	})
}

func TestPromptsBeyondTheBoundsAreDropped(t *testing.T) {
	placedPrompt(t, func(p *Placements, d *warmpath.Decision) {
		const keys = 100_000 / 16
		for _, c := range []struct{ waiting, keys, dropped int }{
			{maxPlaced - 1, 0, 0}, {maxPlaced, 0, 1}, {0, maxPlacedKeys - keys, 0}, {0, maxPlacedKeys - keys + 1, 1},
		} {
			before := p.Stats().PlacementsDropped
			p.waiting, p.keys = make([]placed, c.waiting), c.keys
			p.Placed(d)
			if n := int(p.Stats().PlacementsDropped - before); n != c.dropped || len(p.sending) != 1-c.dropped {
				t.Errorf("with %d prompts and %d keys in memory, %d are dropped and %d kept", c.waiting, c.keys, n, len(p.sending))
			}
			p.Freed(d.ID(), warmpath.Ending{Unsent: true})
		}
	})
}

func BenchmarkPlaced(b *testing.B) {
	placedPrompt(b, func(p *Placements, d *warmpath.Decision) {
		b.ReportAllocs()
		for b.Loop() {
			p.Placed(d)
			p.Freed(d.ID(), warmpath.Ending{Unsent: true})
		}
	})
}
