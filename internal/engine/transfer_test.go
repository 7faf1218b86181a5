package engine

import (
	"testing"

	"github.com/warmpath/warmpath/block"
)

// finishAll makes steps until no request runs or waits to run, and returns the events of kind Stored.
func finishAll(e *Engine) (stored int, admitted []*Request) {
	var s Step
	for e.Step(&s) {
		for _, event := range s.Events {
			if event.Kind == Stored {
				stored += len(event.Hashes)
			}
		}
		admitted = append(admitted, s.Awaiting...)
		if s.Tokens == 0 {
			break
		}
	}
	return stored, admitted
}

func prompt(n int) []block.Token {
	tokens := make([]block.Token, n)
	for i := range tokens {
		tokens[i] = block.Token(i)
	}
	return tokens
}

func rankOf(t *testing.T, blocks int) *Engine {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Blocks, cfg.BlockSize = blocks, 16
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestAPinnedRequestKeepsItsBlocksUntilTheyAreReleased(t *testing.T) {
	e := rankOf(t, 16)
	r := &Request{Prompt: prompt(40), Output: prompt(1), Pin: true}
	if err := e.Submit(r); err != nil {
		t.Fatal(err)
	}
	finishAll(e)
	if n := e.Stats().UsedBlocks; n != 3 || len(r.BlockIDs()) != 3 || r.Computed() != 40 {
		t.Fatalf("%d blocks are used, the request has %d blocks with %d tokens; want 3, 3 and 40", n, len(r.BlockIDs()), r.Computed())
	}
	if !e.Holds(r.BlockIDs()[1], r.Hashes()[1]) || e.Holds(r.BlockIDs()[1], r.Hashes()[0]) {
		t.Error("Holds does not know the hash of a block")
	}
	e.Cancel(r)
	if e.Reset() || e.Stats().UsedBlocks != 3 {
		t.Error("Cancel or Reset took the blocks of a pinned request")
	}
	// Another request that needs more than the free blocks waits, and goes on after the release.
	other := &Request{Prompt: prompt(200), Output: prompt(1), Fresh: true}
	if err := e.Submit(other); err != nil {
		t.Fatal(err)
	}
	finishAll(e)
	if s := e.Stats(); s.Waiting != 1 {
		t.Fatalf("%d requests wait, want 1", s.Waiting)
	}
	e.Release(r)
	e.Release(r)
	finishAll(e)
	if s := e.Stats(); s.UsedBlocks != 0 || s.Finished != 2 {
		t.Errorf("%d blocks are used, %d requests are finished; want 0 and 2", s.UsedBlocks, s.Finished)
	}
}

func TestARequestThatAwaitsTokensHasBlocksAndComputesOnlyWhatDidNotArrive(t *testing.T) {
	for _, c := range []struct{ received, arrive, stored, cached int }{
		{40, 40, 2, 40}, {40, 20, 1, 20}, {40, 0, 0, 0}, {32, 99, 2, 32},
	} {
		e := rankOf(t, 16)
		r := &Request{Prompt: prompt(40), Output: prompt(1), Await: true, Received: c.received}
		if err := e.Submit(r); err != nil {
			t.Fatal(err)
		}
		_, awaiting := finishAll(e)
		if s := e.Stats(); len(awaiting) != 1 || r.External != c.received || s.UsedBlocks != 3 || s.Awaiting != 1 || s.Waiting != 1 || s.CachedBlocks != 0 {
			t.Fatalf("%+v: external %d, %+v", c, r.External, s)
		}
		e.Arrive(r, c.arrive)
		if n := e.Stats().CachedBlocks; n != c.stored {
			t.Errorf("%+v: %d blocks are cached after the arrival", c, n)
		}
		if stored, _ := finishAll(e); stored != 2 || r.Cached != c.cached {
			t.Errorf("%+v: %d blocks announced, %d tokens cached", c, stored, r.Cached)
		}
		if s := e.Stats(); s.UsedBlocks != 0 || s.Finished != 1 || s.CPUHits != uint64(c.cached) {
			t.Errorf("%+v: %+v", c, s)
		}
	}
}

func TestACancelledRequestThatAwaitsTokensGivesItsBlocksBack(t *testing.T) {
	e := rankOf(t, 16)
	r := &Request{Prompt: prompt(40), Output: prompt(1), Await: true, Received: 40}
	if err := e.Submit(r); err != nil {
		t.Fatal(err)
	}
	finishAll(e)
	e.Cancel(r)
	e.Arrive(r, 40)
	if s := e.Stats(); s.UsedBlocks != 0 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
	late := &Request{Prompt: prompt(40), Output: prompt(1), Await: true, Received: 40}
	if err := e.Submit(late); err != nil {
		t.Fatal(err)
	}
	finishAll(e)
	e.Arrive(late, 40)
	e.Cancel(late)
	if s := e.Stats(); s.UsedBlocks != 0 || s.Waiting != 0 {
		t.Errorf("cancelled after the arrival: %+v", s)
	}
}
