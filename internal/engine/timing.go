package engine

import "time"

// Timing gives the time of a step:
//
//	Base + Σ over prefills (Token·n + Attention·n·(context + n/2)) + Σ over decodes (Sequence + Context·context) + Load·loaded
//
// n is the number of tokens a request computes in the step, context what it has before them. Milliseconds. Plain numbers
// instead of a roofline: they can be fitted to any engine (facts on routing §4).
type Timing struct {
	Base      float64 // of any step: weights are read once
	Token     float64 // per prefilled token
	Attention float64 // per prefilled token and token of its context
	Sequence  float64 // per decoding request
	Context   float64 // per token of a decoding request's context
	Load      float64 // per token loaded from the CPU tier
}

// DefaultTiming is calibrated on llm-d's published Qwen3-32B table, tensor parallel over two H100: 0.40 s for 8,192 tokens.
// Attention is 4·heads·head_dim·layers over 2 × 989.5 TFLOPS at 45 %; Context is 131 KB over 3.35 TB/s at 80 %. Load is
// 256 KB a token over 64 GB/s.
var DefaultTiming = Timing{Base: 24, Token: 0.0363, Attention: 2.35e-6, Sequence: 0.02, Context: 4.9e-5, Load: 0.004}

// work is what one request does in one step.
type work struct {
	tokens, context, loaded int
	decode                  bool
}

func (t *Timing) add(ms float64, w work) float64 {
	n, context := float64(w.tokens), float64(w.context)
	ms += t.Load * float64(w.loaded)
	if w.decode {
		return ms + t.Sequence + t.Context*context
	}
	return ms + t.Token*n + t.Attention*n*(context+n/2)
}

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
