package warmpath_test

import (
	"context"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

func TestLoadIsHeldUntilFirstTokenAndDone(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm())
	p := prompt(1, 500)
	w.store(0, p[:160], kvindex.Stored{})
	load := func() fleet.Load { return w.fleet.Snapshot().Load(0) }
	d := w.route(warmpath.Request{Tokens: p, Now: second})
	if diff := cmp.Diff(fleet.Load{Requests: 1, Waiting: 1, PrefillTokens: 340, PendingTokens: 340, ContextBlocks: 32, ContextTokens: 500, Processed: 1, Turns: 1000}, load()); diff != "" {
		t.Errorf("dispatched: %s", diff)
	}
	d.FirstToken(3 * second)
	d.FirstToken(4 * second)
	if diff := cmp.Diff(fleet.Load{Requests: 1, ContextBlocks: 32, ContextTokens: 500, Processed: 1, Turns: 1000}, load()); diff != "" {
		t.Errorf("first token: %s", diff)
	}
	d.Done(fleet.OutcomeServed, 5*second)
	d.Done(fleet.OutcomeFailed, 5*second)
	d.Recycle()
	if diff := cmp.Diff(fleet.Load{Processed: 1, Turns: 1000}, load()); diff != "" {
		t.Errorf("done: %s", diff)
	}
	w.route(warmpath.Request{Tokens: p}).Recycle() // without a call of Done, Recycle must release the load
	if diff := cmp.Diff(fleet.Load{Processed: 2, Turns: 2000}, load()); diff != "" {
		t.Errorf("recycled: %s", diff)
	}
}

func TestExplainingChangesNothing(t *testing.T) {
	w := newWorld(t, warmpath.Options{Policy: policy.Spec{Name: "turns", Picker: "round_robin"}}, vllm(), vllm())
	p := prompt(1, 500)
	var explained []string
	for range 3 {
		d, err := w.router.Explain(context.Background(), request(warmpath.Request{Tokens: p}))
		if err != nil {
			t.Fatal(err)
		}
		explained = append(explained, d.Worker.URL)
		d.FirstToken(1)
		d.Done(fleet.OutcomeFailed, 0)
		d.Recycle()
	}
	if diff := cmp.Diff([]string{"http://a", "http://a", "http://a"}, explained); diff != "" {
		t.Error(diff)
	}
	for h := range fleet.Holder(2) {
		if diff := cmp.Diff(fleet.Load{}, w.fleet.Snapshot().Load(h)); diff != "" {
			t.Error(diff)
		}
	}
	first, second := w.route(warmpath.Request{Tokens: p}), w.route(warmpath.Request{Tokens: p})
	if first.Worker.URL != "http://a" || second.Worker.URL != "http://b" || first.Branch != policy.BranchMatchUnused {
		t.Errorf("%s; %s", first, second)
	}
	// The record of a decision has the match even if the policy does not look at matches.
	if third := w.route(warmpath.Request{Tokens: p}); third.PredictedTokens != 496 {
		t.Errorf("%s", third)
	}
}

func TestClonesLiveOnTheirOwn(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm(), vllm(), vllm())
	p := prompt(1, 500)
	w.store(3, p, kvindex.Stored{})
	d := w.route(warmpath.Request{Tokens: p})
	all, one := d.Clone(-1), d.Clone(1)
	text := d.String()
	d.Recycle()
	w.route(warmpath.Request{Tokens: prompt(2, 50)})
	if all.String() != text || len(all.Candidates) != 4 || all.Candidates[all.Chosen].Holder != 3 {
		t.Errorf("%s %+v", all.String(), all.Candidates)
	}
	if len(one.Candidates) != 1 || one.Candidates[one.Chosen].Holder != 3 {
		t.Errorf("%+v", one.Candidates)
	}
}

func TestConcurrentRequestsLeaveNoLoad(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm(), vllm())
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 200 {
				p := prompt(i%7, 200+i)
				d, err := w.router.Route(context.Background(), request(warmpath.Request{Tokens: p, Now: int64(i), Random: uint64(i * g)}))
				if err != nil {
					t.Error(err)
					return
				}
				d.FirstToken(int64(i))
				if i%3 == 0 {
					d.Done(fleet.OutcomeServed, int64(i))
				}
				d.Recycle()
			}
		})
		wg.Go(func() {
			for i := range 50 {
				s := kvindex.Stored{BlockSize: 16, Tokens: prompt(i%7, 160), Hashes: []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}}
				if g < 3 {
					w.router.Store(fleet.Holder(g), &s)
				}
				w.fleet.SetHealth(fleet.WorkerID(0), i%2 == 0, "flapping")
			}
			w.fleet.SetHealth(fleet.WorkerID(0), true, "")
		})
	}
	wg.Wait()
	var processed uint64
	for h := range fleet.Holder(3) {
		l := w.fleet.Snapshot().Load(h)
		processed += l.Processed
		l.Processed, l.Turns = 0, 0
		if diff := cmp.Diff(fleet.Load{}, l); diff != "" {
			t.Errorf("holder %d: %s", h, diff)
		}
	}
	if processed != 800 {
		t.Errorf("%d requests processed", processed)
	}
}
