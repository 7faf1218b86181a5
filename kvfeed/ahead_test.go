package kvfeed

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvevent"
)

// aheadEngine is a model of an engine with a look-ahead: the hash of a block also covers a number of tokens after the
// block, the field ahead. The engine caches computed blocks, and may drop any block at any time.
type aheadEngine struct {
	size, ahead int
	cached      map[kvevent.Hash]bool
}

// hashOf returns the engine's hash of the block whose last token has the index end-1.
func (m *aheadEngine) hashOf(tokens []block.Token, end int) kvevent.Hash {
	h := fnv.New64a()
	for _, t := range tokens[:end+m.ahead] {
		h.Write(binary.LittleEndian.AppendUint32(nil, t))
	}
	return h.Sum64()
}

// blocks returns the number of blocks of a prompt that the engine can hash.
func (m *aheadEngine) blocks(tokens []block.Token) int {
	return max((len(tokens)-m.ahead)/m.size, 0)
}

// hit returns the number of a prompt's tokens that the engine would take from its cache.
func (m *aheadEngine) hit(tokens []block.Token) int {
	n := 0
	for n < m.blocks(tokens) && m.cached[m.hashOf(tokens, (n+1)*m.size)] {
		n++
	}
	if m.ahead == 0 && n*m.size == len(tokens) {
		n = max(n-1, 0) // an engine computes at least one token
	}
	return n * m.size
}

// compute caches a prompt, and returns the events with which the engine announces the new blocks.
func (m *aheadEngine) compute(tokens []block.Token) (events []kvevent.Event) {
	for from, n := 0, m.blocks(tokens); from < n; from++ {
		to := from
		for ; to < n && !m.cached[m.hashOf(tokens, (to+1)*m.size)]; to++ {
			m.cached[m.hashOf(tokens, (to+1)*m.size)] = true
		}
		if to > from {
			events = append(events, m.stored(tokens, from, to))
			from = to
		}
	}
	return events
}

// stored returns the event that announces a prompt's blocks with the indexes from to to-1.
func (m *aheadEngine) stored(tokens []block.Token, from, to int) kvevent.Event {
	e := kvevent.Event{Kind: kvevent.Stored, Group: -1, Medium: "GPU", BlockSize: m.size, Tokens: tokens[from*m.size : to*m.size]}
	for i := from; i < to; i++ {
		e.Hashes = append(e.Hashes, m.hashOf(tokens, (i+1)*m.size))
	}
	if from > 0 {
		e.HasParent, e.Parent = true, m.hashOf(tokens, from*m.size)
	}
	if m.ahead > 0 {
		e.Ahead = tokens[to*m.size : to*m.size+m.ahead]
	}
	return e
}

// drop takes a block out of the cache, and returns the event that announces the removal.
func (m *aheadEngine) drop(h kvevent.Hash) kvevent.Event {
	delete(m.cached, h)
	return kvevent.Event{Kind: kvevent.Removed, Group: -1, Medium: "GPU", Hashes: []kvevent.Hash{h}}
}

// drawn returns a random prompt. Four of five prompts equal an earlier prompt up to a random token. Often this token is
// one of the first four tokens of a block.
func drawn(rng *rand.Rand, before [][]block.Token, size int) []block.Token {
	var tokens []block.Token
	if len(before) > 0 && rng.IntN(5) > 0 {
		old := before[rng.IntN(len(before))]
		cut := rng.IntN(len(old) + 1)
		if rng.IntN(2) == 0 {
			cut = min(cut/size*size+rng.IntN(4), len(old))
		}
		tokens = slices.Clone(old[:cut])
	}
	for range rng.IntN(6*size) + 1 {
		tokens = append(tokens, block.Token(rng.IntN(3)))
	}
	return tokens
}

func TestAMatchWithALookAheadEqualsTheEnginesHit(t *testing.T) {
	for _, c := range []struct {
		wire        string
		engine      fleet.Engine
		size, ahead int
		bigram      bool
	}{
		{"vllm-0.33.0", fleet.EngineVLLM, 16, 0, false},
		{"vllm-0.33.0", fleet.EngineVLLM, 16, 1, false},
		{"vllm-0.33.0", fleet.EngineVLLM, 16, 3, false},
		{"vllm-0.33.0", fleet.EngineVLLM, 32, 5, false},
		{"vllm-0.33.0", fleet.EngineVLLM, 16, 20, false}, // the look-ahead is longer than a block
		{"sglang-0.5.23", fleet.EngineSGLang, 16, 1, true},
		{"sglang-0.5.17", fleet.EngineSGLang, 32, 1, true},
	} {
		t.Run(fmt.Sprint(c.wire, c.size, c.ahead), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(c.size), uint64(c.ahead)))
			r := newRig(t, Config{})
			s := r.stream(facts(c.engine, c.size))
			m := &aheadEngine{size: c.size, ahead: c.ahead, cached: map[kvevent.Hash]bool{}}
			var prompts [][]block.Token
			seq, hits := uint64(0), 0
			send := func(events ...kvevent.Event) {
				s.Message(seq, wire(t, c.wire, batch(events...)))
				seq++
			}
			for step := range 400 {
				tokens := drawn(rng, prompts, c.size)
				prompts = append(prompts, tokens)
				if got, want := r.match(tokens), m.hit(tokens); got != want {
					t.Fatalf("step %d: %d tokens match, the engine hits %d of %d", step, got, want, len(tokens))
				} else if want > 0 {
					hits++
				}
				for _, e := range m.compute(tokens) {
					e.Bigram = c.bigram
					send(e)
				}
				for rng.IntN(3) == 0 && len(m.cached) > 0 {
					old := prompts[rng.IntN(len(prompts))]
					if n := m.blocks(old); n > 0 {
						if h := m.hashOf(old, (rng.IntN(n)+1)*c.size); m.cached[h] {
							send(m.drop(h))
						}
					}
				}
			}
			if hits < 50 {
				t.Errorf("only %d of 400 prompts hit the cache, too few for this test", hits)
			}
			r.trust(s.holder, fleet.TrustExact, "")
		})
	}
}

func TestTheLastBlockIsNotClaimedByItsOwnTokensAlone(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 16))
	tokens := prompt(1, 100)
	e := stored(1, 0, 64, 16)
	e.Ahead = tokens[64:65]
	s.Message(0, wire(t, "vllm-0.33.0", batch(e)))
	other := slices.Clone(tokens)
	other[64]++
	for _, c := range []struct {
		tokens []block.Token
		want   int
		what   string
	}{
		{tokens, 64, "that goes on as the look-ahead does"},
		{other, 48, "that parts at the block's end"},
		{tokens[:64], 48, "that ends with the block"},
		{tokens[:65], 64, "that ends with the look-ahead"},
		{tokens[:48], 32, "that ends with an earlier block"},
	} {
		if got := r.match(c.tokens); got != c.want {
			t.Errorf("a prompt %s matches %d tokens, want %d", c.what, got, c.want)
		}
	}
}

// Two engines, or two versions of one engine, serve the same model, and only one of them has a look-ahead. Each prompt
// must be matched with both kinds of hashes.
func TestEnginesWithAndWithoutALookAheadAreMatchedBesideEachOther(t *testing.T) {
	r := newRig(t, Config{})
	r.fleet.Put(workerURL, facts(fleet.EngineVLLM, 16))
	r.fleet.Put("http://127.0.0.1:9000", facts(fleet.EngineVLLM, 16))
	var streams []*stream
	for _, w := range r.fleet.Snapshot().Workers() {
		streams = append(streams, r.follow(w))
	}
	tokens := prompt(1, 100)
	e := stored(1, 0, 64, 16)
	streams[0].Message(0, wire(t, "vllm-0.32.0", batch(e)))
	e.Ahead = tokens[64:66]
	streams[1].Message(0, wire(t, "vllm-0.33.0", batch(e)))
	matches := func(tokens []block.Token) map[fleet.Holder]int {
		d, err := r.router.Explain(t.Context(), &warmpath.Request{Model: "m", Tokens: tokens, Now: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Recycle()
		got := map[fleet.Holder]int{}
		for i := range d.Candidates {
			got[d.Candidates[i].Holder] = d.Candidates[i].Match
		}
		return got
	}
	plain, ahead := streams[0].holder, streams[1].holder
	if got := matches(tokens); got[plain] != 64 || got[ahead] != 64 {
		t.Errorf("the prompt itself matches %v, want 64 on both", got)
	}
	other := slices.Clone(tokens)
	other[65]++
	if got := matches(other); got[plain] != 64 || got[ahead] != 48 {
		t.Errorf("a prompt that differs within the look-ahead matches %v, want 64 without a look-ahead and 48 with one", got)
	}
	// The first engine is restarted as the newer version, and gets the same prompt.
	streams[0].Restarted("test")
	streams[0].Message(0, wire(t, "vllm-0.33.0", batch(e)))
	streams[0].Complete()
	if got := matches(other); got[plain] != 48 || got[ahead] != 48 {
		t.Errorf("after the restart the prompt matches %v, want 48 on both", got)
	}
	// The second engine is restarted as the older version.
	streams[1].Restarted("test")
	e.Ahead = nil
	streams[1].Message(0, wire(t, "vllm-0.32.0", batch(e)))
	if got := matches(other); got[plain] != 48 || got[ahead] != 64 {
		t.Errorf("after the return to the older version the prompt matches %v, want 48 and 64", got)
	}
}

func TestEventsThatMixLookAheadsClaimNothingTheyDoNotSay(t *testing.T) {
	for _, first := range []int{0, 1} {
		r := newRig(t, Config{})
		s := r.stream(facts(fleet.EngineVLLM, 16))
		same := make([]block.Token, 200) // every token is the same: blocks with and without a look-ahead have the same content everywhere
		event := func(from, n, ahead int) kvevent.Event {
			e := stored(1, from, n, 16)
			e.Tokens, e.Ahead = same[:n], same[:ahead]
			return e
		}
		s.Message(0, wire(t, "vllm-0.33.0", batch(event(0, 32, first))))
		s.Message(1, wire(t, "vllm-0.33.0", batch(event(32, 32, 1-first), event(64, 32, first))))
		if got := r.match(same); got != 32 {
			t.Errorf("first with a look-ahead of %d: %d tokens match, want 32", first, got)
		}
		r.trust(s.holder, fleet.TrustDegraded, "mix blocks that are hashed with a look-ahead")
		s.Message(2, wire(t, "vllm-0.33.0", batch(kvevent.Event{Kind: kvevent.Cleared, Group: -1})))
		s.Message(3, wire(t, "vllm-0.33.0", batch(event(0, 32, 1-first))))
		if got := r.match(same); got != 32 {
			t.Errorf("after a reset %d tokens match, want 32", got)
		}
		r.trust(s.holder, fleet.TrustExact, "")
	}
}

func TestAnImageInTheLookAheadIsPartOfTheBlockBefore(t *testing.T) {
	r := newRig(t, Config{})
	s := r.stream(facts(fleet.EngineVLLM, 16))
	tokens := prompt(1, 100)
	e := stored(1, 0, 32, 16)
	e.Ahead = tokens[32:34]
	e.Features = []block.Feature{{ID: "first", Offset: 1}, {ID: "second", Offset: 33}}
	s.Message(0, wire(t, "vllm-0.33.0", batch(e)))
	with := func(ids ...string) func(*warmpath.Request) {
		return func(q *warmpath.Request) {
			q.Features = []block.Feature{{ID: ids[0], Offset: 1}, {ID: ids[1], Offset: 33}}
		}
	}
	for _, c := range []struct {
		ids  []string
		want int
	}{{[]string{"first", "second"}, 32}, {[]string{"first", "third"}, 16}, {[]string{"other", "second"}, 0}} {
		if got := r.match(tokens, with(c.ids...)); got != c.want {
			t.Errorf("with images %v %d tokens match, want %d", c.ids, got, c.want)
		}
	}
}

// Each different look-ahead of a model's engines makes the router hash every request once more. So the number of
// look-aheads is bounded.
func TestManyLookAheadsOfOneModelAreNotBelieved(t *testing.T) {
	r := newRig(t, Config{})
	tokens := prompt(1, 100)
	var last *stream
	for n := 1; n <= 5; n++ {
		url := fmt.Sprintf("http://127.0.0.1:%d", 9000+n)
		r.fleet.Put(url, facts(fleet.EngineVLLM, 16))
		for _, w := range r.fleet.Snapshot().Workers() {
			if w.URL == url {
				last = r.follow(w)
			}
		}
		e := stored(1, 0, 64, 16)
		e.Ahead = tokens[64 : 64+n]
		last.Message(0, wire(t, "vllm-0.33.0", batch(e)))
	}
	r.trust(last.holder, fleet.TrustDegraded, "too many")
}
