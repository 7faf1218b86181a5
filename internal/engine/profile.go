package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Profile describes an engine on its hardware: its speed and its capacity.
type Profile struct {
	Name   string
	About  string // model and hardware, in words
	Source string // where the numbers come from

	KVTokens       int     // size of a rank's cache, in tokens
	BlockSize      int     // tokens in a block
	MaxModelLen    int     // limit of prompt and output together, in tokens
	MaxBatchTokens int     // token budget of a pass
	MaxSequences   int     // number of requests that run at the same time
	AdmitChunks    bool    // the same as Config.AdmitChunks
	KVBytes        float64 // bytes of KV for one token, over all layers and devices
	HandoverGBs    float64 // bandwidth between a prefill and a decode worker, in GB/s
	Timing         Timing
}

// profiles are the named profiles, in the order in which users see them. The first profile is the default.
var profiles = []Profile{
	{
		Name:  "qwen3-32b",
		About: "Qwen3-32B, tensor parallel over 2 H100",
		// Token and Base are calibrated on llm-d's published table (llm-d-kv-cache, benchmarking/73-capacity): a prefill of
		// 8,192 tokens takes 0.40 s, and Base follows from the row at 10 requests a second. Attention is 4·64 heads·128·64
		// layers FLOP at 45 % of 2 × 989.5 TFLOPS. Context is 131 KB for each token and device, read at 80 % of 3.35 TB/s.
		// Load is 256 KB for each token over 64 GB/s. The workers in the table report a cache of 307,328 tokens.
		Source:   "calibrated on llm-d-kv-cache benchmarking/73-capacity: 8,192 tokens in 0.40 s, the decode base from 10 requests/s; the rest from the H100's data sheet",
		KVTokens: 307328, BlockSize: 16, MaxModelLen: 131072, MaxBatchTokens: 8192, MaxSequences: 256, KVBytes: 262144, HandoverGBs: 64,
		Timing: DefaultTiming,
	},
	{
		Name:  "qwen3-32b-2025",
		About: "the same with vLLM as it was in September 2025",
		// This profile is qwen3-32b with the slower prefill of the engine that llm-d measured for its table. Token and
		// Attention are 1.4 times as large as in qwen3-32b, because this engine reaches 65 % of the peak FLOPS. Both are
		// fitted to the difference of the time to first token between random and precise routing, because only prefill causes
		// this difference. At 3, 10 and 15 requests a second llm-d published differences of 331, 491 and 1,029 ms. The model
		// gives 346, 566 and 1,169 ms. AdmitChunks is true, because this engine is older than vllm#37307.
		Source:   "llm-d-kv-cache benchmarking/73-capacity: prefill from the times to first token of its unsaturated stages",
		KVTokens: 307328, BlockSize: 16, MaxModelLen: 131072, MaxBatchTokens: 8192, MaxSequences: 256, AdmitChunks: true, KVBytes: 262144, HandoverGBs: 64,
		Timing: Linear{Base: 24, Token: 0.0508, Attention: 3.29e-6, Sequence: 0.02, Context: 4.9e-5, Load: 0.004},
	},
	{
		Name:  "llama-3.1-8b",
		About: "Llama-3.1-8B, one H100",
		// Derived, not measured. Base is the time to read 16.06 GB of weights at 80 % of 3.35 TB/s (5.99 ms), plus 32.1 µs
		// for each of 32 layers (BLIS). Token is 2 · 8.03e9 FLOP at 90 % of 989.5 TFLOPS. Attention is 4·32·128·32 FLOP at 45
		// % of 989.5 TFLOPS. Context is 131,072 bytes at 80 % of 3.35 TB/s. Sequence equals that of qwen3-32b. Load is
		// 131,072 bytes over 64 GB/s. The cache has 90 % of 80 GB, minus the weights and 3 GB of activations.
		Source:   "derived from the model's size and the H100's data sheet at 90 % of its FLOPS (attention 45 %) and 80 % of its bandwidth; not measured",
		KVTokens: 404480, BlockSize: 16, MaxModelLen: 131072, MaxBatchTokens: 8192, MaxSequences: 256, KVBytes: 131072, HandoverGBs: 64,
		Timing: Linear{Base: 7.02, Token: 0.01803, Attention: 1.177e-6, Sequence: 0.02, Context: 4.89e-5, Load: 0.002048},
	},
	{
		Name:  "llama-3.1-70b",
		About: "Llama-3.1-70B, tensor parallel over 4 H100",
		// Token is half of 0.0799 ms, Preble's fit for two H100. Base is the time to read 141 GB of weights at 80 % of 4 ·
		// 3.35 TB/s (13.2 ms), plus 32.1 µs for each of 80 layers (BLIS). Attention is 4·64·128·80 FLOP at 45 % of the TFLOPS
		// of 4 devices. Context is 327,680 bytes at 80 % of 4 · 3.35 TB/s. Load is 327,680 bytes over 64 GB/s. The cache of
		// 461,376 tokens is the size that llm-d's workers report (37 %-capacity table).
		Source:   "Preble's fit of Llama-3-70B on H100, BLIS per-layer cost, llm-d's 37 %-capacity table for the cache",
		KVTokens: 461376, BlockSize: 16, MaxModelLen: 131072, MaxBatchTokens: 8192, MaxSequences: 256, KVBytes: 327680, HandoverGBs: 64,
		Timing: Linear{Base: 15.73, Token: 0.03994, Attention: 1.472e-6, Sequence: 0.02, Context: 3.06e-5, Load: 0.00512},
	},
	{
		Name:  "deepseek-v3",
		About: "DeepSeek-V3 (671B, 37B active, MLA), fp8 on 8 H200",
		// The model has 256 experts and uses 8 of them for each token. The KV of a token has 576 values of 2 bytes in each
		// layer. Prefill attention takes 2·128·(192+128) FLOP for each pair of tokens and layer. An H200 has 1,979 TFLOPS
		// (fp8, dense), 4.8 TB/s and 141 GB. Each tensor parallel rank keeps the whole MLA cache: 90 % of 8 × 141 GB, minus
		// 671 GB of weights and 60 GB of activations, leaves 35 GB on each device, which is room for 500,000 tokens. The
		// KVBytes of the Transformer counts all 8 copies (70,272 B · 8), because all devices read their copy at the same
		// time. Matrix is low, because small experts use the hardware less well than dense layers. It is set from llm-d's
		// R_peak of GLM-5.2 (its highest rate of prompt tokens), a similar model: 24,027 tokens/s on 8 B200, times 0.44, the
		// FLOPS of 8 H200 relative to 8 B200. HostLink is the sum over 8 devices, because each device has its own link.
		Source:   "roofline from the model's and the H200's data sheets, matrix efficiency set from llm-d's R_peak of GLM-5.2; not measured",
		KVTokens: 500000, BlockSize: 64, MaxModelLen: 163840, MaxBatchTokens: 8192, MaxSequences: 512, KVBytes: 70272, HandoverGBs: 64,
		Timing: Roofline{
			Accelerator: Accelerator{Count: 8, TFLOPS: 1979, Bandwidth: 4800, HostLink: 512},
			Model: Transformer{
				Layers: 61, Parameters: 671e9, Active: 37e9, WeightBytes: 1, KVBytes: 70272 * 8,
				AttentionWork: 2 * 128 * (192 + 128) * 61, Experts: 256, PerToken: 8,
			},
			Matrix: 0.05,
		}.withDefaults(),
	},
}

// Profiles returns the named profiles. The first profile is the default.
func Profiles() []Profile { return append([]Profile(nil), profiles...) }

// FindProfile returns the profile with the given name.
func FindProfile(name string) (Profile, error) {
	names := make([]string, len(profiles))
	for i, p := range profiles {
		if names[i] = p.Name; p.Name == name {
			return p, nil
		}
	}
	return Profile{}, fmt.Errorf("no profile is called %q (known: %s; or the path of a profile file)", name, strings.Join(names, ", "))
}

// DefaultTiming is the timing of the first profile.
var DefaultTiming = Linear{Base: 24, Token: 0.0363, Attention: 2.35e-6, Sequence: 0.02, Context: 4.9e-5, Load: 0.004}

// profileFile is the JSON form of a profile: the fields of Profile, and one of three kinds of timing.
type profileFile struct {
	Name           string    `json:"name"`
	About          string    `json:"about,omitempty"`
	Source         string    `json:"source,omitempty"`
	KVTokens       int       `json:"kv_tokens,omitempty"`
	BlockSize      int       `json:"block_size,omitempty"`
	MaxModelLen    int       `json:"max_model_len,omitempty"`
	MaxBatchTokens int       `json:"max_batch_tokens,omitempty"`
	MaxSequences   int       `json:"max_sequences,omitempty"`
	AdmitChunks    bool      `json:"admit_chunks,omitempty"`
	KVBytes        float64   `json:"kv_bytes_per_token,omitempty"`
	HandoverGBs    float64   `json:"handover_gb_s,omitempty"`
	Linear         *Linear   `json:"linear,omitempty"`
	Roofline       *Roofline `json:"roofline,omitempty"`
	Table          *Table    `json:"table,omitempty"`
}

// ReadProfile reads a profile from JSON. A missing number has the default profile's value. Exactly one timing must be
// present: linear, roofline or table. docs/simulator.md describes the form.
func ReadProfile(data []byte) (Profile, error) {
	base := profiles[0]
	f := profileFile{
		KVTokens: base.KVTokens, BlockSize: base.BlockSize, MaxModelLen: base.MaxModelLen, MaxBatchTokens: base.MaxBatchTokens,
		MaxSequences: base.MaxSequences, KVBytes: base.KVBytes, HandoverGBs: base.HandoverGBs,
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return Profile{}, fmt.Errorf("read profile: %w", err)
	}
	if d.More() {
		return Profile{}, errors.New("read profile: there is more after the first object")
	}
	p := Profile{
		Name: f.Name, About: f.About, Source: f.Source, KVTokens: f.KVTokens, BlockSize: f.BlockSize, MaxModelLen: f.MaxModelLen,
		MaxBatchTokens: f.MaxBatchTokens, MaxSequences: f.MaxSequences, AdmitChunks: f.AdmitChunks, KVBytes: f.KVBytes, HandoverGBs: f.HandoverGBs,
	}
	var err error
	if p.Timing, err = f.timing(); err != nil {
		return Profile{}, fmt.Errorf("read profile: %w", err)
	}
	cfg := p.Config(0, 0)
	if err := cfg.validate(); err != nil {
		return Profile{}, fmt.Errorf("read profile: %w", err)
	}
	return p, nil
}

// timing returns the file's timing.
func (f *profileFile) timing() (Timing, error) {
	n := 0
	for _, given := range []bool{f.Linear != nil, f.Roofline != nil, f.Table != nil} {
		if given {
			n++
		}
	}
	switch {
	case n != 1:
		return nil, fmt.Errorf("it has %d of linear, roofline and table; one is wanted", n)
	case f.Linear != nil:
		l := f.Linear
		if l.Base < 0 || l.Token < 0 || l.Attention < 0 || l.Sequence < 0 || l.Context < 0 || l.Load < 0 {
			return nil, errors.New("linear: a coefficient is negative")
		}
		if l.Base+l.Sequence <= 0 {
			return nil, errors.New("linear: a pass would take no time: base_ms and sequence_ms are 0")
		}
		return *l, nil
	case f.Roofline != nil:
		if err := f.Roofline.validate(); err != nil {
			return nil, fmt.Errorf("roofline: %w", err)
		}
		return f.Roofline.withDefaults(), nil
	}
	if err := f.Table.validate(); err != nil {
		return nil, err
	}
	return f.Table.compile(), nil
}

// JSON returns the profile in the form that ReadProfile reads.
func (p *Profile) JSON() ([]byte, error) {
	f := profileFile{
		Name: p.Name, About: p.About, Source: p.Source, KVTokens: p.KVTokens, BlockSize: p.BlockSize, MaxModelLen: p.MaxModelLen,
		MaxBatchTokens: p.MaxBatchTokens, MaxSequences: p.MaxSequences, AdmitChunks: p.AdmitChunks, KVBytes: p.KVBytes, HandoverGBs: p.HandoverGBs,
	}
	switch t := p.Timing.(type) {
	case Linear:
		f.Linear = &t
	case Roofline:
		f.Roofline = &t
	case compiled:
		f.Table = &t.Table
	default:
		return nil, fmt.Errorf("write profile: timing %T has no form in a file", t)
	}
	data, err := json.MarshalIndent(f, "", "  ")
	return append(data, '\n'), err
}

// Config returns the configuration of a rank of the profile. blockSize is in tokens, and blocks is the number of usable
// blocks. If one of them is 0, Config takes the profile's value. The result has one block more, because an engine never
// uses its null block.
func (p *Profile) Config(blockSize, blocks int) Config {
	if blockSize <= 0 {
		blockSize = p.BlockSize
	}
	if blocks <= 0 {
		blocks = p.KVTokens / max(blockSize, 1)
	}
	return Config{
		BlockSize: blockSize, Blocks: blocks + 1, MaxModelLen: p.MaxModelLen, MaxBatchTokens: p.MaxBatchTokens,
		MaxSequences: p.MaxSequences, AdmitChunks: p.AdmitChunks, Timing: p.Timing,
	}
}
