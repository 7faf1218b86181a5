package engine

import "time"

// Steady returns for how many of the next passes the only change is one more token for each running request. In these
// steady passes no request is admitted or ends, no block is allocated or filled, and there is no event. A caller that
// does not need the time of single tokens can make these passes with one call of Advance. The result equals the result
// of single Steps, to the nanosecond.
func (e *Engine) Steady() int {
	if len(e.running) == 0 || len(e.queue) > 0 && !e.stuck || len(e.running) > e.cfg.MaxBatchTokens || len(e.pool.events) > 0 {
		return 0
	}
	if e.cpu != nil && len(e.cpu.queued) > 0 {
		return 0
	}
	passes := int(^uint(0) >> 1)
	for _, r := range e.running {
		if r.emitted == 0 || r.computed != len(r.tokens)-1 {
			return 0
		}
		// The pass that computes a block's last token fills the block. The pass after that takes a new block.
		room := len(r.blocks)*e.cfg.BlockSize - r.computed - 1
		left := min(len(r.Output)-r.emitted, e.cfg.MaxModelLen-len(r.tokens)) - 1
		passes = min(passes, room, left)
		if passes <= 0 {
			return 0
		}
	}
	return passes
}

// Forecast returns how long the given number of steady passes takes.
func (e *Engine) Forecast(passes int) (took time.Duration) {
	b := e.decodes()
	for range passes {
		took += e.cfg.Timing.Duration(b)
		b.DecodeContext += int64(b.Decodes)
	}
	return took
}

// Advance makes steady passes: at most the number passes, which must not exceed Steady. It makes no pass that begins at
// the time until or later; until counts from the start of the first pass. It returns the number of passes made and
// their total duration.
func (e *Engine) Advance(passes int, until time.Duration) (made int, took time.Duration) {
	b := e.decodes()
	for made < passes && took < until {
		took += e.cfg.Timing.Duration(b)
		b.DecodeContext += int64(b.Decodes)
		made++
	}
	for _, r := range e.running {
		r.tokens = append(r.tokens, r.Output[r.emitted:r.emitted+made]...)
		r.emitted += made
		r.computed += made
	}
	e.stats.Steps += uint64(made)
	e.stats.Outputs += uint64(made * b.Decodes)
	return made, took
}

// decodes returns the batch of a steady pass.
func (e *Engine) decodes() *Batch {
	b := &e.batch
	*b = Batch{Decodes: len(e.running)}
	for _, r := range e.running {
		b.DecodeContext += int64(r.computed)
	}
	return b
}

// Running returns the running requests in the order of their admission. The caller must not change the slice. The slice
// is valid until the next call that changes the engine.
func (e *Engine) Running() []*Request { return e.running }
