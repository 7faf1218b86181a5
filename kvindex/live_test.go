package kvindex_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/test/testenv"
)

// message is a line of a recording in vectors/live: a message of a real engine.
type message struct {
	Desc    string   `json:"desc"`
	Src     string   `json:"src"`
	Seq     int      `json:"seq"`
	Payload string   `json:"payload_hex"`
	Frames  []string `json:"frames_hex"`
}

func readLive(t testing.TB, name string) []message {
	t.Helper()
	var all []message
	for _, line := range bytes.Split(bytes.TrimSpace(testenv.Gunzip(t, testenv.Path(t, "vectors/live/"+name+".jsonl.gz"))), []byte("\n")) {
		var m message
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatal(err)
		}
		if m.Payload == "" {
			m.Payload = m.Frames[len(m.Frames)-1]
		}
		all = append(all, m)
	}
	return all
}

// player applies an engine's messages to an index. It also keeps a naive account of the engine's blocks, for
// comparison.
type player struct {
	t       testing.TB
	hasher  *block.Hasher
	index   *kvindex.Index
	decoder kvevent.Decoder
	batch   kvevent.Batch

	copies  map[string]int           // for each tier, group and hash, the number of announcements minus removals
	parents map[uint64]uint64        // the parent of each hash that aligned events of the tier GPU contain
	chains  map[uint64][]block.Token // for each hash, the tokens of the chain up to its block
	scopes  map[uint64]block.Scope   // for each hash, the scope of its chain
	full    int                      // the engine's number of the full-attention group
}

func newPlayer(t testing.TB, size int) *player {
	h, err := block.NewHasher(block.XXH3, size)
	if err != nil {
		t.Fatal(err)
	}
	return &player{
		t: t, hasher: h, index: kvindex.New(h, kvindex.Config{}),
		copies: map[string]int{}, parents: map[uint64]uint64{}, chains: map[uint64][]block.Token{}, scopes: map[uint64]block.Scope{},
	}
}

func place(tier block.Tier, group int, hash uint64) string {
	return fmt.Sprint(tier, " ", max(group, 0), " ", hash)
}

func (p *player) play(payload string) {
	p.t.Helper()
	b, err := hex.DecodeString(payload)
	if err != nil {
		p.t.Fatal(err)
	}
	if err := p.decoder.Decode(b, &p.batch); err != nil {
		p.t.Fatal(err)
	}
	for i := range p.batch.Events {
		p.apply(&p.batch.Events[i])
	}
}

func (p *player) apply(e *kvevent.Event) {
	switch e.Kind {
	case kvevent.Cleared:
		for k := range p.copies {
			if strings.HasPrefix(k, e.Tier.String()) {
				delete(p.copies, k)
			}
		}
		p.index.Clear(0, e.Tier)
	case kvevent.Removed:
		for _, h := range e.Hashes {
			p.copies[place(e.Tier, e.Group, h)]--
		}
		p.index.Remove(0, e.Tier, e.Group, e.Hashes)
	case kvevent.Stored:
		p.explain(e)
		s := kvindex.Stored{
			Tier: e.Tier, Group: e.Group, Attention: e.Attention, Window: e.Window,
			Scope: block.Scope{LoRA: e.LoRA, Salt: e.Salt}, Parent: e.Parent, HasParent: e.HasParent,
			Hashes: e.Hashes, Tokens: e.Tokens, BlockSize: e.BlockSize, Features: e.Features,
			RootUnknown: e.Tier != block.TierGPU || !e.Aligned(),
		}
		p.index.Store(0, &s)
		for _, h := range e.Hashes {
			p.copies[place(e.Tier, e.Group, h)]++
		}
	}
}

// explain stores the chain of tokens that each engine hash of an event stands for, if the event is of the tier GPU and
// has tokens for each hash.
func (p *player) explain(e *kvevent.Event) {
	if e.Tier != block.TierGPU || !e.Aligned() {
		return
	}
	if e.Attention == block.AttentionFull {
		p.full = max(e.Group, 0)
	}
	chain, scope := slices.Clone(p.chains[e.Parent]), p.scopes[e.Parent]
	if !e.HasParent {
		chain, scope = nil, block.Scope{LoRA: e.LoRA, Salt: e.Salt}
	}
	for i, h := range e.Hashes {
		chain = append(chain, e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize]...)
		p.chains[h], p.scopes[h] = slices.Clone(chain), scope
		if i > 0 {
			p.parents[h] = e.Hashes[i-1]
		} else if e.HasParent {
			p.parents[h] = e.Parent
		}
	}
}

// match returns the index's answer for a prompt.
func (p *player) match(tokens []block.Token, scope block.Scope) kvindex.Match {
	keys := p.hasher.Append(nil, p.hasher.Root(scope), 0, tokens, nil)
	if m := p.index.Match(keys, nil); len(m) == 1 {
		return m[0]
	}
	return kvindex.Match{}
}

// leading returns the number of leading tokens of a chain that the engine has cached, by the naive account: first
// blocks on the accelerator, then blocks in host memory.
func (p *player) leading(hash uint64) int {
	var path []uint64
	for h, ok := hash, true; ok; h, ok = p.parents[h] {
		path = append([]uint64{h}, path...)
	}
	n, tier := 0, block.TierGPU
	for _, h := range path {
		for tier <= block.TierCPU && p.copies[place(tier, p.full, h)] <= 0 {
			tier++
		}
		if tier > block.TierCPU {
			break
		}
		n = len(p.chains[h])
	}
	return n
}

func TestLiveRecordings(t *testing.T) {
	testenv.SkipRaced(t)
	for _, file := range testenv.Recordings(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".jsonl.gz")
		if name == "hybrid" || name == "lmcache" {
			continue // other tests play these recordings
		}
		for _, size := range []int{32, 16, 64, 24} {
			t.Run(fmt.Sprintf("%s in blocks of %d", name, size), func(t *testing.T) { replay(t, name, size) })
		}
	}
}

// replay plays a recording. After every message it compares the index's matches of the message's chains with the naive
// account. At the end it compares the matches of all chains. No match may be longer than the account says. If the
// index's blocks have 32 tokens, as the blocks of the recorded engines, the matches must be equal to the account.
func replay(t *testing.T, name string, size int) {
	players, last := map[string]*player{}, map[string]int{}
	for _, m := range readLive(t, name) {
		p := players[m.Src]
		if p == nil || m.Seq == 0 || m.Seq < last[m.Src] { // a new server begins its sequence numbers again
			p = newPlayer(t, size)
			players[m.Src] = p
		}
		last[m.Src] = m.Seq
		if m.Src == "replay-dealer" && strings.Repeat("f", 16) == m.Frames[len(m.Frames)-2] {
			continue // the end marker of a replay has no events
		}
		if strings.Contains(m.Payload, hex.EncodeToString([]byte("LoadStat"))) {
			continue // a load message of SGLang, which comes on another socket than events
		}
		p.play(m.Payload)
		for i := range p.batch.Events {
			for _, h := range p.batch.Events[i].Hashes {
				p.check(t, m, h)
			}
		}
	}
	for _, p := range players {
		for h := range p.chains {
			p.check(t, message{Desc: "at the end"}, h)
		}
	}
}

func (p *player) check(t *testing.T, m message, hash uint64) {
	t.Helper()
	tokens, known := p.chains[hash]
	if !known {
		return
	}
	got, want := int(p.match(tokens, p.scopes[hash]).Blocks)*p.hasher.Size(), p.leading(hash)
	if got > want {
		t.Fatalf("%s %d (%s): %d tokens are claimed of a chain of %d, events say %d", m.Src, m.Seq, m.Desc, got, len(tokens), want)
	}
	if p.hasher.Size() == 32 && got < want {
		t.Fatalf("%s %d (%s): %d tokens are claimed of a chain of %d, events say %d", m.Src, m.Seq, m.Desc, got, len(tokens), want)
	}
}

// TestLiveHybrid checks a property of engines with hybrid models. After the first prompt 480 tokens are cached, but a
// prefix of 200 tokens does not match until the prefix was a prompt itself.
func TestLiveHybrid(t *testing.T) {
	for _, src := range []string{"gemma3", "gptoss", "mistral"} {
		t.Run(src, func(t *testing.T) {
			p := newPlayer(t, 32)
			var prompt []block.Token
			for _, m := range readLive(t, "hybrid") {
				if m.Src != src {
					continue
				}
				p.play(m.Payload)
				if m.Seq == 0 {
					prompt = slices.Clone(p.batch.Events[0].Tokens)
				}
				whole, part := p.match(prompt, block.Scope{}), p.match(prompt[:192], block.Scope{})
				want := map[int][2]uint32{0: {15, 0}, 1: {15, 6}, 2: {15, 6}, 6: {15, 6}, 7: {0, 0}}
				if src == "mistral" {
					// The event does not say which of its tokens each hash stands for, so the index claims no block.
					want = map[int][2]uint32{0: {0, 0}, 1: {0, 0}, 7: {0, 0}}
				}
				if w, ok := want[m.Seq]; ok && (whole.Blocks != w[0] || part.Blocks != w[1]) {
					t.Errorf("%d (%s): %d and %d blocks, want %v", m.Seq, m.Desc, whole.Blocks, part.Blocks, w)
				}
				if m.Desc == "after reset" || m.Seq == 7 {
					short := slices.Clone(p.batch.Events[1].Tokens)
					if got := p.match(short, block.Scope{}); got.Blocks != 2 {
						t.Errorf("%d (%s): %d blocks of a prompt shorter than the window", m.Seq, m.Desc, got.Blocks)
					}
				}
			}
			h, _ := p.index.Holder(0)
			if src != "mistral" && (len(h.Groups) != 2 || h.Groups[0].Attention != block.AttentionSlidingWindow || h.Groups[0].Window != 128) {
				t.Errorf("groups %+v", h.Groups)
			}
			if h.Waiting > 0 && src != "mistral" {
				t.Errorf("%d wait", h.Waiting)
			}
		})
	}
}

// pool is a scenario that was played on vLLM's class BlockPool, with the events and the cached blocks after each step.
type pool struct {
	ID    string `json:"id"`
	Steps []struct {
		Step    string   `json:"step"`
		Payload string   `json:"payload_hex"`
		Cached  []string `json:"still_cached_external_u64"`
	} `json:"steps"`
}

func readPools(t *testing.T) map[string]pool {
	t.Helper()
	var v struct {
		Pools []pool `json:"block_pool_traces"`
	}
	testenv.Vectors(t, &v)
	out := map[string]pool{}
	for _, p := range v.Pools {
		out[p.ID] = p
	}
	return out
}

func seq(from, n int) []block.Token {
	out := make([]block.Token, n)
	for i := range out {
		out[i] = block.Token(from + i)
	}
	return out
}

func TestBlockPoolTraces(t *testing.T) {
	type ask struct {
		tokens   []block.Token
		scope    block.Scope
		features []block.Feature
		want     []uint32 // the number of matched blocks after each step
	}
	a, b := seq(0, 12), append(seq(0, 8), seq(90, 4)...)
	image := []block.Feature{{ID: "img-a", Offset: 2}}
	tests := []struct {
		id   string
		size int
		asks []ask
	}{
		{"duplicate_blocks_and_eviction", 4, []ask{
			{tokens: a, want: []uint32{3, 3, 3, 2, 2, 0}},
			{tokens: b, want: []uint32{2, 3, 3, 3, 3, 0}},
		}},
		{"null_blocks_skipped", 4, []ask{{tokens: seq(0, 16), want: []uint32{0, 0}}}},
		{"coarse_and_partial_blocks", 4, []ask{
			{tokens: seq(0, 16), want: []uint32{4, 4, 4}},
			{tokens: seq(100, 8), want: []uint32{0, 1, 2}},
		}},
		{"coarse_and_partial_blocks", 8, []ask{
			{tokens: seq(0, 16), want: []uint32{2, 2, 2}},
			{tokens: seq(100, 8), want: []uint32{0, 0, 1}},
		}},
		{"lora_salt_mm_and_reannounce", 4, []ask{
			{tokens: seq(0, 8), scope: block.Scope{LoRA: "l", Salt: "s"}, features: image, want: []uint32{1, 2, 2, 1}},
			{tokens: seq(0, 8), scope: block.Scope{LoRA: "l"}, features: image, want: []uint32{0, 0, 0, 0}},
			{tokens: seq(0, 8), scope: block.Scope{LoRA: "l", Salt: "s"}, want: []uint32{0, 0, 0, 0}},
		}},
	}
	pools := readPools(t)
	for _, test := range tests {
		t.Run(fmt.Sprintf("%s in blocks of %d", test.id, test.size), func(t *testing.T) {
			p := newPlayer(t, test.size)
			for i, step := range pools[test.id].Steps {
				if step.Payload != "" {
					p.play(step.Payload)
				}
				for j, ask := range test.asks {
					keys := p.hasher.Append(nil, p.hasher.Root(ask.scope), 0, ask.tokens, ask.features)
					got := uint32(0)
					if m := p.index.Match(keys, nil); len(m) == 1 {
						got = m[0].Blocks
					}
					if got != ask.want[i] {
						t.Errorf("%s: %d blocks of text %d, want %d", step.Step, got, j, ask.want[i])
					}
				}
			}
		})
	}
}

// TestEventsOfEveryForm plays an announcement in each version of each engine's event format. Old versions write events
// as arrays, and new ones as maps. The decoder of llm-d-kv-cache at 7be76e119c lost events in the form of maps.
func TestEventsOfEveryForm(t *testing.T) {
	tokens := seq(0, 64)
	for _, name := range kvevent.Wires() {
		t.Run(name, func(t *testing.T) {
			wire, err := kvevent.ParseWire(name)
			if err != nil {
				t.Fatal(err)
			}
			batch := kvevent.Batch{HasRank: true, Events: []kvevent.Event{{
				Kind: kvevent.Stored, Hashes: []uint64{1, 2, 3, 1<<64 - 4}, Tokens: tokens, BlockSize: 16, Group: -1,
			}}}
			p := newPlayer(t, 16)
			payload := wire.Append(nil, &batch)
			p.play(hex.EncodeToString(payload))
			if m := p.match(tokens, block.Scope{}); m.Blocks != 4 {
				t.Errorf("%d of 4 blocks", m.Blocks)
			}
		})
	}
}
