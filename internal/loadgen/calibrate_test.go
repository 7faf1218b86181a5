package loadgen

import (
	"bytes"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/test/testenv"
)

func TestFitExplainsMeasuredVLLM(t *testing.T) {
	if testenv.Race() { // with the race detector, fits take ten to twenty times as long
		t.Skip("skipped: one goroutine, and half a minute of it")
	}
	file, err := os.Open(testenv.Path(t, "traces/llmservingsim_vllm_measured_rtxpro6000_llama31_8b.jsonl.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rows, err := ReadMeasured(file)
	if err != nil {
		t.Fatal(err)
	}
	base, err := engine.FindProfile("llama-3.1-8b")
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	p, q, err := FitMeasured(rows, base)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %+v, budget %d, %d sequences", time.Since(begin).Round(time.Millisecond), p.Timing, p.MaxBatchTokens, p.MaxSequences)
	for _, e := range q.Errors {
		t.Logf("%-22s measured %.1f modelled %.1f bias %+.1f %% absolute %.1f %% worst %.1f %%", e.What, e.Measured, e.Modelled, 100*e.Bias, 100*e.Absolute, 100*e.Worst)
	}
	for i, limit := range []struct{ bias, absolute float64 }{{0.05, 0.25}, {0.05, 0.06}, {0.05, 0.05}} {
		if e := q.Errors[i]; math.Abs(e.Bias) > limit.bias || e.Absolute > limit.absolute {
			t.Errorf("%s: bias %.3f, mean error %.3f; want within %.2f and %.2f", e.What, e.Bias, e.Absolute, limit.bias, limit.absolute)
		}
	}
	if p.MaxSequences != 128 {
		t.Errorf("%d sequences at once, the run was limited to 128", p.MaxSequences)
	}
	data, err := p.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := engine.ReadProfile(data); err != nil || again != p {
		t.Errorf("the profile does not survive its file: %v", err)
	}
}

func TestFitFindsTheCoefficientsThatMadeThePoints(t *testing.T) {
	want := engine.Linear{Base: 8, Token: 0.05, Attention: 2e-6, Sequence: 0.07, Context: 6e-5}
	var points []Point
	for _, n := range []int{128, 512, 2048, 8192, 16384} {
		row := pointRow(Point{Prompt: n, Sequences: 1}, 8192)
		points = append(points, Point{Prompt: n, Sequences: 1, MS: row[0]*want.Base + row[1]*want.Token + row[2]*want.Attention + 1.5})
	}
	for _, n := range []int{1, 8, 32} {
		for _, context := range []int{100, 4000} {
			points = append(points, Point{Sequences: n, Context: n * context, MS: want.Base + want.Sequence*float64(n) + want.Context*float64(n*context)})
		}
	}
	got, overhead, q, err := FitPoints(points, 8192)
	if err != nil {
		t.Fatal(err)
	}
	near := func(a, b float64) bool { return math.Abs(a/b-1) < 1e-6 }
	if !near(got.Base, want.Base) || !near(got.Token, want.Token) || !near(got.Attention, want.Attention) ||
		!near(got.Sequence, want.Sequence) || !near(got.Context, want.Context) || !near(overhead, 1.5) || q.Errors[0].Worst > 1e-6 {
		t.Errorf("%+v, overhead %f, %+v", got, overhead, q)
	}
	if _, _, _, err := FitPoints(points[:5], 8192); err == nil {
		t.Error("a fit without decode passes succeeds")
	}
}

func TestFitExplainsSplitwise(t *testing.T) {
	path := testenv.Path(t, "traces/timing_splitwise_perf_model.csv.gz")
	open := func(model, hardware string, tp int) ([]Point, error) {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return ReadSplitwise(f, model, hardware, tp)
	}
	if _, err := open("llama2-70b", "", 0); err == nil || !strings.Contains(err.Error(), "llama2-70b on 8 h100-80gb") {
		t.Errorf("an ambiguous choice: %v", err)
	}
	points, err := open("llama2-70b", "h100-80gb", 8)
	if err != nil {
		t.Fatal(err)
	}
	l, _, q, err := FitPoints(points, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v %+v", l, q)
	// In Splitwise's perf_model.csv a prefill of 8,192 tokens takes 845 ms, and a decode pass 28 to 50 ms.
	if got := inMS(l.Duration(&engine.Batch{Prefills: 1, PrefillTokens: 8192, PrefillPairs: 8192 * 8192})); math.Abs(got/845-1) > 0.25 {
		t.Errorf("8,192 tokens take %.0f ms", got)
	}
	if q.Errors[1].Absolute > 0.1 {
		t.Errorf("decode passes: %+v", q.Errors[1])
	}
}

func TestARepeatedColumnIsRefused(t *testing.T) {
	const table = "model,hardware,tensor_parallel,prompt_size,batch_size,token_size,prompt_time,token_time,model\nm,h,1,512,1,128,10.5,20\n"
	if _, err := ReadSplitwise(strings.NewReader(table), "", "", 0); err == nil || !strings.Contains(err.Error(), `"model" twice`) {
		t.Error(err)
	}
}

func FuzzReadMeasured(f *testing.F) {
	f.Add([]byte(`{"input_toks":3,"output_toks":2,"queued_ts":1,"scheduled_ts":1.5,"first_token_ts":2,"last_token_ts":3}`))
	f.Add([]byte("model,hardware,tensor_parallel,prompt_size,batch_size,token_size,prompt_time,token_time\nm,h,1,512,1,128,10.5,20\n"))
	f.Add([]byte("model,hardware,tensor_parallel,prompt_size,batch_size,token_size,prompt_time,token_time,token_time\nm,h,1,512,1,128,10.5,20\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if rows, err := ReadMeasured(bytes.NewReader(data)); err == nil && len(rows) == 0 {
			t.Error("neither rows nor an error")
		}
		_, _ = ReadSplitwise(bytes.NewReader(data), "", "", 0) // must not panic
	})
}
