package sharedindex

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/valkey-io/valkey-go"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/network"
	"github.com/warmpath/warmpath/test/testenv"
)

// ask looks a prompt up as a gateway does: the request has as much time as the reader, and its time began earlier.
func (w *world) ask(seed uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), w.reader.config.Timeout)
	defer cancel()
	q := warmpath.Lookup{Model: "m", BlockSize: 16, Keys: w.hasher.Append(nil, w.hasher.Root(block.Scope{}), 0, w.tokens(seed), nil)}
	return w.reader.Match(ctx, &q)
}

// reason returns why a holder of the reader's fleet is trusted or not.
func (w *world) reason(holder fleet.Holder) string {
	_, why := w.asked.Snapshot().Trust(holder)
	return why
}

func TestFewRequestsWaitForASlowServer(t *testing.T) {
	cable := testenv.NewCable(t, testenv.StartValkey(t, "valkey").Address)
	w := start(t, func(c *Config) {
		c.URL, c.ClientCache, c.Timeout = "valkey://"+cable.Address(), 0, 100*time.Millisecond
	})
	w.store(0, 1)
	w.exact(0, 1)
	cable.SetDelay(100 * time.Millisecond) // too much for a lookup, and not for a look at what writers say
	testenv.Until(t, "nobody is trusted, because answers are late", func() bool {
		_ = w.ask(1)
		return w.trust(0) == fleet.TrustNone && w.reason(0) == errLate.Error()
	})
	const requests = 2000
	waited := 0
	for range requests {
		if errors.Is(w.ask(1), context.DeadlineExceeded) {
			waited++
		}
	}
	if waited > requests/20 {
		t.Errorf("%d of %d requests waited for the server", waited, requests)
	}
	cable.SetDelay(0)
	w.exact(0, 1)
}

// A rest of a second ends after it, however seldom the reader looks at what writers say.
func TestARestEndsInTime(t *testing.T) {
	w := start(t, func(c *Config) {
		c.URL, c.ClientCache, c.Lease = "valkey://"+testenv.StartValkey(t, "valkey").Address, 0, time.Hour
	})
	w.store(0, 1)
	testenv.Until(t, "the reader knows the holder", func() bool {
		select {
		case w.reader.poke <- struct{}{}:
		default:
		}
		return w.blocks(0, 1) == 40 && w.trust(0) == fleet.TrustExact
	})
	over, stop := context.WithDeadline(t.Context(), time.Now())
	defer stop()
	for range network.MostLate {
		w.reader.missed(over, context.DeadlineExceeded)
	}
	w.reader.poke <- struct{}{}
	w.exact(0, 1)
}

// resting is a reader without a server. Its one holder is trusted. The test says when lookups are late, and when the
// server has answered.
type resting struct {
	*testing.T
	*Reader
	log testenv.Buffer
}

func newResting(t *testing.T) *resting {
	r := &resting{T: t}
	r.Reader = NewReader(DefaultConfig(), ReaderParts{Fleet: publishing(), Keying: anyKeys, Log: slog.New(slog.NewTextHandler(&r.log, nil))})
	r.client.Store(new(valkey.Client))
	r.answer()
	r.wants("at first", fleet.TrustExact, "", 0, 0)
	return r
}

// answer is an answer of the server to a look at what writers say.
func (r *resting) answer() {
	r.use("", []*description{{Holders: []holderEntry{{URL: "http://worker-0", Slot: 1, BlockSize: 16, Trust: "exact"}}}}, 1, nil)
}

// late are late lookups of requests whose own time is over.
func (r *resting) late(n int) {
	asker, stop := context.WithDeadline(r.Context(), time.Now())
	defer stop()
	for range n {
		r.missed(asker, fmt.Errorf("look up: %w", context.DeadlineExceeded))
	}
}

func (r *resting) wants(when string, trust fleet.Trust, why string, warned, steady int) {
	r.Helper()
	if level, reason := r.parts.Fleet.Snapshot().Trust(0); level != trust || reason != why {
		r.Errorf("%s: trust %v (%s), want %v (%s)", when, level, reason, trust, why)
	}
	log := r.log.String()
	if a, b := strings.Count(log, "level=WARN"), strings.Count(log, "in time again"); a != warned || b != steady {
		r.Errorf("%s: %d warnings and %d ends of them, want %d and %d:\n%s", when, a, b, warned, steady, log)
	}
	if err := r.Match(context.Background(), new(warmpath.Lookup)); (err == nil) != (trust == fleet.TrustExact) {
		r.Errorf("%s: the error of a lookup is %v", when, err)
	}
}

func TestASlowServerIsLeftAloneForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResting(t)
		r.late(network.MostLate - 1)
		r.wants("after few late lookups", fleet.TrustExact, "", 0, 0)
		r.late(2)
		r.wants("after more", fleet.TrustNone, errLate.Error(), 1, 0)
		<-time.After(time.Second - 1)
		r.answer()
		r.wants("in the rest", fleet.TrustNone, errLate.Error(), 1, 0)
		<-time.After(1)
		r.wants("after the rest, before the server answered", fleet.TrustNone, errLate.Error(), 1, 0)
		r.answer()
		r.wants("when the server answered", fleet.TrustExact, "", 1, 0)
		for round := range 5 {
			r.late(network.MostLate)
			r.wants("late again", fleet.TrustNone, errLate.Error(), 1, 0)
			<-time.After(2 * time.Second << round)
			r.answer()
		}
		<-time.After(time.Minute)
		r.answer()
		r.wants("after a minute without a rest", fleet.TrustExact, "", 1, 0)
		<-time.After(1)
		r.answer()
		r.wants("after more than a minute without a lookup", fleet.TrustExact, "", 1, 0)
		r.counts.lookups.Add(1)
		r.answer()
		r.wants("after a lookup in time", fleet.TrustExact, "", 1, 1)
		r.answer()
		r.late(network.MostLate)
		r.wants("late once more", fleet.TrustNone, errLate.Error(), 2, 1)
	})
}

func TestOnlyLatenessLeavesAServerAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newResting(t)
		left, leave := context.WithCancel(t.Context())
		leave()
		for range 2 * network.MostLate {
			r.missed(left, context.Canceled)
		}
		r.wants("clients left", fleet.TrustExact, "", 0, 0)
		r.missed(t.Context(), io.EOF)
		r.wants("the connection broke", fleet.TrustNone, errNoServer.Error(), 1, 0)
		r.answer()
		r.wants("the server is back", fleet.TrustExact, "", 1, 0)
		r.late(network.MostLate)
		r.lost(io.EOF)
		r.answer()
		r.wants("the connection broke in a rest", fleet.TrustNone, errLate.Error(), 3, 0)
		<-time.After(time.Second)
		r.answer()
		r.wants("after the rest", fleet.TrustExact, "", 3, 0)
	})
}

// A request without time left asks nothing, so it says nothing about the server. Nor does an answer of the cache.
func TestOnlyAnswersOfTheServerCount(t *testing.T) {
	m, _, prompt, keys := pair(t, testenv.StartValkey(t, "valkey"))
	m.reader.cache = newCache(1 << 20)
	m.bench.fleet.SetTrust(0, fleet.TrustExact, "")
	m.index.Store(0, prompt)
	m.settle()
	over, stop := context.WithDeadline(t.Context(), time.Now())
	defer stop()
	for range 2 * network.MostLate {
		if err := m.reader.Match(over, &warmpath.Lookup{Keys: keys}); !errors.Is(err, context.DeadlineExceeded) || m.reader.rests.now.Load() {
			t.Fatalf("a request without time left: %v", err)
		}
	}
	late := func(n int) {
		for range n {
			m.reader.missed(t.Context(), context.DeadlineExceeded)
		}
	}
	asked := func() int64 {
		before := m.reader.counts.roundTrips.Load()
		m.match(keys, nil)
		return m.reader.counts.roundTrips.Load() - before
	}
	m.match(keys, nil) // the cache has the prompt from now on
	late(network.MostLate - 1)
	m.reader.cache.clear()
	if asked() == 0 {
		t.Fatal("the server was not asked")
	}
	if late(1); m.reader.rests.now.Load() {
		t.Fatal("a lookup in time does not count")
	}
	if asked() != 0 {
		t.Fatal("the server was asked")
	}
	if late(1); !m.reader.rests.now.Load() {
		t.Error("an answer of the cache counts as one of the server")
	}
}
