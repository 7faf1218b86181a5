package ingest

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
)

// large is a message of n events of a block each.
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
	if s.stored > progressEvents {
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
		s.mu.Lock() // as while a message is applied
		defer s.mu.Unlock()
		s.look(time.Now())
	})
}
