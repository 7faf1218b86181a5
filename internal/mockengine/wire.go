package mockengine

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/kvevent"
)

// encoder turns the events of a step into the payload of one wire version. It is immutable.
type encoder struct {
	wire      kvevent.Wire
	oldReplay bool // messages of a replay have no topic frame
	sglang    bool
	// unchained is true for SGLang before 0.5.6 (sglang#13488), whose events have no parents: the hash of a page is
	// Python's hash of the page's tokens alone, without the pages before. No router can use such events. The mock engine
	// writes such events so that tests can show this.
	unchained bool
	skew      time.Duration // added to the time of each message
}

// batch is the reusable memory for one rank's payloads.
type batch struct {
	kv       kvevent.Batch
	hashes   []kvevent.Hash
	features []block.Feature
	payload  []byte
	pages    map[page]uint64 // hash of each page in events, if encoder.unchained is set
}

// page identifies a page by its tier and its hash in the engine model.
type page struct {
	tier    block.Tier
	chained uint64
}

// newEncoder returns the encoder of a wire version. It refuses an unknown engine, and a version that is newer than all
// known versions of its engine.
func newEncoder(name string) (encoder, error) {
	wire, err := kvevent.ParseWire(name)
	if err != nil {
		return encoder{}, err
	}
	family, version := versionOf(name)
	newest := ""
	for _, known := range kvevent.Wires() {
		if f, _ := versionOf(known); f == family {
			newest = known
		}
	}
	if _, known := versionOf(newest); slices.Compare(version, known) > 0 {
		return encoder{}, fmt.Errorf("wire %q is newer than %s, the newest known; known are %s", name, newest,
			strings.Join(kvevent.Wires(), ", "))
	}
	return encoder{
		wire: wire, oldReplay: replaysWithoutTopic(name), sglang: family == "sglang",
		unchained: family == "sglang" && version != nil && slices.Compare(version, []int{0, 5, 6}) < 0,
	}, nil
}

// versionOf splits a wire's name into family and version: sglang-0.5.18+int becomes sglang and 0, 5, 18. If the name
// has no version, the version is nil. ParseWire must accept the name.
func versionOf(name string) (family string, version []int) {
	name, _, _ = strings.Cut(name, "+")
	family, text, ok := strings.Cut(name, "-")
	if !ok {
		return family, nil
	}
	for part := range strings.SplitSeq(text, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return family, nil
		}
		version = append(version, n)
	}
	for len(version) < 3 {
		version = append(version, 0)
	}
	return family, version
}

// replaysWithoutTopic reports whether replays have no topic frame. Replays of vLLM have a topic frame from 0.26 on
// (vllm#45177). Replays of SGLang have a topic frame after 0.5.18.
func replaysWithoutTopic(name string) bool {
	family, version := versionOf(name)
	switch {
	case version == nil:
		return false
	case family == "vllm":
		return slices.Compare(version, []int{0, 26, 0}) < 0
	}
	return family == "sglang" && slices.Compare(version, []int{0, 5, 19}) < 0
}

// encode returns the payload of events as one batch. The payload is valid until the next call with the same b.
func (c *encoder) encode(b *batch, rank int, events []engine.Event) []byte {
	b.kv.Time = float64(time.Now().Add(c.skew).UnixMicro()) / 1e6
	b.kv.Rank, b.kv.HasRank = rank, true
	b.kv.Events, b.hashes, b.features = b.kv.Events[:0], b.hashes[:0], b.features[:0]
	for i := range events {
		b.kv.Events = append(b.kv.Events, c.event(b, &events[i]))
	}
	b.payload = c.wire.Append(b.payload[:0], &b.kv)
	return b.payload
}

// event returns e as an event of package kvevent, as the version c writes it.
func (c *encoder) event(b *batch, e *engine.Event) kvevent.Event {
	out := kvevent.Event{Tier: e.Tier, Medium: c.medium(e.Tier), Group: 0, HasAttention: true,
		Attention: block.AttentionFull, Spec: "full_attention"}
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
		out.NoExtraKeys = e.Tier != block.TierGPU // vLLM's OffloadingConnector (0.32.0) leaves out extra_keys
	}
	if c.unchained {
		out.Parent, out.HasParent = 0, false
	}
	first := len(b.hashes)
	for i, h := range e.Hashes {
		hash := uint64(h)
		if c.unchained {
			hash = b.unchained(e, i)
		}
		b.hashes = append(b.hashes, hash)
	}
	out.Hashes = b.hashes[first:len(b.hashes):len(b.hashes)]
	return out
}

// unchained returns a hash of the i-th page of e that depends only on the page's tokens. FNV-1a replaces Python's hash.
func (b *batch) unchained(e *engine.Event, i int) uint64 {
	p := page{e.Tier, uint64(e.Hashes[i])}
	if e.Kind == engine.Removed {
		hash := b.pages[p]
		delete(b.pages, p)
		return hash
	}
	sum := fnv.New64a()
	for _, id := range e.Tokens[i*e.BlockSize : (i+1)*e.BlockSize] {
		_, _ = sum.Write(binary.LittleEndian.AppendUint32(nil, uint32(id)))
	}
	if b.pages == nil {
		b.pages = map[page]uint64{}
	}
	b.pages[p] = sum.Sum64()
	return b.pages[p]
}

// relative returns the features that begin in e, with offsets relative to e's first token.
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
