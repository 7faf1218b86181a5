package replica

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy/peers"
	"github.com/warmpath/warmpath/test/testenv"
)

// countRestart makes the router see another process behind the URL of its worker 0.
func (m *member) countRestart() {
	m.t.Helper()
	id, _ := m.fleet.Find("http://w0")
	m.fleet.Refused(id)
	if !m.fleet.Answered(id, fleet.Signs{}) {
		m.t.Fatal("the restart is not seen")
	}
}

// restart is countRestart, and forgets the prompts of the earlier process.
func (m *member) restart() {
	m.t.Helper()
	m.countRestart()
	for h := range fleet.Holder(m.fleet.Snapshot().Holders()) {
		m.router.ForgetLearned(h)
	}
}

// expected returns how many tokens of prompt 1 the router expects at its worker.
func (m *member) expected() int {
	d := m.route(1, 640, "")
	defer done(d)
	d.Unsent()
	return d.PredictedTokens
}

// A worker without events got a prompt. Only the memory of the routers says what it has, and its process may end.
func TestARouterThatJoinsExpectsNoPromptOfAnEarlierProcess(t *testing.T) {
	for name, test := range map[string]struct {
		work     func(one *member)
		expected bool
		requests int64
	}{
		"the same process": {func(one *member) { done(one.route(1, 640, "")) }, true, 0},
		"a restart before the request": {func(one *member) {
			one.restart()
			done(one.route(1, 640, ""))
		}, true, 0},
		"a restart after the request": {func(one *member) {
			done(one.route(1, 640, ""))
			one.restart()
		}, false, 0},
		"a restart during the request": {func(one *member) {
			d := one.route(1, 640, "")
			one.restart()
			done(d)
		}, false, 0},
		"a request under way since before the restart": {func(one *member) {
			one.route(1, 640, "")
			one.restart()
		}, false, 1},
		"a worker that was replaced": {func(one *member) {
			done(one.route(1, 640, ""))
			id, _ := one.fleet.Find("http://w0")
			one.fleet.Remove(id)
			one.worker(0)
		}, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBus(1)
				b.approximate = 5 * time.Minute
				one := b.join(t, DefaultConfig(), 1, nil)
				testenv.Pass(time.Second)
				test.work(one)
				testenv.Pass(time.Second)
				two := b.join(t, DefaultConfig(), 1, nil)
				for range 3 {
					two.countRestart() // its count of restarts says nothing about that of the other router
				}
				testenv.Pass(time.Second)
				if n := two.requests(); n != test.requests {
					t.Errorf("%d requests under way, want %d", n, test.requests)
				}
				if n := two.expected(); n > 0 != test.expected {
					t.Errorf("%d tokens are expected", n)
				}
			})
		})
	}
}

// The router that joins has not reached the worker yet. It expects the prompt once the worker answers, unless another
// process answers.
func TestAPromptWaitsForTheProcessThatHasIt(t *testing.T) {
	for _, ended := range []bool{true, false} {
		for _, restarted := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				b := newBus(1)
				b.approximate = 5 * time.Minute
				one := b.join(t, DefaultConfig(), 1, nil)
				if d := one.route(1, 640, ""); ended {
					done(d)
				}
				two := b.join(t, DefaultConfig(), 0, nil)
				testenv.Pass(time.Second)
				two.fleet.Expect([]string{"http://w0"}, "not probed yet")
				testenv.Pass(time.Minute)
				if restarted {
					two.restart()
				}
				two.worker(0)
				id, _ := two.fleet.Find("http://w0")
				two.fleet.SetHealth(id, true, "")
				testenv.Pass(2 * lookInterval)
				if n := two.expected(); n > 0 == restarted {
					t.Errorf("ended %v, restarted %v: %d tokens are expected", ended, restarted, n)
				}
			})
		}
	}
}

// A session stays at a worker whose process was replaced, as it does at the routers that run. It does not move to
// another worker that got the address.
func TestARouterThatJoinsKeepsTheSessionsOfAnEarlierProcess(t *testing.T) {
	const talks = 16
	for _, replaced := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newBus(1)
			b.policy, b.approximate = peers.DefaultSessionAffinity().Spec("session_affinity"), 5*time.Minute
			one := b.join(t, DefaultConfig(), 1, nil)
			for i := range talks {
				done(one.route(1, 640, fmt.Sprint("talk ", i)))
			}
			if replaced {
				id, _ := one.fleet.Find("http://w0")
				one.fleet.Remove(id)
				one.worker(0)
			} else {
				one.restart()
			}
			testenv.Pass(promptOld + time.Second)
			two := b.join(t, DefaultConfig(), 4, nil)
			testenv.Pass(time.Second)
			stayed := 0
			for i := range talks {
				d := two.route(2, 64, fmt.Sprint("talk ", i))
				if d.Worker.URL == "http://w0" {
					stayed++
				}
				done(d)
			}
			if stayed == talks == replaced {
				t.Errorf("replaced %v: %d of %d talks stay", replaced, stayed, talks)
			}
		})
	}
}
