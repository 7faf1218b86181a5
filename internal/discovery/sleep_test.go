package discovery

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// An engine may be told to sleep or to wake up without the router.
func TestAnEngineThatFallsAsleepByItselfIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchingOne(t)
		defer w.stop()
		is := func(answer string, asleep bool) {
			t.Helper()
			w.set("a", vllm032().with("GET /is_sleeping", answer))
			testenv.Pass(2 * time.Minute)
			if now := w.worker(t, "http://a"); now.Asleep != asleep || now.Ready == asleep {
				t.Errorf("after %s: asleep %v, ready %v", answer, now.Asleep, now.Ready)
			}
		}
		is(`{"is_sleeping":false}`, false)
		is(`{"is_sleeping":true}`, true)
		is(`{"is_sleeping":false}`, false)
		// The gateway says that it sends the engine to sleep; the engine does not sleep yet.
		id := w.worker(t, "http://a").ID
		w.fleet.SetAsleep(id, true)
		is(`{"is_sleeping":false}`, true)
		is(`{"is_sleeping":true}`, true)
		is(`{"is_sleeping":false}`, false)
		for _, unclear := range []string{"404 no", "500 no", "{}", "no JSON"} {
			is(unclear, false)
		}
		w.fleet.SetAsleep(id, true)
		is("404 no", true)
	})
}

// SGLang computes a token for /health, which it cannot while it sleeps.
func TestASleepingSGLangIsNotAskedForAToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newTransport()
		n.set("a", sglang0523())
		w := watching(t, n, Target{URL: "http://a"})
		defer w.stop()
		testenv.Pass(time.Second)
		w.fleet.SetAsleep(w.worker(t, "http://a").ID, true)
		n.set("a", sglang0523().with("GET /health", "500 out of memory"))
		testenv.Pass(2 * time.Minute)
		if now := w.worker(t, "http://a"); !now.Healthy || !now.Asleep {
			t.Errorf("healthy %v, asleep %v: %s", now.Healthy, now.Asleep, now.Why)
		}
		w.fleet.SetAsleep(w.worker(t, "http://a").ID, false)
		testenv.Pass(2 * time.Minute)
		if now := w.worker(t, "http://a"); now.Healthy {
			t.Error("the worker is awake, and its health is not checked")
		}
	})
}
