package engine

import "time"

// Timing says how long a pass takes. It must depend on the batch alone, and is called concurrently by engines that share it.
type Timing interface {
	Duration(b *Batch) time.Duration
}

// Batch is what one pass computes, as far as its time depends on it. Whole numbers, so that the same pass takes the same
// time however its parts were added up.
type Batch struct {
	Prefills      int   // requests that compute prompt tokens
	PrefillTokens int   // n, summed over them
	PrefillPairs  int64 // n·(2·context + n), summed: twice the pairs of a token and an earlier one that attention visits
	Decodes       int   // requests that compute one generated token
	DecodeContext int64 // their context in tokens, summed
	Loaded        int   // tokens that come back from the CPU tier
}

// prefill adds n prompt tokens of a request that has computed context tokens before.
func (b *Batch) prefill(n, context int) {
	b.Prefills++
	b.PrefillTokens += n
	b.PrefillPairs += int64(n) * int64(2*context+n)
}

// Linear gives the time of a pass as
//
//	Base + Σ over prefills (Token·n + Attention·n·(context + n/2)) + Σ over decodes (Sequence + Context·context) + Load·loaded
//
// n is the number of tokens a request computes in the pass, context what it has before them. Milliseconds. It can be fitted
// to any engine from a prefill ladder and a decode ladder (facts on routing §4).
type Linear struct {
	Base      float64 `json:"base_ms"`      // of any pass: weights are read once
	Token     float64 `json:"token_ms"`     // per prefilled token
	Attention float64 `json:"attention_ms"` // per prefilled token and token of its context
	Sequence  float64 `json:"sequence_ms"`  // per decoding request
	Context   float64 `json:"context_ms"`   // per token of a decoding request's context
	Load      float64 `json:"load_ms"`      // per token loaded from the CPU tier
}

// Duration implements [Timing].
func (l Linear) Duration(b *Batch) time.Duration {
	return milliseconds(l.Base + l.Token*float64(b.PrefillTokens) + l.Attention*float64(b.PrefillPairs)/2 +
		l.Sequence*float64(b.Decodes) + l.Context*float64(b.DecodeContext) + l.Load*float64(b.Loaded))
}

// longest bounds a pass: coefficients from a file may be anything, and time must not wrap around.
const longest = 1e9 // milliseconds

func milliseconds(ms float64) time.Duration {
	if !(ms < longest) {
		ms = longest
	}
	return time.Duration(max(ms, 0) * float64(time.Millisecond))
}
