package engine

import "time"

// Timing gives the time of a pass. The result must depend only on the batch. Engines that share a Timing call it
// concurrently.
type Timing interface {
	Duration(b *Batch) time.Duration
}

// Batch has the quantities of a pass on which its time depends. They are integers: sums of integers do not depend on
// their order, so the same pass always takes the same time.
type Batch struct {
	Prefills      int   // requests that compute prompt tokens
	PrefillTokens int   // sum of these requests' prompt tokens in the pass
	PrefillPairs  int64 // n·(2·context + n) summed, with n tokens of a prefill: twice the pairs of tokens that attention visits
	Decodes       int   // requests that compute one generated token
	DecodeContext int64 // sum of these requests' contexts, in tokens
	Loaded        int   // tokens that come back from the CPU tier
}

// prefill adds n prompt tokens of a request with context computed tokens before them.
func (b *Batch) prefill(n, context int) {
	b.Prefills++
	b.PrefillTokens += n
	b.PrefillPairs += int64(n) * int64(2*context+n)
}

// Linear gives the time of a pass as
//
//	Base + Σ over prefills (Token·n + Attention·n·(context + n/2)) + Σ over decodes (Sequence + Context·context) + Load·loaded
//
// in milliseconds. n is the number of tokens of a request in the pass, context the number of its tokens before them.
// The coefficients can be fitted to an engine with a prefill ladder and a decode ladder, as Dynamo's mocker, Preble
// and BLIS do.
type Linear struct {
	Base      float64 `json:"base_ms"`      // per pass: weights are read once
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

// longest bounds a pass, so that coefficients from a file cannot overflow a time.
const longest = 1e9 // milliseconds

func milliseconds(ms float64) time.Duration {
	if !(ms < longest) {
		ms = longest
	}
	return time.Duration(max(ms, 0) * float64(time.Millisecond))
}
