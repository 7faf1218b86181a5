package mockengine

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
	"github.com/warmpath/warmpath/kvfeed"
	"github.com/warmpath/warmpath/test/testenv"
)

// listener follows a rank's events and keeps what they describe: by tier, the number of copies of each hash.
type listener struct {
	t testing.TB

	mu       sync.Mutex // guards the fields below
	decoder  kvevent.Decoder
	batch    kvevent.Batch
	copies   [block.NumTiers]map[uint64]int
	events   []kvevent.Event // all events so far; their slices are copies, because the next batch overwrites batch
	next     uint64
	restarts int
	lost     bool
	up       bool
}

func newListener(t testing.TB) *listener {
	l := &listener{t: t}
	l.forget()
	return l
}

func (l *listener) forget() {
	for i := range l.copies {
		l.copies[i] = map[uint64]int{}
	}
}

func (l *listener) Message(seq uint64, payload []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = seq + 1
	if err := l.decoder.Decode(payload, &l.batch); err != nil || l.batch.Skipped > 0 {
		l.t.Errorf("message %d: %v, %d events skipped: %s", seq, err, l.batch.Skipped, l.batch.Problem)
		return
	}
	for i := range l.batch.Events {
		e := l.batch.Events[i]
		switch e.Kind {
		case kvevent.Stored:
			for _, h := range e.Hashes {
				l.copies[e.Tier][h]++
			}
		case kvevent.Removed:
			for _, h := range e.Hashes {
				if l.copies[e.Tier][h]--; l.copies[e.Tier][h] <= 0 {
					delete(l.copies[e.Tier], h)
				}
			}
		case kvevent.Cleared:
			clear(l.copies[block.TierGPU])
		}
		e.Hashes, e.Tokens, e.Features = slices.Clone(e.Hashes), slices.Clone(e.Tokens), slices.Clone(e.Features)
		l.events = append(l.events, e)
	}
}

func (l *listener) Restarted(string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forget()
	l.restarts++
}

func (l *listener) Lost(uint64, uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
}

func (l *listener) Complete() {}

func (l *listener) Behind(bool) {}

func (l *listener) Unnumbered() {}

func (l *listener) State(connected bool, _ error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.up = connected
}

// agrees reports whether the cache that the events so far describe equals the rank's cache.
func (l *listener) agrees(s *Server, rank int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, tier := range []block.Tier{block.TierGPU, block.TierCPU} {
		want := s.CachedHashes(rank, tier)
		slices.Sort(want)
		got := slices.Sorted(maps.Keys(l.copies[tier]))
		if !slices.Equal(got, want) {
			return false
		}
	}
	return true
}

// taken returns the events received so far.
func (l *listener) taken() []kvevent.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events)
}

func (l *listener) connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up
}

// listenTo subscribes to one rank until the test ends.
func listenTo(t testing.TB, s *Server, rank int) *listener {
	t.Helper()
	l := newListener(t)
	source := s.Sources()[rank]
	subscriber := kvfeed.NewSubscriber(fleet.EventSource{Endpoint: source.Endpoint, Replay: source.Replay, Topic: source.Topic},
		kvfeed.StreamConfig{ReplayTimeout: 100 * time.Millisecond}, l)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- subscriber.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("subscriber: %v", err)
		}
	})
	testenv.Until(t, "the subscriber is connected", l.connected)
	return l
}

func withEvents(c *Config) {
	c.Events, c.Replay, c.Topic = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0", "kv-events"
}

// converse plays conversations with the given number of turns, up to 8 conversations at the same time.
func converse(t testing.TB, s *Server, conversations, turns int) {
	t.Helper()
	var wait sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i := range conversations {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			random := rand.New(rand.NewPCG(uint64(i), 7))
			messages := []any{object{"role": "system", "content": long(fmt.Sprint("agent of kind ", string(rune('a'+i%3))), 80)}}
			for range turns {
				messages = append(messages, userSays(long(string(rune('a'+random.IntN(26))), 2+random.IntN(60))))
				c := complete(t, s, chatPath, object{"model": "mock", "messages": messages, "max_tokens": 1 + random.IntN(60)})
				messages = append(messages, object{"role": "assistant", "content": *c.Choices[0].Message.Content})
			}
		})
	}
	wait.Wait()
}

// For every version of the event format whose events name parents, applying the events gives exactly the engine's
// cache, also after evictions and copies to a CPU tier.
func TestEventsOfEveryWireReproduceTheCache(t *testing.T) {
	for _, wire := range append(kvevent.Wires(), "vllm-0.32.0+bytes", "sglang-0.5.6") {
		if wire == "sglang-0.4.6" || wire == "sglang-0.4.7" {
			continue // see TestSGLangBefore056WritesNoParents
		}
		t.Run(wire, func(t *testing.T) {
			s := start(t, func(c *Config) {
				withEvents(c)
				c.Wire = wire
				c.Blocks, c.MaxModelLen = 90, 1400
				if strings.HasPrefix(wire, "sglang") {
					c.Kind = SGLang
				}
				// Only use a CPU tier with versions whose events contain the medium. Events without a medium do not distinguish
				// tiers.
				if wire == "vllm-0.32.0" || wire == "vllm-0.22.0" {
					c.CPUBlocks = 60
				}
			})
			l := listenTo(t, s, 0)
			converse(t, s, 12, 4)
			testenv.Until(t, "the events agree with the cache", func() bool { return l.agrees(s, 0) })
			removed := 0
			for _, e := range l.taken() {
				if e.Kind == kvevent.Removed {
					removed++
				}
			}
			if removed == 0 {
				t.Error("nothing was evicted: the pool is too large for this test")
			}
		})
	}
}

func TestEventsHaveTheRequestsExtraKeys(t *testing.T) {
	s := start(t, func(c *Config) { withEvents(c); c.LoRA = []string{"ada"} })
	l := listenTo(t, s, 0)
	image := []any{object{"type": "text", "text": "picture"},
		object{"type": "image_url", "image_url": object{"url": "u"}}, object{"type": "text", "text": long("see", 60)}}
	body := object{"model": "ada", "cache_salt": "tenant", "messages": []any{object{"role": "user", "content": image}},
		"return_token_ids": true, "max_tokens": 1}
	ids := complete(t, s, chatPath, body).PromptIDs
	testenv.Until(t, "the messages arrive", func() bool { return len(l.taken()) == 1 })
	e := l.taken()[0]
	if e.LoRA != "ada" || e.Salt != "tenant" || e.HasParent || e.BlockSize != 16 || !e.Aligned() || e.Unread != 0 {
		t.Errorf("event %+v", e)
	}
	if !slices.Equal(e.Tokens, ids[:len(e.Tokens)]) || len(e.Tokens) != len(ids)/16*16 {
		t.Errorf("event has %d tokens of the prompt's %d", len(e.Tokens), len(ids))
	}
	if len(e.Features) != 1 || ids[e.Features[0].Offset] != tokenImage || e.Features[0].ID == "" {
		t.Errorf("features %+v", e.Features)
	}
}

func TestOffloadEventsHideTheSaltAsTheEngineDoes(t *testing.T) {
	for _, wire := range []string{"vllm-0.17.0", "vllm-0.22.0", "vllm-0.32.0"} {
		s := start(t, func(c *Config) { withEvents(c); c.Wire, c.CPUBlocks = wire, 100 })
		l := listenTo(t, s, 0)
		complete(t, s, textPath, object{"model": "mock", "prompt": slices.Repeat([]int{7}, 40), "cache_salt": "tenant",
			"max_tokens": 1})
		// The CPU events for the prompt above come in a later batch, and this request causes the batch.
		complete(t, s, textPath, object{"model": "mock", "prompt": slices.Repeat([]int{8}, 10), "max_tokens": 20,
			"ignore_eos": true})
		offloaded := func() (found []kvevent.Event) {
			for _, e := range l.taken() {
				if e.Kind == kvevent.Stored && e.Tier == block.TierCPU {
					found = append(found, e)
				}
			}
			return found
		}
		testenv.Until(t, "blocks are offloaded", func() bool { return len(offloaded()) > 0 })
		for _, e := range offloaded() {
			if e.Salt != "" || e.Hidden&kvevent.KeySalt == 0 {
				t.Errorf("%s: the event says that there is no salt: %+v", wire, e)
			}
		}
	}
}

func TestGeneratedBlocksAreAnnouncedOneByOne(t *testing.T) {
	s := start(t, withEvents)
	l := listenTo(t, s, 0)
	complete(t, s, textPath, object{"model": "mock", "prompt": slices.Repeat([]int{7}, 33), "max_tokens": 64,
		"ignore_eos": true})
	testenv.Until(t, "the messages arrive and agree with the cache", func() bool { return l.agrees(s, 0) && len(l.taken()) == 5 })
	if n := s.Stats().Ranks[0].Published; n != 5 {
		t.Errorf("%d messages published, want 5", n)
	}
	for i, e := range l.taken() {
		if want := 1; i > 0 && (len(e.Hashes) != want || !e.HasParent) {
			t.Errorf("event %d has %d hashes", i, len(e.Hashes))
		}
	}
}

func TestEngineHashesAreThoseOfTheRealChains(t *testing.T) {
	for kind, want := range map[Kind]block.EngineAlgorithm{VLLM: block.VLLMSHA256CBOR, SGLang: block.SGLangSHA256} {
		s := start(t, func(c *Config) { withEvents(c); c.Kind = kind })
		l := listenTo(t, s, 0)
		complete(t, s, chatPath, object{"model": "mock", "messages": []any{userSays(long("hash", 80))}})
		testenv.Until(t, "the messages arrive", func() bool { return len(l.taken()) > 0 })
		e := l.taken()[0]
		chain, ok := block.IdentifyEngine(block.EngineSample{Size: e.BlockSize, Tokens: e.Tokens, Hashes: e.Hashes})
		if !ok || chain.Algorithm != want {
			t.Errorf("%s: identified %v as %v, want %v", kind, ok, chain.Algorithm, want)
		}
	}
}

func TestAResetIsAnnouncedAsTheEngineDoes(t *testing.T) {
	body := object{"model": "mock", "messages": []any{userSays(long("reset", 60))}}
	for _, kind := range []Kind{VLLM, SGLang} {
		s := start(t, func(c *Config) { withEvents(c); c.Kind = kind })
		l := listenTo(t, s, 0)
		complete(t, s, chatPath, body)
		testenv.Until(t, "the events agree with the cache", func() bool { return l.agrees(s, 0) })
		before := len(l.taken())
		if !s.ResetPrefixCache() {
			t.Fatal("reset refused while idle")
		}
		if kind == SGLang {
			testenv.Until(t, "the messages arrive and agree with the cache", func() bool { return len(l.taken()) == before+1 && l.agrees(s, 0) })
			continue
		}
		complete(t, s, chatPath, body)
		// The engine caches the same blocks as before the reset. So the events from before the reset already agree with the
		// cache, and the condition must also wait for two new events.
		testenv.Until(t, "the messages arrive and agree with the cache", func() bool { return len(l.taken()) >= before+2 && l.agrees(s, 0) })
		if e := l.taken()[before:]; e[0].Kind != kvevent.Cleared || e[1].Kind != kvevent.Stored {
			t.Errorf("after the reset: %+v, want cleared, then stored", e)
		}
	}
}

func TestEachRankPublishesItsOwnEvents(t *testing.T) {
	s := start(t, func(c *Config) { withEvents(c); c.Ranks = 2 })
	a, b := listenTo(t, s, 0), listenTo(t, s, 1)
	body := object{"model": "mock", "messages": []any{userSays(long("rank", 60))}}
	complete(t, s, chatPath, body, "X-data-parallel-rank", "1")
	testenv.Until(t, "the messages arrive and agree with the cache", func() bool { return b.agrees(s, 1) && len(b.taken()) > 0 })
	if len(a.taken()) != 0 || len(s.CachedHashes(0, block.TierGPU)) != 0 {
		t.Error("rank 0 announced what rank 1 did")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.batch.HasRank || b.batch.Rank != 1 {
		t.Errorf("batch of rank %d", b.batch.Rank)
	}
}

func TestDiscoveryReportsTheEventAddresses(t *testing.T) {
	s := start(t, func(c *Config) { withEvents(c); c.Ranks = 2 })
	_, data := call(t, s, "/kv_event_sources", nil)
	var sources map[string]struct {
		Publisher, Endpoint, Topic string
		Replay                     string `json:"replay_endpoint"`
	}
	if err := json.Unmarshal(data, &sources); err != nil || len(sources) != 2 {
		t.Fatalf("sources: %s", data)
	}
	for i, want := range s.Sources() {
		if got := sources[fmt.Sprint(i)]; got.Endpoint != want.Endpoint || got.Replay != want.Replay ||
			got.Topic != "kv-events" || got.Publisher != "zmq" {
			t.Errorf("rank %d: %+v, want %+v", i, got, want)
		}
	}
	hidden := start(t, func(c *Config) { withEvents(c); c.HideEventSources = true })
	if status, _ := call(t, hidden, "/kv_event_sources", nil); status != http.StatusNotFound {
		t.Errorf("hidden sources: status %d", status)
	}
	sglang := start(t, func(c *Config) { withEvents(c); c.Kind = SGLang })
	events := decode(t, sglang, "/server_info", nil, 200)["kv_events"].(object)
	source := sglang.Sources()[0]
	if got := fmt.Sprintf("tcp://%v:%.0f", events["endpoint_host"],
		events["endpoint_port_base"]); got != source.Endpoint || events["block_size"] != 16.0 {
		t.Errorf("kv_events %v, want %v", events, source)
	}
}

// SGLang reports one port for all its ranks, so rank r must publish at that port plus r.
func TestSGLangsRanksPublishAtPortsInARow(t *testing.T) {
	s := start(t, func(c *Config) { withEvents(c); c.Kind, c.Ranks = SGLang, 3 })
	events := decode(t, s, "/server_info", nil, 200)["kv_events"].(object)
	for rank, source := range s.Sources() {
		for key, got := range map[string]string{"endpoint_port_base": source.Endpoint,
			"replay_endpoint_port_base": source.Replay} {
			if want := fmt.Sprintf("tcp://127.0.0.1:%.0f", events[key].(float64)+float64(rank)); got != want {
				t.Errorf("rank %d: %s says %s, it is at %s", rank, key, want, got)
			}
		}
	}
}

func TestARestartBeginsTheStreamAtZero(t *testing.T) {
	s := start(t, withEvents)
	l := listenTo(t, s, 0)
	before := s.Sources()
	converse(t, s, 4, 2)
	testenv.Until(t, "the events agree with the cache", func() bool { return l.agrees(s, 0) })
	if err := s.Restart(10 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	testenv.Until(t, "the engine answers", func() bool { return answers(t, s) })
	if !slices.Equal(before, s.Sources()) {
		t.Errorf("sources moved: %v, were %v", s.Sources(), before)
	}
	converse(t, s, 2, 2)
	testenv.Until(t, "the events agree with the cache", func() bool { return l.agrees(s, 0) })
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.restarts == 0 {
		t.Error("the listener saw no restart")
	}
}

func TestLostEventsAreRecoveredByReplay(t *testing.T) {
	s := start(t, func(c *Config) {
		withEvents(c)
		c.Faults.DropEvents, c.Faults.LoseReplay = 0.2, 0.3
	})
	l := listenTo(t, s, 0)
	converse(t, s, 6, 3)
	if err := s.SetFaults(Faults{LoseReplay: 0.3}); err != nil {
		t.Fatal(err)
	}
	complete(t, s, chatPath, object{"model": "mock", "messages": []any{userSays(long("last", 40))}})
	testenv.Until(t, "the events agree with the cache", func() bool { return l.agrees(s, 0) })
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		t.Error("messages were given up")
	}
}

func TestPortsAreOffsetByRank(t *testing.T) {
	f := func(endpoint string, rank int, want string) {
		t.Helper()
		got, err := offsetPort(endpoint, rank)
		if got != want || (err == nil) != (want != "" || endpoint == "") {
			t.Errorf("%q for rank %d: %q, %v; want %q", endpoint, rank, got, err, want)
		}
	}
	f("tcp://*:5557", 3, "tcp://*:5560")
	f("tcp://127.0.0.1:0", 3, "tcp://127.0.0.1:0")
	f("tcp://127.0.0.1:*", 1, "tcp://127.0.0.1:0")
	f("tcp://[::1]:5557", 1, "tcp://[::1]:5558")
	f("ipc:///tmp/x", 0, "ipc:///tmp/x")
	f("", 1, "")
	f("tcp://h:65535", 1, "")
	f("tcp://h", 0, "")
	f("tcp://h:x", 0, "")
}

// Events of SGLang before 0.5.6 cannot be used: see docs/engines.md.
func TestSGLangBefore056WritesNoParents(t *testing.T) {
	for _, wire := range []string{"sglang-0.4.6", "sglang-0.4.7", "sglang-0.5.5"} {
		s := start(t, func(c *Config) { withEvents(c); c.Kind, c.Wire, c.Blocks, c.MaxModelLen = SGLang, wire, 12, 190 })
		l := listenTo(t, s, 0)
		page := slices.Repeat([]int{7}, 16)
		prompt := slices.Concat(page, slices.Repeat([]int{8}, 16), page, page)
		ask := func(ids []int) {
			complete(t, s, textPath, object{"model": "mock", "prompt": ids, "max_tokens": 1})
		}
		ask(prompt)
		stored, removed := map[uint64]bool{}, map[uint64]bool{}
		count := func(kind kvevent.Kind, into map[uint64]bool) (n int) {
			for _, e := range l.taken() {
				if e.Kind != kind {
					continue
				}
				if e.HasParent {
					t.Errorf("%s: an event has a parent", wire)
				}
				for _, h := range e.Hashes {
					into[h] = true
					n++
				}
			}
			return n
		}
		testenv.Until(t, "the stored blocks are announced", func() bool { return count(kvevent.Stored, stored) == 4 })
		if len(stored) != 2 {
			t.Errorf("%s: four pages, of which two differ, have %d hashes", wire, len(stored))
		}
		for i := range 4 {
			ask(slices.Repeat([]int{100 + i}, 64))
		}
		testenv.Until(t, "the removed blocks are announced", func() bool { return count(kvevent.Removed, removed) >= 4 })
		count(kvevent.Stored, stored)
		for h := range removed {
			if !stored[h] {
				t.Errorf("%s: %d is removed and was never stored", wire, h)
			}
		}
	}
}

func TestAnUnknownWireIsRefused(t *testing.T) {
	for _, wire := range []string{"vllm-9.9", "vllm-0.33.1", "vllm-1", "sglang-0.5.24", "sglang-1.0+int", "trtllm-9",
		"foo", "vllm-0.8", "vllm-x"} {
		cfg := DefaultConfig()
		cfg.Wire = wire
		_, err := New(cfg)
		if err == nil || !strings.Contains(err.Error(), "vllm-") {
			t.Errorf("%s: %v", wire, err)
		}
	}
	for _, wire := range []string{"vllm", "sglang", "vllm-0.32", "vllm-0.32.0+bytes", "vllm-0.10", "sglang-0.5.17",
		"trtllm-1.3"} {
		cfg := DefaultConfig()
		cfg.Wire = wire
		if _, err := New(cfg); err != nil {
			t.Errorf("%s: %v", wire, err)
		}
	}
}

func TestReplayFormFollowsTheVersion(t *testing.T) {
	for name, want := range map[string]bool{
		"vllm-0.9.0": true, "vllm-0.25.1": true, "vllm-0.26.0": false, "vllm-0.32": false, "vllm-0.20.0+bytes": true,
		"vllm":         false,
		"sglang-0.4.6": true, "sglang-0.5.18": true, "sglang-0.5.23": false,
	} {
		if got := replaysWithoutTopic(name); got != want {
			t.Errorf("%s: replays without topic %v, want %v", name, got, want)
		}
	}
}
