package kvfeed

import (
	"encoding/binary"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/test/testenv"
)

// large returns a message of n events with one block each.
func large(t testing.TB, n int) []byte {
	events := make([]kvevent.Event, n)
	for i := range events {
		events[i] = stored(i+2, 0, 16, 16)
	}
	return wire(t, "vllm-0.32.0", batch(events...))
}

func TestAStreamThatEndsDoesNotWaitForTheRestOfALargeMessage(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 16))
	s.closing.Store(true)
	s.Message(0, large(t, 1000))
	if s.stored > 0 {
		t.Errorf("%d events were applied to a stream that ends", s.stored)
	}
	s.closing.Store(false)
	s.Message(1, large(t, 1000))
	if s.stored < 1000 {
		t.Errorf("%d of 1,000 events were applied", s.stored)
	}
}

func TestALookAtStreamsDoesNotWaitForALargeMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		s := r.stream(facts(fleet.EngineVLLM, 16))
		s.mu.Lock() // the test holds the lock, as the application of a message does
		defer s.mu.Unlock()
		s.look(time.Now())
	})
}

// A hostile message is short on the wire and large in memory. It must take at most the memory of the decoder's bound,
// and its unusable parts must be counted.
func TestALongHostileMessageTakesBoundedMemoryAndLowersTrust(t *testing.T) {
	header := func(n int) []byte {
		return append([]byte{0x93, 0xca, 0, 0, 0, 0, 0xdd}, binary.BigEndian.AppendUint32(nil, uint32(n))...)
	}
	repeat := func(n int, event string) []byte { return append(append(header(n), strings.Repeat(event, n)...), 0xc0) }
	const million = "\xdd\x00\x0f\x42\x40" // MessagePack's head of an array of a million elements
	for name, test := range map[string]struct {
		payload []byte
		trust   fleet.Trust
		events  uint64
	}{
		"removals without hashes": {repeat(300_000, "\x92\xacBlockRemoved\x90"), fleet.TrustExact, 300_000},
		"resets":                  {repeat(20_000, "\x91\xb0AllBlocksCleared"), fleet.TrustExact, 20_000},
		"empty stored events":     {repeat(200_000, "\x95\xabBlockStored\x90\xc0\x90\x10"), fleet.TrustExact, 200_000},
		"nil":                     {repeat(1_000_000, "\xc0"), fleet.TrustExact, 1_000_000},
		"a removal of too many":   {repeat(8, "\x92\xacBlockRemoved"+million+strings.Repeat("\x01", 1_000_000)), fleet.TrustDegraded, 8},
		"too many blocks":         {repeat(8, "\x95\xabBlockStored"+million+strings.Repeat("\x01", 1_000_000)+"\xc0\x90\x01"), fleet.TrustDegraded, 8},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{})
			s := r.stream(facts(fleet.EngineVLLM, 16))
			s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 64, 16))))
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			s.Message(1, test.payload)
			runtime.ReadMemStats(&after)
			if used := after.TotalAlloc - before.TotalAlloc; used > 48<<20 {
				t.Errorf("%d MiB allocated for a message of %d MiB", used>>20, len(test.payload)>>20)
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > 4<<20 {
				t.Errorf("%d MiB are kept", kept>>20)
			}
			if st := s.snapshot(); st.Applied+st.Unapplied-1 != test.events {
				t.Errorf("%d events of %d", st.Applied+st.Unapplied-1, test.events)
			}
			r.trust(s.holder, test.trust, "")
			runtime.KeepAlive(r)
		})
	}
}

// The application of events counts as stalled if no stream makes progress. While one stream makes progress, another
// stream may wait without a stall.
func TestAStreamThatWaitsForOthersIsNoStallOfTheRouter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		f := facts(fleet.EngineVLLM, 16)
		f.Ranks = 2
		r.fleet.Put(workerURL, f)
		w := r.fleet.Snapshot().Workers()[0]
		var streams [2]*stream
		for i := range streams {
			streams[i] = r.feed.newStream(w, w.Holders[i], fleet.EventSource{})
			r.feed.streams[w.Holders[i]] = &follower{stream: streams[i]}
		}
		slow, busy := streams[0], streams[1]
		slow.step()
		for range int(stuck/time.Second) - 1 {
			testenv.Pass(time.Second)
			busy.step()
			busy.rest()
			if age, who := r.feed.Oldest(time.Now()); age > 0 {
				t.Fatalf("%s is stalled for %v while another stream makes progress", who, age)
			}
		}
		testenv.Pass(time.Second)
		busy.rest()
		if age, who := r.feed.Oldest(time.Now()); age != stuck || !strings.Contains(who, "rank 0") {
			t.Errorf("%q is stalled for %v, want rank 0 for %v", who, age, stuck)
		}
		slow.rest()
		slow.step()
		testenv.Pass(3 * time.Second)
		if age, _ := r.feed.Oldest(time.Now()); age != 3*time.Second {
			t.Errorf("no stream makes progress for 3 s, but the reported stall takes %v", age)
		}
		slow.rest()
		if age, _ := r.feed.Oldest(time.Now()); age != 0 {
			t.Errorf("no events are being applied, but a stall of %v is reported", age)
		}
	})
}
