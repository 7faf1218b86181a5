package replica

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/test/testenv"
)

// logTo makes a router on a bus write its log into the logbook that is returned.
func (m *member) logTo() *logbook {
	b := &logbook{}
	m.sync.mu.Lock()
	defer m.sync.mu.Unlock()
	m.sync.parts.Log = slog.New(slog.NewTextHandler(b, nil))
	return b
}

// Two routers name the same worker differently. Each says so once, and names a URL that it does not know.
func TestTheLogSaysThatRoutersNameWorkersDifferently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		one, two := b.join(t, DefaultConfig(), 1, nil), b.join(t, DefaultConfig(), 0, nil)
		two.fleet.Put("http://localhost:1", fleet.Facts{Engine: fleet.EngineVLLM, Models: []fleet.Model{{ID: "llama"}}, BlockSize: 16})
		testenv.Pass(time.Second)
		book := two.logTo()
		warned := func() []string { return book.lines("level=WARN") }
		d := one.route(1, 100, "")
		testenv.Pass(9 * time.Second)
		done(d)
		testenv.Pass(time.Second) // the next request begins a new time
		d = one.route(1, 100, "")
		testenv.Pass(9 * time.Second)
		if all := warned(); len(all) != 0 {
			t.Errorf("too early: %q", all)
		}
		testenv.Pass(time.Minute)
		if all := warned(); len(all) != 1 || !strings.Contains(all[0], "worker=http://w0") || !strings.Contains(all[0], `router="router 0"`) ||
			!strings.Contains(all[0], "sync.group") {
			t.Errorf("the log warns %q", all)
		}
		done(d)
	})
}

// Too many other routers have requests for unknown workers. The log names the worker of the last one a minute later.
func TestTheLogNamesAnUnknownWorkerOnceThereIsRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		one, two := b.join(t, DefaultConfig(), 1, nil), b.join(t, DefaultConfig(), 0, nil)
		testenv.Pass(time.Second)
		book := two.logTo()
		d := one.route(1, 100, "")
		testenv.Pass(unknownAfter / 2)
		for two.sync.lines.due(lineUnknown, time.Now()) {
		}
		testenv.Pass(unknownAfter)
		if all := book.lines("level=WARN"); len(all) != 0 {
			t.Fatalf("there is no room, and the log warns %q", all)
		}
		testenv.Pass(2 * warnInterval)
		if all := book.lines("level=WARN"); len(all) != 1 || !strings.Contains(all[0], "worker=http://w0") {
			t.Errorf("the log warns %q", all)
		}
		done(d)
	})
}

// A worker that has not answered yet is known: nothing is wrong with the routers.
func TestAWorkerThatHasNotAnsweredIsNoWarning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		one, two := b.join(t, DefaultConfig(), 1, nil), b.join(t, DefaultConfig(), 0, nil)
		two.fleet.Expect([]string{"http://w0"}, "not probed yet")
		testenv.Pass(time.Second)
		book := two.logTo()
		d := one.route(1, 100, "")
		testenv.Pass(time.Minute)
		if n := two.sync.Status().Peers[0].Refused; n != 1 {
			t.Fatalf("%d requests wait for their worker", n)
		}
		if all := book.lines("level=WARN"); len(all) != 0 {
			t.Errorf("the log warns %q", all)
		}
		done(d)
	})
}

// A connection alone does not mean that requests are shared.
func TestTheLogSaysWhetherOtherRoutersAreHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		one := b.join(t, DefaultConfig(), 1, nil)
		testenv.Pass(time.Second)
		book := one.logTo()
		again := func() {
			for _, off := range []bool{true, false} {
				one.link.cut(off)
				testenv.Pass(100 * time.Millisecond)
			}
		}
		again()
		if waiting, sharing := book.lines("waiting for other routers"), book.lines("sharing requests"); len(waiting) != 1 || len(sharing) != 0 {
			t.Errorf("alone: %q, %q", waiting, sharing)
		}
		two := b.join(t, DefaultConfig(), 1, nil)
		testenv.Pass(time.Second)
		b.join(t, DefaultConfig(), 1, nil)
		testenv.Pass(time.Second)
		if first, second := book.lines("another router shares its requests", "routers=1"), book.lines("another router shares its requests", "routers=2"); len(first) != 1 || len(second) != 1 {
			t.Errorf("with two others: %q, %q", first, second)
		}
		again()
		if again := book.lines("connected to NATS: sharing requests with 2 other routers"); len(again) != 1 {
			t.Errorf("connected again: %q", again)
		}
		two.stop()
		testenv.Pass(shortLife)
		again()
		if again := book.lines(`sharing requests with 1 other router"`); len(again) != 1 {
			t.Errorf("connected again to one router: %q", again)
		}
	})
}

// GET /admin/replicas says why the routes of an embedded server are missing.
func TestTheStatusOfAnEmbeddedServerHasItsLastError(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Embedded, cfg.Listen, cfg.Routes = true, "127.0.0.1:0", []string{"nats-route://127.0.0.1:1"}
	m := connect(t, cfg)
	testenv.Until(t, "the status has the error", func() bool {
		s := m.sync.Status()
		return strings.HasPrefix(s.LastError, "127.0.0.1:1: ") && s.ErrorAt != nil && time.Since(*s.ErrorAt) < time.Minute
	})
	port := testenv.FreePort(t)
	cfg.Listen, cfg.Routes = fmt.Sprintf("127.0.0.1:%d", port), nil
	one := connect(t, cfg)
	cfg.Listen, cfg.Routes = "127.0.0.1:0", []string{fmt.Sprintf("nats-route://127.0.0.1:%d", port)}
	two := connect(t, cfg)
	testenv.Until(t, "routers that are connected show no error", func() bool {
		return one.sync.Status().Connected && two.sync.Status().Connected && two.sync.Status().LastError == ""
	})
}
