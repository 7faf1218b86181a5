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

func BenchmarkPlaced(b *testing.B) {
	placedPrompt(b, func(p *Placements, d *warmpath.Decision) {
		b.ReportAllocs()
		for b.Loop() {
			p.Placed(d)
			p.Freed(d.ID(), warmpath.Ending{Unsent: true})
		}
	})
}
