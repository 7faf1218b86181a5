package mockengine

import (
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/kvevent"
)

// encoder turns a step's events into the payloads of one wire version. It is immutable.
type encoder struct {
	wire      kvevent.Wire
	oldReplay bool // replays of that version carry no topic
	sglang    bool
}

// batch is the memory of one rank's payloads.
type batch struct {
	kv       kvevent.Batch
	hashes   []kvevent.Hash
	features []block.Feature
	payload  []byte
}

func newEncoder(name string) (encoder, error) {
	wire, err := kvevent.ParseWire(name)
	if err != nil {
		return encoder{}, err
	}
	return encoder{wire: wire, oldReplay: replaysWithoutTopic(name), sglang: strings.HasPrefix(name, "sglang")}, nil
}

// replaysWithoutTopic: vLLM put the topic into replays with 0.26 (#45177), SGLang after 0.5.18.
func replaysWithoutTopic(name string) bool {
	if version, ok := strings.CutPrefix(name, "vllm-0."); ok {
		minor, err := strconv.Atoi(strings.FieldsFunc(version, func(r rune) bool { return r < '0' || r > '9' })[0])
		return err == nil && minor < 26
	}
	if version, ok := strings.CutPrefix(name, "sglang-0.5."); ok {
		patch, err := strconv.Atoi(version)
		return err == nil && patch <= 18
	}
	return strings.HasPrefix(name, "sglang-0.4")
}

// encode returns the payload of events as one batch; it is valid until the next call with the same b.
func (c *encoder) encode(b *batch, rank int, events []engine.Event) []byte {
	b.kv.Time = float64(time.Now().UnixMicro()) / 1e6
	b.kv.Rank, b.kv.HasRank = rank, true
	b.kv.Events, b.hashes, b.features = b.kv.Events[:0], b.hashes[:0], b.features[:0]
	for i := range events {
		b.kv.Events = append(b.kv.Events, c.event(b, &events[i]))
	}
	b.payload = c.wire.Append(b.payload[:0], &b.kv)
	return b.payload
}

// event is e in the words of the wire.
func (c *encoder) event(b *batch, e *engine.Event) kvevent.Event {
	out := kvevent.Event{Tier: e.Tier, Medium: c.medium(e.Tier), Group: 0, HasAttention: true, Attention: block.AttentionFull, Spec: "full_attention"}
	switch e.Kind {
	case engine.Cleared:
		return kvevent.Event{Kind: kvevent.Cleared, Group: -1}
	case engine.Removed:
		out.Kind = kvevent.Removed
	case engine.Stored:
		out.Kind = kvevent.Stored
		out.Parent, out.HasParent = uint64(e.Parent), e.HasParent
		out.Tokens, out.BlockSize, out.LoRA, out.Salt = e.Tokens, e.BlockSize, e.LoRA, e.Salt
		out.Features = b.relative(e)
		if e.Tier != block.TierGPU {
			out.Hidden = kvevent.KeySalt // offload tiers leave extra_keys out, even of salted blocks (facts/engines.md §9.5)
		}
	}
	first := len(b.hashes)
	for _, h := range e.Hashes {
		b.hashes = append(b.hashes, uint64(h))
	}
	out.Hashes = b.hashes[first:len(b.hashes):len(b.hashes)]
	return out
}

// relative returns the features that begin in e, by their place in it.
func (b *batch) relative(e *engine.Event) []block.Feature {
	first := len(b.features)
	for _, f := range e.Features {
		if f.Offset >= e.Start && f.Offset < e.Start+len(e.Tokens) {
			b.features = append(b.features, block.Feature{ID: f.ID, Offset: f.Offset - e.Start})
		}
	}
	return b.features[first:len(b.features):len(b.features)]
}

func (c *encoder) medium(t block.Tier) string {
	switch {
	case t == block.TierGPU:
		return "GPU"
	case c.sglang:
		return "CPU_PINNED"
	}
	return "CPU"
}
