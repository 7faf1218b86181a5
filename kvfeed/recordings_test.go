package kvfeed

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"path/filepath"
	"slices"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/test/testenv"
)

// recorded is one message of a real engine.
type recorded struct {
	Source  string   `json:"src"`
	Topic   string   `json:"topic"`
	Seq     int64    `json:"seq"`
	Payload string   `json:"payload_hex"`
	Frames  []string `json:"frames_hex"`
}

func recording(t *testing.T, name string) map[string][]recorded {
	t.Helper()
	bySource := map[string][]recorded{}
	for line := range bytes.Lines(testenv.Gunzip(t, testenv.Path(t, "vectors/live/"+name+".jsonl.gz"))) {
		var m recorded
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatal(err)
		}
		if m.Payload == "" && len(m.Frames) > 0 {
			m.Payload = m.Frames[len(m.Frames)-1]
		}
		if m.Topic == "kv-events" && m.Source != "replay-dealer" && m.Source != "replay-req" {
			bySource[m.Source] = append(bySource[m.Source], m)
		}
	}
	return bySource
}

// naive is a slow and simple model of the blocks that a holder has, by the engine's own hashes.
type naive struct {
	paths  map[uint64]path
	copies [block.NumTiers]map[uint64]int
}

type path struct {
	scope  block.Scope
	hashes []uint64
	tokens []block.Token
}

func newNaive() *naive {
	n := &naive{paths: map[uint64]path{}}
	for t := range n.copies {
		n.copies[t] = map[uint64]int{}
	}
	return n
}

func (n *naive) apply(e *kvevent.Event) {
	switch e.Kind {
	case kvevent.Cleared:
		clear(n.copies[e.Tier])
	case kvevent.Removed:
		for _, h := range e.Hashes {
			if n.copies[e.Tier][h]--; n.copies[e.Tier][h] <= 0 {
				delete(n.copies[e.Tier], h)
			}
		}
	case kvevent.Stored:
		at := path{scope: block.Scope{LoRA: e.LoRA, Salt: e.Salt}}
		known := !e.HasParent
		if e.HasParent {
			at, known = n.paths[e.Parent]
		}
		for i, h := range e.Hashes {
			n.copies[e.Tier][h]++
			if e.Aligned() && known && e.Attention == block.AttentionFull && (e.Tier == block.TierGPU || e.HasParent) {
				at.hashes = append(slices.Clone(at.hashes), h)
				at.tokens = append(slices.Clone(at.tokens), e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize]...)
				if _, ok := n.paths[h]; !ok {
					n.paths[h] = at
				}
			}
		}
	}
}

// has returns the number of leading blocks of p that are on any tier.
func (n *naive) has(p path) int {
	for i, h := range p.hashes {
		found := false
		for t := range n.copies {
			found = found || n.copies[t][h] > 0
		}
		if !found {
			return i
		}
	}
	return len(p.hashes)
}

func TestRecordedStreamsOfRealEnginesAreFollowed(t *testing.T) {
	for _, test := range []struct {
		name   string
		engine fleet.Engine
		trust  fleet.Trust
		// atMost: the router's match may be smaller than the naive model's, for example if the blocks lie on several tiers.
		atMost bool
	}{
		{name: "base_and_eviction", trust: fleet.TrustExact},
		{name: "dp", trust: fleet.TrustExact},
		{name: "hybrid", trust: fleet.TrustDegraded, atMost: true},
		{name: "lora", trust: fleet.TrustExact},
		{name: "salt", trust: fleet.TrustExact},
		{name: "tools", trust: fleet.TrustExact},
		{name: "tools_plain_server", trust: fleet.TrustExact},
		{name: "tool_calls", trust: fleet.TrustExact},
		{name: "pd", trust: fleet.TrustExact},
		{name: "pd_roles", trust: fleet.TrustExact},
		{name: "offload", trust: fleet.TrustExact, atMost: true},
		{name: "offload_placeholder", trust: fleet.TrustExact, atMost: true},
		{name: "offload_chunk2", trust: fleet.TrustExact, atMost: true},
		{name: "sglang", engine: fleet.EngineSGLang, trust: fleet.TrustExact},
		{name: "sglang_dp", engine: fleet.EngineSGLang, trust: fleet.TrustExact},
		{name: "sglang_dynamo", engine: fleet.EngineSGLang, trust: fleet.TrustExact},
	} {
		for source, messages := range recording(t, test.name) {
			t.Run(filepath.Join(test.name, source), func(t *testing.T) {
				f := facts(max(test.engine, fleet.EngineVLLM), 32)
				if test.engine == fleet.EngineUnknown {
					for _, a := range []string{"a", "b", "c"} {
						f.Models = append(f.Models, fleet.Model{ID: a, Parent: "m"})
					}
				}
				r := newRig(t, Config{})
				s := r.stream(f)
				truth := newNaive()
				var d kvevent.Decoder
				var b kvevent.Batch
				next, checked := int64(0), 0
				for i, m := range messages {
					payload, err := hex.DecodeString(m.Payload)
					if err != nil {
						t.Fatal(err)
					}
					if i > 0 && m.Seq < next { // smaller numbers begin here: the rest of the recording is of the next server
						s.Restarted("recorded")
						s.Complete()
						truth = newNaive()
					}
					next = m.Seq + 1
					s.Message(uint64(m.Seq), payload)
					if err := d.Decode(payload, &b); err != nil {
						t.Fatal(err)
					}
					for j := range b.Events {
						truth.apply(&b.Events[j])
					}
					if i%7 == 0 || i == len(messages)-1 {
						checked += compare(t, r, truth, test.atMost)
					}
				}
				if st := s.snapshot(); st.Undecodable != 0 || st.Skipped != 0 || st.Unapplied != 0 {
					t.Errorf("stats %+v", st)
				}
				// If a model has only sliding windows, it announces no block by its tokens.
				if checked == 0 && source != "mistral" {
					t.Error("no prompt was compared")
				}
				r.trust(s.holder, test.trust, "")
				t.Logf("%d messages, %d prompts compared, hash %s, %s", len(messages), checked, s.hash, s.why)
			})
		}
	}
}

// compare asks the router for every prompt that the engine ever announced.
func compare(t *testing.T, r *rig, truth *naive, atMost bool) (prompts int) {
	t.Helper()
	for _, p := range truth.paths {
		want := truth.has(p) * 32
		got := r.match(append(slices.Clone(p.tokens), 1), func(q *warmpath.Request) {
			q.Salt = p.scope.Salt
			if p.scope.LoRA != "" {
				q.Model = p.scope.LoRA
			}
		})
		if got > want || !atMost && got < want {
			t.Fatalf("match %d, the engine has %d of %d tokens (scope %+v)", got, want, len(p.tokens), p.scope)
		}
		prompts++
	}
	return prompts
}
