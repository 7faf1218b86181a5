package replica

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/test/testenv"
)

// hello is the record of a heartbeat that wants an answer.
func hello(to []byte) []byte { return (&heartbeat{name: "a router", hello: true}).append(to) }

// Somebody makes routers come and go with each message. The log has some lines of it, and their number.
func TestRoutersThatComeAndGoDoNotFloodTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		one := b.join(t, DefaultConfig(), 1, nil)
		testenv.Pass(time.Second)
		book := one.logTo()
		for id := range uint64(1000) {
			p := &speaker{s: one.sync, id: 1000 + id}
			p.tell(time.Now(), recordHeartbeat, hello)
			p.tell(time.Now(), recordGoodbye, func(to []byte) []byte { return to })
		}
		came, went := book.lines("another router shares its requests"), book.lines("another router is gone")
		if n := len(book.lines("level")); n > 4*maxPeers || len(came) == 0 || len(went) == 0 {
			t.Errorf("%d lines, of which %d say that a router came, and %d that one went", n, len(came), len(went))
		}
		testenv.Pass(warnInterval + time.Second)
		if all := book.lines("level=WARN", "lines are missing"); len(all) != 1 || !strings.Contains(all[0], fmt.Sprint("missing=", 2*1000-4*maxPeers)) || !strings.Contains(all[0], "set sync.key_file") {
			t.Errorf("the log says of missing lines: %q", all)
		}
		(&speaker{s: one.sync, id: 5000}).tell(time.Now(), recordHeartbeat, hello)
		if len(book.lines("another router shares its requests")) != len(came)+1 {
			t.Error("a minute later the log does not say that a router came")
		}
	})
}

// Of as many routers as one follows, nothing is heard for a while.
func TestAFullFleetWhoseNetworkFailsLosesNoLinesInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		one := b.join(t, DefaultConfig(), 1, nil)
		testenv.Pass(time.Second)
		book := one.logTo()
		var all []*speaker
		for id := range uint64(maxPeers) {
			all = append(all, &speaker{s: one.sync, id: 1000 + id})
		}
		for range 2 {
			for _, p := range all {
				p.tell(time.Now(), recordHeartbeat, hello)
			}
			testenv.Pass(2 * deadAfter)
		}
		testenv.Pass(warnInterval)
		came, went := book.lines("another router shares its requests"), book.lines("another router is gone")
		if len(came) != 2*maxPeers || len(went) != 2*maxPeers || len(book.lines("level=WARN")) > 0 {
			t.Errorf("%d lines say that a router came, and %d that one went; the log warns %q", len(came), len(went), book.lines("level=WARN"))
		}
	})
}

func TestTheAdviceAboutMissingLinesFitsTheKind(t *testing.T) {
	open, signed := Config{}, Config{Key: "a secret of all routers"}
	for _, c := range []struct {
		kind
		want, not string // parts of the advice
	}{
		{open.lineRouter(), "set sync.key_file", "panic"},
		{signed.lineRouter(), "does a router restart", "sync."},
		{linePanic, "please report", "sync."},
		{lineUnknown, "", "missing"},
		{once("anything"), "", "missing"},
	} {
		book := &logbook{}
		log := slog.New(slog.NewTextHandler(book, nil))
		var l lines
		for i := range c.most + 7 {
			if wrote := l.log(log, slog.LevelInfo, c.kind, "a line"); wrote != (i < c.most) {
				t.Fatalf("%s: line %d is written: %v", c.about, i, wrote)
			}
		}
		l.report(log, time.Now())
		said := book.lines("lines are missing", "missing=7")
		if (len(said) == 1) != (c.want != "") || len(book.lines(c.want)) == 0 || len(book.lines(c.not)) > 0 {
			t.Errorf("%s: the log says %q", c.about, said)
		}
	}
}

// A connection comes and goes each three seconds.
func TestAConnectionThatComesAndGoesDoesNotFloodTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		one := b.join(t, DefaultConfig(), 1, nil)
		testenv.Pass(time.Second)
		book := one.logTo()
		for range 20 {
			for _, off := range []bool{true, false} {
				one.link.cut(off)
				testenv.Pass(1500 * time.Millisecond)
			}
		}
		if n := len(book.lines("serves alone")); n < 2 || n > 7 {
			t.Errorf("the log warns %d times in a minute", n)
		}
		one.link.cut(true)
		testenv.Pass(time.Minute) // it says so of a connection that stays away
		before := len(book.lines("serves alone"))
		for range 200 {
			for _, off := range []bool{false, true} {
				one.link.cut(off)
				testenv.Pass(100 * time.Millisecond)
			}
		}
		if n := len(book.lines("connected to NATS")); n > 2*shortConnections || len(book.lines("serves alone")) > before+1 {
			t.Errorf("the log says %d times that there is a connection: %q", n, book.lines("serves alone"))
		}
	})
}

// A server breaks each connection a moment after it began. The log says why, and not that there is a connection.
func TestTheLogSaysWhyConnectionsBreakSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		one := b.join(t, DefaultConfig(), 1, nil)
		testenv.Pass(2 * shortLife)
		book := one.logTo()
		change := func(off bool) {
			one.link.cut(off)
			testenv.Pass(lookInterval)
		}
		change(true)
		for i := range 100 {
			if n := len(book.lines("level=WARN")); n > 0 != (i >= shortConnections) || n > 1 {
				t.Fatalf("after %d short connections, the log warns: %q", i, book.lines("level=WARN"))
			}
			change(false)
			change(true)
		}
		if len(book.lines("level=WARN", "breaks again and again", errOff.Error(), "switch it on")) == 0 {
			t.Errorf("the log does not say why: %q", book.lines("level=WARN"))
		}
		if n := len(book.lines("level=INFO", "connected to NATS")); n > shortConnections {
			t.Errorf("the log says %d times that there is a connection", n)
		}
		change(false)
		before := len(book.lines("connected to NATS"))
		testenv.Pass(2 * shortLife)
		if n := len(book.lines("connected to NATS")); n != before+1 {
			t.Errorf("the log says %d times that the connection stands", n-before)
		}
		for _, off := range []bool{true, false} {
			change(off)
		}
		if n := len(book.lines("connected to NATS")); n != before+2 {
			t.Error("the log does not say that there is a connection again")
		}
	})
}

// The log has just said that connections break when the server stays away.
func TestTheLogSaysThatAServerStaysAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		one := b.join(t, DefaultConfig(), 1, nil)
		book := one.logTo()
		for range shortConnections {
			for _, off := range []bool{false, true} {
				one.link.cut(off)
				testenv.Pass(lookInterval)
			}
		}
		if len(book.lines("level=WARN", "breaks again and again")) != 1 {
			t.Fatalf("the log does not say that connections break: %q", book.lines("level=WARN"))
		}
		testenv.Pass(10 * time.Minute)
		if n := len(book.lines("level=WARN", "no connection")); n != 1 {
			t.Errorf("the log says %d times that there is no connection", n)
		}
	})
}

// Each message is of a router that is new, or asks for a heartbeat.
func TestHeartbeatsAreSentSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBus(1)
		one, two := b.join(t, DefaultConfig(), 1, nil), b.join(t, DefaultConfig(), 1, nil)
		testenv.Pass(time.Second)
		var sent []time.Time
		b.set(func() {
			b.change = func(packet []byte) []byte {
				open := newSigner("", "")
				h, records, err := open.open(slices.Clone(packet))
				for err == nil && len(records) > 0 {
					var kind byte
					if kind, _, records, err = nextRecord(records); kind == recordHeartbeat && h.from == one.sync.id {
						sent = append(sent, time.Now())
					}
				}
				return packet
			}
		})
		const flood = time.Second
		p := &speaker{s: one.sync, id: 1000}
		for range int(flood / time.Millisecond) {
			p.tell(time.Now(), recordHeartbeat, hello)
			(&speaker{s: one.sync, id: 2000 + p.number}).tell(time.Now(), recordHeartbeat, hello)
			testenv.Pass(time.Millisecond)
		}
		b.set(func() {
			if n := len(sent); n < 3 || n > int(flood/greetGap)+2 {
				t.Errorf("%d heartbeats in a second", n)
			}
			sent = nil
		})
		testenv.Pass(greetGap)
		p.tell(time.Now(), recordHeartbeat, hello)
		testenv.Pass(greetGap)
		b.set(func() {
			b.change = nil
			if len(sent) == 0 {
				t.Errorf("no heartbeat %v after a router asked for one", greetGap)
			}
		})
		if n := len(two.sync.Status().Peers); n != 1 {
			t.Errorf("the other router knows %d routers", n)
		}
	})
}
