package indexer

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// freezer is a service whose workers, questions and registrations can stand still, each on its own.
type freezer struct {
	*httptest.Server
	lists, asks, registers atomic.Bool
	mu                     sync.Mutex // guards calls
	calls                  []string
}

func newFreezer(t *testing.T) *freezer {
	f := new(freezer)
	f.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.calls = append(f.calls, r.URL.Path)
		f.mu.Unlock()
		frozen := map[string]*atomic.Bool{"/workers": &f.lists, "/register": &f.registers, "/query_by_hash": &f.asks}[r.URL.Path]
		if frozen != nil && frozen.Load() {
			<-r.Context().Done()
			return
		}
		if r.URL.Path == "/query_by_hash" {
			_, _ = w.Write((&answer{blockSize: 16}).appendTo(nil))
		}
	}))
	f.Config.Protocols = new(http.Protocols)
	f.Config.Protocols.SetUnencryptedHTTP2(true)
	f.Start()
	t.Cleanup(f.Close)
	return f
}

// A service that stands still, as after SIGSTOP, loses the trust although registrations are due, too.
func TestAServiceThatStandsStillIsNoticed(t *testing.T) {
	f := newFreezer(t)
	a := newAsker(t, f.URL, nil)
	h := a.put("http://a", facts("tcp://127.0.0.1:9")).Holders[0]
	testenv.Until(t, "the service is known", func() bool { return a.client.known.Load() != nil && a.trusts(h, fleet.TrustApproximate) })
	f.asks.Store(true)
	f.registers.Store(true)
	f.lists.Store(true)
	a.put("http://b", facts("tcp://127.0.0.1:10"))
	testenv.Until(t, "the trust is gone", func() bool { return a.trusts(h, fleet.TrustNone) && a.client.known.Load() == nil })
	f.lists.Store(false)
	testenv.Until(t, "the trust is back", func() bool { return a.trusts(h, fleet.TrustApproximate) })
}

// The list of workers comes before registrations, which can take their time.
func TestTheListOfWorkersComesBeforeRegistrations(t *testing.T) {
	f := newFreezer(t)
	a := newAsker(t, f.URL, nil)
	a.stop() // only the test polls
	f.mu.Lock()
	f.calls = nil
	f.mu.Unlock()
	a.put("http://a", facts("tcp://127.0.0.1:9"))
	a.client.poll(t.Context())
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.calls) != 2 || f.calls[0] != "/workers" || f.calls[1] != "/register" {
		t.Errorf("%v", f.calls)
	}
	if len(a.client.soon) != 1 {
		t.Error("the workers that were registered are not looked for")
	}
}

// Questions that get no answer in time take the trust away, although the list of workers comes. A question that is
// answered in time ends a row, and an asker that leaves says nothing.
func TestLateAnswersTakeTheTrustAway(t *testing.T) {
	f := newFreezer(t)
	a := newAsker(t, f.URL, func(c *ClientConfig, _ *warmpath.Options) { c.Register = false })
	h := a.put("http://a", facts("tcp://127.0.0.1:9")).Holders[0]
	a.stop() // only the test polls
	a.client.poll(t.Context())
	q := &warmpath.Lookup{Model: "m", BlockSize: 16}
	ask := func(n int, frozen bool) (err error) {
		f.asks.Store(frozen)
		for range n {
			ctx, cancel := context.WithCancel(t.Context())
			if frozen {
				cancel()
				ctx, cancel = context.WithDeadline(t.Context(), time.Now())
			}
			err = a.client.Match(ctx, q)
			cancel()
		}
		return err
	}
	_ = ask(mostLate-1, true)
	if err := ask(1, false); err != nil {
		t.Fatal(err)
	}
	_ = ask(mostLate-1, true)
	gone, leave := context.WithCancel(t.Context())
	leave()
	for range mostLate {
		_ = a.client.Match(gone, q)
	}
	if !a.trusts(h, fleet.TrustApproximate) {
		t.Error("the trust is gone too early")
	}
	_ = ask(1, true)
	if _, why := a.fleet.Snapshot().Trust(h); !a.trusts(h, fleet.TrustNone) || why != tooLate || len(a.client.soon) == 0 {
		t.Errorf("the trust stays: %q", why)
	}
	if err := ask(1, false); !errors.Is(err, errDown) {
		t.Errorf("a question after it: %v", err)
	}
	a.client.poll(t.Context())
	if err := ask(1, false); err != nil || !a.trusts(h, fleet.TrustApproximate) {
		t.Errorf("after a poll: %v", err)
	}
}
