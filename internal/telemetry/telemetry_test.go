package telemetry

import (
	"bytes"
	"fmt"
	"github.com/warmpath/warmpath/internal/tokens"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/kvfeed"
)

func scrape(t *testing.T, tel *Telemetry, src Sources) string {
	t.Helper()
	rec := httptest.NewRecorder()
	tel.Handler(src).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	if rec.Code != 200 {
		t.Fatalf("scrape: status %d: %s", rec.Code, rec.Body)
	}
	body, _ := io.ReadAll(rec.Body)
	return string(body)
}

func has(t *testing.T, text string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("the scrape lacks %q", line)
		}
	}
}

func number(n int) *int { return &n }

func TestPredictionsAreComparedWithReports(t *testing.T) {
	tel := New(DefaultConfig())
	finish := func(match int, reported *int, trust string) {
		tel.Finished(&Record{Policy: "kv_aware", Worker: "http://a", Branch: "affinity", Status: 200, Trust: trust,
			PromptTokens: 100, MatchTokens: match, PredictedTokens: match, ReportedTokens: reported})
	}
	finish(64, number(64), "exact")
	finish(64, number(64), "exact")
	finish(64, number(32), "exact")
	finish(32, number(64), "degraded")
	finish(32, nil, "exact")
	finish(96, number(0), "approximate")
	text := scrape(t, tel, Sources{})
	has(t, text,
		`warmpath_predictions_total{outcome="equal",worker="http://a"} 2`,
		`warmpath_predictions_total{outcome="over",worker="http://a"} 1`,
		`warmpath_predictions_total{outcome="under",worker="http://a"} 1`,
		`warmpath_predictions_total{outcome="unreported",worker="http://a"} 1`,
		`warmpath_predictions_total{outcome="approximate",worker="http://a"} 1`,
		`warmpath_prediction_difference_tokens_bucket{worker="http://a",le="-1"} 1`,
		`warmpath_prediction_difference_tokens_bucket{worker="http://a",le="0"} 3`,
		`warmpath_prediction_difference_tokens_bucket{worker="http://a",le="64"} 4`,
		`warmpath_tokens_total{kind="reported",policy="kv_aware",worker="http://a"} 224`,
		`warmpath_requests_total{branch="affinity",policy="kv_aware",status="200",worker="http://a"} 6`)
}

func TestTheNamesOfServiceLevelsAreBounded(t *testing.T) {
	tel := New(DefaultConfig())
	for i := range 70 {
		tel.Answered(fmt.Sprintf("%ds", i+1), i > 0)
	}
	tel.Answered("1s", true)
	tel.Answered("70s", false)
	tel.Answered(UnconfiguredLevel, true)
	text := scrape(t, tel, Sources{})
	has(t, text,
		`warmpath_service_level_answers_total{kept="true",level="1s"} 1`, `warmpath_service_level_answers_total{kept="false",level="1s"} 1`,
		`warmpath_service_level_answers_total{kept="true",level="64s"} 1`, `warmpath_service_level_answers_total{kept="false",level="64s"} 0`,
		`warmpath_service_level_answers_total{kept="true",level="other"} 6`, `warmpath_service_level_answers_total{kept="false",level="other"} 1`,
		`warmpath_service_level_answers_total{kept="true",level="request"} 1`)
	if n := strings.Count(text, "warmpath_service_level_answers_total{"); n != 2*(64+2) {
		t.Errorf("%d series", n)
	}
}

func TestScrapeShowsHoldersIndexAndTokens(t *testing.T) {
	tel := New(DefaultConfig())
	text := scrape(t, tel, Sources{
		Workers: func() []Worker {
			return []Worker{{URL: "http://a", Up: true, Holders: []Holder{
				{Rank: 1, Trust: fleet.TrustExact, Load: fleet.Load{Requests: 3}, Blocks: 7, Stream: &kvfeed.Stats{StreamStats: kvfeed.StreamStats{Connected: true, Gaps: 2, Sequence: 41}},
					Timing: fleet.Timing{Base: 12}, Pace: fleet.Pace{Factor: 2, Measured: 2.1, Low: 1.9, High: 2.3}}}}}
		},
		Index: func() []Index {
			return []Index{{Model: "m", Blocks: 5, Bytes: 640, Speculative: 9, SpeculativeDropped: 2}}
		},
		Tokens: func() TokenStats {
			return TokenStats{Stats: tokens.Stats{Asked: 9, Checked: 40, Differed: 2, Distrusted: []string{"m"}}, Models: map[string]int{"files": 3}}
		},
	})
	has(t, text,
		`warmpath_worker_up{worker="http://a"} 1`,
		`warmpath_holder_trust{rank="1",trust="exact",worker="http://a"} 1`,
		`warmpath_holder_trust{rank="1",trust="degraded",worker="http://a"} 0`,
		`warmpath_holder_requests{rank="1",worker="http://a"} 3`,
		`warmpath_events_gaps_total{rank="1",worker="http://a"} 2`,
		`warmpath_holder_timing_seconds{part="base",rank="1",worker="http://a"} 0.012`,
		`warmpath_holder_pace_ratio{rank="1",worker="http://a"} 2`,
		`warmpath_holder_pace_low_ratio{rank="1",worker="http://a"} 1.9`,
		`warmpath_events_last_sequence{rank="1",worker="http://a"} 41`,
		`warmpath_index_blocks{model="m"} 5`,
		`warmpath_index_speculative{model="m"} 9`,
		`warmpath_index_speculative_dropped_total{model="m"} 2`,
		`warmpath_token_calls_total 9`,
		`warmpath_tokens_checked_total 40`,
		`warmpath_tokens_differed_total 2`,
		`warmpath_tokens_distrusted{model="m"} 1`, `warmpath_token_models{source="files"} 3`)
}

func TestEveryOwnMetricHasThePrefix(t *testing.T) {
	tel := New(DefaultConfig())
	tel.Started()
	tel.Refused("bad_request")
	tel.Retried("http://a", "failed")
	tel.Tokens("cache", "", time.Millisecond, "")
	tel.Panicked()
	tel.Reloaded(nil)
	for line := range strings.SplitSeq(scrape(t, tel, Sources{}), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if !strings.HasPrefix(line, "warmpath_") && !strings.HasPrefix(line, "go_") && !strings.HasPrefix(line, "process_") {
			t.Errorf("metric without the prefix: %s", line)
		}
	}
}

// increase() does not see a series that begins at 1, so the alert about a refused file would miss the first one.
func TestTheCountOfRefusedFilesBeginsAtZero(t *testing.T) {
	if text := scrape(t, New(DefaultConfig()), Sources{}); !strings.Contains(text, `warmpath_reloads_total{result="error"} 0`) {
		t.Errorf("no series of refused files:\n%s", text)
	}
}

func TestRingKeepsTheLastDecisions(t *testing.T) {
	for _, c := range []struct {
		size, added, asked int
		want               []uint64
	}{
		{0, 3, 10, []uint64{}},
		{4, 0, 10, []uint64{}},
		{4, 2, 0, []uint64{2, 1}},
		{4, 4, 2, []uint64{4, 3}},
		{4, 9, 100, []uint64{9, 8, 7, 6}},
	} {
		tel := New(Config{Decisions: c.size})
		for i := range c.added {
			tel.Finished(&Record{ID: uint64(i + 1)})
		}
		got := tel.Last(c.asked)
		if len(got) != len(c.want) {
			t.Errorf("size %d, %d added: %d records, want %d", c.size, c.added, len(got), len(c.want))
			continue
		}
		for i := range got {
			if got[i].ID != c.want[i] {
				t.Errorf("size %d, %d added: record %d is %d, want %d", c.size, c.added, i, got[i].ID, c.want[i])
			}
		}
	}
}

func TestConfigNamesEveryProblem(t *testing.T) {
	err := Config{Decisions: -1, LogLevel: "loud", LogFormat: "xml", AccessLog: JournalConfig{File: "f", Sample: 2, MaxBytes: 1},
		DecisionLog: JournalConfig{File: "f", Sample: -1, MaxFiles: -1}}.Validate()
	for _, want := range []string{"decisions: -1", `log_level: "loud"`, `log_format: "xml"`, "access_log.sample: 2", "access_log.max_bytes: 1",
		"decision_log.sample: -1", "decision_log.max_files: -1", "decision_log.file: f is also"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("the default is refused: %v", err)
	}
}

func TestLoggerWritesTheChosenFormat(t *testing.T) {
	for format, want := range map[string]string{"text": "msg=hello", "json": `"msg":"hello"`} {
		var out bytes.Buffer
		log, err := newLogger(Config{LogLevel: "info", LogFormat: format}, &out)
		if err != nil {
			t.Fatal(err)
		}
		log.Debug("hidden")
		log.Info("hello")
		if !strings.Contains(out.String(), want) || strings.Contains(out.String(), "hidden") {
			t.Errorf("%s: %q", format, out.String())
		}
	}
}
