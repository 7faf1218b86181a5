package warmpath_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/test/testenv"
)

// serving returns the facts of a vLLM worker with a connector and a role.
func serving(role fleet.Role) fleet.Facts {
	f := vllm()
	f.Role, f.Transfer, f.BlocksPerRank = role, fleet.Transfer{Connector: "nixl", TokenBytes: 131072}, 20_000
	return f
}

// marginalOptions are the default options: newWorld would take another policy.
func marginalOptions(mode policy.Mode) warmpath.Options {
	return warmpath.Options{Policy: policy.DefaultMarginal().Spec("marginal"), Legs: warmpath.Legs{Mode: mode}}
}

// loads puts requests with answers under way on a worker.
func (w *world) loads(id fleet.Holder, requests int) {
	for range requests {
		var r fleet.Reservation
		if !w.fleet.Reserve(&r, id, fleet.Work{UncachedTokens: 10, PromptTokens: 2000, ContextBlocks: 125, Levels: fleet.DefaultServiceLevels()}, second) {
			w.t.Fatal("not reserved")
		}
		r.FirstToken(second)
		r.Tokens(20, second)
	}
}

func TestALongPromptIsComputedApartFromBusyAnswers(t *testing.T) {
	w := newWorld(t, marginalOptions(policy.ModeAuto), serving(fleet.RolePrefill), serving(fleet.RoleDecode))
	w.loads(1, 60)
	d := w.route(warmpath.Request{Tokens: prompt(1, 12_000), Now: second})
	if d.Prefill == nil || d.Prefill.Worker.URL != "http://a" || d.Worker.URL != "http://b" {
		t.Fatalf("%s; %+v", d, d.Division)
	}
	if n := d.Division; n.Bypass != "" || n.Tokens != 12_000 || n.Transfer <= 0 || n.Whole <= n.Prefill+n.Decode {
		t.Errorf("%+v", n)
	}
	if text := d.String(); !strings.Contains(text, "; http://a rank 0 computes the prompt, and sends 12000 tokens (prefill ") || !strings.Contains(text, " ms of transfer; one worker ") {
		t.Error(text)
	}
	if d.Leg != fleet.LegDecode || d.Prefill.Leg != fleet.LegPrefill {
		t.Errorf("legs %v and %v", d.Leg, d.Prefill.Leg)
	}
	snap := w.fleet.Snapshot()
	if a, b := snap.Load(0), snap.Load(1); a.Requests != 1 || b.Requests != 61 || a.PrefillTokens != 0 && a.PrefillTokens != 12_000 || b.PrefillTokens > 1 {
		t.Errorf("loads %+v and %+v", a, b)
	}
	d.PrefillDone(fleet.OutcomeServed, 2*second)
	d.PrefillDone(fleet.OutcomeFailed, 2*second)
	if a := w.fleet.Snapshot().Load(0); a.Requests != 0 {
		t.Errorf("the prefill leg has ended, and the load is %+v", a)
	}
	d.FirstToken(2*second + int64(300*time.Millisecond))
	if tokens, took, measured := d.Transfer(); !measured || tokens != 12_000 || took <= 0 || took >= 300*time.Millisecond {
		t.Errorf("transfer of %d tokens in %v, %v", tokens, took, measured)
	}
	if l := w.fleet.Snapshot().Link(d.Prefill.Worker, d.Worker); l.Samples != 1 {
		t.Errorf("%+v", l)
	}
	d.Done(fleet.OutcomeServed, 3*second)
	if b := w.fleet.Snapshot().Load(1); b.Requests != 60 {
		t.Errorf("the request has ended, and the load is %+v", b)
	}
}

// The first token of an answer in one piece is seen at its end: its time says nothing about the transfer.
func TestAnAnswerInOnePieceDoesNotMeasureTheTransfer(t *testing.T) {
	w := newWorld(t, marginalOptions(policy.ModeAlways), serving(fleet.RolePrefill), serving(fleet.RoleDecode))
	d := w.route(warmpath.Request{Tokens: prompt(1, 12_000), Whole: true, Now: second})
	d.PrefillDone(fleet.OutcomeServed, 2*second)
	d.FirstToken(20 * second)
	if _, took, measured := d.Transfer(); measured {
		t.Errorf("a transfer of %v was measured", took)
	}
	if l := w.fleet.Snapshot().Link(d.Prefill.Worker, d.Worker); l.Samples != 0 {
		t.Errorf("%+v", l)
	}
	d.Done(fleet.OutcomeServed, 21*second)
}

func TestEachReasonAgainstTwoWorkers(t *testing.T) {
	long := prompt(1, 8000)
	cases := []struct {
		name string
		mode policy.Mode
		req  warmpath.Request
		warm int // prompt tokens that the decode worker has
		want policy.Bypass
	}{
		{"a short prompt", policy.ModeAuto, warmpath.Request{Tokens: long[:200]}, 0, policy.BypassShort},
		{"a short uncached tail", policy.ModeAuto, warmpath.Request{Tokens: long}, 7840, policy.BypassShort},
		{"an idle decode worker with most of the prompt", policy.ModeAuto, warmpath.Request{Tokens: long}, 7680, policy.BypassCost},
		{"several answers", policy.ModeAlways, warmpath.Request{Tokens: long, Choices: 2}, 0, policy.BypassAnswers},
		{"a named worker", policy.ModeAlways, warmpath.Request{Tokens: long, Target: "http://b"}, 0, policy.BypassPinned},
		{"a named rank", policy.ModeAlways, warmpath.Request{Tokens: long, Rank: warmpath.OnRank(0)}, 0, policy.BypassPinned},
		{"the caller's reason", policy.ModeAlways, warmpath.Request{Tokens: long, Undivided: policy.BypassRequest}, 0, policy.BypassRequest},
		{"never", policy.ModeNever, warmpath.Request{Tokens: long}, 0, policy.BypassNever},
		{"always, though short", policy.ModeAlways, warmpath.Request{Tokens: long[:40]}, 0, ""},
		{"always, though cached", policy.ModeAlways, warmpath.Request{Tokens: long}, 7984, ""},
		{"always, the prefill worker failed", policy.ModeAlways, warmpath.Request{Tokens: long, Exclude: []fleet.WorkerID{0}}, 0, policy.BypassNoPrefill},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, marginalOptions(c.mode), serving(fleet.RolePrefill), serving(fleet.RoleDecode))
			if c.warm > 0 {
				w.store(1, c.req.Tokens[:c.warm], kvindex.Stored{})
			}
			c.req.Now = second
			d := w.route(c.req)
			if d.Division.Bypass != c.want || !d.Division.Considered || (d.Prefill == nil) != (c.want != "") || d.Worker.URL != "http://b" {
				t.Errorf("%s; %+v, prefill leg %v", d, d.Division, d.Prefill)
			}
			if c.want == "" {
				return
			}
			if a := w.fleet.Snapshot().Load(0); a.Requests != 0 {
				t.Errorf("load of the prefill worker: %+v", a)
			}
		})
	}
}

// What an engine without events has is learned from requests, so the tail of a prompt that it got before is short, too.
func TestAShortTailIsKnownWithoutEvents(t *testing.T) {
	w := newWorld(t, marginalOptions(policy.ModeAuto), serving(fleet.RolePrefill), serving(fleet.RoleDecode))
	for h := range fleet.Holder(2) {
		w.fleet.SetTrust(h, fleet.TrustApproximate, "no events")
	}
	long := prompt(1, 8000)
	first := w.route(warmpath.Request{Tokens: long[:7840], Now: second})
	if first.Worker.URL != "http://b" || first.Division.Bypass != policy.BypassCost {
		t.Fatalf("%s; %+v", first, first.Division)
	}
	first.FirstToken(2 * second)
	first.Done(fleet.OutcomeServed, 2*second)
	if d := w.route(warmpath.Request{Tokens: long, Now: 3 * second}); d.Worker.URL != "http://b" || d.Division.Bypass != policy.BypassShort || d.Trust != fleet.TrustApproximate {
		t.Errorf("%s; %+v", d, d.Division)
	}
}

// overtakenLeg chooses the first worker without a request. At its first choice for a decode leg, another request takes
// the place at that worker.
type overtakenLeg struct {
	recorder
	other func()
}

func (o *overtakenLeg) Choose(q *policy.Query, c []policy.Candidate) policy.Pick {
	pick := max(slices.IndexFunc(c, func(c policy.Candidate) bool { return c.Unpaired == "" && c.Load.Requests == 0 }), 0)
	if other := o.other; other != nil && q.Leg == fleet.LegDecode {
		o.other = nil
		other()
	}
	return policy.Pick{Index: pick}
}

// If the place of the decode leg is lost before it is reserved, the place of the prefill leg is given back, and both
// legs are decided anew.
func TestALostPlaceOfOneLegFreesTheOther(t *testing.T) {
	var o overtakenLeg
	w := newWorld(t, warmpath.Options{MaxRequests: 1, Legs: warmpath.Legs{Mode: policy.ModeAlways},
		Policy: policy.Spec{Name: "overtaken", Chooser: func() policy.Chooser { return &o }}},
		serving(fleet.RolePrefill), serving(fleet.RoleDecode), serving(fleet.RoleDecode))
	o.other = func() { w.loads(1, 1) }
	d := w.route(warmpath.Request{Tokens: prompt(1, 900), Now: second})
	loads := func() (n [3]int64) {
		for h := range n {
			n[h] = w.fleet.Snapshot().Load(fleet.Holder(h)).Requests
		}
		return n
	}
	if d.Prefill == nil || d.Worker.URL != "http://c" || loads() != [3]int64{1, 1, 1} {
		t.Errorf("%s; loads %v", d, loads())
	}
	d.Done(fleet.OutcomeServed, 2*second)
	if loads() != [3]int64{0, 1, 0} {
		t.Errorf("the request has ended, and the loads are %v", loads())
	}
}

func TestAPairWhoseTransfersFailIsLeftAlone(t *testing.T) {
	w := newWorld(t, marginalOptions(policy.ModeAlways), serving(fleet.RolePrefill), serving(fleet.RoleDecode))
	now := second
	for i := range 3 {
		d := w.route(warmpath.Request{Tokens: prompt(i, 1000), Now: now})
		if d.Prefill == nil {
			t.Fatalf("not divided after %d failures: %+v", i, d.Division)
		}
		alone := d.TransferFailed(now)
		if (alone > 0) != (i == 2) {
			t.Errorf("failure %d: left alone for %v", i+1, alone)
		}
		d.Done(fleet.OutcomeServed, now)
	}
	d := w.route(warmpath.Request{Tokens: prompt(9, 1000), Now: now})
	if text := d.String(); !strings.HasSuffix(text, "; not divided: "+policy.BypassNoDecode.Reason()) {
		t.Error(text)
	}
	if d.Prefill != nil || d.Division.Bypass != policy.BypassNoDecode {
		t.Errorf("%+v", d.Division)
	}
	d.Done(fleet.OutcomeServed, now)
	if d = w.route(warmpath.Request{Tokens: prompt(9, 1000), Now: now + 31*second}); d.Prefill == nil {
		t.Errorf("the pair is still left alone: %+v", d.Division)
	}
}

func TestAFleetWithoutDecodeWorkersAnswersNothing(t *testing.T) {
	w := newWorld(t, marginalOptions(policy.ModeAuto), serving(fleet.RolePrefill))
	if _, err := w.router.Route(context.Background(), request(warmpath.Request{Tokens: prompt(1, 900)})); !errors.Is(err, warmpath.ErrNoWorker) || !strings.Contains(err.Error(), "role prefill") {
		t.Errorf("%v", err)
	}
}

func TestConnectorsMustBeTheSame(t *testing.T) {
	other := serving(fleet.RoleDecode)
	other.Transfer.Connector = "mooncake"
	w := newWorld(t, marginalOptions(policy.ModeAlways), serving(fleet.RolePrefill), other)
	if d := w.route(warmpath.Request{Tokens: prompt(1, 900), Now: second}); d.Division.Bypass != policy.BypassNoPrefill || d.Worker.URL != "http://b" {
		t.Errorf("%s %+v", d, d.Division)
	}
}

func TestAPrefixIsFetchedWhenThatIsFaster(t *testing.T) {
	p := prompt(1, 30_000)
	for _, c := range []struct {
		name    string
		bytes   int // of a token
		fetched bool
	}{{"small blocks", 1000, true}, {"blocks that take longer than the prompt", 1 << 30, false}} {
		t.Run(c.name, func(t *testing.T) {
			a, b := serving(fleet.RoleBoth), serving(fleet.RoleBoth)
			a.Transfer.Fetches, b.Transfer.Fetches = true, true
			a.Transfer.TokenBytes, b.Transfer.TokenBytes = c.bytes, c.bytes
			w := newWorld(t, marginalOptions(policy.ModeNever), a, b)
			w.store(0, p[:24_000], kvindex.Stored{})
			d := w.route(warmpath.Request{Tokens: p, Now: second, Exclude: nil, Target: "http://b"})
			if fetches := d.Source != nil && d.Source.URL == "http://a" && d.Fetched == 24_000; fetches != c.fetched {
				t.Errorf("fetched %d from %v: %s", d.Fetched, d.Source, d)
			}
			if strings.Contains(d.String(), "; fetches 24000 tokens from http://a") != c.fetched {
				t.Error(d)
			}
		})
	}
}

func TestDividedRoutesDoNotAllocate(t *testing.T) {
	if testenv.Race() {
		t.Skip("skipped: under the race detector pools drop values at random")
	}
	w := newWorld(t, marginalOptions(policy.ModeAuto), serving(fleet.RolePrefill), serving(fleet.RolePrefill), serving(fleet.RoleDecode), serving(fleet.RoleDecode))
	w.loads(2, 60)
	w.loads(3, 60)
	req := request(warmpath.Request{Tokens: prompt(1, 12_000), Now: second})
	divided := 0
	once := func() {
		req.Now += 1000
		req.Random++
		d, err := w.router.Route(context.Background(), req)
		if err != nil {
			t.Fatal(err)
		}
		if d.Prefill != nil {
			divided++
		}
		d.PrefillDone(fleet.OutcomeServed, req.Now)
		d.FirstToken(req.Now)
		d.Done(fleet.OutcomeServed, req.Now)
		d.Recycle()
	}
	for range 100 {
		once()
	}
	if allocs := testing.AllocsPerRun(1000, once); allocs >= 0.5 {
		t.Errorf("%v allocations", allocs)
	}
	if divided == 0 {
		t.Error("no request was divided")
	}
}

func BenchmarkRouteDivided(b *testing.B) {
	for _, n := range []int{2, 8, 64, 256} {
		b.Run(fmt.Sprintf("%d+%d", n, n), func(b *testing.B) {
			var facts []fleet.Facts
			for i := range 2 * n {
				facts = append(facts, serving([]fleet.Role{fleet.RolePrefill, fleet.RoleDecode}[i%2]))
			}
			w := newWorld(b, marginalOptions(policy.ModeAuto), facts...)
			for i := range n {
				w.loads(fleet.Holder(2*i+1), 20)
			}
			req := request(warmpath.Request{Tokens: prompt(1, 8000), Now: second})
			b.ReportAllocs()
			for b.Loop() {
				req.Now += 1000
				req.Random++
				d, err := w.router.Route(context.Background(), req)
				if err != nil {
					b.Fatal(err)
				}
				d.PrefillDone(fleet.OutcomeServed, req.Now)
				d.Done(fleet.OutcomeServed, req.Now)
				d.Recycle()
			}
		})
	}
}
