package peers

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/placement"
	"github.com/warmpath/warmpath/policy"
)

// prompts remembers which prompts were sent to which holder, for cache_aware and prefix_cache_affinity. It has a store
// of texts and a store of tokens, because a request may come with either. A store is a radix tree. Each model and each
// adapter has a root of its own in the stores, because engines share no blocks between models or adapters.
type prompts struct {
	tokensFirst  bool // if text and tokens of a prompt are known, the tokens are used
	text, tokens *placement.Store

	roots atomic.Pointer[map[promptScope]promptRoots] // replaced under mu when a model is first seen
	mu    sync.Mutex
	spare sync.Pool // *placement.Matches
}

type promptScope struct{ model, lora string }

type promptRoots struct{ text, tokens placement.Root }

// evictStep is how many nodes of the tree one request evicts. This takes a few dozen microseconds.
const evictStep = 256

// newPrompts returns an empty memory. c bounds the store of texts, in characters; a token counts as charsPerToken
// characters.
func newPrompts(tokensFirst bool, c placement.Config, charsPerToken int64) *prompts {
	c.Keys, c.WholeRuns, c.Step = placement.Text, true, evictStep
	p := &prompts{tokensFirst: tokensFirst, text: placement.New(c)}
	c.Keys = placement.Tokens
	c.HolderUnits, c.HolderTarget = c.HolderUnits/charsPerToken, c.HolderTarget/charsPerToken
	p.tokens = placement.New(c)
	p.roots.Store(&map[promptScope]promptRoots{})
	p.spare.New = func() any { return &placement.Matches{} }
	return p
}

// promptKey says where a prompt is in the memory. The key is empty if neither text nor tokens of the prompt are known.
type promptKey struct {
	store *placement.Store
	root  placement.Root
	key   []byte
}

// of returns the store, the root and the key of q's prompt. ok is false if no prompt for this model and adapter was
// sent before.
func (p *prompts) of(q *policy.Query) (at promptKey, ok bool) {
	roots, ok := (*p.roots.Load())[promptScope{q.Model, q.LoRA}]
	if len(q.Prompt.Text) > 0 && (!p.tokensFirst || len(q.Prompt.Tokens) == 0) {
		return promptKey{p.text, roots.text, q.Prompt.Text}, ok
	}
	return promptKey{p.tokens, roots.tokens, placement.TokenBytes(q.Prompt.Tokens)}, ok
}

// match finds how much of q's prompt was sent to each holder before. The caller gives the result back with done. The
// result is nil if neither text nor tokens are known.
func (p *prompts) match(q *policy.Query) *placement.Matches {
	at, ok := p.of(q)
	if len(at.key) == 0 {
		return nil
	}
	m := p.spare.Get().(*placement.Matches)
	if !ok {
		m.Clear()
		return m
	}
	at.store.Match(at.root, at.key, q.Now, m)
	return m
}

func (p *prompts) done(m *placement.Matches) {
	if m != nil {
		p.spare.Put(m)
	}
}

// nominees is the greatest number of holders that the method nominate returns. In a large fleet, the policy decides
// among these holders and some holders with little load.
const nominees = 32

// nominate appends to dst the holders to which the longest beginnings of q's prompt were sent.
func (p *prompts) nominate(q *policy.Query, dst []fleet.Holder) []fleet.Holder {
	m := p.match(q)
	if m == nil {
		return dst
	}
	longest := m.Longest()
	dst = append(dst, longest[:min(len(longest), nominees)]...)
	p.done(m)
	return dst
}

// share returns the share of the prompt that was sent to the holder before, 0 to 1.
func share(m *placement.Matches, h fleet.Holder) float64 {
	if m == nil || m.Total() == 0 {
		return 0
	}
	return float64(m.Of(h)) / float64(m.Total())
}

// sent records that q's prompt is sent to h.
func (p *prompts) sent(q *policy.Query, h fleet.Holder) {
	at, ok := p.of(q)
	if len(at.key) == 0 {
		return
	}
	if !ok {
		p.plant(promptScope{q.Model, q.LoRA})
		at, _ = p.of(q)
	}
	at.store.Learn(at.root, h, at.key, q.Now)
	p.text.Evict(q.Now)
	p.tokens.Evict(q.Now)
}

// plant makes the roots of a model or adapter. A root is never removed: there is one for each name that the fleet ever
// served.
func (p *prompts) plant(s promptScope) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := *p.roots.Load()
	if _, ok := old[s]; ok {
		return
	}
	all := maps.Clone(old)
	all[s] = promptRoots{p.text.Plant(), p.tokens.Plant()}
	p.roots.Store(&all)
}

// characters returns how many units are remembered for h in the store of q's prompt: characters, or tokens in the store
// of tokens.
func (p *prompts) characters(q *policy.Query, h fleet.Holder) int64 {
	at, _ := p.of(q)
	return at.store.Units(h)
}

// forget drops everything that is remembered about h.
func (p *prompts) forget(h fleet.Holder) {
	p.text.Forget(h)
	p.tokens.Forget(h)
}
