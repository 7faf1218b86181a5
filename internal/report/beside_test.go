package report

import (
	"bytes"
	"strings"
	"testing"
)

// written writes r in the JSON form, and returns what Read makes of it.
func written(t *testing.T, r *Report) *Report {
	t.Helper()
	var b bytes.Buffer
	if err := WriteJSON(&b, r); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "null") {
		t.Errorf("absent lists are not empty ones: %s", b.String())
	}
	got, err := Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func run(policy string) *Run {
	return &Run{Setup: Setup{Policy: policy}, HitRate: 0.5, TTFT: Latency{Count: 2, Mean: 7}, SLO: []SLOShare{{TTFT: 5000, TPOT: 100, Share: 0.9}}}
}

func TestReportsAreLaidSideBySide(t *testing.T) {
	simulated := written(t, &Report{Kind: Simulated, Command: "warmpath sim", Assumptions: []string{"engines are modelled"},
		Workload: Workload{Name: "w", Requests: 2}, Runs: []*Run{run("marginal"), run("random")}})
	measured := written(t, &Report{Kind: Measured, Command: "warmpath load", Workload: Workload{Name: "w", Requests: 3}, Runs: []*Run{run("marginal")}})
	all, err := Beside([]string{"a", "b"}, []*Report{simulated, measured})
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	if err := WriteText(&text, all); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"marginal (simulated)", "random (simulated)", "marginal (measured)"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the table does not show %q:\n%s", want, text.String())
		}
	}
	said := strings.Join(all.Assumptions, "\n")
	for _, want := range []string{"simulated: warmpath sim", "simulated: engines are modelled", "measured: warmpath load", "measured: another workload, w with 3 requests"} {
		if !strings.Contains(said, want) {
			t.Errorf("%q is not said:\n%s", want, said)
		}
	}
	twice, err := Beside([]string{"before", "after"}, []*Report{measured, written(t, measured)})
	if err != nil || twice.Runs[0].Policy != "marginal (before)" || twice.Runs[1].Policy != "marginal (after)" {
		t.Errorf("two measurements: %v, %v", twice.Runs, err)
	}
	if measured.Runs[0].Policy != "marginal" {
		t.Error("the report that was given is changed")
	}
	other := written(t, &Report{Kind: Measured, Runs: []*Run{{SLO: []SLOShare{{TTFT: 1}}}}})
	if _, err := Beside([]string{"a", "b"}, []*Report{simulated, other}); err == nil || !strings.Contains(err.Error(), "--slo") {
		t.Errorf("other service levels: %v", err)
	}
}

func TestAFileThatIsNoReportIsRefused(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":      ``,
		"another form": `{"schema":"warmpath-report/0","runs":[{}]}`,
		"no runs":      `{"schema":"warmpath-report/1","runs":[]}`,
		"a null run":   `{"schema":"warmpath-report/1","runs":[null]}`,
		"a list":       `[]`,
	} {
		if _, err := Read(strings.NewReader(text)); err == nil {
			t.Errorf("%s is read", name)
		}
	}
	if got, err := Read(strings.NewReader(`{"share":0.9,"report":{"schema":"warmpath-report/1","runs":[{"policy":"kv"}]}}`)); err != nil || got.Runs[0].Policy != "kv" {
		t.Errorf("what plan writes: %v, %v", got, err)
	}
}
