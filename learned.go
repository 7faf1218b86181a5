package warmpath

import (
	"maps"
	"slices"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/placement"
	"github.com/warmpath/warmpath/policy"
)

// promptStore remembers which prompts of one model were sent to which holder. A holder is one data-parallel rank of a
// worker, with a KV cache of its own.
//
// A model has one promptStore for each policy that learns from its own requests and not from events (policy.Learned).
// All other policies share one promptStore for each TTL. The TTL is how long the router expects a prompt in the cache
// of the holder to which the prompt was sent.
type promptStore struct {
	store   *placement.Store
	ttl     time.Duration // how long a prompt counts as cached
	longest int           // the number of keys of a prompt that are compared; 0 is all
}

// learned returns p's promptStore for x's model, or nil if p uses events. It takes a lock on first use only.
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
	all[p] = newLearned(settings, x.hasher.Size())
	x.learned.Store(&all)
	return all[p]
}

// newLearned returns an empty store with the settings p of a policy. size is the number of tokens in a block.
func newLearned(p *policy.Learned, size int) *promptStore {
	c := placement.Config{
		Keys:        placement.Blocks,
		TTL:         p.TTL,
		HolderUnits: int64((p.HolderTokens + size - 1) / size),
		Units:       int64(p.MaxBlocks),
		Interval:    time.Minute,
	}
	if c.TTL > 0 {
		c.Interval = 100 * time.Millisecond
	}
	return &promptStore{store: placement.New(c), ttl: p.TTL, longest: (p.MaxPrefixTokens + size - 1) / size}
}

// Limits of the stores of expected prompts.
const (
	// speculativePrune is the share of its blocks that a store keeps when it reaches its limit. The store drops a
	// twentieth in one call, because finding the oldest block of many holders costs more than dropping a block.
	speculativePrune = .95
	// speculativeBytes is the memory that is allowed for each block of Options.MaxSpeculative. A block takes 8
	// bytes, and each run of consecutive blocks takes about 200 bytes in addition. So for runs of four blocks or more the
	// number of blocks is the limit, and for shorter runs the memory is the limit.
	speculativeBytes = 64
	// leastSpeculative is the memory that is allowed in any case, in bytes. A smaller store could not keep a long
	// prompt, because a store drops the end of a prompt that takes more than a quarter of the store's memory.
	leastSpeculative = 64 << 10
)

// expected returns x's store of the prompts that are expected in caches for ttl. It takes a lock on first use only.
func (r *Router) expected(x *modelIndex, ttl time.Duration) *promptStore {
	for _, s := range *x.expected.Load() {
		if s.ttl == ttl {
			return s
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Clone(*x.expected.Load())
	for _, s := range all {
		if s.ttl == ttl {
			return s
		}
	}
	s := &promptStore{ttl: ttl, store: placement.New(placement.Config{
		Keys: placement.Blocks, TTL: ttl, Interval: ttl / 8, PruneTo: speculativePrune,
		Units: int64(x.mostExpected), Bytes: x.expectedBytes(),
	})}
	// Empty stores are removed, because perhaps no policy uses their TTL any more. If a policy does, it gets a new store.
	all = slices.DeleteFunc(all, func(s *promptStore) bool {
		stats := s.store.Stats()
		if stats.Units > 0 {
			return false
		}
		x.displaced += stats.Displaced
		return true
	})
	all = append(all, s)
	x.expected.Store(&all)
	return s
}

// boundExpected keeps the stores of expected prompts together within the limits of one store. If the stores together
// exceed the limits, the largest store drops its oldest prompts.
func (x *modelIndex) boundExpected() {
	all := *x.expected.Load()
	if len(all) < 2 {
		return // a single store keeps the limits itself
	}
	var largest *promptStore
	total, most, units := 0.0, -1.0, int64(0) // total is the sum of the stores' shares of the limits, most the largest share
	for _, s := range all {
		stats := s.store.Stats()
		share := max(float64(stats.Units)/float64(x.mostExpected), float64(stats.Bytes)/float64(x.expectedBytes()))
		if total += share; share > most {
			largest, most, units = s, share, stats.Units
		}
	}
	if total > 1 {
		left := speculativePrune - (total-1)/most
		largest.store.Shrink(int64(max(left, 0) * float64(units)))
	}
}

// expectedBytes returns the limit of the memory of expected prompts.
func (x *modelIndex) expectedBytes() int64 {
	return max(int64(x.mostExpected)*speculativeBytes, leastSpeculative)
}

// extent says how many of a prompt's first blocks were sent to a holder. In Decision.extents it may also be a confirmed
// match.
type extent struct {
	holder fleet.Holder
	blocks uint32
}

// addSent appends to p.sent what s remembers: for each holder, how many of the prompt's first blocks were sent to the
// holder.
func (p *Prepared) addSent(s *promptStore, keys []block.Key, now int64) {
	s.store.Match(placement.First, s.key(keys), now, &p.found)
	for _, h := range p.found.Longest() {
		p.sent = append(p.sent, extent{h, uint32(p.found.Of(h))})
	}
}

// addExpected appends to p.sent, for each holder, how many of the prompt's first blocks are expected in the holder's
// cache.
func (p *Prepared) addExpected(x *modelIndex, keys []block.Key, now int64) {
	for _, s := range *x.expected.Load() {
		p.addSent(s, keys, now)
	}
}

// key returns the bytes under which the store keeps a prompt. keys are the keys of the prompt's blocks.
func (s *promptStore) key(keys []block.Key) []byte {
	if s.longest > 0 && len(keys) > s.longest {
		keys = keys[:s.longest]
	}
	return placement.BlockBytes(keys)
}

// learnedPrompt is one entry that a store learned from a decision.
type learnedPrompt struct {
	by      *placement.Store
	key     []byte            // the bytes under which the store keeps the prompt
	receipt placement.Receipt // what the store added, so that Unlearn removes no older entry
}

// sending is a prompt that is sent to a holder: what the stores of the prompt's model learn from it.
type sending struct {
	holder         fleet.Holder
	keys           []block.Key // the keys of the prompt's blocks
	onHolder       []block.Key // the same for the holder's engine, which may hash with a look-ahead
	trust          fleet.Trust // the trust of the holder's match
	approximate    bool        // no event will confirm the prompt: it is matched by its text, or the holder has no events
	policy, shadow *policy.Policy
	now            int64
	age            time.Duration // how long before now the prompt was sent
}

// learn notes in store that the prompt with these keys is sent to s's holder. It appends the new entry to learned.
func (s *sending) learn(store *promptStore, keys []block.Key, learned []learnedPrompt) []learnedPrompt {
	key := store.key(keys)
	return append(learned, learnedPrompt{store.store, key, store.store.LearnAt(placement.First, s.holder, key, placement.Moment{Now: s.now, Age: s.age})})
}

// unlearn removes the entries that stores learned from d, because the worker computed nothing of the request. Entries
// that a store had before d stay.
func (d *Decision) unlearn() {
	unlearn(d.learned, d.Holder)
	d.forgetLearned()
}

// unlearn removes the entries about h from their stores.
func unlearn(learned []learnedPrompt, h fleet.Holder) {
	for _, l := range learned {
		l.by.Unlearn(placement.First, h, l.key, l.receipt)
	}
}

func (d *Decision) forgetLearned() {
	clear(d.learned)
	d.learned = d.learned[:0]
}

// expect notes that d's holder is expected to cache the prompt of d.
func (r *Router) expect(d *Decision) {
	x := d.index()
	if x == nil || x.hasher.Size() != d.BlockSize {
		return
	}
	s := sending{
		holder: d.Holder, keys: d.keys, onHolder: d.keysOn(x, d.Holder), trust: d.Trust, policy: d.policy, shadow: d.shadow, now: d.Now,
		approximate: d.FromText || d.Candidates[d.Chosen].Trust == fleet.TrustApproximate,
	}
	d.learned = r.expectSent(x, &s, d.learned)
}

// expectSent notes in the stores of x that s's holder is expected to cache the prompt of s. It appends the new entries
// to learned.
func (r *Router) expectSent(x *modelIndex, s *sending, learned []learnedPrompt) []learnedPrompt {
	if s.trust == fleet.TrustNone || len(s.keys) == 0 {
		return learned
	}
	ttl := r.options.SpeculativeTTL
	for _, p := range [...]*policy.Policy{s.policy, s.shadow} {
		if p == nil {
			continue
		}
		if store := r.learned(x, p); store != nil {
			store.store.Evict(s.now)
			learned = s.learn(store, s.keys, learned)
		}
	}
	if s.policy != nil && s.policy.SpeculativeTTL() != 0 {
		ttl = s.policy.SpeculativeTTL()
	}
	if s.approximate {
		ttl = r.options.ApproximateTTL
	}
	for _, store := range *x.expected.Load() {
		store.store.Evict(s.now) // later requests may never use this store's TTL, so its old prompts are dropped here
	}
	if ttl > 0 && len(s.onHolder) > 0 {
		learned = s.learn(r.expected(x, ttl), s.onHolder, learned)
		x.boundExpected()
	}
	return learned
}

// appendText appends to p.keys the keys of the text's whole blocks, for a prompt whose tokens are not known. No event
// confirms such keys.
func (p *Prepared) appendText(h *block.Hasher, scope block.Scope, text []byte) {
	p.keys, p.text = placement.AppendTextKeys(p.keys, h, scope, text, p.text)
}

// dropPolicies drops the stores of policies that are not among the present ones. present has the policies by name.
func (r *Router) dropPolicies(present map[string]*policy.Policy) {
	kept := map[*policy.Policy]bool{}
	for _, p := range present {
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

// forgetLearned drops everything about h's cache that was learned from requests.
func (x *modelIndex) forgetLearned(h fleet.Holder) {
	for _, l := range *x.learned.Load() {
		l.store.Forget(h)
	}
	x.forgetExpected(h)
}

// forgetExpected drops the prompts that are expected in h's cache.
func (x *modelIndex) forgetExpected(h fleet.Holder) {
	for _, s := range *x.expected.Load() {
		s.store.Forget(h)
	}
}
