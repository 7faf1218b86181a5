package kvfeed

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// An engine was replaced. The old engine's last messages still arrive on the old connection, while the replay endpoint
// already answers for the new engine. After the next connection, the history must be the new engine's whole history,
// without any message of the old engine.
func TestAnEngineReplacedWhileItsLastMessagesAreUnderWayIsLearnedWhole(t *testing.T) {
	type script func(s *sequence, live func(run string, from, to uint64))
	for name, interleaving := range map[string]script{
		"the old messages came before the new replay": func(s *sequence, live func(string, uint64, uint64)) {
			live("old", 0, 5)
			replayed(s, "new", 1)
		},
		"some came after it": func(s *sequence, live func(string, uint64, uint64)) {
			live("old", 0, 5)
			replayed(s, "new", 1)
			live("old", 5, 7)
		},
		"the replay was given up meanwhile": func(s *sequence, live func(string, uint64, uint64)) {
			live("old", 0, 5)
			replayed(s, "new", 1)
			live("old", 7, 9)
			replayed(s, "new", 1)
			s.giveUp(s.epoch, errors.New("nothing new"))
		},
		"the old replay had answered before": func(s *sequence, live func(string, uint64, uint64)) {
			replayed(s, "old", 3)
			live("old", 3, 5)
			replayed(s, "old", 5)
			replayed(s, "new", 1)
			live("old", 5, 6)
		},
		"the new replay is as long as the old stream": func(s *sequence, live func(string, uint64, uint64)) {
			live("old", 0, 5)
			replayed(s, "old", 5)
			replayed(s, "new", 5)
			live("old", 5, 6)
		},
		"a forwarder sends an old message twice": func(s *sequence, live func(string, uint64, uint64)) {
			live("old", 0, 5)
			replayed(s, "new", 5)
			live("old", 5, 6)
			live("old", 5, 6)
		},
		"the old engine's first message was dropped": func(s *sequence, live func(string, uint64, uint64)) {
			replayed(s, "new", 1)
			live("old", 1, 3)
		},
	} {
		for _, n := range []uint64{0, 1, 4, 5, 6, 9, 40} {
			t.Run(name, func(t *testing.T) {
				d := newDiary(t)
				s := newSequence(quickStream.withDefaults(), "tcp://127.0.0.1:1", d)
				s.connect()
				interleaving(s, func(run string, from, to uint64) {
					for seq := from; seq < to; seq++ {
						s.receive(liveMessage("t", seq, payload(run, seq)))
					}
				})
				s.disconnect(errors.New("gone"))
				s.connect()
				complete := d.complete
				replayed(s, "new", n)
				if d.next != n || d.complete == complete || len(d.payloads) != int(n) {
					t.Errorf("of %d messages: next is %d, complete again %d times, restarts %q, lost %v", n, d.next, d.complete-complete, d.restarts, d.lost)
				}
				d.expectPayloads("new", 0, n)
				s.receive(liveMessage("t", n, payload("new", n)))
				replayed(s, "new", n+1)
				d.expectPayloads("new", 0, n+1)
				if !s.announced {
					t.Error("the history is whole, but Complete was not called")
				}
			})
		}
	}
}

// Behind a forwarder the connection stays when the engine is replaced. If a replay of the new engine comes before the
// new engine's first live message, the replay says nothing about the live stream.
func TestAnEngineReplacedBehindAForwarderIsLearnedWholeByItsFirstMessage(t *testing.T) {
	for n := uint64(1); n < 9; n++ {
		for first := range n {
			d := newDiary(t)
			s := newSequence(quickStream.withDefaults(), "tcp://127.0.0.1:1", d)
			s.connect()
			for seq := range uint64(5) {
				s.receive(liveMessage("t", seq, payload("old", seq)))
			}
			replayed(s, "new", 1)
			for seq := first; seq < n; seq++ {
				s.receive(liveMessage("t", seq, payload("new", seq)))
				replayed(s, "new", seq+1)
			}
			if d.next != n || !s.announced || len(d.payloads) != int(n) {
				t.Errorf("of %d messages, %d the first live: next is %d, restarts %q, lost %v", n, first, d.next, d.restarts, d.lost)
			}
			d.expectPayloads("new", 0, n)
		}
	}
}

// Replacements of engines, drops, replays and late messages come in any order. In the end the connection and the replay
// endpoint lead to the same engine. Then the stream must know this engine's whole history, and no message of an older
// engine.
func TestAnyMixOfReplacedEnginesEndsWithTheLastOnesWholeHistory(t *testing.T) {
	for seed := range uint64(2000) {
		dice := rand.New(rand.NewPCG(seed, 1))
		d := newDiary(t)
		s := newSequence(quickStream.withDefaults(), "tcp://127.0.0.1:1", d)
		run, published := 'a', uint64(0) // name and number of messages of the run that is at the endpoints
		connected, next, sent := run, uint64(0), uint64(0)
		connect := func() {
			connected, next, sent = run, published, published
			s.connect()
		}
		deliver := func(n uint64, drop bool) {
			for ; n > 0 && next < sent; n, next = n-1, next+1 {
				if !drop {
					s.receive(liveMessage("t", next, payload(string(connected), next)))
				}
			}
		}
		connect()
		var steps strings.Builder
		for range 1 + dice.IntN(15) {
			n := uint64(1 + dice.IntN(5))
			do := dice.IntN(12)
			fmt.Fprintf(&steps, " %d/%d", do, n)
			switch do {
			case 0, 1, 2, 3:
				published += n
				if connected == run {
					sent = published
				}
			case 4, 5, 6:
				deliver(n, false)
			case 7:
				deliver(n, true)
			case 8, 9:
				replayed(s, string(run), published)
				if s.wanted {
					s.giveUp(s.epoch, errors.New("nothing new"))
				}
			case 10:
				run, published = run+1, 0
			case 11:
				s.disconnect(errors.New("gone"))
				connect()
			}
			if !d.behind && (s.pending.len() > 0 || s.live && s.next <= s.lastLive) {
				t.Fatalf("seed %d, steps%s: messages are kept back, and the stream is not said to be behind", seed, &steps)
			}
		}
		deliver(sent, false)
		s.disconnect(errors.New("gone"))
		connect()
		replayed(s, string(run), published)
		if s.wanted {
			s.giveUp(s.epoch, errors.New("nothing new"))
			replayed(s, string(run), published)
		}
		if d.next != published || !s.announced || len(d.payloads) != int(published) {
			t.Errorf("seed %d, steps%s: of %d messages next is %d, restarts %q, lost %v", seed, &steps, published, d.next, d.restarts, d.lost)
		}
		d.expectPayloads(string(run), 0, published)
		if t.Failed() {
			return
		}
	}
}
