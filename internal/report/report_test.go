package report

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestPercentilesAreWithinTheWidthOfABucket(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	for name, draw := range map[string]func() time.Duration{
		"lognormal": func() time.Duration { return time.Duration(math.Exp(random.NormFloat64()*3) * 1e6) },
		"small":     func() time.Duration { return time.Duration(random.Int64N(300)) },
		"one value": func() time.Duration { return 42 * time.Millisecond },
	} {
		var h Histogram
		var all []time.Duration
		sum := 0.0
		for range 20_000 {
			d := draw()
			all = append(all, d)
			sum += float64(d)
			h.Add(d)
		}
		slices.Sort(all)
		for _, q := range []float64{0, .01, .5, .9, .99, .999, 1} {
			want := float64(all[max(int(math.Ceil(q*float64(len(all))))-1, 0)])
			if got := float64(h.Quantile(q)); math.Abs(got-want) > want/100+1.5 {
				t.Errorf("%s: quantile %v is %v, want %v", name, q, got, want)
			}
		}
		if l := h.Latency(true); math.Abs(l.Mean*1e6*20_000/sum-1) > .01 && l.Mean > .01 || l.CDF[len(l.CDF)-1][1] != 1 {
			t.Errorf("%s: mean %v ms of %v, last point %v", name, l.Mean, sum/20_000, l.CDF[len(l.CDF)-1])
		}
	}
}

func TestBucketsCoverEveryDuration(t *testing.T) {
	for _, ns := range []int64{0, 1, 127, 128, 255, 256, 257, 1 << 20, 1<<20 + 12345, math.MaxInt64} {
		i := bucketOf(ns)
		if from, to := bucketRange(i); ns < from || ns >= to && to > 0 {
			t.Errorf("%d is in bucket %d, which is [%d, %d)", ns, i, from, to)
		}
	}
	var h Histogram
	h.Add(-time.Second)
	if h.Quantile(.5) != 0 || h.Count() != 1 {
		t.Error("a negative duration does not count as 0")
	}
}

// answer is a request that came at the given second. It waited for its first token for the time wait, and then wrote 11
// tokens in a second.
func answer(i int, second float64, wait time.Duration) *Answer {
	at := time.Duration(second * float64(time.Second))
	return &Answer{Request: i, Worker: i % 2, Arrival: at, Started: at, First: at + wait, End: at + wait + time.Second, Prompt: 100, Cached: 40, Output: 11}
}

func TestARecorderCountsEveryEvent(t *testing.T) {
	r := NewRecorder(Options{Workers: 2, SLOs: []SLO{{TTFT: time.Second, TPOT: 200 * time.Millisecond}, {TTFT: time.Second, TPOT: 50 * time.Millisecond}}, Stages: []StageInfo{{Name: "a"}, {Name: "b", First: 6}}})
	for i := range 10 {
		a := answer(i, float64(i), time.Duration(i)*200*time.Millisecond)
		r.Arrive(i, a.Arrival)
		r.Gap(100*time.Millisecond, 10)
		r.Finish(a)
	}
	r.Arrive(10, 10*time.Second)
	r.Fail(11 * time.Second)
	run := r.Run(Setup{Policy: "p"})
	if run.Requests != (Counts{Sent: 11, Answered: 10, Failed: 1}) {
		t.Errorf("counts: %+v", run.Requests)
	}
	if run.HitRate != .4 || run.PromptTokens != 1000 || run.OutputTokens != 110 {
		t.Errorf("hit rate %v of %d tokens, %d written", run.HitRate, run.PromptTokens, run.OutputTokens)
	}
	// Requests 0 to 5 have their first token within a second. All requests take 100 ms for a token. The failed request
	// counts as not good.
	if a, b := run.SLO[0].Share, run.SLO[1].Share; math.Abs(a-6./11) > 1e-3 || b != 0 {
		t.Errorf("SLO shares %v and %v", a, b)
	}
	if a, b := run.SLO[0].AnsweredShare, run.SLO[1].AnsweredShare; a != .6 || b != 0 {
		t.Errorf("SLO shares of the answered requests %v and %v", a, b)
	}
	if first, second := run.Stages[0].SLO[0], run.Stages[1].SLO[0]; first.Share != 1 || first.AnsweredShare != 1 || second.Share != 0 {
		t.Errorf("SLO shares of the stages: %+v, %+v", first, second)
	}
	if run.Stages[0].Requests != 6 || run.Stages[1].Requests != 5 {
		t.Errorf("stages: %+v", run.Stages)
	}
	if run.ITL.Count != 100 || math.Abs(run.ITL.P50-100) > 1 {
		t.Errorf("gaps: %+v", run.ITL)
	}
	if w := run.Workers[1]; w.Requests != 5 || w.ComputedTokens != 300 {
		t.Errorf("second worker: %+v", w)
	}
	if run.Seconds != 11.8 {
		t.Errorf("it took %v s, want from the first arrival to the last answer", run.Seconds)
	}
}

func TestSeriesKeepTheirAreaHoweverLongARunIs(t *testing.T) {
	r := NewRecorder(Options{Workers: 1})
	at := time.Duration(0)
	want := 0.0
	random := rand.New(rand.NewPCG(3, 3))
	last := 0
	for range 3000 {
		d := time.Duration(random.Int64N(int64(3 * time.Second)))
		want += float64(last) * d.Seconds()
		at += d
		last = random.IntN(9)
		r.Gauge(0, at, last, 0, float64(last)/10)
	}
	r.Gauge(0, at, 0, 0, 0)
	run := r.Run(Setup{})
	if n := len(run.Series.Running[0]); n > steps || n < steps/2 {
		t.Errorf("%d steps", n)
	}
	got := 0.0
	for i, v := range run.Series.Running[0] {
		width := run.Series.Step
		if i == len(run.Series.Running[0])-1 {
			width = at.Seconds() - float64(i)*width
		}
		got += v * width
	}
	if math.Abs(got/want-1) > 1e-3 || math.Abs(run.Workers[0].Running*at.Seconds()/want-1) > 1e-3 {
		t.Errorf("area %v, mean × time %v, want %v", got, run.Workers[0].Running*at.Seconds(), want)
	}
}

func TestSamplesAreBoundedAndEvenlyDrawn(t *testing.T) {
	r := NewRecorder(Options{Samples: 100})
	for i := range 5000 {
		r.Finish(answer(i, float64(i), 0))
	}
	s := r.Run(Setup{}).Samples
	if len(s) < 40 || len(s) > 100 {
		t.Fatalf("%d samples", len(s))
	}
	for i := 2; i < len(s); i++ {
		if d, e := s[i].Arrival-s[i-1].Arrival, s[1].Arrival-s[0].Arrival; d != e {
			t.Fatalf("samples are %v s apart, then %v s", e, d)
		}
	}
}

func sample() *Report {
	r := NewRecorder(Options{Workers: 2})
	for i := range 50 {
		a := answer(i, float64(i), 300*time.Millisecond)
		r.Arrive(i, a.Arrival)
		r.Gauge(i%2, a.First, 1, 0, .2)
		r.Gauge(i%2, a.End, 0, 0, 0)
		r.Finish(a)
	}
	return &Report{
		Kind: Simulated, Command: "warmpath sim --x '</script><script>alert(1)</script>'", Workload: Workload{Name: "<b>trace</b>", Requests: 50, PromptTokens: 12_031, OutputTokens: 4_120_000},
		Assumptions: []string{"a & b < c"}, Runs: []*Run{r.Run(Setup{Policy: "one", Rate: 1}), r.Run(Setup{Policy: "two", Rate: 2})},
	}
}

func TestThePageNeedsNothingElseAndLetsNothingOut(t *testing.T) {
	var b bytes.Buffer
	if err := WriteHTML(&b, sample()); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, bad := range []string{"</script><script>alert", "<b>trace</b>", "src=", "href=", "@import", "url(", "fetch(", "ZgotmplZ"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page contains %q", bad)
		}
	}
	if n := strings.Count(strings.ReplaceAll(page, `"http://www.w3.org/2000/svg"`, ""), "://"); n != 0 {
		t.Errorf("the page names %d addresses", n)
	}
	_, rest, _ := strings.Cut(page, `id="data">`)
	data, _, _ := strings.Cut(rest, "</script>")
	var back Report
	if err := json.Unmarshal([]byte(data), &back); err != nil || back.Schema != Schema || len(back.Runs) != 2 {
		t.Errorf("the page's data: %v", err)
	}
	if !strings.Contains(page, `["divided", null, divided,`) {
		t.Error("the page does not show the share of divided requests")
	}
	if !strings.Contains(page, "prefers-color-scheme: dark") {
		t.Error("the page has no dark scheme")
	}
}

func TestTheTableShowsColumnsThatDiffer(t *testing.T) {
	var b bytes.Buffer
	if err := WriteText(&b, sample()); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, want := range []string{"policy", "rate", "one", "two", "40.0", "300 ms", "12,031 prompt", "4.12 M output"} {
		if !strings.Contains(text, want) {
			t.Errorf("the table lacks %q:\n%s", want, text)
		}
	}
	for _, not := range []string{"seed", "routers", "rejected"} {
		if strings.Contains(text, not) {
			t.Errorf("the table has %q, which is the same for all:\n%s", not, text)
		}
	}
	b.Reset()
	if err := WriteMarkdown(&b, sample()); err != nil || strings.Count(b.String(), "\n") != 4 {
		t.Errorf("markdown: %v\n%s", err, b.String())
	}
}

// A rejected request keeps no service level. The share of the answered requests tells how well the others were served.
func TestTheShareOfTheAnsweredStandsBesideTheShareOfAllIfTheyDiffer(t *testing.T) {
	played := func(rejected int) *Run {
		r := NewRecorder(Options{SLOs: []SLO{{TTFT: time.Second}}, Stages: []StageInfo{{Name: "a"}, {Name: "b", First: 4}}})
		for i := range 4 + rejected {
			a := answer(i, float64(i), time.Duration(i)*400*time.Millisecond) // the first three keep the level
			r.Arrive(i, a.Arrival)
			if i < 4 {
				r.Finish(a)
			} else {
				r.Reject(a.Arrival)
			}
		}
		return r.Run(Setup{Policy: "p"})
	}
	text := func(runs ...*Run) string {
		var b bytes.Buffer
		if err := WriteText(&b, &Report{Runs: runs}); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	if s := text(played(0)); strings.Contains(s, "answered") || strings.Contains(s, "rejected") || !strings.Contains(s, "75.0") {
		t.Errorf("every request was answered:\n%s", s)
	}
	if s := text(played(6), played(0)); !strings.Contains(s, "SLO % 1 s (answered)") || !strings.Contains(s, "30.0 (75.0)") || !strings.Contains(s, " 75.0 ") {
		t.Errorf("6 of 10 requests were rejected in the first of two runs:\n%s", s)
	}
	// Runs with equally many rejected requests show the number, too.
	if s := text(played(6), played(6)); strings.Count(s, "rejected") != 1 {
		t.Errorf("6 of 10 requests were rejected in both runs:\n%s", s)
	}
	// A report of a version without the field has no share of the answered requests.
	old := played(6)
	old.SLO[0].AnsweredShare = 0
	if s := old.SLO[0].Percent(); s != "30.0" {
		t.Errorf("the share of an old report is %s", s)
	}
}

func TestAnEmptyReportIsValid(t *testing.T) {
	for _, r := range []*Report{{}, {Runs: []*Run{NewRecorder(Options{}).Run(Setup{})}}} {
		var b bytes.Buffer
		if err := WriteJSON(&b, r); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), `"assumptions": []`) || strings.Contains(b.String(), "NaN") {
			t.Errorf("JSON: %s", b.String())
		}
		if err := WriteHTML(&b, r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTimesAndCountsAreShort(t *testing.T) {
	f := func(ms float64, want string) {
		t.Helper()
		if got := Milliseconds(ms); got != want {
			t.Errorf("%v ms is written %q, want %q", ms, got, want)
		}
	}
	f(0, "0")
	f(.85, "850 µs")
	f(12.34, "12.3 ms")
	f(850, "850 ms")
	f(5000, "5 s")
	f(1234, "1.23 s")
	f(123456, "123 s")
	for n, want := range map[int64]string{950: "950", 12031: "12,031", 1_800_000: "1.8 M", 20_000_000_000: "20.0 G"} {
		if got := Count(n); got != want {
			t.Errorf("%d is written %q, want %q", n, got, want)
		}
	}
}
