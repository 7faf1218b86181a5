package warmpath

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
	"github.com/warmpath/warmpath/placement"
)

// Prepared is a request that may need several decisions: one that estimates the request's cost before a wait, one of a
// shadow policy, one that routes the request, and one more after a worker failed. The decisions share the work that
// does not depend on the time of the decision:
//
//   - The block keys of the prompt are kept. Hashing a long prompt takes most of a decision's time. The keys are made
//     again only when the model's index was replaced, the model name has a new meaning, or the look-aheads or further
//     names of its workers changed.
//   - The matches are kept for decisions with the same [Request.Now]. A decision at another time looks up again,
//     because blocks are stored and evicted while a request waits. With the keys at hand a lookup is cheap.
//   - The fleet is read again by every decision: the workers that serve the model, their load, standing and trust.
//     Every other request may change these facts. The policy is also looked up by its name each time.
//
// Between two decisions the caller may change the request's Policy, Exclude, Cached, Target, Rank, Now and Random.
// The other fields must stay as they are until [Prepared.Recycle].
//
// A Prepared and its request belong to one goroutine at a time. A decision is independent of its Prepared: it may end
// after the Prepared was recycled.
type Prepared struct {
	router  *Router
	request *Request
	users   atomic.Int32 // counts the caller, and each decision that was not recycled; at 0 the memory is reused

	promptKeys              // Decisions read these keys, so they are never changed in place.
	elsewhere  []promptKeys // the keys for the indexes of fleet.Pool.Others; no decision reads them after its lookup

	matches []kvindex.Match // matches of confirmed blocks, by ascending holder
	sent    []extent        // prompts that were sent and are not confirmed; a holder may be in the list twice
	matched moment          // the lookup whose results are in matches and sent
	lookups []Lookup        // the questions to a remote index, with its answers

	// Scratch memory of one decision.
	text     []block.Token   // a part of the prompt's text
	features []block.Feature // the prompt's features, shifted for a look-ahead
	others   []kvindex.Match // matches that mergeMatches adds to matches
	found    placement.Matches
}

// promptKeys holds the keys of a prompt for one index.
type promptKeys struct {
	index  *modelIndex // the index that the keys are for; nil: there are no keys yet
	lora   string      // the adapter that the keys are for
	root   block.Key   // the parent of the first key
	keys   []block.Key
	aheads *aheads     // the look-aheads of the index's holders when the field ahead was made
	ahead  []aheadKeys // the keys for engines that hash with a look-ahead
}

// empty removes the keys and keeps their memory.
func (k *promptKeys) empty() { *k = promptKeys{keys: k.keys[:0], ahead: k.ahead[:0]} }

// moment identifies a lookup: it holds everything that a lookup depends on, except the keys. The zero value means that
// there was no lookup.
type moment struct {
	taken   bool
	now     int64
	engine  int          // tokens of an engine block if all engines have the same block size, otherwise 0
	learned *promptStore // the store of a policy that learns from its own requests; nil: the index was used
}

// Prepare makes a request ready for any number of decisions. It only stores req: the first decision computes the facts
// that the later decisions share. The caller ends with [Prepared.Recycle]. If a request is decided only once, call
// [Router.Route] instead.
func (r *Router) Prepare(req *Request) *Prepared {
	p, _ := r.prepared.Get().(*Prepared)
	if p == nil {
		p = &Prepared{}
	}
	p.router, p.request = r, req
	p.users.Store(1)
	return p
}

// Recycle ends the caller's use of p. The caller must not use p afterwards, and p does not read the request any more.
// If the caller does not call Recycle, the only cost is an allocation.
func (p *Prepared) Recycle() {
	p.request = nil
	p.release()
}

// release ends one use of p. When there is no user left, it gives p's memory back to the router.
func (p *Prepared) release() {
	if p.users.Add(-1) > 0 {
		return
	}
	p.empty()
	p.elsewhere, p.lookups, p.matched = p.elsewhere[:0], p.lookups[:0], moment{}
	for all, i := p.lookups[:cap(p.lookups)], 0; i < len(all); i++ {
		all[i] = Lookup{Matches: all[i].Matches[:0]}
	}
	for all, i := p.elsewhere[:cap(p.elsewhere)], 0; i < len(all); i++ {
		all[i].empty()
	}
	p.matches, p.sent = p.matches[:0], p.sent[:0]
	p.router.prepared.Put(p)
}

// mostTries is the greatest number of decisions in one call of Route. Route decides again if other requests have filled
// the chosen holder meanwhile.
const mostTries = 16

// Route decides as [Router.Route] does.
func (p *Prepared) Route(ctx context.Context) (*Decision, error) {
	r, req := p.router, p.request
	d, err := p.decide(ctx, true)
	for tries := 1; err == nil && !r.reserveLegs(d, req); tries++ { // other requests filled the holder meanwhile
		d.Recycle()
		if tries == mostTries {
			return nil, fmt.Errorf("route to model %.128q: %w", req.Model, ErrSaturated)
		}
		p.matched = moment{} // look up again: the prompts of the other requests are now expected in caches
		d, err = p.decide(ctx, true)
	}
	if err != nil {
		if d != nil {
			d.Recycle()
		}
		return nil, err
	}
	d.routedLegs()
	return d, nil
}

// Explain decides as [Router.Explain] does.
func (p *Prepared) Explain(ctx context.Context) (*Decision, error) { return p.decide(ctx, false) }

// match fills in d's keys and matches.
func (p *Prepared) match(d *Decision, snap *fleet.Snapshot, pool *fleet.Pool) {
	x := p.router.index(snap, pool.Model)
	p.hash(x, pool, d.FromText)
	d.BlockSize = x.hasher.Size()

	now := moment{taken: true, now: p.request.Now, engine: pool.BlockSize, learned: p.router.learned(x, d.policy)}
	if now.learned == nil && !d.FromText {
		p.hashElsewhere(snap, pool)
	}
	if p.matched != now {
		p.lookUp(&now, d.PromptTokens, d.FromText)
		p.matched = now
	}
	d.keys, d.ahead, d.matches, d.sent = p.keys, p.ahead, p.matches, p.sent
}

// hash makes the prompt's keys for x, unless the keys have been made already.
func (p *Prepared) hash(x *modelIndex, pool *fleet.Pool, fromText bool) {
	if p.index == x && p.lora == pool.LoRA {
		return
	}
	if p.index != nil { // decisions may still read the old keys, so their memory is not reused
		p.promptKeys, p.matched = promptKeys{}, moment{}
	}
	scope := p.begin(x, p.request, pool.LoRA)
	if fromText {
		p.appendText(x.hasher, scope, p.request.Text)
	} else {
		p.keys = x.appendKeys(p.keys, p.root, p.request)
	}
}

// begin sets which keys k will hold, and returns their scope.
func (k *promptKeys) begin(x *modelIndex, req *Request, lora string) block.Scope {
	scope := block.Scope{Model: x.model, LoRA: lora, Salt: req.Salt, Extra: req.Extra}
	k.index, k.lora, k.root = x, lora, x.hasher.Root(scope)
	return scope
}

// hashElsewhere makes the prompt's keys for the indexes of pool.Others, unless the keys have been made already. Events
// name no model, so the blocks of a worker are in the index of the first name that the worker lists for its model.
// Workers may list different first names for the model that the request names.
func (p *Prepared) hashElsewhere(snap *fleet.Snapshot, pool *fleet.Pool) {
	if len(p.elsewhere) != len(pool.Others) {
		p.matched = moment{}
		p.elsewhere = slices.Grow(p.elsewhere[:0], len(pool.Others))[:len(pool.Others)] // an entry may have a buffer from an earlier request
	}
	for i, other := range pool.Others {
		k := &p.elsewhere[i]
		x := p.router.index(snap, other.Model)
		if k.index == x && k.lora == other.LoRA {
			continue
		}
		k.empty()
		k.begin(x, p.request, other.LoRA)
		k.keys = x.appendKeys(k.keys, k.root, p.request)
		p.matched = moment{}
	}
}

// lookUp matches a prompt of the given length against the indexes of the model, or against the store of a policy that
// learns from its own requests.
func (p *Prepared) lookUp(at *moment, tokens int, fromText bool) {
	// An engine computes at least the last token of a prompt, and uses only whole blocks of its own size. If all engines
	// have the same block size, this limit is applied before matching. It could not be applied afterwards for a hybrid
	// model, which also has sliding-window or state-space layers: there, a shorter match is not always a part of a longer
	// match.
	usable := usableTokens(tokens-1, at.engine)
	keys := p.first(p.keys, usable)
	p.matches, p.sent = p.matches[:0], p.sent[:0]
	if at.learned != nil {
		p.addSent(at.learned, keys, at.now)
		return
	}
	if p.router.options.RemoteIndex {
		p.addAnswers(&p.promptKeys)
	} else {
		p.matches = p.index.index.Match(keys, p.matches)
	}
	p.addExpected(p.index, keys, at.now)
	if fromText {
		return
	}
	p.matchAhead(&p.promptKeys, at)
	for i := range p.elsewhere {
		k := &p.elsewhere[i]
		if p.router.options.RemoteIndex {
			p.addAnswers(k)
		}
		p.addMatches(k.index, k.first(k.keys, usable), at.now)
		p.matchAhead(k, at)
	}
}

// first returns the keys of the whole blocks in the first tokens of the prompt.
func (k *promptKeys) first(keys []block.Key, tokens int) []block.Key {
	return keys[:min(tokens/k.index.hasher.Size(), len(keys))]
}

// addMatches adds to p.matches and p.sent what x knows about a prompt with these keys. The blocks of p.matches and
// p.sent have the size of p.index's blocks, and x may have another block size.
func (p *Prepared) addMatches(x *modelIndex, keys []block.Key, now int64) {
	p.others = x.index.Match(keys, p.others[:0])
	known := len(p.sent)
	p.addExpected(x, keys, now)
	if from, to := uint32(x.hasher.Size()), uint32(p.index.hasher.Size()); from != to {
		resize(p.others, int(from), int(to))
		for i := known; i < len(p.sent); i++ {
			p.sent[i].blocks = p.sent[i].blocks * from / to
		}
	}
	p.matches = mergeMatches(p.matches, p.others)
}

// resize changes matches in blocks of from tokens into matches in blocks of to tokens.
func resize(matches []kvindex.Match, from, to int) {
	if from == to {
		return
	}
	scale := func(blocks uint32) uint32 { return uint32(uint64(blocks) * uint64(from) / uint64(to)) }
	for i := range matches {
		m := &matches[i]
		m.Blocks, m.Full = scale(m.Blocks), scale(m.Full)
		for t := range m.Tier {
			m.Tier[t] = scale(m.Tier[t])
		}
	}
}
