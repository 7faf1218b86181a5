package telemetry

import (
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/kvfeed"
)

// shown has, for each metric with a number from Sources, the field that the number comes from.
var shown = map[string]string{
	`warmpath_reports_total{result="ok"}`:              "Worker.Reports",
	`warmpath_reports_total{result="error"}`:           "Worker.ReportsFailed",
	`warmpath_holder_requests`:                         "Holder.Load.Requests",
	`warmpath_holder_prefill_tokens`:                   "Holder.Load.PrefillTokens",
	`warmpath_holder_context_blocks`:                   "Holder.Load.ContextBlocks",
	`warmpath_holder_running_requests`:                 "Holder.Reported.Running",
	`warmpath_holder_waiting_requests`:                 "Holder.Reported.Waiting",
	`warmpath_holder_kv_used_ratio`:                    "Holder.Reported.KVUsed",
	`warmpath_holder_timing_seconds{part="base"}`:      "Holder.Timing.Base",
	`warmpath_holder_timing_seconds{part="sequence"}`:  "Holder.Timing.Sequence",
	`warmpath_holder_timing_seconds{part="context"}`:   "Holder.Timing.Context",
	`warmpath_holder_timing_seconds{part="token"}`:     "Holder.Timing.Token",
	`warmpath_holder_timing_seconds{part="attention"}`: "Holder.Timing.Attention",
	`warmpath_holder_pace_ratio`:                       "Holder.Pace.Factor",
	`warmpath_holder_pace_measured_ratio`:              "Holder.Pace.Measured",
	`warmpath_holder_pace_low_ratio`:                   "Holder.Pace.Low",
	`warmpath_holder_pace_high_ratio`:                  "Holder.Pace.High",
	`warmpath_holder_blocks`:                           "Holder.Blocks",
	`warmpath_holder_evicted_blocks_total`:             "Holder.Evicted",
	`warmpath_holder_refused_total`:                    "Holder.Refused",
	`warmpath_holder_share_ratio`:                      "Holder.Share",
	`warmpath_holder_leaked_requests_total`:            "Holder.Leaked",
	`warmpath_events_last_sequence`:                    "Stream.StreamStats.Sequence",
	`warmpath_events_messages_total`:                   "Stream.StreamStats.Messages",
	`warmpath_events_gaps_total`:                       "Stream.StreamStats.Gaps",
	`warmpath_events_checks_total`:                     "Stream.StreamStats.Checks",
	`warmpath_events_replays_total`:                    "Stream.StreamStats.Replays",
	`warmpath_events_replayed_total`:                   "Stream.StreamStats.Replayed",
	`warmpath_events_duplicates_total`:                 "Stream.StreamStats.Duplicates",
	`warmpath_events_lost_total`:                       "Stream.StreamStats.Lost",
	`warmpath_events_restarts_total`:                   "Stream.StreamStats.Restarts",
	`warmpath_events_applied_total`:                    "Stream.Applied",
	`warmpath_events_unapplied_total`:                  "Stream.Unapplied",
	`warmpath_events_skipped_total`:                    "Stream.Skipped",
	`warmpath_events_undecodable_total`:                "Stream.Undecodable",
	`warmpath_events_foreign_total`:                    "Stream.Foreign",
	`warmpath_events_misdirected_total`:                "Stream.Misdirected",
	`warmpath_events_forgotten_total`:                  "Stream.Forgotten",
	`warmpath_index_blocks`:                            "Index.Blocks",
	`warmpath_index_memberships`:                       "Index.Memberships",
	`warmpath_index_bytes`:                             "Index.Bytes",
	`warmpath_index_waiting`:                           "Index.Waiting",
	`warmpath_index_evictions_total`:                   "Index.Evictions",
	`warmpath_index_speculative`:                       "Index.Speculative",
	`warmpath_index_speculative_bytes`:                 "Index.SpeculativeBytes",
	`warmpath_index_speculative_dropped_total`:         "Index.SpeculativeDropped",
	`warmpath_queue_requests`:                          "Line.Requests",
	`warmpath_queue_bytes`:                             "Line.Bytes",
	`warmpath_token_cache_entries`:                     "Tokens.Stats.Entries",
	`warmpath_token_cache_bytes`:                       "Tokens.Stats.Bytes",
	`warmpath_token_calls_total`:                       "Tokens.Stats.Asked",
	`warmpath_token_hedges_total`:                      "Tokens.Stats.Hedged",
	`warmpath_token_breakers_opened_total`:             "Tokens.Stats.Opened",
	`warmpath_token_calls_waited_total`:                "Tokens.Stats.Waited",
	`warmpath_token_answers_late_total`:                "Tokens.Stats.Late",
	`warmpath_tokens_checked_total`:                    "Tokens.Stats.Checked",
	`warmpath_tokens_differed_total`:                   "Tokens.Stats.Differed",
	`warmpath_token_beginnings_checked_total`:          "Tokens.Stats.BeginningsChecked",
	`warmpath_token_beginnings_differed_total`:         "Tokens.Stats.BeginningsDiffered",
	`warmpath_oldest_work_seconds`:                     "Stall.For",
	`warmpath_stale_seconds`:                           "Stale",
}

// unshown has the numbers of a stream, an index or a token source that have no metric of their own. Stored, Removed and
// Cleared are parts of Applied, and Malformed is a part of Undecodable. Rank is a label.
var unshown = []string{"Stream.Rank", "Stream.Stored", "Stream.Removed", "Stream.Cleared", "Stream.StreamStats.Malformed",
	"Index.BlockSize"}

// TestEachMetricShowsItsField gives each numeric field a number of its own, and finds the field of each metric by the
// metric's number.
func TestEachMetricShowsItsField(t *testing.T) {
	n := numbers{field: map[float64]string{}}
	w, h, s, x, l, k, stall := Worker{}, Holder{}, kvfeed.Stats{}, Index{}, Line{}, TokenStats{}, Stall{}
	var stale time.Duration
	for name, v := range map[string]any{"Worker": &w, "Holder": &h, "Stream": &s, "Index": &x, "Line": &l, "Tokens": &k, "Stall": &stall, "Stale": &stale} {
		n.set(name, reflect.ValueOf(v).Elem())
	}
	h.Stream = &s
	w.Holders = []Holder{h}
	text := scrape(t, New(DefaultConfig()), Sources{
		Workers: func() []Worker { return []Worker{w} },
		Index:   func() []Index { return []Index{x} },
		Queue:   func() []Line { return []Line{l} },
		Tokens:  func() TokenStats { return k },
		Stalls:  func() []Stall { return []Stall{stall} },
		Stale:   func() time.Duration { return stale },
	})

	got := map[string]string{}
	for line := range strings.Lines(text) {
		series, digits, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "} ")
		name, labels, labelled := strings.Cut(series, "{")
		if !labelled {
			name, digits, _ = strings.Cut(name, " ")
		}
		value, err := strconv.ParseFloat(digits, 64)
		if strings.HasPrefix(name, "#") || err != nil {
			continue
		}
		if name == "warmpath_holder_timing_seconds" { // the fields are in milliseconds
			value = float64(int(value*1e3 + 0.5))
		}
		if field, ok := n.field[value]; ok && strings.HasPrefix(name, "warmpath_") {
			got[name+distinguishing(labels)] = field
		}
	}
	if diff := cmp.Diff(shown, got); diff != "" {
		t.Errorf("- want, + got:\n%s", diff)
	}
	fields := slices.Collect(maps.Values(shown))
	for _, field := range n.field {
		stats := strings.HasPrefix(field, "Stream.") || strings.HasPrefix(field, "Index.") || strings.HasPrefix(field, "Tokens.")
		if stats && slices.Contains(fields, field) == slices.Contains(unshown, field) {
			t.Errorf("%s must be either in shown or in unshown", field)
		}
	}
}

// distinguishing returns the labels part and result in brackets. Other labels are the same in all series.
func distinguishing(labels string) string {
	for label := range strings.SplitSeq(labels, ",") {
		if strings.HasPrefix(label, "part=") || strings.HasPrefix(label, "result=") {
			return "{" + label + "}"
		}
	}
	return ""
}

// numbers gives numbers to fields. Each number is used once.
type numbers struct {
	field map[float64]string // by number: the path of the field
}

// set gives a number to v if v is a count or a duration, and else to each such field of v. Durations are in seconds.
// Other types of numbers, such as fleet.Trust, stay 0.
func (n *numbers) set(path string, v reflect.Value) {
	number := float64(100_000 + len(n.field))
	switch v.Interface().(type) {
	case time.Duration:
		v.SetInt(int64(number) * int64(time.Second))
	case int, int64:
		v.SetInt(int64(number))
	case uint64:
		v.SetUint(uint64(number))
	case float64:
		v.SetFloat(number)
	case time.Time:
		return
	default:
		if v.Kind() == reflect.Struct {
			for i := range v.NumField() {
				if f := v.Type().Field(i); f.IsExported() {
					n.set(path+"."+f.Name, v.Field(i))
				}
			}
		}
		return
	}
	n.field[number] = path
}
