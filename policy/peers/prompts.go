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
	text, tokens scopedPrompts
	spare        sync.Pool // *placement.Matches
}

// scopedPrompts is a store of the prompts of all models and adapters.
type scopedPrompts struct {
	*placement.Store
	roots atomic.Pointer[map[promptScope]placement.Root] // replaced under mu when a model is first seen
	mu    sync.Mutex
	most  int // the number of roots from which on roots without keys are removed; guarded by mu
}

type promptScope struct{ model, lora string }

// leastRoots is the number of roots below which no root is removed. A root takes some 200 bytes, and removing roots
// takes a copy of the map.
const leastRoots = 64

// evictStep is how many nodes of each tree one request evicts at most. This takes a few dozen microseconds.
const evictStep = 256

// newPrompts returns an empty memory. c bounds the store of texts, in characters; a token counts as charsPerToken
// characters.
func newPrompts(tokensFirst bool, c placement.Config, charsPerToken int64) *prompts {
	c.Keys, c.WholeRuns, c.Step = placement.Text, true, evictStep
	p := &prompts{tokensFirst: tokensFirst}
	p.text.init(c)
	c.Keys = placement.Tokens
	c.HolderUnits, c.HolderTarget = c.HolderUnits/charsPerToken, c.HolderTarget/charsPerToken
	p.tokens.init(c)
	p.spare.New = func() any { return &placement.Matches{} }
	return p
}

func (s *scopedPrompts) init(c placement.Config) {
	s.Store, s.most = placement.New(c), leastRoots
	s.roots.Store(&map[promptScope]placement.Root{})
}

// promptKey says where a prompt is in the memory. The key is empty if neither text nor tokens of the prompt are known.
type promptKey struct {
	store *scopedPrompts
	root  placement.Root
	key   []byte
}

// of returns the store, the root and the key of q's prompt. ok is false if the store has no root for this model and
// adapter.
func (p *prompts) of(q *policy.Query) (at promptKey, ok bool) {
	if len(q.Prompt.Text) > 0 && (!p.tokensFirst || len(q.Prompt.Tokens) == 0) {
		at = promptKey{store: &p.text, key: q.Prompt.Text}
	} else {
		at = promptKey{store: &p.tokens, key: placement.TokenBytes(q.Prompt.Tokens)}
	}
	at.root, ok = (*at.store.roots.Load())[promptScope{q.Model, q.LoRA}]
	return at, ok
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
		at.root = at.store.plant(promptScope{q.Model, q.LoRA})
	}
	at.store.LearnAt(at.root, h, at.key, placement.Moment{Now: q.Now, Age: q.Age})
	p.text.Evict(q.Now)
	p.tokens.Evict(q.Now)
}

// plant returns the root of a model or adapter, and makes it on first use. Each time the number of roots has doubled,
// plant first removes the roots whose prompts are all evicted. Otherwise a worker that reports another model name at
// each probe would make the store grow without bound.
//
// A root may be removed between the return of plant and the caller's first Learn. Then that prompt is not remembered.
func (s *scopedPrompts) plant(scope promptScope) placement.Root {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := *s.roots.Load()
	if root, ok := old[scope]; ok {
		return root
	}
	all := maps.Clone(old)
	if len(all) >= s.most {
		maps.DeleteFunc(all, func(_ promptScope, root placement.Root) bool { return s.Uproot(root) })
		s.most = max(2*len(all), leastRoots)
	}
	root := s.Plant()
	all[scope] = root
	s.roots.Store(&all)
	return root
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
