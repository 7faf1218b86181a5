package kvfeed

import (
	"log/slog"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
)

// If no peer has checkpoints, streams keep messages for good.
func TestManyStreamsKeepLittleForACheckpoint(t *testing.T) {
	f := fleet.New(fleet.Config{})
	router, err := warmpath.New(warmpath.Options{Fleet: f})
	if err != nil {
		t.Fatal(err)
	}
	feed := New(router, Config{}, slog.New(slog.DiscardHandler))
	feed.KeepMessages()
	f.Put(workerURL, facts(fleet.EngineVLLM, 16))
	w := f.Snapshot().Workers()[0]
	s := feed.newStream(w, w.Holders[0], fleet.EventSource{Endpoint: "tcp://127.0.0.1:1"})
	q := newSequence(feed.config.wire(1).withDefaults(), "", s)
	one := &follower{stream: s, sequence: q, stop: func() {}, done: make(chan struct{})}
	close(one.done)
	feed.supply(one)
	if feed.insert(one); feed.warm.streams.Load() != 1 {
		t.Errorf("%d streams, want 1", feed.warm.streams.Load())
	}
	message := make([]byte, 60<<10)
	next := uint64(0)
	for _, c := range []struct{ streams, most int }{{1, 4 << 20}, {64, 4 << 20}, {1024, 256 << 10}, {1 << 20, 64 << 10}} {
		feed.warm.streams.Store(int64(c.streams))
		greatest := 0
		for range 2 * (4 << 20) / len(message) {
			q.retain(next, message)
			if q.kept.messages[next].payload == nil {
				t.Fatalf("%d streams: the new message is not kept", c.streams)
			}
			greatest, next = max(greatest, q.kept.bytes), next+1
		}
		if greatest > c.most || greatest <= c.most-len(message) {
			t.Errorf("%d streams: one keeps up to %d bytes, want up to %d", c.streams, greatest, c.most)
		}
	}
	q.retain(next, make([]byte, 65<<10)) // has no room
	q.retain(next+1, message)
	feed.warm.streams.Store(9)
	if feed.end(one, "test"); feed.warm.streams.Load() != 0 {
		t.Errorf("%d streams, want 0", feed.warm.streams.Load())
	}
	if q.keptFrom != next+1 || q.kept.len() != 1 {
		t.Errorf("%d messages from %d on are kept, want one from %d on", q.kept.len(), q.keptFrom, next+1)
	}
}
