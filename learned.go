package warmpath

import (
	"maps"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/kvindex/learned"
	"github.com/warmpath/warmpath/policy"
)

// learnedIndex is what one policy has learned from where the requests for a model were sent, for policies that do not go
// by events.
type learnedIndex struct {
	index *learned.Index
	most  int          // keys of a prompt that are looked at; 0 is all
	swept atomic.Int64 // when Evict was last called
}

// learned returns what p has learned of x's model, nil when p goes by events. It takes a lock on first use only.
func (r *Router) learned(x *modelIndex, p *policy.Policy) *learnedIndex {
	told := p.Learned()
	if told == nil {
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
	size := x.hasher.Size()
	l := &learnedIndex{most: (told.MaxPrefixTokens + size - 1) / size, index: learned.New(x.hasher, learned.Config{
		TTL:             told.TTL,
		MaxHolderBlocks: (told.HolderTokens + size - 1) / size,
		MaxBlocks:       told.MaxBlocks,
	})}
	all = maps.Clone(all)
	all[p] = l
	x.learned.Store(&all)
	return l
}

// match looks keys up after what is over has been dropped.
func (l *learnedIndex) match(keys []block.Key, now int64, dst []kvindex.Match) []kvindex.Match {
	last := l.swept.Load()
	if now-last >= int64(l.index.Config().Interval) && l.swept.CompareAndSwap(last, now) {
		l.index.Evict(now)
	}
	return l.index.Match(l.cut(keys), now, dst)
}

func (l *learnedIndex) cut(keys []block.Key) []block.Key {
	if l.most > 0 && len(keys) > l.most {
		return keys[:l.most]
	}
	return keys
}

// learnedPrompt is what one policy has learned from one decision.
type learnedPrompt struct {
	by  *learnedIndex // nil: nothing
	did learned.Learned
}

// learn notes that the prompt of d is expected where it was sent.
func (r *Router) learn(x *modelIndex, d *Decision) {
	for i, p := range [...]*policy.Policy{d.policy, d.shadow} {
		if p == nil {
			continue
		}
		if l := r.learned(x, p); l != nil {
			d.learned[i] = learnedPrompt{l, l.index.Learn(d.Holder, l.cut(d.keys), d.Now)}
		}
	}
}

// unlearn takes back what each policy learned from d and did not know before.
func (d *Decision) unlearn() {
	for _, l := range d.learned {
		if l.by != nil {
			l.by.index.Unlearn(d.Holder, l.by.cut(d.keys), l.did)
		}
	}
	clear(d.learned[:])
}

// dropPolicies drops what policies that are not in all any more have learned.
func (r *Router) dropPolicies(all map[string]*policy.Policy) {
	kept := map[*policy.Policy]bool{}
	for _, p := range all {
		kept[p] = true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, x := range *r.indexes.Load() {
		left := maps.Clone(*x.learned.Load())
		maps.DeleteFunc(left, func(p *policy.Policy, _ *learnedIndex) bool { return !kept[p] })
		x.learned.Store(&left)
	}
}

// forgetLearned drops what was learned of h.
func (x *modelIndex) forgetLearned(h fleet.Holder) {
	for _, l := range *x.learned.Load() {
		l.index.Forget(h)
	}
}
