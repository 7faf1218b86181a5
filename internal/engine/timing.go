package engine

import "time"

// Timing gives the time of a pass. The result may depend only on the batch. Engines that share a Timing call it
// concurrently.
type Timing interface {
	Duration(b *Batch) time.Duration
}

// Batch has the quantities of a pass that determine its time. The quantities are integers, because a sum of integers
// does not depend on the order of the requests. So equal passes always take equal times.
type Batch struct {
	Prefills      int // number of requests that compute prompt tokens, or compute lost tokens again after a preemption
	PrefillTokens int // sum of the tokens that these requests compute in the pass
	// PrefillPairs is the sum of n·(2·context + n) over all prefills, each of n tokens after context tokens. This is twice
	// the number of token pairs for which attention is computed.
	PrefillPairs  int64
	Decodes       int   // number of requests that compute one generated token
	DecodeContext int64 // sum of the contexts of the decoding requests, in tokens
	Loaded        int   // number of tokens that are loaded from the CPU tier
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
// Measurements of prefill passes and of decode passes with growing sizes give the coefficients of an engine. Dynamo's
// mocker, Preble and BLIS fit such coefficients, too.
type Linear struct {
	Base  float64 `json:"base_ms"`  // ms for each pass, mostly to read the weights
	Token float64 `json:"token_ms"` // ms for each prefilled token
	// Attention is in ms for each pair of a prefilled token and a token before it.
	Attention float64 `json:"attention_ms"`
	Sequence  float64 `json:"sequence_ms"` // ms for each decoding request
	Context   float64 `json:"context_ms"`  // ms for each token of a decoding request's context
	Load      float64 `json:"load_ms"`     // ms for each token that is loaded from the CPU tier
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
