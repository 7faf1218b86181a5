package engine

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestProfilesAreUsableAndSayWhereTheyComeFrom(t *testing.T) {
	for _, p := range Profiles() {
		cfg := p.Config(0, 0)
		if _, err := New(cfg); err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		if p.Source == "" || p.About == "" {
			t.Errorf("%s does not say what it is or where it comes from", p.Name)
		}
		decode := p.Timing.Duration(&Batch{Decodes: 1, DecodeContext: 1000})
		var prefill Batch
		prefill.prefill(8192, 0)
		if d := p.Timing.Duration(&prefill); d < 5*decode || decode < 2*time.Millisecond || decode > 40*time.Millisecond {
			t.Errorf("%s: a decode takes %v, 8,192 prompt tokens %v", p.Name, decode, d)
		}
	}
	if _, err := FindProfile("gpt-2"); err == nil || !strings.Contains(err.Error(), "qwen3-32b") {
		t.Errorf("an unknown profile: %v, want the known names", err)
	}
}

// The comment beside each figure says where the figure is published.
func TestProfilesMeetThePublishedFigures(t *testing.T) {
	f := func(name string, batch Batch, prefill int, want, tolerance float64) {
		t.Helper()
		p, err := FindProfile(name)
		if err != nil {
			t.Fatal(err)
		}
		if prefill > 0 {
			batch.prefill(prefill, 0)
		}
		got := p.Timing.Duration(&batch).Seconds() * 1000
		if math.Abs(got/want-1) > tolerance {
			t.Errorf("%s: %+v takes %.1f ms, published %.1f", name, batch, got, want)
		}
	}
	f("qwen3-32b", Batch{}, 8192, 400, .01)                     // llm-d: T(8192) = 0.40 s
	f("deepseek-v3", Batch{}, 8192, 1000*8192/(24027*.44), .05) // llm-d: R_peak of GLM-5.2 on 8 B200, scaled by FLOPS
	f("llama-3.1-70b", Batch{}, 8192, 400, .1)                  // half of Preble's fit for two H100: 18.7/2 + 0.0799/2·8192 + …
}

func TestARooflineReadsOnlyTheExpertsInUse(t *testing.T) {
	p, err := FindProfile("deepseek-v3")
	if err != nil {
		t.Fatal(err)
	}
	one, many := p.Timing.Duration(&Batch{Decodes: 1}), p.Timing.Duration(&Batch{Decodes: 256})
	if many < 3*one || many > 30*one {
		t.Errorf("one decode takes %v, 256 take %v", one, many)
	}
}

func TestATableGoesThroughItsPrefillsAndFitsItsDecodes(t *testing.T) {
	p, err := ReadProfile([]byte(`{"name": "mine", "table": {
		"prefill": [{"tokens": 1024, "ms": 50}, {"tokens": 4096, "ms": 210}, {"tokens": 256, "ms": 20}],
		"decode": [{"sequences": 1, "context": 1000, "ms": 10.2}, {"sequences": 8, "context": 8000, "ms": 12.6}, {"sequences": 8, "context": 40000, "ms": 16.0}]
	}}`))
	if err != nil {
		t.Fatal(err)
	}
	f := func(b Batch, want time.Duration) {
		t.Helper()
		if got := p.Timing.Duration(&b); (got - want).Abs() > 300*time.Microsecond {
			t.Errorf("%+v takes %v, want %v", b, got, want)
		}
	}
	f(Batch{PrefillTokens: 256, Prefills: 1}, 20*time.Millisecond)
	f(Batch{PrefillTokens: 2560, Prefills: 1}, 130*time.Millisecond)
	f(Batch{PrefillTokens: 8192, Prefills: 1}, 423300*time.Microsecond)
	f(Batch{Decodes: 1, DecodeContext: 1000}, 10200*time.Microsecond)
	f(Batch{Decodes: 8, DecodeContext: 24000}, 14300*time.Microsecond)
}

func TestReadProfileReadsWhatJSONWrites(t *testing.T) {
	for _, p := range Profiles() {
		data, err := p.JSON()
		if err != nil {
			t.Fatal(err)
		}
		again, err := ReadProfile(data)
		if err != nil {
			t.Fatalf("%s: %v", p.Name, err)
		}
		if again != p {
			t.Errorf("%s came back as\n%+v\nwant\n%+v", p.Name, again, p)
		}
	}
}

func TestProfileFilesAreReadStrictly(t *testing.T) {
	f := func(name, data, want string) {
		t.Helper()
		if _, err := ReadProfile([]byte(data)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", name, err, want)
		}
	}
	f("nothing", ``, "EOF")
	f("no timing", `{"name": "x"}`, "one is wanted")
	f("two timings", `{"linear": {"base_ms": 1}, "table": {}}`, "one is wanted")
	f("unknown field", `{"linear": {"base_ms": 1, "speed": 2}}`, "speed")
	f("no time at all", `{"linear": {"token_ms": 1}}`, "no time")
	f("negative", `{"linear": {"base_ms": 1, "token_ms": -1}}`, "negative")
	f("a table of one", `{"table": {"prefill": [{"tokens": 1, "ms": 1}]}}`, "2 at least")
	f("the same length twice", `{"table": {"prefill": [{"tokens": 1, "ms": 1}, {"tokens": 1, "ms": 2}], "decode": [{"sequences":1,"ms":1},{"sequences":2,"ms":1}]}}`, "once")
	f("a roofline of nothing", `{"roofline": {}}`, "accelerator.tflops")
	f("no cache", `{"kv_tokens": 1, "linear": {"base_ms": 1}}`, "blocks")
}

func FuzzReadProfile(f *testing.F) {
	for _, p := range Profiles() {
		data, err := p.JSON()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"table": {"prefill": [{"tokens": 1, "ms": 1}, {"tokens": 2, "ms": 2}], "decode": [{"sequences":1,"ms":1},{"sequences":2,"ms":1}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := ReadProfile(data)
		if err != nil {
			return
		}
		if d := p.Timing.Duration(&Batch{Prefills: 1, PrefillTokens: 100, PrefillPairs: 10000, Decodes: 3, DecodeContext: 5000}); d < 0 {
			t.Errorf("a pass takes %v", d)
		}
	})
}
