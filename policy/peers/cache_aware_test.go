package peers

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/policy"
	"github.com/warmpath/warmpath/test/testenv"
)

// learning returns the policies that remember prompts, with bounds of memory that are small enough for tests to reach.
func learning() map[string]policy.Parameters {
	aware := DefaultCacheAware()
	aware.MaxTreeSize, aware.EvictionIntervalSecs, aware.MaxBytes = 3000, 1, 1<<17
	affinity := DefaultPrefixCacheAffinity()
	affinity.DoEviction, affinity.EvictionThresholdChars, affinity.EvictionTargetChars = true, 12000, 8000
	affinity.EvictionIntervalSecs, affinity.MaxBytes = 1, 1<<17
	tracker := DefaultVLLMCacheAware()
	tracker.MaxBlocksPerBackend, tracker.EvictionIntervalSecs = 200, 1
	return map[string]policy.Parameters{"cache_aware": &aware, "prefix_cache_affinity": &affinity, "vllm_cache_aware": &tracker}
}

// built is a policy and its chooser.
type built struct {
	*policy.Policy
	chooser policy.Chooser
}

func build(t interface{ Fatal(...any) }, s policy.Spec) *built {
	chooser := s.Chooser()
	s.Chooser = func() policy.Chooser { return chooser }
	p, err := policy.Build(s)
	if err != nil {
		t.Fatal(err)
	}
	return &built{p, chooser}
}

// remembered returns how many characters or tokens a policy remembers for all holders, and the policy's limit for each
// holder.
func remembered(p *built) (units, limit int64) {
	switch x := p.chooser.(type) {
	case *cacheAware:
		return x.prompts.total(), 3000 + 3000 // 3,000 characters of texts and 3,000 tokens
	case *prefixAffinity:
		return x.prompts.total(), 12000 + 12000/charsPerToken
	case *blockTracker:
		return x.blocks.Stats().Units * 16, 2 * 200 * 16 // between passes of eviction a holder may have twice its limit
	}
	panic("not one that remembers")
}

func (p *prompts) total() (units int64) {
	for h := range fleet.Holder(256) {
		units += p.text.Units(h) + p.tokens.Units(h)
	}
	return units
}

var hasher16 = sync.OnceValue(func() *block.Hasher {
	h, err := block.NewHasher(block.XXH3, 16)
	if err != nil {
		panic(err)
	}
	return h
})

// prompted returns a query for a prompt: a system prompt and the first turns of a conversation, 64 tokens each.
func prompted(system, conversation, turns int) policy.Query {
	var tokens []block.Token
	add := func(seed uint64, n int) {
		r := rand.New(rand.NewPCG(seed, 1))
		for range n {
			tokens = append(tokens, r.Uint32())
		}
	}
	add(uint64(system), 64)
	for turn := range turns {
		add(uint64(1000+conversation*100+turn), 64)
	}
	q := policy.Query{PromptTokens: len(tokens), Known: true, Rank: -1, Model: "m"}
	q.Prompt = policy.Prompt{Tokens: tokens, BlockSize: 16, Keys: hasher16().Append(nil, 1, 0, tokens, nil)}
	return q
}

func idle(n int) []policy.Candidate {
	c := make([]policy.Candidate, n)
	for i := range c {
		c[i] = policy.Candidate{Worker: &fleet.Worker{ID: fleet.WorkerID(i), URL: fmt.Sprintf("http://w%d", i)}, Holder: fleet.Holder(i), Hash: block.Mix64(uint64(i)), Available: true, BlockSize: 16}
	}
	return c
}

// route chooses a candidate and records the request as sent to it.
func route(p *built, q *policy.Query, c []policy.Candidate) *policy.Candidate {
	choice := p.Choose(q, c)
	if choice.Index < 0 {
		return nil
	}
	p.Routed(q, &c[choice.Index])
	return &c[choice.Index]
}

func TestAConversationStaysWhereItBegan(t *testing.T) {
	for name, parameters := range learning() {
		t.Run(name, func(t *testing.T) {
			p := build(t, parameters.Spec(name))
			source := rand.New(rand.NewPCG(3, 4))
			home := map[int]fleet.Holder{}
			for turns := 1; turns <= 3; turns++ {
				for conversation := range 6 {
					q := prompted(conversation, conversation, turns) // no shared system prompt
					q.Random = source.Uint64()
					c := idle(8)
					source.Shuffle(len(c), func(i, j int) { c[i], c[j] = c[j], c[i] })
					got := route(p, &q, c).Holder
					if turns > 1 && got != home[conversation] {
						t.Errorf("turn %d of conversation %d went to holder %d, the turn before it to holder %d", turns, conversation, got, home[conversation])
					}
					home[conversation] = got
				}
			}
		})
	}
}

// TestMemoryOfPromptsIsBounded: passes of eviction bring each holder to its limit, and a forgotten holder has nothing.
func TestMemoryOfPromptsIsBounded(t *testing.T) {
	const holders = 4
	for name, parameters := range learning() {
		t.Run(name, rapid.MakeCheck(func(t *rapid.T) {
			p := build(t, parameters.Spec(name))
			now := int64(1e18)
			for range rapid.IntRange(1, 60).Draw(t, "requests") {
				q := prompted(rapid.IntRange(0, 3).Draw(t, "system"), rapid.IntRange(0, 20).Draw(t, "conversation"), rapid.IntRange(0, 12).Draw(t, "turns"))
				now += int64(rapid.IntRange(0, 3).Draw(t, "seconds")) * 1e9
				q.Now, q.Random = now, rapid.Uint64().Draw(t, "random")
				if rapid.Bool().Draw(t, "as text") {
					q.Prompt.Text = []byte(fmt.Sprint(q.Prompt.Tokens))
				}
				route(p, &q, idle(holders))
				if rapid.IntRange(0, 9).Draw(t, "leaves") == 0 {
					p.Forget(fleet.Holder(rapid.IntRange(0, holders-1).Draw(t, "holder")))
				}
			}
			for range 4 * holders { // one pass of eviction needs this many requests
				now += 1e9
				q := prompted(0, 0, 0)
				q.Now = now
				route(p, &q, idle(holders))
			}
			if total, limit := remembered(p); total > holders*limit {
				t.Fatalf("%d characters or tokens are remembered for %d holders, want at most %d for each", total, holders, limit)
			}
			for h := range holders {
				p.Forget(fleet.Holder(h))
			}
			if total, _ := remembered(p); total != 0 {
				t.Fatalf("%d characters or tokens are remembered for holders that left", total)
			}
		}))
	}
}

// TestExplainingTeachesNothing: explanations and shadow policies call Choose, too. So Choose must not change a policy's
// memory.
func TestExplainingTeachesNothing(t *testing.T) {
	for name, parameters := range learning() {
		p := build(t, parameters.Spec(name))
		q := prompted(1, 1, 4)
		q.Prompt.Text = []byte(strings.Repeat("text ", 100))
		for range 3 {
			p.Choose(&q, idle(4))
		}
		if total, _ := remembered(p); total != 0 {
			t.Errorf("%s: %d characters or tokens are remembered for requests that were only explained", name, total)
		}
	}
}

func TestManyGoroutinesShareAMemory(t *testing.T) {
	for name, parameters := range learning() {
		t.Run(name, func(t *testing.T) {
			p := build(t, parameters.Spec(name))
			var wg sync.WaitGroup
			for g := range 8 {
				wg.Go(func() {
					for i := range 150 {
						q := prompted(i%3, i*g%40, i%10)
						q.Model, q.Now, q.Random = fmt.Sprint("m", i%2), int64(i)*1e8+1, uint64(i*g)
						if i%3 == 0 {
							q.Prompt.Text = []byte(fmt.Sprint(q.Prompt.Tokens))
						}
						chosen := route(p, &q, idle(5))
						p.Finished(&policy.Finished{Holder: chosen.Holder, Outcome: fleet.OutcomeServed})
						if i%50 == 49 {
							p.Forget(chosen.Holder)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// taught returns a policy that has sent conversations to n holders, and queries that continue these conversations.
func taught(tb testing.TB, name string, n int) (*built, []policy.Query) {
	k, ok := Kinds().Find(name)
	if !ok {
		tb.Fatal(name)
	}
	p := build(tb, k.Defaults().Spec(name))
	queries := make([]policy.Query, 256)
	c := idle(n)
	for i := range queries {
		q := prompted(i%4, i, 40)
		h := fleet.Holder(i % n)
		p.Routed(&q, &c[h])
		queries[i] = prompted(i%4, i, 44)
		queries[i].Now, queries[i].Random = 1, uint64(i)
	}
	return p, queries
}

func TestChoosingFromMemoryAllocatesNothing(t *testing.T) {
	if testenv.Race() {
		t.Skip("skipped: the race detector makes sync.Pool drop values at random")
	}
	for name := range learning() {
		p, queries := taught(t, name, 64)
		c := idle(64)
		i := 0
		if allocs := testing.AllocsPerRun(300, func() {
			p.Choose(&queries[i%len(queries)], c)
			i++
		}); allocs != 0 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}

// BenchmarkChooseFromMemory measures Choose for prompts of about 2,900 tokens that continue conversations.
func BenchmarkChooseFromMemory(b *testing.B) {
	for _, name := range []string{"cache_aware", "prefix_cache_affinity", "vllm_cache_aware"} {
		for _, n := range []int{8, 64, 1024} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				p, queries := taught(b, name, n)
				c := idle(n)
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					p.Choose(&queries[i%len(queries)], c)
					i++
				}
			})
		}
	}
}

// BenchmarkRouted measures Routed for prompts that the policy knows already, which is the most frequent case.
func BenchmarkRouted(b *testing.B) {
	for _, name := range []string{"cache_aware", "prefix_cache_affinity", "vllm_cache_aware"} {
		b.Run(name, func(b *testing.B) {
			p, queries := taught(b, name, 64)
			c := idle(64)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				p.Routed(&queries[i%len(queries)], &c[i%64])
				i++
			}
		})
	}
}
