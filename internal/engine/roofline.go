package engine

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Accelerator describes the hardware of one rank.
type Accelerator struct {
	Count     int     `json:"count"`          // number of devices that compute each pass together (tensor parallel)
	TFLOPS    float64 `json:"tflops"`         // dense TFLOPS of one device, at the precision of the matrix products
	Bandwidth float64 `json:"bandwidth_gb_s"` // memory bandwidth of one device, in GB/s
	HostLink  float64 `json:"host_gb_s"`      // GB/s between host memory and all devices together; 0: 64, as PCIe 5 ×16
}

// Transformer describes a model.
type Transformer struct {
	Layers      int     `json:"layers"`
	Parameters  float64 `json:"parameters"`         // number of all parameters
	Active      float64 `json:"active_parameters"`  // number of parameters that are used for one token; 0: all
	WeightBytes float64 `json:"weight_bytes"`       // bytes of one parameter: 2 for bf16, 1 for fp8
	KVBytes     float64 `json:"kv_bytes_per_token"` // bytes of KV for one token, over all layers and devices
	// AttentionWork is the number of FLOP for each pair of tokens, over all layers: 4·heads·head_dim·layers.
	AttentionWork float64 `json:"attention_flop"`
	Experts       int     `json:"experts"` // number of experts in a layer; 0: the model is dense
	PerToken      int     `json:"experts_per_token"`
}

// Roofline estimates the time of a pass: the larger of the time to compute and the time to read memory, plus costs for
// the pass, each layer, each request and each loaded token. Use it for hardware without measurements, and calibrate it
// as soon as there are measurements.
type Roofline struct {
	Accelerator Accelerator `json:"accelerator"`
	Model       Transformer `json:"model"`

	// Matrix is the share of TFLOPS that matrix products reach. 0: 0.9, as in Preble's fits (Llama-3-70B on H100: 0.89;
	// Mistral-7B on A100: 0.92) and in llm-d's time for a prefill of 8,192 tokens (0.91).
	Matrix float64 `json:"matrix_efficiency"`
	// Attention is the share of TFLOPS that attention reaches. 0: 0.45, from the same measurements.
	Attention float64 `json:"attention_efficiency"`
	// Memory is the share of Bandwidth that a pass reaches. 0: 0.8, from the same measurements.
	Memory float64 `json:"memory_efficiency"`

	// PerLayer is the fixed time for each layer of a pass in ms: kernel launches and all-reduce. 0: 0.0321, from BLIS's
	// trained-physics model (inference-sim).
	PerLayer    float64 `json:"layer_ms"`
	PerSequence float64 `json:"sequence_ms"` // ms for each request in a pass; 0: 0.0044, from the same model
	PerPass     float64 `json:"pass_ms"`     // ms for each pass; 0: 0.126, from the same model
}

func (r Roofline) validate() error {
	var errs []error
	positive := func(name string, v float64) {
		if !(v > 0) || math.IsInf(v, 0) {
			errs = append(errs, fmt.Errorf("%s is %v, want a number above 0", name, v))
		}
	}
	positive("accelerator.count", float64(r.Accelerator.Count))
	positive("accelerator.tflops", r.Accelerator.TFLOPS)
	positive("accelerator.bandwidth_gb_s", r.Accelerator.Bandwidth)
	positive("model.layers", float64(r.Model.Layers))
	positive("model.parameters", r.Model.Parameters)
	positive("model.weight_bytes", r.Model.WeightBytes)
	positive("model.kv_bytes_per_token", r.Model.KVBytes)
	positive("model.attention_flop", r.Model.AttentionWork)
	if r.Model.Experts > 0 && (r.Model.PerToken <= 0 || r.Model.PerToken > r.Model.Experts) {
		errs = append(errs, fmt.Errorf("model.experts_per_token is %d of %d experts", r.Model.PerToken, r.Model.Experts))
	}
	return errors.Join(errs...)
}

// withDefaults replaces zeros by the defaults.
func (r Roofline) withDefaults() Roofline {
	or := func(v *float64, d float64) {
		if *v == 0 {
			*v = d
		}
	}
	or(&r.Model.Active, r.Model.Parameters)
	or(&r.Accelerator.HostLink, 64)
	or(&r.Matrix, 0.9)
	or(&r.Attention, 0.45)
	or(&r.Memory, 0.8)
	or(&r.PerLayer, 0.0321)
	or(&r.PerSequence, 0.0044)
	or(&r.PerPass, 0.126)
	return r
}

// Duration implements [Timing]. It expects that [ReadProfile] or [FindProfile] has replaced zeros by the defaults.
func (r Roofline) Duration(b *Batch) time.Duration {
	a, m := &r.Accelerator, &r.Model
	tokens := float64(b.PrefillTokens + b.Decodes)
	flops := float64(a.Count) * a.TFLOPS * 1e9 // FLOP in a millisecond
	bytes := float64(a.Count) * a.Bandwidth * 1e6
	pairs := float64(b.PrefillPairs)/2 + float64(b.DecodeContext)
	compute := tokens*2*m.Active/(flops*r.Matrix) + pairs*m.AttentionWork/(flops*r.Attention)
	weights := m.Parameters
	if m.Experts > 0 {
		// Each token uses PerToken of the Experts experts in a layer. A pass reads each expert that at least one of its
		// tokens uses. A pass always reads the weights outside of experts.
		dense := (m.Active - m.Parameters*float64(m.PerToken)/float64(m.Experts)) / (1 - float64(m.PerToken)/float64(m.Experts))
		dense = max(dense, 0)
		woken := 1 - math.Pow(1-float64(m.PerToken)/float64(m.Experts), tokens)
		weights = dense + (m.Parameters-dense)*woken
	}
	read := (weights*m.WeightBytes + float64(b.DecodeContext)*m.KVBytes) / (bytes * r.Memory)
	ms := max(compute, read) + r.PerPass + r.PerLayer*float64(m.Layers) + r.PerSequence*float64(b.Decodes+b.Prefills)
	ms += float64(b.Loaded) * m.KVBytes / (a.HostLink * 1e6)
	return milliseconds(ms)
}
