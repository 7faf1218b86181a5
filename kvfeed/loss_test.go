package kvfeed

import (
	"errors"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvindex"
)

// wholeAgain has the two events after which a holder's history is whole again: a reset of its cache, and a restart with
// a replayed history.
var wholeAgain = map[string]func(t *testing.T, s *stream){
	"a reset of its cache": func(t *testing.T, s *stream) {
		s.Message(9999, wire(t, "vllm-0.32.0", batch(kvevent.Event{Kind: kvevent.Cleared, Group: -1})))
	},
	"a new history": func(_ *testing.T, s *stream) {
		s.Restarted("it began again")
		s.Complete()
	},
}

func TestAHolderWhoseBlocksTheIndexDroppedIsDegradedUntilItIsWholeAgain(t *testing.T) {
	for name, again := range wholeAgain {
		t.Run(name, func(t *testing.T) {
			r := newRigWithIndex(t, Config{}, kvindex.Config{Bytes: 1 << 20})
			s := r.stream(facts(fleet.EngineVLLM, 16))
			s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 64, 16))))
			s.look(time.Now())
			r.trust(s.holder, fleet.TrustExact, "complete")
			for i := range uint64(48) {
				s.Message(i+1, wire(t, "vllm-0.32.0", batch(stored(int(i)+2, 0, 16*1024, 16))))
			}
			s.look(time.Now())
			r.trust(s.holder, fleet.TrustDegraded, "index.bytes")
			s.Complete() // Complete says that the stream has all messages; it does not bring the forgotten blocks back
			r.trust(s.holder, fleet.TrustDegraded, "index.bytes")
			again(t, s)
			r.trust(s.holder, fleet.TrustExact, "complete")
		})
	}
}

func TestALossShowsAfterTheBatchThatCausedIt(t *testing.T) {
	r := newRigWithIndex(t, Config{}, kvindex.Config{Bytes: 1 << 20})
	s := r.stream(facts(fleet.EngineVLLM, 16))
	for i := range uint64(48) {
		s.indexSeen = time.Time{} // the next message queries the index for losses, as if the last query was long ago
		s.Message(i, wire(t, "vllm-0.32.0", batch(stored(int(i)+2, 0, 16*1024, 16))))
	}
	r.trust(s.holder, fleet.TrustDegraded, "index.bytes")
}

func TestAnAnnouncementThatCannotBeReadLowersTrustUntilTheHolderIsWholeAgain(t *testing.T) {
	for name, again := range wholeAgain {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{})
			s := r.stream(facts(fleet.EngineVLLM, 16))
			impossible := stored(1, 0, 64, 16)
			impossible.BlockSize = -1
			s.Message(0, wire(t, "vllm-0.32.0", batch(stored(2, 0, 64, 16), impossible)))
			r.trust(s.holder, fleet.TrustDegraded, "could not be read")
			if got := r.match(prompt(2, 100)); got != 64 {
				t.Errorf("the events that could be read match %d tokens, want 64", got)
			}
			s.Complete()
			r.trust(s.holder, fleet.TrustDegraded, "could not be read")
			again(t, s)
			r.trust(s.holder, fleet.TrustExact, "complete")
		})
	}
}

func TestAnAnnouncementThatTheIndexRefusesLowersTrustUntilTheHolderIsWholeAgain(t *testing.T) {
	for name, again := range wholeAgain {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{})
			s := r.stream(facts(fleet.EngineVLLM, 16))
			impossible := stored(1, 0, 64, 16)
			impossible.BlockSize = 1 << 20
			s.Message(0, wire(t, "vllm-0.32.0", batch(stored(2, 0, 64, 16), impossible)))
			r.trust(s.holder, fleet.TrustDegraded, "the index refused 1")
			again(t, s)
			r.trust(s.holder, fleet.TrustExact, "complete")
		})
	}
}

// vLLM's offload tiers are not emptied by a reset of the accelerator's cache, and their blocks are not announced again.
func TestAResetProvesNothingOfAnOffloadTierThatWasForgotten(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 16))
	below := stored(1, 0, 64, 16)
	below.Tier, below.Medium = block.TierCPU, "CPU"
	s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 64, 16), below)))
	s.Complete()
	r.trust(s.holder, fleet.TrustExact, "complete")
	s.Lost(1, 3)
	s.Message(3, wire(t, "vllm-0.32.0", batch(kvevent.Event{Kind: kvevent.Cleared, Group: -1})))
	r.trust(s.holder, fleet.TrustDegraded, "lost")
	s.Restarted("its numbers began again")
	s.Lost(0, 5)
	s.Message(5, wire(t, "vllm-0.32.0", batch(kvevent.Event{Kind: kvevent.Cleared, Group: -1})))
	r.trust(s.holder, fleet.TrustExact, "complete")
}

// TestAResetProvesNothingOfAnOffloadTierThatShowsUpLater: an offload tier may have blocks from before a reset. The
// router did not know of the tier at the reset, because the worker was new and its history is missing.
func TestAResetProvesNothingOfAnOffloadTierThatShowsUpLater(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 16))
	below := stored(1, 0, 64, 16)
	below.Tier, below.Medium = block.TierCPU, "CPU"
	s.Lost(0, 2)
	s.Message(2, wire(t, "vllm-0.32.0", batch(kvevent.Event{Kind: kvevent.Cleared, Group: -1})))
	r.trust(s.holder, fleet.TrustExact, "complete")
	s.Message(3, wire(t, "vllm-0.32.0", batch(stored(1, 0, 64, 16), below)))
	r.trust(s.holder, fleet.TrustDegraded, "before the reset")
	s.Restarted("its numbers began again")
	s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 64, 16), below)))
	s.Complete()
	r.trust(s.holder, fleet.TrustExact, "complete")
}

// TestAHolderWithBlocksKnownByTheirHashesAloneIsNotExact: offloaded copies are announced without their tokens. A reset
// of the accelerator's cache before the announcement removes the blocks that had the tokens.
func TestAHolderWithBlocksKnownByTheirHashesAloneIsNotExact(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 16))
	below := kvevent.Event{Kind: kvevent.Stored, Group: -1, Tier: block.TierCPU, Medium: "CPU", Hashes: hashes(1, 0, 4)}
	clear := kvevent.Event{Kind: kvevent.Cleared, Group: -1}
	s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 64, 16))))
	s.Message(1, wire(t, "vllm-0.32.0", batch(clear)))
	r.trust(s.holder, fleet.TrustExact, "complete")
	s.Message(2, wire(t, "vllm-0.32.0", batch(below)))
	s.look(time.Now())
	r.trust(s.holder, fleet.TrustDegraded, "known by hash only")
	s.Message(3, wire(t, "vllm-0.32.0", batch(stored(1, 0, 64, 16))))
	s.look(time.Now())
	r.trust(s.holder, fleet.TrustExact, "complete")
}

func TestAStreamWithoutSequenceNumbersIsNeverExact(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 16))
	s.Lost(0, 0)
	s.Unnumbered()
	s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 64, 16))))
	r.trust(s.holder, fleet.TrustDegraded, "no sequence numbers")
	if got := r.match(prompt(1, 100)); got != 64 {
		t.Errorf("match %d, want 64", got)
	}
	s.Message(1, wire(t, "vllm-0.32.0", batch(kvevent.Event{Kind: kvevent.Cleared, Group: -1})))
	r.trust(s.holder, fleet.TrustDegraded, "no sequence numbers")
	s.State(false, errors.New("gone"))
	s.State(true, nil)
	s.Restarted("it numbers its messages now")
	s.Complete()
	r.trust(s.holder, fleet.TrustExact, "complete")
}

// The process behind a new connection may be another one, with an empty cache.
func TestAHolderIsNotExactAfterAReconnectUntilItsEngineIsKnownToBeTheSame(t *testing.T) {
	for name, confirm := range map[string]func(s *stream){
		"the history is whole": func(s *stream) { s.Complete() },
		"nothing is missing":   func(s *stream) { s.Behind(false) },
		"the engine restarted": func(s *stream) { s.Restarted("its numbers began again"); s.Complete() },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Config{})
			s := r.stream(facts(fleet.EngineVLLM, 16))
			s.source.Replay = "tcp://127.0.0.1:5657"
			s.Message(0, wire(t, "vllm-0.32.0", batch(stored(1, 0, 64, 16))))
			r.trust(s.holder, fleet.TrustExact, "complete")
			s.State(false, errors.New("gone"))
			r.trust(s.holder, fleet.TrustDegraded, "disconnected")
			s.Behind(true) // a subscriber calls Behind(true) on each new connection
			s.State(true, nil)
			r.trust(s.holder, fleet.TrustDegraded, catchingUp)
			confirm(s)
			r.trust(s.holder, fleet.TrustExact, "complete")
		})
	}
}
