package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/gateway"
	"github.com/warmpath/warmpath/test/testenv"
)

// frozen is a worker that accepts requests and sends nothing until release is closed or the request ends.
func frozen(t *testing.T, asked *atomic.Int64, release chan struct{}) string {
	return worker(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked.Add(1)
		select {
		case <-release:
			plain(w, r)
		case <-r.Context().Done():
		}
	})
}

func TestRequestsThatWaitAtAFrozenWorkerAreServedElsewhere(t *testing.T) {
	var asked atomic.Int64
	release := make(chan struct{})
	defer close(release)
	ill, good := frozen(t, &asked, release), worker(t, plain)
	f := serve(t, func(s *settings) { s.policy = "round_robin" }, ill, good)
	answers := make(chan string, 40)
	for range 40 {
		go func() { // this goroutine ends with its request; the test receives the result below
			resp, text, err := f.try(context.Background(), chat)
			if err != nil || text != whole {
				answers <- text
				return
			}
			answers <- resp.Header.Get("X-Warmpath-Worker")
		}()
	}
	testenv.Until(t, "half of the requests wait at the frozen worker", func() bool { return asked.Load() == 20 })
	f.fleet.Suspect(0, true, time.Now().UnixNano())
	for range 40 {
		if got := <-answers; got != good {
			t.Errorf("answered: %s", got)
		}
	}
	for range 10 {
		if resp, _ := f.post(t, chat); resp.Header.Get("X-Warmpath-Worker") != good {
			t.Error("a new request went to the frozen worker")
		}
	}
	if asked.Load() != 20 {
		t.Errorf("the frozen worker was asked %d times", asked.Load())
	}
	if want := `warmpath_retries_total{reason="suspect",worker="` + ill + `"} 20`; !strings.Contains(f.metrics(t), want) {
		t.Errorf("the metrics lack %s", want)
	}
	if !f.fleet.Snapshot().Available(0, time.Now().UnixNano()) {
		t.Error("requests that were taken away opened the breaker")
	}
	f.idle(t)
}

// A worker is slow, and the router takes it for frozen. The budget bounds how many of its requests are sent a second
// time.
func TestRescuesStayWithinTheirBudget(t *testing.T) {
	var asked atomic.Int64
	release := make(chan struct{})
	f := serve(t, func(s *settings) { s.policy = "direct" }, frozen(t, &asked, release), worker(t, plain))
	f.fleet.Suspect(0, true, time.Now().UnixNano())
	var served atomic.Int64
	var clients sync.WaitGroup
	for range 150 {
		clients.Go(func() {
			// No other worker can serve a request that names its worker, so the router must not take such a request away.
			if resp, _, err := f.try(context.Background(), chat, "X-Warmpath-Target", f.fleet.Snapshot().Workers()[0].URL); err == nil && resp.StatusCode == 200 {
				served.Add(1)
			}
		})
	}
	testenv.Until(t, "all wait", func() bool { return asked.Load() == 150 })
	if served.Load() != 0 {
		t.Errorf("%d requests that asked for the frozen worker were taken away", served.Load())
	}
	close(release)
	clients.Wait()

	again := make(chan struct{})
	var waiting atomic.Int64
	g := serve(t, func(s *settings) { s.policy = "round_robin" }, frozen(t, &waiting, again), worker(t, plain))
	for range 400 {
		clients.Go(func() { _, _, _ = g.try(context.Background(), chat) })
	}
	testenv.Until(t, "half of them wait", func() bool { return waiting.Load() == 200 })
	g.fleet.Suspect(0, true, time.Now().UnixNano())
	expect := func(left int64) {
		t.Helper()
		var n int64
		testenv.Until(t, fmt.Sprintf("%d of 200 requests wait on at the frozen worker", left), func() bool {
			n = g.fleet.Snapshot().Load(0).Requests
			return n <= left && !gateway.Rescues(g.Gateway)
		})
		if n < left {
			t.Errorf("%d of 200 requests wait on at the frozen worker, want %d", n, left)
		}
	}
	expect(100) // the budget allows a hundred rescues immediately
	for range 300 {
		g.post(t, chat)
	}
	expect(70) // after that the budget allows one rescue for ten requests
	close(again)
	clients.Wait()
}

// A stream that has begun cannot be repeated at another worker. The stream continues when its worker continues.
func TestAStreamThatBeganStaysAtAFrozenWorker(t *testing.T) {
	url, begun, release := held(t)
	f := serve(t, func(s *settings) { s.policy = "round_robin" }, url, worker(t, streaming))
	answer := make(chan string, 1)
	go func() { // this goroutine ends with the stream; the test receives the result below
		_, text, _ := f.try(context.Background(), chatStreamed)
		answer <- text
	}()
	<-begun
	testenv.Until(t, "the first event has passed", func() bool { return f.fleet.Snapshot().Load(0).Waiting == 0 })
	f.fleet.Suspect(0, true, time.Now().UnixNano())
	for range 20 { // other requests are served in the meantime
		f.post(t, chatStreamed)
	}
	gateway.RescueFrom(f.Gateway, 0)
	close(release)
	if text := <-answer; text != firstChunk+lastChunk+doneChunk {
		t.Errorf("the stream is %q", text)
	}
	f.idle(t)
}

// If there is no other worker, a slow answer is better than none.
func TestTheOnlyWorkerIsAskedAlthoughItIsFrozen(t *testing.T) {
	var asked atomic.Int64
	release := make(chan struct{})
	f := serve(t, nil, frozen(t, &asked, release))
	f.fleet.Suspect(0, true, time.Now().UnixNano())
	answer := make(chan string, 1)
	go func() { // this goroutine ends with its request; the test receives the result below
		_, text, _ := f.try(context.Background(), chat)
		answer <- text
	}()
	testenv.Until(t, "it is asked", func() bool { return asked.Load() == 1 })
	gateway.RescueFrom(f.Gateway, 0)
	close(release)
	if text := <-answer; text != whole {
		t.Errorf("answered %q", text)
	}
}
