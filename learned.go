package warmpath

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/placement"
	"github.com/warmpath/warmpath/policy"
)

// promptStore remembers where one policy's requests for a model were sent, for a policy that does not go by events.
type promptStore struct {
	store   *placement.Store
	longest int       // keys of a prompt that are compared; 0 is all
	spare   sync.Pool // *placement.Matches
}

// learned returns p's promptStore for x's model, nil when p goes by events. It takes a lock on first use only.
func (r *Router) learned(x *modelIndex, p *policy.Policy) *promptStore {
	settings := p.Learned()
	if settings == nil {
		return nil
	}
	if l := (*x.learned.Load())[p]; l != nil {
		return l
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	all := *x.learned.Load()
	if l := all[p]; l != nil {
		return l
	}
	all = maps.Clone(all)
	all[p] = newPromptStore(settings, x.hasher.Size())
	x.learned.Store(&all)
	return all[p]
}

// newPromptStore returns an empty store for blocks of size tokens.
func newPromptStore(p *policy.Learned, size int) *promptStore {
	c := placement.Config{
		Keys:        placement.Blocks,
		TTL:         p.TTL,
		HolderUnits: int64((p.HolderTokens + size - 1) / size),
		Units:       int64(p.MaxBlocks),
		Interval:    time.Minute,
	}
	if c.TTL > 0 {
		c.Interval = 100 * time.Millisecond // an expired prompt is believed at most this much longer
	}
	l := &promptStore{store: placement.New(c), longest: (p.MaxPrefixTokens + size - 1) / size}
	l.spare.New = func() any { return &placement.Matches{} }
	return l
}

// match appends, by ascending holder, how much of a prompt with these keys each holder was sent before.
func (l *promptStore) match(keys []block.Key, now int64, dst []kvindex.Match) []kvindex.Match {
	l.store.Evict(now)
	m := l.spare.Get().(*placement.Matches)
	defer l.spare.Put(m)
	l.store.Match(placement.First, l.key(keys), m)
	first := len(dst)
	for _, h := range m.Longest() {
		n := uint32(m.Of(h))
		dst = append(dst, kvindex.Match{Holder: h, Blocks: n, Speculative: n, Full: n, Tier: [block.NumTiers]uint32{block.TierGPU: n}})
	}
	slices.SortFunc(dst[first:], func(a, b kvindex.Match) int { return cmp.Compare(a.Holder, b.Holder) })
	return dst
}

// key returns the store's key for a prompt's keys.
func (l *promptStore) key(keys []block.Key) []byte {
	if l.longest > 0 && len(keys) > l.longest {
		keys = keys[:l.longest]
	}
	return placement.BlockBytes(keys)
}

// learnedPrompt is what one policy learned from one decision.
type learnedPrompt struct {
	by  *promptStore // nil: nothing
	did placement.Learned
}

// learn notes that the prompt of d is expected at the holder that it is sent to.
func (r *Router) learn(x *modelIndex, d *Decision) {
	for i, p := range [...]*policy.Policy{d.policy, d.shadow} {
		if p == nil {
			continue
		}
		if l := r.learned(x, p); l != nil {
			d.learned[i] = learnedPrompt{l, l.store.Learn(placement.First, d.Holder, l.key(d.keys), d.Now)}
		}
	}
}

// unlearn removes what the policies learned from d and did not know before.
func (d *Decision) unlearn() {
	for _, l := range d.learned {
		if l.by != nil {
			l.by.store.Unlearn(placement.First, d.Holder, l.by.key(d.keys), l.did)
		}
	}
	clear(d.learned[:])
}

// appendText appends to p.keys the keys of the text's whole blocks, for a prompt whose tokens are not known. They are
// in the model's index together with keys of tokens, under the same budget. No event confirms them.
func (p *Prepared) appendText(h *block.Hasher, scope block.Scope, text []byte) {
	p.keys, p.text = placement.AppendText(p.keys, h, scope, text, p.text)
}

// dropPolicies drops what was learned by policies that are no longer in all.
func (r *Router) dropPolicies(all map[string]*policy.Policy) {
	kept := map[*policy.Policy]bool{}
	for _, p := range all {
		kept[p] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range *r.indexes.Load() {
		left := maps.Clone(*x.learned.Load())
		maps.DeleteFunc(left, func(p *policy.Policy, _ *promptStore) bool { return !kept[p] })
		x.learned.Store(&left)
	}
}

// forgetLearned drops what was learned of h.
func (x *modelIndex) forgetLearned(h fleet.Holder) {
	for _, l := range *x.learned.Load() {
		l.store.Forget(h)
	}
}
