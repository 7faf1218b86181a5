package warmpath

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvindex"
)

// Lookup is a question to a remote index: which holders have the beginning of a prompt? See [Options.RemoteIndex].
type Lookup struct {
	Model     string          // the base model
	BlockSize int             // tokens of a block of Keys
	Algorithm block.Algorithm // how Keys were made
	// Keys are the keys of the prompt's full blocks, from the first one on. They must not be changed. The last token of
	// the prompt is left out, because an engine computes it in any case.
	Keys []block.Key

	// Salt and Extra are the cache_salt and the extra_key of the request. Keys include them already. Whoever follows the
	// events has to know that requests carry such keys, before the request is sent: see kvfeed.Feed.Scoped.
	Salt, Extra string

	// Matches is the answer: one Match for each holder of this router's fleet that has the first block, in any order. The
	// caller that asks the index fills it in, in blocks of BlockSize. Without an answer it stays empty. The slice may
	// have room from an earlier question.
	Matches []kvindex.Match

	index *modelIndex // what the keys were made for
	lora  string
	width int // the look-ahead of the engines that the keys are for
}

// Lookups returns what a remote index has to be asked, before the first decision about the request. The caller writes
// the answers into the elements. It returns nil if there is no remote index ([Options.RemoteIndex]), if no worker
// serves the model, or if the request has no tokens. Nearly always there is one question. There are more if workers
// list different names for one model, or if engines hash blocks with a look-ahead.
//
// The later decisions reuse the keys, and use the answers of the last call, however late they are made. The slice and
// its elements are valid until [Prepared.Recycle] or the next call.
func (p *Prepared) Lookups() []Lookup {
	r, req := p.router, p.request
	if !r.options.RemoteIndex || len(req.Tokens) == 0 {
		return nil
	}
	snap := r.fleet.Snapshot()
	pool, ok := snap.Pool(req.Model)
	if !ok {
		return nil
	}
	p.lookups, p.matched = p.lookups[:0], moment{}
	p.hash(r.index(snap, pool.Model), pool, false)
	p.hashElsewhere(snap, pool)
	p.ask(&p.promptKeys, pool.BlockSize)
	for i := range p.elsewhere {
		p.ask(&p.elsewhere[i], pool.BlockSize)
	}
	return p.lookups
}

// ask adds the questions about k's keys to p.lookups. engine is the block size of all engines in tokens, 0 if they
// differ.
func (p *Prepared) ask(k *promptKeys, engine int) {
	tokens := len(p.request.Tokens)
	p.addLookup(k, k.first(k.keys, usableTokens(tokens-1, engine)), 0)
	p.hashAhead(k)
	for i := range k.ahead {
		a := &k.ahead[i]
		p.addLookup(k, k.first(a.keys, usableTokens(tokens-a.width, engine)), a.width)
	}
}

// addLookup adds a question to p.lookups, unless the prompt has no usable block.
func (p *Prepared) addLookup(k *promptKeys, keys []block.Key, width int) {
	if len(keys) == 0 {
		return
	}
	n := len(p.lookups)
	if n < cap(p.lookups) {
		p.lookups = p.lookups[:n+1] // this element has a buffer from an earlier request
	} else {
		p.lookups = append(p.lookups, Lookup{})
	}
	h := k.index.hasher
	p.lookups[n] = Lookup{
		Model: k.index.model, BlockSize: h.Size(), Algorithm: h.Algorithm(), Keys: keys, Matches: p.lookups[n].Matches[:0],
		Salt: p.request.Salt, Extra: p.request.Extra,
		index: k.index, lora: k.lora, width: width,
	}
}

// usableTokens returns how many of n tokens are in whole blocks of all engines. engine is their block size, 0 if they
// differ.
func usableTokens(n, engine int) int {
	n = max(n, 0)
	if engine > 0 {
		n -= n % engine
	}
	return n
}

// addAnswers adds the answers about k's keys to p.matches. The blocks of p.matches have the size of p.index's blocks.
// Answers to questions that were made for other keys are left out: the model's index was replaced meanwhile.
func (p *Prepared) addAnswers(k *promptKeys) {
	for i := range p.lookups {
		q := &p.lookups[i]
		if q.index != k.index || q.lora != k.lora {
			continue
		}
		q.check()
		if k == &p.promptKeys && q.width == 0 {
			p.matches = append(p.matches, q.Matches...)
			continue
		}
		p.others = append(p.others[:0], q.Matches...)
		resize(p.others, q.BlockSize, p.index.hasher.Size())
		p.matches = mergeMatches(p.matches, p.others)
	}
}

// check makes q.Matches what the router relies on, whatever the other process answered: ascending holders, each once,
// and no more blocks than the question has.
func (q *Lookup) check() {
	byHolder := func(a, b kvindex.Match) int { return cmp.Compare(a.Holder, b.Holder) }
	if !slices.IsSortedFunc(q.Matches, byHolder) {
		slices.SortFunc(q.Matches, byHolder)
	}
	last := fleet.NoHolder
	q.Matches = slices.DeleteFunc(q.Matches, func(m kvindex.Match) bool {
		double := m.Holder == last
		last = m.Holder
		return double
	})
	most := uint32(len(q.Keys))
	for i := range q.Matches {
		m := &q.Matches[i]
		m.Blocks, m.Full = min(m.Blocks, most), min(m.Full, most)
		left := m.Blocks
		for t := range m.Tier {
			m.Tier[t] = min(m.Tier[t], left)
			left -= m.Tier[t]
		}
	}
}

// SetBlockSize sets the number of tokens of a block of a base model's keys, because the remote index has such blocks.
// Without SetBlockSize the router chooses the size by the workers that it knows, and so does the other process: but the
// two may have met the workers in another order. The prompts that were expected in caches are forgotten if the size
// changes. SetBlockSize does nothing without [Options.RemoteIndex], for a model that no worker serves, and for an
// impossible size.
func (r *Router) SetBlockSize(model string, tokens int) {
	x := r.served(model)
	if x == nil || !r.options.RemoteIndex || tokens < 1 || tokens > block.MaxSize || x.hasher.Size() == tokens {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.remoteSizes[model] = tokens
	next := r.makeIndex(model, tokens)
	next.checked.Store(x.checked.Load())
}

// ErrOtherKeys means that a question has keys of another block size or algorithm than the index.
var ErrOtherKeys = errors.New("the keys of the question are not the index's: block size and algorithm must be equal")

// Match answers a question of another process from this router's own index: it sets q.Matches. It is the other side of
// [Prepared.Lookups]. The holders are those of this router's fleet, ascending. The error wraps ErrUnknownModel or
// ErrOtherKeys. Match takes no lock, and allocates nothing if q.Matches has room.
func (r *Router) Match(q *Lookup) error {
	q.Matches = q.Matches[:0]
	x := r.served(q.Model)
	if x == nil {
		return fmt.Errorf("look up %d blocks of model %.128q: %w", len(q.Keys), q.Model, ErrUnknownModel)
	}
	if h := x.hasher; h.Size() != q.BlockSize || h.Algorithm() != q.Algorithm {
		return fmt.Errorf("look up %s keys of %d tokens, the index has %s keys of %d tokens: %w", q.Algorithm, q.BlockSize, h.Algorithm(), h.Size(), ErrOtherKeys)
	}
	q.Matches = x.index.Match(q.Keys, q.Matches)
	return nil
}

// served returns the index of a base model, nil if no worker serves the model.
func (r *Router) served(model string) *modelIndex {
	snap := r.fleet.Snapshot()
	if pool, ok := snap.Pool(model); ok && pool.Model == model {
		return r.index(snap, model)
	}
	return nil
}

// Matches looks up the request's tokens in this router's own index, without a decision. Prompts that were sent and are
// not confirmed are left out. adapter is the prompt's LoRA adapter if the request's Model is a base model; "" means
// what Model says. The matches are by ascending holder, in blocks of the given number of tokens. They are valid until
// the next call of a method of p. The error wraps ErrUnknownModel.
func (p *Prepared) Matches(adapter string) (blockSize int, matches []kvindex.Match, err error) {
	snap := p.router.fleet.Snapshot()
	pool, ok := snap.Pool(p.request.Model)
	if !ok {
		return 0, nil, fmt.Errorf("look up a prompt of model %.128q: %w", p.request.Model, ErrUnknownModel)
	}
	if adapter != "" && pool.LoRA == "" {
		pool = &fleet.Pool{Name: pool.Name, Model: pool.Model, LoRA: adapter, BlockSize: pool.BlockSize}
	}
	x := p.router.index(snap, pool.Model)
	p.hash(x, pool, false)
	p.hashElsewhere(snap, pool)
	p.lookUp(&moment{taken: true, now: p.request.Now, engine: pool.BlockSize}, len(p.request.Tokens), false)
	p.matched = moment{}
	return x.hasher.Size(), p.matches, nil
}

// Keys returns the keys of the prompt's full blocks in the index of the request's model, valid until
// [Prepared.Recycle]. They are empty before the first decision or lookup.
func (p *Prepared) Keys() []block.Key { return p.keys }

// Ahead returns the look-ahead of h's engine in tokens, 0 if it has none: see [Router.SetAhead].
func (r *Router) Ahead(h fleet.Holder) int {
	if x := r.of(h); x != nil {
		if a := x.aheads.Load(); a != nil {
			return a.of[h]
		}
	}
	return 0
}

// Keying returns how the index of a base model makes its keys. ok is false if the model has no index yet.
func (r *Router) Keying(model string) (algorithm block.Algorithm, blockSize int, ok bool) {
	x := r.served(model)
	if x == nil {
		return 0, 0, false
	}
	return x.hasher.Algorithm(), x.hasher.Size(), true
}
