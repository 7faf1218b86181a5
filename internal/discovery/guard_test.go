package discovery

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// still answers the requests to all workers without a network. Each answer comes after the time in the field takes. A
// frozen worker answers when it is no longer frozen.
type still struct {
	frozen atomic.Pointer[string] // host of the frozen worker
	asked  atomic.Int64           // number of questions for a sign of life
	takes  atomic.Int64           // time until an answer, in nanoseconds
}

func (n *still) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == "/v1/models" {
		n.asked.Add(1)
	}
	for f := n.frozen.Load(); f != nil && *f == r.URL.Host; f = n.frozen.Load() {
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
	select {
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case <-time.After(time.Duration(n.takes.Load())):
	}
	switch r.URL.Path {
	case "/metrics":
		return answer(r, `vllm:num_requests_running{engine="0"} 1`+"\n"+`vllm:num_requests_waiting{engine="0"} 0`+"\n"), nil
	case "/v1/loads":
		return answer(r, `{"loads":[{"dp_rank":0,"num_running_reqs":1}]}`), nil
	}
	return &http.Response{StatusCode: http.StatusUnauthorized, Body: io.NopCloser(strings.NewReader("who are you")), Request: r}, nil
}

func answer(r *http.Request, body string) *http.Response {
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body)), Request: r}
}

func (n *still) freeze(host string) { n.frozen.Store(&host) }

// guarding runs a reporter for workers a and b, each with a running request, and calls test.
func guarding(t *testing.T, test func(f *fleet.Fleet, n *still, requests *[2]fleet.Reservation)) {
	synctest.Test(t, func(t *testing.T) {
		n := &still{}
		f := fleet.New(fleet.Config{})
		var requests [2]fleet.Reservation
		for i, url := range []string{"http://a", "http://b"} {
			f.Put(url, fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "m"}}})
			f.Reserve(&requests[i], fleet.Holder(i), fleet.Work{UncachedTokens: 100, PromptTokens: 100}, time.Now().UnixNano())
		}
		r := NewReporter(f, DefaultReportsConfig(), nil, &http.Client{Transport: n}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- r.Run(ctx) }() // ends with ctx, below
		test(f, n, &requests)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestAFrozenWorkerIsASuspectWithinASecond(t *testing.T) {
	guarding(t, func(f *fleet.Fleet, n *still, _ *[2]fleet.Reservation) {
		suspected := func() (a, b bool) { return f.Snapshot().Suspected(0), f.Snapshot().Suspected(1) }
		testenv.Pass(3 * time.Second)
		if a, b := suspected(); a || b {
			t.Fatal("a worker that computes a long prompt is a suspect")
		}
		n.freeze("a")
		// The worker may have answered a question just before it froze. Then half a second passes before the next
		// question (see the constant again).
		testenv.Pass(1050 * time.Millisecond)
		if a, b := suspected(); !a || b {
			t.Errorf("a second after a froze: a is a suspect: %t, b: %t", a, b)
		}
		if share := f.Snapshot().Standing(1, 0, "", time.Now().UnixNano()); share != (fleet.Standing{Share: 1}) {
			t.Errorf("b: %+v", share)
		}
		testenv.Pass(time.Second) // a shorter suspicion is followed by no slow start
		n.freeze("")
		testenv.Pass(1100 * time.Millisecond)
		if a, _ := suspected(); a {
			t.Error("it is a suspect a second after it thawed")
		}
		if s := f.Snapshot().Standing(0, 0, "", time.Now().UnixNano()); s.Bar != fleet.BarNone || s.Share > 0.3 {
			t.Errorf("it returned as %+v, want a slow start", s)
		}
	})
}

// TestAWorkerThatStreamsIsNoSuspect: a worker that streams is alive, but may be too busy to answer a question.
func TestAWorkerThatStreamsIsNoSuspect(t *testing.T) {
	guarding(t, func(f *fleet.Fleet, n *still, requests *[2]fleet.Reservation) {
		n.freeze("a")
		requests[0].FirstToken(time.Now().UnixNano())
		asked := n.asked.Load()
		for i := range 50 {
			testenv.Pass(quiet - guardTick)
			requests[0].Tokens(i+1, time.Now().UnixNano())
			requests[1].Release(time.Now().UnixNano())
		}
		if f.Snapshot().Suspected(0) {
			t.Error("a worker that streams is a suspect")
		}
		if n.asked.Load() > asked+1 {
			t.Errorf("workers that stream, or have nothing to do, were asked %d times", n.asked.Load()-asked)
		}
		testenv.Pass(time.Second)
		if !f.Snapshot().Suspected(0) {
			t.Fatal("it fell silent and is no suspect")
		}
		requests[0].Tokens(100, time.Now().UnixNano())
		testenv.Pass(2 * guardTick)
		if f.Snapshot().Suspected(0) {
			t.Error("it was heard of and is a suspect all the same")
		}
	})
}

// TestASlowAPIServerIsNoSuspect: after a worker's slow answers the guard waits longer for its next answer, up to a
// bound. A worker that suddenly answers more slowly than the guard waits is a suspect until its late answer comes.
func TestASlowAPIServerIsNoSuspect(t *testing.T) {
	guarding(t, func(f *fleet.Fleet, n *still, _ *[2]fleet.Reservation) {
		suspected := func() bool { return f.Snapshot().Suspected(0) || f.Snapshot().Suspected(1) }
		for _, c := range []struct {
			takes time.Duration
			ticks int // upper bound on the ticks in which one of the two workers is a suspect
		}{{10 * time.Millisecond, 0}, {450 * time.Millisecond, 0}, {800 * time.Millisecond, 0}, {10 * time.Millisecond, 0}, {1200 * time.Millisecond, 18}, {1200 * time.Millisecond, 0}} {
			n.takes.Store(int64(c.takes))
			ticks := 0
			for range 150 {
				testenv.Pass(guardTick)
				if suspected() {
					ticks++
				}
			}
			if ticks > c.ticks {
				t.Errorf("a worker that answers in %v was a suspect for %d ticks, not %d", c.takes, ticks, c.ticks)
			}
		}
		n.freeze("a")
		testenv.Pass(3500 * time.Millisecond)
		if !f.Snapshot().Suspected(0) {
			t.Error("a slow worker froze and is no suspect after 3.5 s")
		}
		n.freeze("")
		n.takes.Store(0)
		testenv.Pass(10 * time.Second)
		n.freeze("a")
		testenv.Pass(quiet + minPatience + again) // a may have answered a question just before it froze
		if !f.Snapshot().Suspected(0) {
			t.Error("a worker that is quick again froze and is no suspect after a second")
		}
	})
}

// TestARestartedWorkerIsNoSuspectForWhatWasBefore: the earlier process did not answer a question. This must not count
// against the new process.
func TestARestartedWorkerIsNoSuspectForWhatWasBefore(t *testing.T) {
	guarding(t, func(f *fleet.Fleet, n *still, requests *[2]fleet.Reservation) {
		n.freeze("a")
		testenv.Pass(1100 * time.Millisecond)
		if !f.Snapshot().Suspected(0) {
			t.Fatal("it froze and is no suspect")
		}
		id := f.Snapshot().Worker(0).ID
		requests[0].Release(time.Now().UnixNano())
		f.SetHealth(id, false, "it does not answer")
		testenv.Pass(time.Minute)
		n.freeze("")
		f.SetHealth(id, true, "")
		for range 20 {
			testenv.Pass(guardTick / 2)
			if f.Snapshot().Suspected(0) {
				t.Fatal("it is back and a suspect")
			}
		}
	})
}

// TestReportsShowHowSlowAnAPIServerIs: the times of vLLM's load reports count as answer times of its API server. The
// times of SGLang's reports do not, because they wait for its scheduler. A suspect's times do not count, because its
// reports waited until the worker was no longer frozen.
func TestReportsShowHowSlowAnAPIServerIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &still{}
		n.takes.Store(int64(600 * time.Millisecond))
		f := fleet.New(fleet.Config{})
		r := NewReporter(f, DefaultReportsConfig(), nil, &http.Client{Transport: n}, slog.New(slog.DiscardHandler))
		for i, c := range []struct {
			engine  fleet.Engine
			suspect bool
			want    time.Duration
		}{{fleet.EngineVLLM, false, 1200 * time.Millisecond}, {fleet.EngineSGLang, false, minPatience}, {fleet.EngineVLLM, true, minPatience}} {
			url := fmt.Sprintf("http://%d", i)
			id := f.Put(url, fleet.Facts{Engine: c.engine, Models: []fleet.Model{{ID: "m"}}})
			f.Suspect(id, c.suspect, time.Now().UnixNano())
			if err := r.ask(t.Context(), url, id); err != nil {
				t.Error(err)
			}
			if got := r.countsOf(url).took.patience(); got != c.want {
				t.Errorf("%s, suspect %t: patience %v, not %v", c.engine, c.suspect, got, c.want)
			}
		}
	})
}

func TestAnIdleWorkerIsNotAskedForSignsOfLife(t *testing.T) {
	guarding(t, func(f *fleet.Fleet, n *still, requests *[2]fleet.Reservation) {
		for i := range requests {
			requests[i].Release(time.Now().UnixNano())
		}
		testenv.Pass(time.Minute)
		if n.asked.Load() != 0 {
			t.Errorf("asked %d times", n.asked.Load())
		}
	})
}
