package warmpath_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

const second = int64(time.Second)

// world is a router with its fleet of workers. Events of the workers are applied immediately.
type world struct {
	t      testing.TB
	fleet  *fleet.Fleet
	router *warmpath.Router
	hashes map[fleet.Holder]uint64 // for each holder: the engine hash that was given out last
}

// newWorld returns a world with one worker for each element of workers. The workers are at http://a, http://b, …, and
// their trust is exact.
func newWorld(t testing.TB, o warmpath.Options, workers ...fleet.Facts) *world {
	t.Helper()
	w := &world{t: t, fleet: fleet.New(fleet.Config{}), hashes: map[fleet.Holder]uint64{}}
	o.Fleet = w.fleet
	if o.Policy.Name == "" {
		// This policy looks only at matches, so its decisions show the matches.
		o.Policy = policy.DefaultKVAware().Spec("kv_aware")
	}
	var err error
	if w.router, err = warmpath.New(o); err != nil {
		t.Fatal(err)
	}
	for i, f := range workers {
		w.fleet.Put(fmt.Sprintf("http://%c", 'a'+i), f)
	}
	for h := range fleet.Holder(w.fleet.Snapshot().Holders()) {
		w.fleet.SetTrust(h, fleet.TrustExact, "test")
	}
	return w
}

func vllm() fleet.Facts {
	return fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "llama"}, {ID: "sql", Parent: "llama"}}, BlockSize: 16}
}

// store applies an event that announces the full blocks of a prompt, as the engine of holder h would do.
func (w *world) store(h fleet.Holder, tokens []block.Token, s kvindex.Stored) {
	w.t.Helper()
	size := w.fleet.Snapshot().Worker(h).Facts.BlockSize
	s.BlockSize = size
	s.Tokens = tokens[:len(tokens)/size*size]
	s.Hashes = nil
	for range len(s.Tokens) / size {
		w.hashes[h]++
		s.Hashes = append(s.Hashes, w.hashes[h])
	}
	if w.router.Store(h, &s) == 0 {
		w.t.Fatalf("nothing stored for holder %d", h)
	}
}

func (w *world) route(req warmpath.Request) *warmpath.Decision {
	w.t.Helper()
	d, err := w.router.Route(context.Background(), request(req))
	if err != nil {
		w.t.Fatal(err)
	}
	return d
}

// request returns req. If req names no model, the model becomes llama.
func request(req warmpath.Request) *warmpath.Request {
	if req.Model == "" {
		req.Model = "llama"
	}
	return &req
}

// prompt returns a prompt of n tokens. Prompts with different values of text have no block in common.
func prompt(text, n int) []block.Token {
	tokens := make([]block.Token, n)
	for i := range tokens {
		tokens[i] = block.Token(text*100003 + i)
	}
	return tokens
}

func TestTheLongestConfirmedPrefixWins(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm(), vllm())
	p := prompt(1, 500)
	w.store(0, p[:160], kvindex.Stored{})
	w.store(1, p[:320], kvindex.Stored{})
	d := w.route(warmpath.Request{Tokens: p})
	if d.Worker.URL != "http://b" || d.MatchTokens != 320 || d.PredictedTokens != 320 || d.Branch != policy.BranchAffinity {
		t.Errorf("%s", d)
	}
	if d.Tier[block.TierGPU] != 320 || d.Trust != fleet.TrustExact || d.Policy != "kv_aware" || d.Pinned {
		t.Errorf("%+v", d.Record)
	}
	if len(d.Candidates) != 3 || d.Candidates[d.Chosen].Holder != d.Holder {
		t.Errorf("candidates: %+v", d.Candidates)
	}
	why := map[string]string{}
	for i := range d.Candidates {
		why[d.Candidates[i].Worker.URL] = d.Why(i)
	}
	if diff := cmp.Diff(map[string]string{"http://a": "lower score", "http://b": d.Reason, "http://c": "lower score"}, why); diff != "" {
		t.Error(diff)
	}
	want := "kv_aware: http://b rank 0 of 3 candidates, affinity (longest match, least work among equals); 320 of 500 prompt tokens matched, 320 on gpu; trust exact"
	if diff := cmp.Diff(want, d.String()); diff != "" {
		t.Error(diff)
	}
}

func TestAnEngineComputesAtLeastTheLastToken(t *testing.T) {
	for _, c := range []struct{ block, cached, prompt, want int }{
		// If the whole prompt is cached and its length is a multiple of the block size, the match is one block shorter.
		{16, 320, 320, 304},
		{16, 320, 321, 320},
		{16, 320, 336, 320},
		{16, 16, 16, 0},
		{32, 320, 320, 288}, // the engine's block size decides, not the router's
		{32, 320, 321, 320},
		{32, 320, 300, 288},
		{1, 320, 320, 304}, // SGLang's page has one token; the router counts in blocks of 16
		{1, 320, 330, 320},
	} {
		facts := vllm()
		facts.BlockSize = c.block
		w := newWorld(t, warmpath.Options{}, facts)
		p := prompt(1, 400)
		w.store(0, p[:c.cached], kvindex.Stored{})
		if d := w.route(warmpath.Request{Tokens: p[:c.prompt]}); d.MatchTokens != c.want {
			t.Errorf("block %d, %d tokens cached, prompt of %d: match %d, want %d", c.block, c.cached, c.prompt, d.MatchTokens, c.want)
		}
	}
}

func TestAPromptThatWasJustSentIsExpectedThere(t *testing.T) {
	for name, c := range map[string]struct {
		trust fleet.Trust
		ttl   int64
	}{
		"with events for 2 s":     {fleet.TrustExact, 2 * second},
		"degraded for 2 s":        {fleet.TrustDegraded, 2 * second},
		"without events for 120s": {fleet.TrustApproximate, 120 * second},
		"not without trust":       {fleet.TrustNone, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, warmpath.Options{}, vllm(), vllm(), vllm(), vllm())
			for h := range fleet.Holder(4) {
				w.fleet.SetTrust(h, c.trust, "test")
			}
			p := prompt(1, 500)
			first := w.route(warmpath.Request{Tokens: p, Now: second})
			if first.Branch != policy.BranchMiss || first.PredictedTokens != 0 {
				t.Fatalf("%s", first)
			}
			for _, at := range []int64{0, c.ttl / 2, max(c.ttl-1, 0), c.ttl} {
				// The test calls Explain because Route would renew the time limit of the expected prompt.
				d, err := w.router.Explain(context.Background(), request(warmpath.Request{Tokens: p, Now: second + at}))
				if err != nil {
					t.Fatal(err)
				}
				if expected := at < c.ttl; expected && (d.Holder != first.Holder || d.PredictedTokens != 496 || d.MatchTokens != 0) {
					t.Errorf("after %d ns: %s", at, d)
				} else if !expected && d.PredictedTokens != 0 {
					t.Errorf("after %d ns: %s", at, d)
				}
			}
		})
	}
}

func TestConfirmedAndExpectedAreMergedByMaximum(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	p := prompt(1, 500)
	w.store(1, p[:160], kvindex.Stored{})
	first := w.route(warmpath.Request{Tokens: p})
	second := w.route(warmpath.Request{Tokens: p})
	if first.Holder != 1 || second.Holder != 1 || second.MatchTokens != 160 || second.PredictedTokens != 496 {
		t.Errorf("%s; %s", first, second)
	}
	// The second request adds only the uncached end of its prompt.
	if got := w.fleet.Snapshot().Load(1).PrefillTokens; got != (500-160)+(500-496) {
		t.Errorf("%d tokens outstanding", got)
	}
}

func TestEntriesOfUntrustedHoldersAreNotUsed(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	p := prompt(1, 500)
	w.store(1, p, kvindex.Stored{})
	w.fleet.SetTrust(1, fleet.TrustNone, "prefix caching is off")
	if d := w.route(warmpath.Request{Tokens: p}); d.Branch != policy.BranchMiss || d.MatchTokens != 0 {
		t.Errorf("%s", d)
	}
}

func TestWhatEnginesKeepApartDoesNotMatch(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm())
	p := prompt(1, 100)
	w.store(0, p, kvindex.Stored{})
	w.store(0, p[:64], kvindex.Stored{Scope: block.Scope{LoRA: "sql"}})
	w.store(0, p[:32], kvindex.Stored{Scope: block.Scope{Salt: "tenant-1"}})
	for _, c := range []struct {
		req  warmpath.Request
		want int
	}{
		{warmpath.Request{}, 96},
		{warmpath.Request{Model: "sql"}, 64},
		{warmpath.Request{Salt: "tenant-1"}, 32},
		{warmpath.Request{Salt: "tenant-2"}, 0},
		{warmpath.Request{Model: "sql", Salt: "tenant-1"}, 0},
		{warmpath.Request{Extra: "key"}, 0},
		{warmpath.Request{Features: []block.Feature{{ID: "cat", Offset: 40}}}, 32},
	} {
		c.req.Tokens = p
		d, err := w.router.Explain(context.Background(), request(c.req))
		if err != nil {
			t.Fatal(err)
		}
		if d.MatchTokens != c.want {
			t.Errorf("model %q salt %q extra %q features %v: match %d, want %d", c.req.Model, c.req.Salt, c.req.Extra, c.req.Features, d.MatchTokens, c.want)
		}
	}
}

func TestTiersAreToldApartAndCutFromTheSlowEnd(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm())
	p := prompt(1, 320)
	w.store(0, p[:160], kvindex.Stored{})
	w.store(0, p, kvindex.Stored{Tier: block.TierCPU})
	d := w.route(warmpath.Request{Tokens: p})
	if d.MatchTokens != 304 || d.Tier != [block.NumTiers]int{160, 144} {
		t.Errorf("match %d by tier %v", d.MatchTokens, d.Tier)
	}
	w.router.Clear(0, block.TierGPU)
	if d := w.route(warmpath.Request{Tokens: p}); d.MatchTokens != 304 || d.Tier != [block.NumTiers]int{0, 304} {
		t.Errorf("after a reset of the GPU: match %d by tier %v", d.MatchTokens, d.Tier)
	}
	w.router.Forget(0)
	if d := w.route(warmpath.Request{Tokens: p, Now: 1000 * second}); d.MatchTokens != 0 {
		t.Errorf("after forgetting: match %d", d.MatchTokens)
	}
}

func TestRemovedBlocksEndTheMatch(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm())
	p := prompt(1, 320)
	w.store(0, p, kvindex.Stored{})
	w.router.Remove(0, warmpath.Removed{Hashes: []uint64{5}})
	if d := w.route(warmpath.Request{Tokens: p}); d.MatchTokens != 64 {
		t.Errorf("match %d", d.MatchTokens)
	}
}

func TestUnknownTokensGoByLoad(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	first := w.route(warmpath.Request{PromptBytes: 4000})
	if first.Branch != policy.BranchNoTokens || first.TokensKnown || first.PromptTokens != 1000 {
		t.Errorf("%+v", first.Record)
	}
	second := w.route(warmpath.Request{PromptBytes: 400})
	third := w.route(warmpath.Request{PromptBytes: 400})
	if second.Holder == first.Holder || third.Holder == first.Holder {
		t.Errorf("small requests went to the holder with the big request")
	}
}

func TestARankIsChosenOrObeyed(t *testing.T) {
	facts := vllm()
	facts.Ranks = 2
	w := newWorld(t, warmpath.Options{}, facts, vllm())
	p := prompt(1, 500)
	w.store(1, p, kvindex.Stored{})
	if d := w.route(warmpath.Request{Tokens: p}); d.Holder != 1 || d.Rank != 1 || !d.Pinned {
		t.Errorf("%s pinned %v", d, d.Pinned)
	}
	if d := w.route(warmpath.Request{Tokens: p, Rank: warmpath.OnRank(0), Target: "a"}); d.Holder != 0 || d.Rank != 0 || !d.Pinned {
		t.Errorf("%s pinned %v", d, d.Pinned)
	}
	facts.DeclaredRanks = 1 // without a rank in the request, the worker would choose among all of its ranks
	w.fleet.Put("http://a", facts)
	if d := w.route(warmpath.Request{Tokens: p, Rank: warmpath.OnRank(0), Target: "a"}); d.Holder != 0 || !d.Pinned {
		t.Errorf("%s pinned %v", d, d.Pinned)
	}
	if d := w.route(warmpath.Request{Tokens: p, Target: "b"}); d.Pinned || d.Branch != policy.BranchDirect {
		t.Errorf("%s pinned %v", d, d.Pinned)
	}
	if _, err := w.router.Route(context.Background(), request(warmpath.Request{Tokens: p, Rank: warmpath.OnRank(7)})); !errors.Is(err, warmpath.ErrNoRank) {
		t.Errorf("rank 7: %v", err)
	}
}

// Many requests come at the same moment. No holder may get more requests than its limit. The requests beyond the limits
// get ErrSaturated.
func TestNoHolderGetsMoreThanItMay(t *testing.T) {
	const most, requests = 3, 64
	for range 200 {
		w := newWorld(t, warmpath.Options{MaxRequests: most}, vllm(), vllm())
		start := make(chan struct{})
		var group sync.WaitGroup
		var routed atomic.Int64
		for range requests {
			group.Go(func() {
				<-start
				_, err := w.router.Route(context.Background(), request(warmpath.Request{}))
				if err == nil {
					routed.Add(1)
				} else if !errors.Is(err, warmpath.ErrSaturated) {
					t.Error(err)
				}
			})
		}
		close(start)
		group.Wait()
		snap := w.fleet.Snapshot()
		if a, b := snap.Load(0).Requests, snap.Load(1).Requests; a != most || b != most || routed.Load() != 2*most {
			t.Fatalf("%d and %d requests at the holders, %d routed; want %d each", a, b, routed.Load(), most)
		}
	}
}

// A suspect is a worker that seems to be frozen. If the only worker is a suspect, it gets requests even beyond its
// limit.
func TestTheLastHolderMayGetMoreThanItMay(t *testing.T) {
	w := newWorld(t, warmpath.Options{MaxRequests: 1}, vllm())
	w.fleet.Suspect(0, true, 1)
	for i := range int64(3) {
		if d := w.route(warmpath.Request{}); d.Worker == nil || w.fleet.Snapshot().Load(0).Requests != i+1 {
			t.Errorf("request %d: %v", i, d)
		}
	}
}

// Route returns even if an engine reports an impossible number of requests.
func TestAbsurdReportsEndADecision(t *testing.T) {
	w := newWorld(t, warmpath.Options{MaxRequests: 1}, vllm())
	for _, running := range []int64{math.MaxInt64, 1 << 62, -1 << 62} {
		w.fleet.Report(0, fleet.Reported{At: 2, Running: running})
		req := request(warmpath.Request{})
		req.Now = 1
		_, err := w.router.Route(context.Background(), req)
		if _, err2 := w.router.Route(context.Background(), req); err2 == nil || err != nil && !errors.Is(err, warmpath.ErrSaturated) {
			t.Errorf("running %d: %v, %v", running, err, err2)
		}
	}
}

func TestErrorsSayWhy(t *testing.T) {
	w := newWorld(t, warmpath.Options{MaxRequests: 1}, vllm(), vllm())
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	ctx := context.Background()
	check := func(what string, ctx context.Context, req warmpath.Request, want error) {
		t.Helper()
		if d, err := w.router.Route(ctx, request(req)); !errors.Is(err, want) || d != nil {
			t.Errorf("%s: %v, %v; want %v", what, d, err, want)
		}
	}
	check("cancelled", canceled, warmpath.Request{}, context.Canceled)
	check("unknown model", ctx, warmpath.Request{Model: "gpt"}, warmpath.ErrUnknownModel)
	check("unknown policy", ctx, warmpath.Request{Policy: "best"}, warmpath.ErrUnknownPolicy)
	check("direct to nobody", ctx, warmpath.Request{Policy: "direct"}, warmpath.ErrNoTarget)
	check("direct to a stranger", ctx, warmpath.Request{Policy: "direct", Target: "z"}, warmpath.ErrNoTarget)
	check("all tried", ctx, warmpath.Request{Exclude: []fleet.WorkerID{0, 1}}, warmpath.ErrNoWorker)
	first, second := w.route(warmpath.Request{}), w.route(warmpath.Request{})
	check("all busy", ctx, warmpath.Request{}, warmpath.ErrSaturated)
	first.Done(fleet.OutcomeServed, 0)
	second.Done(fleet.OutcomeServed, 0)
	w.fleet.SetHealth(0, false, "gone")
	w.fleet.SetHealth(1, false, "gone")
	check("all dead", ctx, warmpath.Request{}, warmpath.ErrNoWorker)
	for _, l := range []fleet.Load{w.fleet.Snapshot().Load(0), w.fleet.Snapshot().Load(1)} {
		if l.Requests != 0 || l.ContextBlocks != 0 || l.PrefillTokens != 0 {
			t.Errorf("left behind: %+v", l)
		}
	}

	d, err := w.router.Explain(ctx, request(warmpath.Request{}))
	if !errors.Is(err, warmpath.ErrNoWorker) || d == nil {
		t.Fatalf("%v, %v", d, err)
	}
	if want := "kv_aware: no worker of 2 can be used; http://a rank 0: unavailable; http://b rank 0: unavailable"; d.String() != want {
		t.Errorf("%q", d.String())
	}
}

func TestAFailedHolderGivesWayToTheNextBest(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm(), vllm())
	p := prompt(1, 500)
	w.store(0, p, kvindex.Stored{})
	w.store(1, p[:320], kvindex.Stored{})
	first := w.route(warmpath.Request{Tokens: p})
	first.Done(fleet.OutcomeFailed, 0)
	retry := w.route(warmpath.Request{Tokens: p, Exclude: []fleet.WorkerID{first.Worker.ID}})
	if first.Holder != 0 || retry.Holder != 1 || retry.Branch != policy.BranchFallback {
		t.Errorf("%s; %s", first, retry)
	}
	// After three failures in a row, the holder gets no requests for some time. Then one request goes to the holder as a
	// trial.
	for range 2 {
		w.route(warmpath.Request{Tokens: p}).Done(fleet.OutcomeFailed, 0)
	}
	if d := w.route(warmpath.Request{Tokens: p, Now: second}); d.Holder == 0 {
		t.Errorf("%s", d)
	}
	if d := w.route(warmpath.Request{Tokens: p, Now: 3 * second}); d.Holder != 0 {
		t.Errorf("no trial: %s", d)
	}
	if d := w.route(warmpath.Request{Tokens: p, Now: 3 * second}); d.Holder == 0 {
		t.Errorf("a second trial: %s", d)
	}
}

func TestNewSaysAllThatIsWrong(t *testing.T) {
	_, err := warmpath.New(warmpath.Options{BlockSize: -1, MaxRequests: -1, Algorithm: 99})
	for _, want := range []string{"fleet is missing", "block size -1", "limit of -1", "unknown algorithm 99"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	if _, err := warmpath.New(warmpath.Options{Fleet: fleet.New(fleet.Config{}), Policy: policy.Spec{Name: "x", Picker: "lucky"}}); err == nil {
		t.Error("a policy that cannot be built is accepted")
	}
}

func TestABuiltInPolicyCanBeReplaced(t *testing.T) {
	tuned := policy.DefaultKVAware().Spec("kv_aware")
	tuned.ImbalanceTokens = 1000
	w := newWorld(t, warmpath.Options{Policies: []policy.Spec{tuned}, Policy: policy.Spec{Name: "mine"}}, vllm(), vllm())
	p := prompt(1, 64)
	w.store(0, p, kvindex.Stored{})
	w.route(warmpath.Request{Tokens: prompt(2, 5000), Target: "a"})
	if d := w.route(warmpath.Request{Tokens: p, Policy: "kv_aware"}); d.Branch != policy.BranchSpill || d.Holder != 1 {
		t.Errorf("%s", d)
	}
	if d := w.route(warmpath.Request{Tokens: p}); d.Policy != "mine" {
		t.Errorf("%s", d)
	}
}

func TestCandidatesOfAnotherAdapterAreNoneOfOurs(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), fleet.Facts{Models: []fleet.Model{{ID: "llama"}}, BlockSize: 16})
	p := prompt(1, 100)
	w.store(1, p, kvindex.Stored{Scope: block.Scope{LoRA: "sql"}}) // worker 1 unloaded the adapter after this event
	d := w.route(warmpath.Request{Model: "sql", Tokens: p})
	if d.Holder != 0 || d.Base != "llama" || d.LoRA != "sql" || len(d.Candidates) != 1 {
		t.Errorf("%+v", d.Record)
	}
	if slices.ContainsFunc(d.Candidates, func(c policy.Candidate) bool { return c.Match > 0 }) {
		t.Errorf("%+v", d.Candidates)
	}
}

// If many requests with the same prefix come at once, not every worker should compute this prefix. So the router
// expects a prompt at a holder immediately after it has sent the prompt there, before there is an answer or an event.
func TestAPromptIsExpectedAtOnce(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm())
	p := prompt(1, 500)
	w.route(warmpath.Request{Tokens: p, Now: second})
	if d := w.route(warmpath.Request{Tokens: p, Now: second}); d.PredictedTokens != 496 {
		t.Errorf("%d tokens of the same prompt are predicted", d.PredictedTokens)
	}
}
