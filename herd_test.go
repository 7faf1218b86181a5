package warmpath_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/policy"
)

// late returns two routers in front of four workers. Each has heard of many short requests of the other, all of which
// have ended, and knows that messages take the given time. Neither hears of what is placed afterwards.
func late(t *testing.T, delay time.Duration, replicas bool) [2]*world {
	t.Helper()
	var both [2]*world
	for i := range both {
		w := newWorld(t, warmpath.Options{Policy: policy.DefaultLeastLoad().Spec("least_load")}, vllm(), vllm(), vllm(), vllm())
		p, pl := heard(t, w, prompt(1, 640))
		p.SetDelay(delay)
		if replicas {
			w.router.SetReplicas(i, 2)
		}
		for n := range int64(40) {
			pl.ID = uint64(n + 1)
			pl.URL = []string{"http://a", "http://b"}[n%2]
			p.Add(pl, second+n*second/100)
			p.Free(pl.ID, warmpath.Ending{Outcome: fleet.OutcomeServed}, second+n*second/100)
		}
		both[i] = w
	}
	return both
}

// collisions returns how many of 100 pairs of requests, one at each router at the same moment, go to the same worker.
func collisions(both [2]*world) (n int) {
	random := rand.New(rand.NewPCG(3, 4))
	for i := range 100 {
		var chosen [2]*warmpath.Decision
		for k, w := range both {
			chosen[k] = w.route(warmpath.Request{Tokens: prompt(100+2*i+k, 640), Now: 2 * second, Random: random.Uint64()})
		}
		if chosen[0].Worker.URL == chosen[1].Worker.URL {
			n++
		}
		for _, d := range chosen {
			d.Done(fleet.OutcomeServed, 2*second)
		}
	}
	return n
}

func TestRoutersThatHearLateChooseDifferentWorkers(t *testing.T) {
	if n := collisions(late(t, 0, true)); n < 20 {
		t.Errorf("%d of 100 pairs collide without a delay: the test shows nothing", n)
	}
	if n := collisions(late(t, time.Second, false)); n < 20 {
		t.Errorf("%d of 100 pairs collide if the routers do not know their numbers", n)
	}
	if n := collisions(late(t, time.Second, true)); n != 0 {
		t.Errorf("%d of 100 pairs of requests collide", n)
	}
}

func TestALongerMatchIsFollowedToTheWorkerOfAnotherRouter(t *testing.T) {
	for h := range fleet.Holder(4) {
		for i, w := range late(t, time.Second, true) {
			w.store(h, prompt(7, 640), kvindex.Stored{})
			if d := w.route(warmpath.Request{Tokens: prompt(7, 640), Policy: "kv_aware", Now: 2 * second}); d.Holder != h {
				t.Errorf("router %d: the prompt is cached on holder %d, and goes to %d", i, h, d.Holder)
			}
		}
	}
}

func TestAWorkerIsNotFullBecauseOfRequestsThatAreOnlyExpected(t *testing.T) {
	for _, most := range []int{1, 2} {
		w := newWorld(t, warmpath.Options{MaxRequests: most}, vllm(), vllm())
		p, pl := heard(t, w, prompt(1, 640))
		p.SetDelay(time.Minute)
		w.router.SetReplicas(0, 2)
		for n := range int64(3) {
			pl.ID = uint64(n + 1)
			p.Add(pl, second+n)
			p.Free(pl.ID, warmpath.Ending{}, second+n)
		}
		for range 2 * most {
			w.route(warmpath.Request{Tokens: prompt(2, 64), Now: 2 * second}) // it fails if no worker has room
		}
	}
}

func TestAPeerThatLeftIsNotExpectedToPlaceRequests(t *testing.T) {
	w := newWorld(t, warmpath.Options{}, vllm(), vllm())
	p, pl := heard(t, w, prompt(1, 640))
	p.SetDelay(time.Second)
	w.router.SetReplicas(0, 2)
	others := func() (n int64) {
		d := w.explain(warmpath.Request{Tokens: prompt(2, 64), Now: 2 * second})
		for i := range d.Candidates {
			n += d.Candidates[i].Load.Others.Requests
		}
		return n
	}
	for n := range int64(3) {
		pl.ID = uint64(n + 1)
		p.Add(pl, second+n)
	}
	if n := others(); n != 1 {
		t.Errorf("%d requests are expected on the worker of the peer", n)
	}
	p.Close(2 * second)
	if n := others(); n != 0 {
		t.Errorf("%d requests are expected of a peer that left", n)
	}
}
