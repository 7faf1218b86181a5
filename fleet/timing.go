package fleet

import (
	"math"
	"sync/atomic"
)

// Timing is how long a holder's passes take, in milliseconds. A pass is one forward step of the engine, which takes:
//
//	Base + Σ over decodes (Sequence + Context·context) + Σ over prompts (Token·n + Attention·n·(context + n/2))
//
// n is the number of a prompt's tokens that a pass computes, and context is the number of the request's tokens before
// them. Published simulators describe engines by the same form [Preble, arXiv 2407.00023; Dynamo, lib/mocker].
type Timing struct {
	Base      float64 `json:"base_ms"      yaml:"base_ms"`      // for each pass: the weights are read once
	Sequence  float64 `json:"sequence_ms"  yaml:"sequence_ms"`  // for each decoding request
	Context   float64 `json:"context_ms"   yaml:"context_ms"`   // for each token of a decoding request's context
	Token     float64 `json:"token_ms"     yaml:"token_ms"`     // for each prompt token
	Attention float64 `json:"attention_ms" yaml:"attention_ms"` // for each pair of a prompt token and a token before it
	Samples   int     `json:"samples"      yaml:"-"`            // number of measurements behind these times; 0: the times are assumed
}

// DefaultTiming is assumed for holders before anything is measured. It describes Qwen3-32B on two H100, fitted to
// llm-d's published table (8,192 tokens in 0.40 s) and to the devices' arithmetic and memory rates. If all holders are
// alike, only the ratios of these times matter. For dense models from 8B to 70B on the usual devices these ratios are
// right within a factor of two.
var DefaultTiming = Timing{Base: 24, Sequence: 0.02, Context: 4.9e-5, Token: 0.0363, Attention: 2.35e-6}

// PassTokens is how many prompt tokens an engine computes in one pass: the default budget of vLLM
// (max_num_batched_tokens) and SGLang (chunked_prefill_size) on the devices that these engines usually run on.
const PassTokens = 8192

// Step returns the milliseconds of a pass that only decodes. requests is the number of decoding requests, and context
// is the number of their context tokens in all.
func (t *Timing) Step(requests, context int64) float64 {
	return t.Base + t.Sequence*float64(requests) + t.Context*float64(context)
}

// Prompt returns how many milliseconds n uncached tokens of a prompt take, where prompt is the number of all its
// tokens. Decodes in the same passes are not counted.
func (t *Timing) Prompt(n, prompt int) float64 {
	context := float64(max(prompt-n, 0))
	x := float64(n)
	return t.Token*x + t.Attention*x*(context+x/2) + t.Base*x/PassTokens
}

// Timing returns how long h's passes take, as learned so far: the times of h's kind (see kindKey), multiplied by h's
// own pace.
func (s *Snapshot) Timing(h Holder) Timing {
	st := s.state(h)
	if st == nil {
		return Timing{}
	}
	return st.work.timing()
}

// Pace returns h's own pace. It takes the lock that is also held while the kind of h learns.
func (s *Snapshot) Pace(h Holder) Pace {
	st := s.state(h)
	if st == nil {
		return Pace{Factor: 1}
	}
	k := st.work.kind.Load()
	k.mu.Lock()
	defer k.mu.Unlock()
	return st.work.pace.current
}

// Kinds returns the kinds of the present workers, in the order of their first holders. of[h] is the index of the kind
// of holder h, or -1 if h left. Kinds allocates, and takes the locks under which kinds learn.
func (s *Snapshot) Kinds() (kinds []Kind, of []int) {
	places := map[*kind]int{}
	for i := range s.holders {
		if s.holders[i].worker == nil {
			of = append(of, -1)
			continue
		}
		k := s.holders[i].state.work.kind.Load()
		place, seen := places[k]
		if !seen {
			place = len(kinds)
			places[k] = place
			kinds = append(kinds, k.describe())
		}
		of = append(of, place)
	}
	return kinds, of
}

// at returns t for a holder with a pace: each part is multiplied by pace.
func (t Timing) at(pace float64) Timing {
	if pace == 1 {
		return t
	}
	t.Base *= pace
	t.Sequence *= pace
	t.Context *= pace
	t.Token *= pace
	t.Attention *= pace
	return t
}

// published is a Timing that readers read without a lock. A reader may see old and new coefficients together.
type published struct {
	coefficients [terms]atomic.Uint64
	samples      atomic.Int64
}

func (p *published) store(c *[terms]float64, samples int) {
	for i := range c {
		p.coefficients[i].Store(math.Float64bits(c[i]))
	}
	p.samples.Store(int64(samples))
}

func (p *published) load() Timing {
	at := func(i int) float64 { return math.Float64frombits(p.coefficients[i].Load()) }
	return Timing{
		Base: at(termBase), Sequence: at(termSequence), Context: at(termContext), Token: at(termToken), Attention: at(termAttention),
		Samples: int(p.samples.Load()),
	}
}
