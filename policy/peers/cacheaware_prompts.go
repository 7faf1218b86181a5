package peers

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/placement"
	"github.com/warmpath/warmpath/policy"
)

// prompts remembers which holder was sent which prompts: in a tree of texts and one of tokens, for requests of which the one
// or the other is known. Models, and adapters of one, have roots of their own: engines do not share their blocks.
type prompts struct {
	config       promptConfig
	text, tokens *placement.Tree

	roots atomic.Pointer[map[promptScope]promptRoots] // replaced under mu when a model is first seen
	mu    sync.Mutex
	due   atomic.Int64 // when trimming is due, Unix nanoseconds; 0 before the first request
	spare sync.Pool    // *placement.Matches
}

// promptConfig bounds what prompts remembers.
type promptConfig struct {
	tokensFirst bool  // where text and tokens are known, tokens are used
	bytes       int64 // of each tree, at every moment
	interval    int64 // nanoseconds between trims; 0 never trims
	limit       int64 // a holder that has more characters in a tree is trimmed,
	target      int64 // to this
	perToken    int64 // characters that a token counts for limit and target
}

type promptScope struct{ model, lora string }

type promptRoots struct{ text, tokens placement.Root }

func newPrompts(c promptConfig) *prompts {
	p := &prompts{config: c, text: placement.NewText(c.bytes), tokens: placement.NewTokens(c.bytes)}
	p.roots.Store(&map[promptScope]promptRoots{})
	p.spare.New = func() any { return &placement.Matches{} }
	return p
}

// promptKey is where a prompt belongs, and its key; there is no key when nothing of the prompt is known.
type promptKey struct {
	tree *placement.Tree
	root placement.Root
	key  []byte
}

// of returns where q's prompt belongs; ok is false when none of its model was seen yet.
func (p *prompts) of(q *policy.Query) (at promptKey, ok bool) {
	roots, ok := (*p.roots.Load())[promptScope{q.Model, q.LoRA}]
	if len(q.Prompt.Text) > 0 && (!p.config.tokensFirst || len(q.Prompt.Tokens) == 0) {
		return promptKey{p.text, roots.text, q.Prompt.Text}, ok
	}
	return promptKey{p.tokens, roots.tokens, placement.TokenBytes(q.Prompt.Tokens)}, ok
}

// match finds what holders were sent of q's prompt before. The caller gives the result back with done; it is nil when
// nothing of the prompt is known.
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
	at.tree.Match(at.root, at.key, m)
	return m
}

func (p *prompts) done(m *placement.Matches) {
	if m != nil {
		p.spare.Put(m)
	}
}

// nominees is how many holders of the longest beginnings a policy of a large fleet wants to look at.
const nominees = 32

// nominate appends the holders that were sent the longest beginnings of q's prompt.
func (p *prompts) nominate(q *policy.Query, dst []fleet.Holder) []fleet.Holder {
	m := p.match(q)
	if m == nil {
		return dst
	}
	longest := m.Longest()
	for _, h := range longest[:min(len(longest), nominees)] {
		dst = append(dst, fleet.Holder(h))
	}
	p.done(m)
	return dst
}

// share returns how much of the prompt the holder was sent before, 0 to 1.
func share(m *placement.Matches, h fleet.Holder) float64 {
	if m == nil || m.Total() == 0 {
		return 0
	}
	return float64(m.Of(uint32(h))) / float64(m.Total())
}

// sent notes that q's prompt goes to h.
func (p *prompts) sent(q *policy.Query, h fleet.Holder) {
	at, ok := p.of(q)
	if len(at.key) == 0 {
		return
	}
	if !ok {
		p.plant(promptScope{q.Model, q.LoRA})
		at, _ = p.of(q)
	}
	at.tree.Insert(at.root, uint32(h), at.key)
	p.trim(q.Now)
}

// plant makes roots for a model. There are as many as the fleet ever served names.
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

// trim forgets a little when it is due: a request carries a few dozen microseconds of it, the next one goes on.
func (p *prompts) trim(now int64) {
	due := p.due.Load()
	if p.config.interval == 0 || now < due {
		return
	}
	if due == 0 {
		p.due.CompareAndSwap(0, now+p.config.interval)
		return
	}
	c := &p.config
	more := p.text.Trim(c.limit, c.target)
	more = p.tokens.Trim(c.limit/c.perToken, c.target/c.perToken) || more
	if !more {
		p.due.CompareAndSwap(due, now+c.interval)
	}
}

// characters returns how much h has in the tree that q's prompt belongs into.
func (p *prompts) characters(q *policy.Query, h fleet.Holder) int64 {
	at, _ := p.of(q)
	return at.tree.Units(uint32(h))
}

// forget drops all that is remembered of h.
func (p *prompts) forget(h fleet.Holder) {
	p.text.Remove(uint32(h))
	p.tokens.Remove(uint32(h))
}
