package engine

import "github.com/warmpath/warmpath/block"

// Step makes one scheduler pass and fills s. It returns false if there is no request. Running requests come first, in
// the order of their admission. If no running request is preempted, waiting requests come next. The token budget, the
// sequence limit and the free blocks bound the pass.
func (e *Engine) Step(s *Step) bool {
	s.Duration, s.Tokens, s.Preempted, s.Outputs, s.Admitted, s.Events = 0, 0, 0, s.Outputs[:0], s.Admitted[:0], s.Events[:0]
	s.Awaiting = s.Awaiting[:0]
	if e.Idle() {
		return false
	}
	if e.cpu != nil {
		e.cpu.settle(e.pool, e.cfg.BlockSize)
	}
	e.stuck, e.batch = false, Batch{}
	p := pass{budget: e.cfg.MaxBatchTokens, scheduled: e.scheduled[:0]}
	e.scheduleRunning(&p)
	if p.preempted == 0 {
		e.admitWaiting(&p, s)
	}
	e.finish(&p, s)
	e.TakeEvents(s)
	s.Duration = e.cfg.Timing.Duration(&e.batch)
	s.Tokens, s.Preempted = p.tokens, p.preempted
	clear(p.scheduled)
	e.scheduled = p.scheduled[:0]
	e.stats.Steps++
	e.stats.Preemptions += uint64(p.preempted)
	return true
}

// pass is the state of one call of Step.
type pass struct {
	budget    int
	tokens    int
	preempted int
	scheduled []*Request
}

func (e *Engine) scheduleRunning(p *pass) {
	for i := 0; i < len(e.running) && p.budget > 0; i++ {
		r := e.running[i]
		n := min(len(r.tokens)-r.computed, p.budget)
		for !e.grow(r, n) {
			// Preempt the newest request. This pass has not scheduled it yet, because it is r or a request after r.
			last := len(e.running) - 1
			victim := e.running[last]
			e.running[last] = nil
			e.running = e.running[:last]
			e.preempt(victim, p)
			if victim == r {
				return
			}
		}
		e.schedule(r, n, p)
	}
}

// preempt frees r's blocks and puts r at the front of the queue. When r is admitted again, it computes all its tokens
// again, except tokens in blocks that are still cached.
func (e *Engine) preempt(r *Request, p *pass) {
	e.free(r)
	r.state, r.arrived = waiting, false
	e.queue = append(e.queue, nil)
	copy(e.queue[1:], e.queue)
	e.queue[0] = r
	p.preempted++
}

func (e *Engine) admitWaiting(p *pass, s *Step) {
	if len(e.queue) == 0 {
		return
	}
	admitted := 0
	for admitted < len(e.queue) && p.budget > 0 {
		r := e.queue[admitted]
		fresh := !r.admitted
		await := r.Await && fresh // after a preemption the engine computes the tokens itself
		n, ok := 0, len(e.running) < e.cfg.MaxSequences
		switch {
		case !ok:
		case await:
			ok = e.await(r)
		case r.arrived:
			n = min(len(r.tokens)-r.computed, p.budget)
			e.cache(r, r.computed+n)
		default:
			n, ok = e.admit(r, p.budget)
		}
		if !ok {
			e.stuck = true
			break
		}
		admitted++
		if fresh {
			s.Admitted = append(s.Admitted, r)
		}
		if await {
			r.state = awaiting
			e.awaiting = append(e.awaiting, r)
			s.Awaiting = append(s.Awaiting, r)
			continue
		}
		r.state = running
		e.running = append(e.running, r)
		e.schedule(r, n, p)
	}
	rest := copy(e.queue, e.queue[admitted:])
	clear(e.queue[rest:])
	e.queue = e.queue[:rest]
}

// admit finds r's cached prefix, and allocates blocks for new tokens, at most budget tokens. It returns the number of
// new tokens. If the pool has too few free blocks, r is not admitted and ok is false.
func (e *Engine) admit(r *Request, budget int) (n int, ok bool) {
	usable, idleHits := e.lookup(r)
	hits := len(r.blocks)
	prefix := hits
	if e.cpu != nil {
		for prefix < usable && e.cpu.hit(r.hashes[prefix]) {
			prefix++
		}
	}
	computed := prefix * e.cfg.BlockSize
	if !r.admitted { // a preemption loses the received blocks
		computed = max(computed, min(r.Received, len(r.tokens)-1))
	}
	n = min(len(r.tokens)-computed, budget)
	need := e.blocksFor(computed+n) - hits
	wanted := need
	if !e.cfg.AdmitChunks {
		wanted = e.blocksFor(len(r.tokens)) - hits
	}
	// A cached block that no request uses is in the free list. r will take idleHits such blocks from the free list.
	if wanted > e.pool.free-idleHits {
		r.blocks = r.blocks[:0]
		return 0, false
	}
	e.countLookup(r, usable, hits, prefix)
	for _, id := range r.blocks {
		e.pool.touch(id)
	}
	r.stored = hits
	if r.Announce && hits > 0 {
		e.announce(r, hits)
	}
	r.computed = computed
	r.loadPending = (prefix - hits) * e.cfg.BlockSize
	r.blocks = e.pool.allocate(r.blocks, need)
	e.cache(r, r.computed+n)
	return n, true
}

// lookup puts r's cached prefix on the accelerator into r.blocks, without a reference. It returns the number of blocks
// that a cache may have, and the number of found blocks that no request uses.
func (e *Engine) lookup(r *Request) (usable, idleHits int) {
	r.hashes = e.cfg.Hash(r.hashes, r, r.tokens)
	// The last token is always computed, because sampling needs its logits.
	usable = min((len(r.tokens)-1)/e.cfg.BlockSize, len(r.hashes))
	if r.Fresh {
		usable = 0
	}
	for _, h := range r.hashes[:usable] {
		id := e.pool.lookup(h)
		if id == nullBlock {
			break
		}
		if e.pool.idle(id) {
			idleHits++
		}
		r.blocks = append(r.blocks, id)
	}
	return usable, idleHits
}

// await finds r's cached prefix and allocates blocks for the rest of the prompt, into which the received tokens will be
// written. If the pool has too few free blocks, r waits in the queue and ok is false.
func (e *Engine) await(r *Request) (ok bool) {
	usable, idleHits := e.lookup(r)
	hits := len(r.blocks)
	need := e.blocksFor(len(r.tokens)) - hits
	if need > e.pool.free-idleHits {
		r.blocks = r.blocks[:0]
		return false
	}
	e.countLookup(r, usable, hits, hits)
	for _, id := range r.blocks {
		e.pool.touch(id)
	}
	r.stored, r.computed = hits, hits*e.cfg.BlockSize
	r.blocks = e.pool.allocate(r.blocks, need)
	r.External = max(0, min(r.Received, len(r.tokens))-r.computed)
	return true
}

// At r's first admission, countLookup sets r's cached tokens and updates the totals. Later it does nothing.
func (e *Engine) countLookup(r *Request, usable, hits, prefix int) {
	size := e.cfg.BlockSize
	if r.admitted {
		return
	}
	r.admitted = true
	r.Cached, r.Loaded = prefix*size, (prefix-hits)*size
	e.stats.Queries += uint64(len(r.tokens))
	e.stats.Hits += uint64(hits * size)
	if e.cpu != nil {
		e.stats.CPUQueries += uint64(len(r.tokens) - hits*size)
		e.stats.CPUHits += uint64(r.Loaded)
	}
}

// grow allocates blocks of r for n more tokens, and caches the blocks that these tokens fill. If the pool has too few
// free blocks, grow changes nothing and returns false.
func (e *Engine) grow(r *Request, n int) bool {
	if r.computed+n > len(r.blocks)*e.cfg.BlockSize {
		need := e.blocksFor(r.computed+n) - len(r.blocks)
		if need > e.pool.free {
			return false
		}
		r.blocks = e.pool.allocate(r.blocks, need)
	}
	e.cache(r, r.computed+n)
	return true
}

func (e *Engine) blocksFor(tokens int) int {
	return (tokens + e.cfg.BlockSize - 1) / e.cfg.BlockSize
}

// cache caches and announces the blocks of r that are full after the first computed tokens.
func (e *Engine) cache(r *Request, computed int) {
	size := e.cfg.BlockSize
	if computed < (r.stored+1)*size {
		return
	}
	full := computed / size
	r.hashes = e.cfg.Hash(r.hashes, r, r.tokens[:full*size])
	event := e.describe(r, r.stored, full)
	hashes := r.hashes[r.stored:full]
	e.pool.store(r.blocks[r.stored:full], hashes, event)
	if e.cpu != nil {
		e.cpu.stored(hashes, &event)
	}
	r.stored = full
}

// announce announces again the blocks that r found in the cache. These blocks are not new copies, so a receiver must
// not count them as copies.
func (e *Engine) announce(r *Request, hits int) {
	event := e.describe(r, 0, hits)
	event.Kind, event.Tier = Stored, block.TierGPU
	e.pool.emit(event, r.hashes[:hits]...)
}

// describe returns the Stored event for the blocks [from, to) of r. The caller adds kind, tier and hashes.
func (e *Engine) describe(r *Request, from, to int) Event {
	size := e.cfg.BlockSize
	event := Event{Owner: r.Owner, Tokens: r.tokens[from*size : to*size : to*size], Start: from * size, BlockSize: size, LoRA: r.Scope.LoRA, Features: r.Features}
	if from > 0 {
		event.Parent, event.HasParent = r.hashes[from-1], true
	} else {
		event.Salt = r.Scope.Salt
	}
	return event
}

// schedule adds n tokens of r to the pass.
func (e *Engine) schedule(r *Request, n int, p *pass) {
	if n == 1 && r.emitted > 0 {
		e.batch.Decodes++
		e.batch.DecodeContext += int64(r.computed)
	} else {
		e.batch.prefill(n, r.computed)
	}
	e.batch.Loaded += r.loadPending
	r.loadPending = 0
	r.computed += n
	p.budget -= n
	p.tokens += n
	p.scheduled = append(p.scheduled, r)
}

// finish outputs the next token of each scheduled request whose tokens are all computed. It frees the blocks of
// requests that end.
func (e *Engine) finish(p *pass, s *Step) {
	done := false
	for _, r := range p.scheduled {
		if r.computed < len(r.tokens) {
			continue
		}
		token := r.Output[r.emitted]
		r.emitted++
		r.tokens = append(r.tokens, token)
		last := r.emitted == len(r.Output) || len(r.tokens) >= e.cfg.MaxModelLen
		s.Outputs = append(s.Outputs, Output{Request: r, Token: token, First: r.emitted == 1, Last: last})
		e.stats.Outputs++
		if last {
			if r.Pin {
				r.state = pinned
			} else {
				e.free(r)
				r.state = idle
			}
			done = true
			e.stats.Finished++
		}
	}
	if !done {
		return
	}
	e.stuck = false
	kept := e.running[:0]
	for _, r := range e.running {
		if r.state == running {
			kept = append(kept, r)
		}
	}
	clear(e.running[len(kept):])
	e.running = kept
}

// free releases r's blocks.
func (e *Engine) free(r *Request) {
	e.pool.release(r.blocks)
	r.blocks, r.computed, r.stored, r.loadPending = r.blocks[:0], 0, 0, 0
}
