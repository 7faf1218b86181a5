package kvfeed

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvindex"
)

// A router must not give what it knows of a holder to another router if its index may differ from the engine's cache.
func TestWhatMayDifferFromTheCacheIsNoCheckpoint(t *testing.T) {
	host, otherRank := stored(2, 0, 64, 16), batch(stored(2, 0, 64, 16))
	host.Medium = "cpu"
	otherRank.Rank = 7
	says := func(e kvevent.Event) func(p *party) { return func(p *party) { p.hear("vllm-0.32.0", batch(e)) } }
	for name, c := range map[string]struct {
		engine fleet.Engine
		spoil  func(p *party)
		why    string
	}{
		"a tier without removals":       {fleet.EngineVLLM, says(host), "announces no removals"},
		"blocks that wait for a parent": {fleet.EngineVLLM, says(stored(2, 64, 64, 16)), "wait for their parents"},
		"another rank's events": {fleet.EngineVLLM, func(p *party) {
			p.hear("vllm-0.32.0", otherRank)
			p.stream.Complete() // as after the next connection
		}, "carries events of data-parallel rank 7"},
		"keys that events lack": {fleet.EngineSGLang, func(p *party) {
			p.feed.Scoped(workerURL, 0, "", "tenant")
			p.hear("sglang-0.5.23", batch(stored(2, 0, 64, 16)))
		}, "requests carry an extra_key"},
		"an index that dropped blocks": {fleet.EngineVLLM, func(p *party) {
			for i := range 48 {
				p.hear("vllm-0.32.0", batch(stored(i+2, 0, 16*1024, 16)))
			}
		}, "dropped some blocks"},
		"a message that could not be read": {fleet.EngineVLLM, func(p *party) { p.hearPayload([]byte("x")) }, "its history is not whole: message 1"},
		"a history that is being read": {fleet.EngineVLLM, func(p *party) {
			p.stream.Restarted("test")
			p.stream.missing = ""
		}, "is being read"},
		"messages that are missing":  {fleet.EngineVLLM, func(p *party) { p.stream.Behind(true) }, "is being read"},
		"a stream that ends":         {fleet.EngineVLLM, func(p *party) { p.stream.closing.Store(true) }, "begins again"},
		"an index that was replaced": {fleet.EngineVLLM, func(p *party) { p.stream.renew.Store(true) }, "begins again"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newParty(t, facts(c.engine, 16), kvindex.Config{Bytes: 1 << 20}, false)
			p.sequence.connect()
			version := map[fleet.Engine]string{fleet.EngineVLLM: "vllm-0.32.0", fleet.EngineSGLang: "sglang-0.5.23"}[c.engine]
			p.hear(version, batch(stored(1, 0, 64, 16)))
			if made, err := p.feed.Checkpoint(Place{workerURL, 0}); err != nil || made.Blocks() != 4 {
				t.Fatalf("before: %v", err)
			}
			c.spoil(p)
			if _, err := p.feed.Checkpoint(Place{workerURL, 0}); err == nil || !strings.Contains(err.Error(), c.why) {
				t.Errorf("the error is %v, want %q", err, c.why)
			}
		})
	}
}

// hear gives the router the engine's next message.
func (p *party) hear(version string, b *kvevent.Batch) {
	p.t.Helper()
	p.hearPayload(wire(p.t, version, b))
}

func (p *party) hearPayload(payload []byte) {
	p.sequence.receive([][]byte{[]byte("kv"), binary.BigEndian.AppendUint64(nil, uint64(p.got)), payload})
	p.got++
}

// A sequence is cut only where no message is missing and none may be: each sign of a missing message alone prevents it.
func TestASequenceIsNotCutWhereMessagesMayBeMissing(t *testing.T) {
	cut := func(s *sequence) (taken bool, err error) {
		err = s.cut(func(uint64, []uint64) error {
			taken = true
			return nil
		})
		return taken, err
	}
	for name, spoil := range map[string]func(s *sequence){
		"disconnected":                  func(s *sequence) { s.connected = false },
		"without numbers":               func(s *sequence) { s.unnumbered = true },
		"behind":                        func(s *sequence) { s.behind = true },
		"not verified":                  func(s *sequence) { s.verified = false },
		"a replay is wanted":            func(s *sequence) { s.wanted = true },
		"a message had no room":         func(s *sequence) { s.overflow = true },
		"a message waits":               func(s *sequence) { s.pending.put(s.next+1, []byte("later"), true) },
		"a live message is not applied": func(s *sequence) { s.lastLive = s.next },
		"no message is remembered":      func(s *sequence) { s.seen.forget() },
	} {
		t.Run(name, func(t *testing.T) {
			p := newParty(t, facts(fleet.EngineVLLM, 16), kvindex.Config{}, false)
			p.sequence.connect()
			p.hear("vllm-0.32.0", batch(stored(1, 0, 64, 16)))
			if taken, err := cut(p.sequence); !taken || err != nil {
				t.Fatalf("before: %v", err)
			}
			spoil(p.sequence)
			if taken, err := cut(p.sequence); taken || err == nil {
				t.Errorf("it was cut: %v", err)
			}
		})
	}
}
