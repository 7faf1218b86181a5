package warmpath_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/policy/peers"
	"github.com/warmpath/warmpath/test/testenv"
)

// crier tells peers of other routers at once what happens to the requests of one router.
type crier struct {
	peers []*warmpath.Peer
	now   *int64
	told  warmpath.Placement
	heard []string // what was told, in order

	racing bool // it is called concurrently, so it keeps nothing
}

func (c *crier) Placed(d *warmpath.Decision) {
	told := &c.told
	if c.racing {
		told = &warmpath.Placement{}
	}
	d.Placement(told)
	c.note("placed %d", d.ID())
	for _, p := range c.peers {
		if !p.Add(told, *c.now) {
			panic("a peer does not know " + told.URL)
		}
	}
}

func (c *crier) PrefillCompleted(id uint64) {
	c.note("completed %d", id)
	for _, p := range c.peers {
		p.PrefillCompleted(id, *c.now)
	}
}

func (c *crier) Freed(id uint64, e warmpath.Ending) {
	c.note("freed %d %+v", id, e)
	for _, p := range c.peers {
		p.Free(id, e, *c.now)
	}
}

func (c *crier) note(format string, args ...any) {
	if !c.racing {
		c.heard = append(c.heard, fmt.Sprintf(format, args...))
	}
}

// replicas returns n worlds with the same workers, each of which hears at once of the requests of the others.
func replicas(t testing.TB, n int, now *int64, options func() warmpath.Options, workers ...fleet.Facts) ([]*world, []*crier) {
	var worlds []*world
	var criers []*crier
	for range n {
		c := &crier{now: now}
		o := options()
		o.Observer = c
		worlds, criers = append(worlds, newWorld(t, o, workers...)), append(criers, c)
	}
	for i, c := range criers {
		for j, w := range worlds {
			if i != j {
				c.peers = append(c.peers, w.router.NewPeer())
			}
		}
	}
	return worlds, criers
}

// play sends the same requests to each of the worlds in turn, and returns the chosen workers. The time stands still, so
// that nothing is learned from it: each router would learn from its own requests only.
func play(t *testing.T, worlds []*world, now *int64, name string) (chosen []string) {
	random := rand.New(rand.NewPCG(1, 2))
	var open []*warmpath.Decision
	computed := map[*warmpath.Decision]bool{}
	for i := range 300 {
		text := random.IntN(12)
		req := warmpath.Request{
			Model: "llama", Policy: name, Tokens: prompt(text, 64+16*random.IntN(40)), Now: *now, Random: random.Uint64(),
			Session: policy.Session{Key: fmt.Sprint(text), Source: "x-session"}, Tenant: fmt.Sprint(text % 3), Whole: random.IntN(4) == 0,
		}
		if text%2 == 0 {
			req.Text = story(fmt.Sprint(text), 200+random.IntN(2000))
		}
		if name == "direct" {
			req.Target = []string{"a", "b", "c", "d"}[random.IntN(4)]
		}
		w := worlds[i%len(worlds)]
		d, err := w.router.Route(context.Background(), &req)
		if err != nil {
			t.Fatalf("request %d: %v", i, err)
		}
		chosen = append(chosen, fmt.Sprintf("%d %s %s", i, d.Worker.URL, d.Branch))
		open = append(open, d)
		if random.IntN(2) == 0 {
			for at := range open { // engines compute prompts in order
				if open[at].Holder == d.Holder && !computed[open[at]] {
					open[at].FirstToken(*now)
					computed[open[at]] = true
					break
				}
			}
		}
		for len(open) > 0 && random.IntN(8) < 3+len(open)/8 {
			at := random.IntN(len(open))
			if random.IntN(6) == 0 {
				open[at].Unsent()
			}
			open[at].Done(fleet.OutcomeServed, *now)
			delete(computed, open[at])
			open[at].Recycle()
			open = append(open[:at], open[at+1:]...)
		}
	}
	for _, d := range open {
		d.Done(fleet.OutcomeServed, *now)
	}
	return chosen
}

func TestRoutersThatTellEachOtherPlaceAsOne(t *testing.T) {
	for _, kind := range warmpath.PolicyKinds() {
		if kind.Defaults().Validate() != nil {
			continue // it needs settings
		}
		t.Run(kind.Name, func(t *testing.T) {
			options := func() warmpath.Options { return warmpath.Options{Policy: kind.Defaults().Spec(kind.Name)} }
			var now int64 = 1_000_000 * second
			one := newWorld(t, options(), vllm(), vllm(), vllm(), vllm())
			want := play(t, []*world{one}, &now, kind.Name)
			now = 1_000_000 * second
			three, criers := replicas(t, 3, &now, options, vllm(), vllm(), vllm(), vllm())
			got := play(t, three, &now, kind.Name)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("three routers place otherwise than one (-one +three):\n%s", diff)
			}
			for i, c := range criers {
				for _, p := range c.peers {
					if n := p.Len(); n != 0 {
						t.Errorf("a peer still has %d requests of router %d", n, i)
					}
				}
				for h := range fleet.Holder(4) {
					l := three[i].fleet.Snapshot().Load(h)
					l.Processed, l.Turns, l.Peers.Processed = 0, 0, 0
					if l != (fleet.Load{}) {
						t.Errorf("router %d has load left on holder %d: %+v", i, h, l)
					}
				}
			}
		})
	}
}

// heard returns a peer of w, and a placement of another router at the worker http://a, of a prompt with these tokens.
func heard(t testing.TB, w *world, tokens []block.Token) (*warmpath.Peer, *warmpath.Placement) {
	t.Helper()
	var now int64
	c := &crier{now: &now}
	other := newWorld(t, warmpath.Options{Observer: c}, vllm(), vllm())
	d := other.route(warmpath.Request{Tokens: tokens, Target: "a", Now: second})
	defer d.Recycle()
	return w.router.NewPeer(), &c.told
}

func TestAPeersRequestIsLoadUntilItEnds(t *testing.T) {
	w := newWorld(t, warmpath.Options{MaxRequests: 2}, vllm(), vllm())
	p, pl := heard(t, w, prompt(1, 640))
	if !p.Add(pl, second) || p.Len() != 1 || !p.Has(pl.ID) {
		t.Fatal("the request was not taken")
	}
	l := w.fleet.Snapshot().Load(0)
	if l.Requests != 1 || l.Waiting != 1 || l.PrefillTokens != 640 || l.ContextBlocks != 40 || l.ContextTokens != 640 || l.Turns != 1000 {
		t.Errorf("%+v", l)
	}
	if own := l.Own(); own.Requests != 0 || own.Waiting != 0 || own.PrefillTokens != 0 || own.Processed != 0 {
		t.Errorf("this router sent nothing, but its own load is %+v", own)
	}
	d := w.route(warmpath.Request{Tokens: prompt(1, 640), Target: "a", Now: second}) // the same prompt: its blocks count once
	if l := w.fleet.Snapshot().Load(0); l.Requests != 2 || l.ContextBlocks != 40 || l.ContextTokens != 1280 || l.Own().Requests != 1 {
		t.Errorf("with the same prompt of this router: %+v", l)
	}
	if _, err := w.router.Route(context.Background(), request(warmpath.Request{Tokens: prompt(2, 64), Target: "a", Now: second})); err == nil {
		t.Error("the limit of requests does not count those of peers")
	}
	d.Done(fleet.OutcomeServed, 2*second)
	p.PrefillCompleted(pl.ID, 2*second)
	if l := w.fleet.Snapshot().Load(0); l.Requests != 1 || l.Waiting != 0 || l.PrefillTokens != 0 {
		t.Errorf("after the first token: %+v", l)
	}
	if n := w.fleet.Snapshot().LoadAt(0, 4*second).OutputTokens; n < 20 || n > 200 {
		t.Errorf("two seconds after the first token, the answer is estimated to have %d tokens", n)
	}
	p.Free(pl.ID, warmpath.Ending{Outcome: fleet.OutcomeServed}, 4*second)
	p.Free(pl.ID, warmpath.Ending{Outcome: fleet.OutcomeServed}, 4*second)
	if l := w.fleet.Snapshot().LoadAt(0, 5*second); l.Requests != 0 || l.ContextBlocks != 0 || l.ContextTokens != 0 || l.OutputTokens != 0 || p.Len() != 0 {
		t.Errorf("after the end: %+v", l)
	}
}

func TestAPeersPromptIsExpectedInTheCacheUnlessItWasNotSent(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	p, pl := heard(t, w, prompt(1, 640))
	predicted := func() (n int) {
		d := w.explain(warmpath.Request{Tokens: prompt(1, 640), Now: second + 1})
		for i := range d.Candidates {
			if d.Candidates[i].Holder == 0 {
				n = d.Candidates[i].Predicted
			}
		}
		return n
	}
	p.Add(pl, second)
	if n := predicted(); n != 624 {
		t.Errorf("%d tokens are expected after a peer sent the prompt", n)
	}
	p.Free(pl.ID, warmpath.Ending{Unsent: true}, second)
	if n := predicted(); n != 0 {
		t.Errorf("%d tokens are expected although the prompt was not computed", n)
	}
}

// A peer may tell of a request again, such as to a router that joins. No event ends what is expected of workers without
// events, so it must not count longer than at the router that sent the request.
func TestALatePlacementIsExpectedForAsLongAsAtItsRouter(t *testing.T) {
	now := int64(1000 * second)
	w := newWorld(t, warmpath.Options{ApproximateTTL: time.Minute}, vllm(), vllm())
	w.fleet.SetTrust(0, fleet.TrustApproximate, "test")
	p, pl := heard(t, w, prompt(1, 640))
	pl.Age = 50 * time.Second
	p.Add(pl, now)
	predicted := func(now int64) (n int) {
		d := w.explain(warmpath.Request{Tokens: prompt(1, 640), Now: now})
		for i := range d.Candidates {
			if d.Candidates[i].Holder == 0 {
				n = d.Candidates[i].Predicted
			}
		}
		return n
	}
	if n := predicted(now + 1); n != 624 {
		t.Errorf("%d tokens are expected 50 s after the request was sent", n)
	}
	if n := predicted(now + 11*second); n != 0 {
		t.Errorf("%d tokens are expected 61 s after the request was sent", n)
	}
}

func TestWhatAPeerTellsTwiceCountsOnce(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	p, pl := heard(t, w, prompt(1, 640))
	p.Add(pl, second)
	again := *pl
	again.PrefillCompleted = true
	if !p.Add(&again, second) {
		t.Error("a request that is known is refused")
	}
	if l := w.fleet.Snapshot().Load(0); l.Requests != 1 || l.Waiting != 0 {
		t.Errorf("%+v", l)
	}
	if n := p.Retain(func(id uint64) bool { return id == pl.ID }, 2*second); n != 0 {
		t.Errorf("%d requests were dropped", n)
	}
	if n := p.Retain(func(uint64) bool { return false }, 2*second); n != 1 || w.fleet.Snapshot().Load(0).Requests != 0 {
		t.Errorf("%d requests were dropped, load %+v", n, w.fleet.Snapshot().Load(0))
	}
	p.Add(pl, 3*second)
	p.Close(3 * second)
	if l := w.fleet.Snapshot().Load(0); l.Requests != 0 || p.Len() != 0 {
		t.Errorf("after Close: %+v", l)
	}
}

func TestAPlacementThatMakesNoSenseChangesNothing(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	p, good := heard(t, w, prompt(1, 640))
	for name, change := range map[string]func(*warmpath.Placement){
		"an unknown worker": func(pl *warmpath.Placement) { pl.URL = "http://z" },
		"an unknown rank":   func(pl *warmpath.Placement) { pl.Rank = 1 },
		"a negative rank":   func(pl *warmpath.Placement) { pl.Rank = -1 },
		"no id":             func(pl *warmpath.Placement) { pl.ID = 0 },
		"an unknown leg":    func(pl *warmpath.Placement) { pl.Leg = 9 },
	} {
		pl := *good
		if change(&pl); p.Add(&pl, second) {
			t.Errorf("%s: the placement was taken", name)
		}
	}
	if l := w.fleet.Snapshot().Load(0); l != (fleet.Load{}) {
		t.Errorf("%+v", l)
	}
	for name, change := range map[string]func(*warmpath.Placement){
		"an unknown model":   func(pl *warmpath.Placement) { pl.Model, pl.Base = "gpt", "gpt" },
		"an unknown policy":  func(pl *warmpath.Placement) { pl.Policy = "oracle" },
		"another block size": func(pl *warmpath.Placement) { pl.BlockSize = 48 },
		"no block size":      func(pl *warmpath.Placement) { pl.BlockSize = 0 },
		"a huge block size":  func(pl *warmpath.Placement) { pl.BlockSize = math.MaxInt },
		"negative figures":   func(pl *warmpath.Placement) { pl.PromptTokens, pl.UncachedTokens, pl.ContextBlocks = -1, -1, -1 },
		"huge figures": func(pl *warmpath.Placement) {
			pl.PromptTokens, pl.UncachedTokens, pl.Choices = math.MaxInt, math.MaxInt, math.MaxInt
		},
		"a level that is wrong":  func(pl *warmpath.Placement) { pl.Levels = []fleet.ServiceLevel{{FirstToken: -1}} },
		"a wait of a century":    func(pl *warmpath.Placement) { pl.Waited = math.MaxInt64 },
		"a trust beyond exact":   func(pl *warmpath.Placement) { pl.Trust = 200 },
		"an unknown tenant":      func(pl *warmpath.Placement) { pl.Tenant = "nobody" },
		"an unknown look-ahead":  func(pl *warmpath.Placement) { pl.Ahead, pl.AheadKeys = 7, pl.Keys },
		"an answer in one piece": func(pl *warmpath.Placement) { pl.Whole = true },
		"a slash at the URL":     func(pl *warmpath.Placement) { pl.URL += "/" },
	} {
		pl := *good
		if change(&pl); !p.Add(&pl, second) || w.fleet.Snapshot().Load(0).Requests != 1 {
			t.Errorf("%s: the load was not taken", name)
		}
		w.fleet.Snapshot().LoadAt(0, 2*second)
		p.PrefillCompleted(pl.ID, 2*second)
		p.Free(pl.ID, warmpath.Ending{OutputTokens: math.MinInt}, 3*second)
		if l := w.fleet.Snapshot().Load(0); l.Requests != 0 || l.PrefillTokens != 0 || l.ContextBlocks != 0 || l.ContextTokens != 0 {
			t.Errorf("%s: load is left: %+v", name, l)
		}
	}
	if n := len(w.router.IndexStats()); n != 1 {
		t.Errorf("there are indexes of %d models, and one model is served", n)
	}
}

func TestThePeersOldestRequestsAreForgottenWhenItTellsOfTooMany(t *testing.T) {
	if testenv.Race() {
		t.Skip("it takes half a minute with the race detector, and has one goroutine")
	}
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	p, pl := heard(t, w, prompt(1, 64))
	const most, more = 1 << 16, 10
	for id := uint64(1); id <= most+more; id++ {
		pl.ID = id
		p.Add(pl, second)
	}
	if p.Len() != most || p.Forgotten() != more || p.Has(more) || !p.Has(more+1) || !p.Has(most+more) {
		t.Errorf("%d requests, %d forgotten; the oldest is there: %v, the newest: %v", p.Len(), p.Forgotten(), p.Has(more), p.Has(most+more))
	}
	if l := w.fleet.Snapshot().Load(0); l.Requests != most || l.ContextBlocks != 4 {
		t.Errorf("%+v", l)
	}
	p.Close(second)
	if l := w.fleet.Snapshot().Load(0); l.Requests != 0 || l.ContextBlocks != 0 {
		t.Errorf("after Close: %+v", l)
	}
}

// The newest requests keep their keys, so that their prompts are no longer expected if they were not sent.
func TestTheKeysOfAPeersRequestsAreBounded(t *testing.T) {
	if testenv.Race() {
		t.Skip("it takes half a minute with the race detector, and has one goroutine")
	}
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	p, pl := heard(t, w, prompt(1, 640))
	pl.Keys = make([]block.Key, warmpath.MaxPlacementKeys+1)
	pl.PromptTokens = 16 * len(pl.Keys)
	const requests, fit = 150, 1 << 21 / warmpath.MaxPlacementKeys
	for id := uint64(1); id <= requests; id++ {
		for i := range pl.Keys {
			pl.Keys[i] = block.Key(id<<32 + uint64(i))
		}
		pl.ID = id
		if !p.Add(pl, second) {
			t.Fatal("a request is refused because of its keys")
		}
	}
	if l := w.fleet.Snapshot().Load(0); l.Requests != requests {
		t.Errorf("%+v", l)
	}
	if counted, held, _ := p.HeldKeys(); held != 1<<21 || counted != held || p.KeysDropped() != requests-fit {
		t.Errorf("%d keys are held, %d are counted, and %d requests lost theirs", held, counted, p.KeysDropped())
	}
	expected := func() int64 { return w.router.IndexStats()[0].Speculative }
	for id, removes := range map[uint64]bool{1: false, requests: true} {
		before := expected()
		p.Free(id, warmpath.Ending{Unsent: true}, second)
		if (expected() < before) != removes {
			t.Errorf("request %d was not sent: %d blocks are expected before, and %d after it", id, before, expected())
		}
	}
	p.Close(second)
	if l := w.fleet.Snapshot().Load(0); l.Requests != 0 || l.ContextBlocks != 0 {
		t.Errorf("after Close: %+v", l)
	}
}

// All peers of a router share a bound. What is counted returns to 0 whatever order requests end in.
func TestTheKeysOfAllPeersAreBounded(t *testing.T) {
	if testenv.Race() {
		t.Skip("it takes half a minute with the race detector, and has one goroutine")
	}
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	_, pl := heard(t, w, prompt(1, 640))
	keys := make([]block.Key, warmpath.MaxPlacementKeys)
	pl.PromptTokens, pl.BlockSize = 16*len(keys), 32 // of another block size than the index: nothing is learned
	all := make([]*warmpath.Peer, 12)
	for i := range all {
		all[i] = w.router.NewPeer()
	}
	random := rand.New(rand.NewPCG(1, 1))
	most, dropped := int64(0), uint64(0)
	check := func(p *warmpath.Peer) {
		t.Helper()
		counted, held, sum := p.HeldKeys()
		if counted != held || held > 1<<21 || sum > 1<<24 {
			t.Fatalf("%d keys are held, %d are counted, and %d of all peers", held, counted, sum)
		}
		most = max(most, sum)
	}
	for range 8000 {
		p := all[random.IntN(len(all))]
		switch n := random.IntN(100); {
		case n < 70:
			pl.ID, pl.Keys = 1+random.Uint64N(400), keys[:random.IntN(len(keys))]
			if pl.Ahead = 0; random.IntN(4) == 0 {
				pl.AheadKeys, pl.Ahead = pl.Keys, 1
			}
			p.Add(pl, second)
		case n < 99:
			p.Free(1+random.Uint64N(400), warmpath.Ending{Unsent: random.IntN(2) == 0}, second)
		default:
			p.Retain(func(id uint64) bool { return id%2 == 0 }, second)
		}
		pl.AheadKeys = nil
		check(p)
	}
	for _, p := range all {
		dropped += p.KeysDropped()
		p.Close(second)
		check(p)
	}
	if _, _, sum := all[0].HeldKeys(); sum != 0 || most < 1<<24*9/10 || dropped == 0 {
		t.Errorf("%d keys at the end, %d at most, %d requests lost theirs", sum, most, dropped)
	}
}

// What is told of a long prompt is what a message carries: nothing more is copied for each request.
func TestALongPromptIsToldByItsBeginning(t *testing.T) {
	var now int64
	for _, by := range []string{"text", "tokens"} {
		kind := peers.DefaultCacheAware()
		kind.By = by
		c := &crier{now: &now}
		w := newWorld(t, warmpath.Options{Observer: c, Policy: kind.Spec("cache_aware")}, vllm(), vllm())
		const blocks = warmpath.MaxPlacementKeys + 5
		tokens, text := prompt(1, 16*blocks), story("long", warmpath.MaxPlacementText+100)
		d := w.route(warmpath.Request{Tokens: tokens, Text: text, Now: second})
		if told := &c.told; len(told.Keys) != 1<<14 || !slices.Equal(told.Keys, d.Keys()[:1<<14]) || told.PromptTokens != len(tokens) {
			t.Errorf("%d keys of %d tokens", len(told.Keys), told.PromptTokens)
		}
		if told := c.told.Text; by == "text" && (len(told) != 64<<10 || !bytes.HasPrefix(text, told)) {
			t.Errorf("%d bytes of text", len(told))
		}
		if told := c.told.Tokens; by == "tokens" && (len(told) != 1<<14 || !slices.Equal(told, tokens[:1<<14])) {
			t.Errorf("%d tokens", len(told))
		}
		d.Done(fleet.OutcomeServed, second)
	}
}

// fragile is a chooser that takes the first candidate, and panics when it is told that a request is sent.
type fragile struct{ policy.Stateless }

func (fragile) Choose(*policy.Query, []policy.Candidate) policy.Pick { return policy.Pick{} }
func (fragile) Routed(*policy.Query, *policy.Candidate)              { panic("fragile") }

func TestAPolicyThatPanicsLeaksNoLoadOfAPeer(t *testing.T) {
	w := newWorld(t, warmpath.Options{Policies: []policy.Spec{{Name: "fragile", Chooser: func() policy.Chooser { return fragile{} }}}}, vllm(), vllm())
	p, pl := heard(t, w, prompt(1, 640))
	pl.Policy = "fragile"
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is swallowed")
			}
		}()
		p.Add(pl, second)
	}()
	if l := w.fleet.Snapshot().Load(0); l.Requests != 0 || l.ContextBlocks != 0 || p.Len() != 0 {
		t.Errorf("%d requests of the peer, load %+v", p.Len(), l)
	}
	pl.Policy = "kv_aware"
	if !p.Add(pl, second) {
		t.Error("after a panic nothing is taken any more")
	}
}

func TestHealthDoesNotDependOnPeers(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	for range 3 {
		w.fleet.Observe(0, fleet.OutcomeFailed, second)
	}
	p, pl := heard(t, w, prompt(1, 640))
	until := w.fleet.Snapshot().BlockedUntil(0)
	if until == 0 || !p.Add(pl, until+1) {
		t.Fatal("the breaker is closed, or the request is refused")
	}
	if !w.fleet.Snapshot().Available(0, until+1) {
		t.Error("a peer's request is the breaker's trial")
	}
	if s := w.fleet.Snapshot().Silence(0); s != 0 {
		t.Errorf("the holder is silent since %d, but this router has no request there", s)
	}
	if leaks := w.fleet.Expire(until + int64(fleet.DefaultExpiry) + 2*second); leaks != 0 || w.fleet.Snapshot().Load(0).Requests != 0 {
		t.Errorf("%d leaks, load %+v", leaks, w.fleet.Snapshot().Load(0))
	}
	if n := p.Retain(func(uint64) bool { return true }, 2*until); n != 1 {
		t.Errorf("%d requests dropped: an expired request is told again", n)
	}
}

func TestRequestsOfPeersRaceWithEverything(t *testing.T) {
	var now int64 = second
	three, criers := replicas(t, 3, &now, func() warmpath.Options { return warmpath.Options{} }, vllm(), vllm())
	for _, c := range criers {
		c.racing = true
	}
	var all sync.WaitGroup
	for i, w := range three {
		for g := range 2 {
			all.Go(func() {
				random := rand.New(rand.NewPCG(uint64(i), uint64(g)))
				for range 200 {
					d, err := w.router.Route(context.Background(), request(warmpath.Request{Tokens: prompt(random.IntN(8), 320), Now: second, Random: random.Uint64()}))
					if err != nil {
						t.Error(err)
						return
					}
					d.FirstToken(second)
					if random.IntN(4) == 0 {
						d.Unsent()
					}
					d.Done(fleet.OutcomeServed, second)
					d.Recycle()
				}
			})
		}
		all.Go(func() {
			for range 50 {
				for _, p := range criers[i].peers {
					p.Retain(func(uint64) bool { return true }, second)
					p.Len()
				}
				w.router.Forget(0)
				w.fleet.Expire(second)
			}
		})
	}
	all.Wait()
	for _, c := range criers {
		for _, p := range c.peers {
			p.Close(second)
		}
	}
	for i, w := range three {
		for h := range fleet.Holder(2) {
			if l := w.fleet.Snapshot().Load(h); l.Requests != 0 || l.ContextBlocks != 0 || l.PrefillTokens != 0 {
				t.Errorf("router %d, holder %d: %+v", i, h, l)
			}
		}
	}
}

func TestTheLegsOfADividedRequestAreToldApart(t *testing.T) {
	var now int64 = second
	o := func() warmpath.Options { return marginalOptions(policy.ModeAlways) }
	two, criers := replicas(t, 2, &now, o, serving(fleet.RolePrefill), serving(fleet.RoleDecode))
	d := two[0].route(warmpath.Request{Tokens: prompt(1, 4096), Now: now})
	if d.Prefill == nil {
		t.Fatalf("not divided: %s", d)
	}
	same := func(when string) {
		t.Helper()
		for h := range fleet.Holder(2) {
			a, b := two[0].fleet.Snapshot().Load(h), two[1].fleet.Snapshot().Load(h)
			if b.Peers = a.Peers; a != b {
				t.Errorf("%s, holder %d: %+v at the router that sent it, %+v at its peer", when, h, a, b)
			}
		}
	}
	same("placed")
	d.PrefillDone(fleet.OutcomeServed, now)
	same("prefilled")
	d.FirstToken(now)
	same("first token")
	d.Done(fleet.OutcomeServed, now)
	same("ended")
	want := []string{
		"placed 1", "placed 2", "completed 1", "freed 1 {Unsent:false Outcome:served OutputTokens:0}", "completed 2",
		"freed 2 {Unsent:false Outcome:served OutputTokens:0}",
	}
	if diff := cmp.Diff(want, criers[0].heard); diff != "" {
		t.Error(diff)
	}
}

func TestTellingDoesNotAllocate(t *testing.T) {
	w := newWorld(t, warmpath.Options{Observer: &quiet{}}, vllm(), vllm())
	req := request(warmpath.Request{Tokens: prompt(1, 4096), Now: second})
	route := func() {
		d, err := w.router.Route(context.Background(), req)
		if err != nil {
			t.Fatal(err)
		}
		d.FirstToken(second)
		d.Done(fleet.OutcomeServed, second)
		d.Recycle()
	}
	if testenv.Race() {
		t.Skip("the race detector allocates")
	}
	route()
	if n := testing.AllocsPerRun(200, route); n > 0 {
		t.Errorf("%v allocations for each request that is told", n)
	}
}

// quiet is an observer that fills a placement, and sends it nowhere.
type quiet struct{ told warmpath.Placement }

func (q *quiet) Placed(d *warmpath.Decision) { d.Placement(&q.told) }
func (*quiet) PrefillCompleted(uint64)       {}
func (*quiet) Freed(uint64, warmpath.Ending) {}

func BenchmarkTelling(b *testing.B) {
	for _, c := range []struct {
		name     string
		observer warmpath.Observer
	}{{"nobody", nil}, {"observer", &quiet{}}} {
		b.Run(c.name, func(b *testing.B) {
			w := newWorld(b, warmpath.Options{Observer: c.observer}, vllm(), vllm(), vllm(), vllm(), vllm(), vllm(), vllm(), vllm())
			req := request(warmpath.Request{Tokens: prompt(1, 8192), Now: second})
			b.ReportAllocs()
			for b.Loop() {
				d, err := w.router.Route(context.Background(), req)
				if err != nil {
					b.Fatal(err)
				}
				d.FirstToken(second)
				d.Done(fleet.OutcomeServed, second)
				d.Recycle()
			}
		})
	}
	b.Run("hearing", func(b *testing.B) {
		w := newWorld(b, warmpath.Options{}, vllm(), vllm())
		p, pl := heard(b, w, prompt(1, 8192))
		b.ReportAllocs()
		for b.Loop() {
			p.Add(pl, second)
			p.PrefillCompleted(pl.ID, second)
			p.Free(pl.ID, warmpath.Ending{}, second)
		}
	})
}

// A policy may still look at a list of requests under way when a request of it ends, and its memory is used again.
func TestTheServiceLevelsOfARequestStayAsTheyAre(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm())
	p, pl := heard(t, w, prompt(1, 640))
	var lists [][]fleet.Underway
	want := []fleet.ServiceLevel{{FirstToken: time.Second}, {FirstToken: 2 * time.Second}}
	for i, level := range want {
		pl.ID, pl.Levels = uint64(i+1), []fleet.ServiceLevel{level}
		p.Add(pl, second)
		list, _ := w.fleet.Snapshot().AppendUnderway(nil, 0, second, 10)
		lists = append(lists, list)
		p.Free(pl.ID, warmpath.Ending{}, second)
	}
	for i, list := range lists {
		if len(list) != 1 || !slices.Equal(list[0].Levels, want[i:i+1]) {
			t.Errorf("list %d: %+v, want the level %+v", i, list, want[i])
		}
	}
}

// The memory of a map does not shrink by itself: a peer whose requests have ended has a new one.
func TestRequestsOfAPeerThatHaveEndedTakeNoMemory(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm())
	_, pl := heard(t, w, prompt(1, 640))
	pl.Keys = nil
	const requests, few = 1 << 13, 1 << 11 // few is maxToldShare: less memory is no loss
	p := w.router.NewPeer()
	for id := range uint64(requests) {
		pl.ID = id + 1
		p.Add(pl, second)
	}
	before, most := p.Memory()
	if n := p.Len(); n != requests || most != requests {
		t.Fatalf("%d requests, and memory for %d", n, most)
	}
	for id := range uint64(requests - 1) {
		p.Free(id+1, warmpath.Ending{}, second)
	}
	if p.Len() != 1 || !p.Has(requests) {
		t.Error("the last request is lost")
	}
	after, most := p.Memory()
	if most > few || reflect.ValueOf(after).Pointer() == reflect.ValueOf(before).Pointer() {
		t.Errorf("one request has memory for %d", most)
	}
}
