package kvfeed

import (
	"runtime"
	"testing"

	"github.com/warmpath/warmpath/fleet"
)

// Each rank of a worker has a stream. Only one stream of a worker waits for the index's lock at a time. Otherwise
// another worker's event could wait for the events of all ranks.
func TestTheRanksOfAWorkerChangeTheIndexByTurns(t *testing.T) {
	r := newRig(t, Config{})
	ranked := facts(fleet.EngineVLLM, 16)
	ranked.Ranks = 3
	r.fleet.Put(workerURL, ranked)
	r.fleet.Put("http://127.0.0.1:9000", facts(fleet.EngineVLLM, 16))
	var streams []*stream
	for _, w := range r.fleet.Snapshot().Workers() {
		for _, h := range w.Holders {
			streams = append(streams, r.feed.newStream(w, h, fleet.EventSource{}))
		}
	}
	waiting, other := streams[1], streams[3]
	message := func(rank int) []byte {
		b := batch(stored(1, 0, 64, 16))
		b.Rank = rank
		return wire(t, "vllm-0.32.0", b)
	}
	streams[0].turn.Lock() // stream 0 has the worker's turn, as if its event waited for the index
	other.Message(0, message(0))
	if other.stored != 1 {
		t.Error("a stream of another worker waits for the turn")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		waiting.Message(0, message(1))
	}()
	for range 10_000 {
		runtime.Gosched()
	}
	select {
	case <-done:
		t.Error("two ranks of one worker change the index at a time")
	default:
	}
	streams[2].closing.Store(true)
	streams[0].turn.Unlock()
	<-done
	if waiting.stored != 1 {
		t.Errorf("%d events were applied, want 1", waiting.stored)
	}
	streams[2].Message(0, message(2))
	if streams[2].stored != 0 {
		t.Error("a stream that ends took the turn")
	}
}
