package indexer

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/network"
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

// forget forgets the calls until now, and called reports whether there was one since.
func (f *freezer) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = nil
}

func (f *freezer) called(path string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(f.calls, path)
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
	f.forget()
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

// Most answers late: the trust goes although the list of workers comes, and the service is left alone. Meanwhile no
// question waits, and the router still looks at the service and registers workers. An asker that leaves says nothing.
func TestAServiceThatAnswersLateIsLeftAlone(t *testing.T) {
	f := newFreezer(t)
	a := newAsker(t, f.URL, nil)
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
	_ = ask(network.MostLate-1, true)
	if err := ask(1, false); err != nil {
		t.Fatal(err)
	}
	_ = ask(1, true)
	gone, leave := context.WithCancel(t.Context())
	leave()
	for range network.MostLate {
		_ = a.client.Match(gone, q)
	}
	if !a.trusts(h, fleet.TrustApproximate) {
		t.Error("the trust is gone too early")
	}
	began := time.Now() // the rest ends a second after it, or later
	_ = ask(1, true)
	if _, why := a.fleet.Snapshot().Trust(h); !a.trusts(h, fleet.TrustNone) || why != tooLate {
		t.Errorf("the trust stays: %q", why)
	}
	if err := ask(1, false); !errors.Is(err, errLeftAlone) && time.Since(began) < time.Second {
		t.Errorf("a question after it: %v", err)
	}
	next := a.put("http://b", facts("tcp://127.0.0.1:10")).Holders[0]
	f.forget()
	a.client.poll(t.Context())
	if !f.called("/register") {
		t.Error("a worker is not registered during the rest")
	}
	for _, h := range []fleet.Holder{h, next} {
		_, why := a.fleet.Snapshot().Trust(h)
		if (!a.trusts(h, fleet.TrustNone) || why != tooLate || a.client.known.Load() != nil) && time.Since(began) < time.Second {
			t.Errorf("a poll ends the rest: %q", why)
		}
	}
	testenv.Until(t, "the rest ends", func() bool { return !a.client.late.Resting(time.Now()) })
	if err := ask(1, false); !errors.Is(err, errDown) {
		t.Errorf("before a poll: %v", err)
	}
	a.client.poll(t.Context())
	if err := ask(1, false); err != nil || !a.trusts(h, fleet.TrustApproximate) {
		t.Errorf("after the rest and a poll: %v", err)
	}
}

// However often the service is left alone, the log says so once. It says once that answers come in time again, when
// they did for a minute.
func TestTheLogSaysOnceThatAnswersAreLate(t *testing.T) {
	logged := new(testenv.Buffer)
	log, c, l := slog.New(slog.NewTextHandler(logged, nil)), DefaultClientConfig(), new(lateness)
	now := time.Unix(1000, 0)
	late := func() {
		for !l.missed(now, log, &c) {
		}
		for l.Resting(now) {
			now = now.Add(time.Second / 10)
		}
	}
	lines := func(when string, warned, again int) {
		t.Helper()
		text := logged.String()
		if strings.Count(text, "level=WARN msg=\""+tooLate) != warned || strings.Count(text, "answers in time again") != again || !strings.Contains(text, "raise index.max_wait") {
			t.Errorf("%s: want %d warnings and %d lines about answers in time:\n%s", when, warned, again, text)
		}
	}
	for range 5 { // rests of 1, 2, 4, 8 and 16 s
		late()
		for range 3 * network.MostLate {
			l.answered(now, log, &c)
		}
	}
	lines("late again and again", 1, 0)
	now = now.Add(time.Minute + 1)
	for range 3 {
		l.answered(now, log, &c)
	}
	lines("in time for a minute", 1, 1)
	late()
	lines("late once more", 2, 1)
}
