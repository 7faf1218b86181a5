package engine

import "time"

// Timing gives the time of a pass. The result may depend only on the batch. Engines that share a Timing call it
// concurrently.
type Timing interface {
	Duration(b *Batch) time.Duration
}

// Batch has the quantities of a pass that determine its time. They are integers, because a sum of integers does not
// depend on the order: so the same pass always takes the same time.
type Batch struct {
	Prefills      int // number of requests that compute prompt tokens
	PrefillTokens int // sum of these requests' prompt tokens in the pass
	// Sum of n·(2·context + n) over prefills of n tokens: twice the pairs of tokens that attention visits.
	PrefillPairs  int64
	Decodes       int   // number of requests that compute one generated token
	DecodeContext int64 // sum of these requests' contexts, in tokens
	Loaded        int   // number of tokens that come back from the CPU tier
}

// prefill adds n prompt tokens of a request, which has context computed tokens before them.
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
	Base  float64 `json:"base_ms"`  // time for each pass: weights are read once
	Token float64 `json:"token_ms"` // time for each prefilled token
	// Time for each pair of a prefilled token and a token of its context.
	Attention float64 `json:"attention_ms"`
	Sequence  float64 `json:"sequence_ms"` // time for each decoding request
	Context   float64 `json:"context_ms"`  // time for each token of a decoding request's context
	Load      float64 `json:"load_ms"`     // time for each token that is loaded from the CPU tier
}

// Duration implements [Timing].
func (l Linear) Duration(b *Batch) time.Duration {
	return milliseconds(l.Base + l.Token*float64(b.PrefillTokens) + l.Attention*float64(b.PrefillPairs)/2 +
		l.Sequence*float64(b.Decodes) + l.Context*float64(b.DecodeContext) + l.Load*float64(b.Loaded))
}

// longest bounds the time of a pass, so that coefficients from a file cannot cause an overflow.
const longest = 1e9 // milliseconds

func milliseconds(ms float64) time.Duration {
	if !(ms < longest) {
		ms = longest
	}
	return time.Duration(max(ms, 0) * float64(time.Millisecond))
}
