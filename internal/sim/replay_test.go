package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/warmpath/warmpath/block"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/telemetry"
	"github.com/warmpath/warmpath/policy"
)

// decided returns a recorded decision between two workers: the first has cached tokens of a prompt of 1,000, the second
// has a backlog. The recorded policy chose the worker chosen.
func decided(n, cached int, backlog time.Duration, chosen int) *telemetry.Decided {
	load := func(d time.Duration, tokens int64) telemetry.Load {
		return telemetry.LoadOf(&fleet.Load{Backlog: d, PrefillTokens: tokens, PendingTokens: tokens, Timing: fleet.DefaultTiming, Room: 1, RoomKnown: true})
	}
	at := time.Unix(1_700_000_000+int64(n), 0)
	reported, output := cached*(1-chosen), 10
	return &telemetry.Decided{
		Record: telemetry.Record{ID: uint64(n), Time: at, Policy: "recorded", Status: 200, Stream: true, PromptTokens: 1000, ReportedTokens: &reported, OutputTokens: &output,
			FirstTokenMS: 50, TotalMS: 900},
		Choice: &telemetry.Choice{At: at.UnixNano(), Arrived: at.UnixNano(), Random: uint64(n) * 7919, Base: "m", Prompt: 1000, Known: true, BlockSize: 16,
			Keys: telemetry.EncodeKeys(make([]block.Key, 62)), Chosen: chosen, Levels: []string{"5s/100ms"},
			Candidates: []telemetry.Candidate{
				{Worker: "http://a", Holder: 0, Hash: 1, Trust: "exact", BlockSize: 16, Match: cached, Predicted: cached, Tiers: map[string]int{"gpu": cached}, Load: load(0, 0)},
				{Worker: "http://b", Holder: 1, Hash: 2, Trust: "exact", BlockSize: 16, Load: load(backlog, 5000)},
			}},
	}
}

func replayOf(t *testing.T, lines []*telemetry.Decided, names ...string) *ReplayResult {
	t.Helper()
	var specs []policy.Spec
	for _, name := range names {
		spec, err := ParsePolicy(name)
		if err != nil {
			t.Fatal(err)
		}
		specs = append(specs, spec)
	}
	r, err := NewReplay(specs)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		text, err := json.Marshal(line) // as it comes from a file
		if err != nil {
			t.Fatal(err)
		}
		read, err := ReadDecided(text)
		if err != nil {
			t.Fatal(err)
		}
		r.Add(read)
	}
	return r.Result()
}

func TestAReplayShowsWhereAPolicyDecidesDifferently(t *testing.T) {
	var lines []*telemetry.Decided
	for n := range 10 {
		chosen := 0
		if n < 3 {
			chosen = 1 // the recorded policy did not follow the cache
		}
		lines = append(lines, decided(n, 960, 200*time.Millisecond, chosen))
	}
	got := replayOf(t, lines, "marginal", "kv_aware")
	if got.Decisions != 10 || got.Recorded.PredictedTokens != 7*960 || got.Measured.Reports != 10 || got.Measured.ReportedTokens != 7*960 || got.Measured.FirstToken.Mean != 50 {
		t.Errorf("%+v", got)
	}
	for _, p := range got.Policies {
		if p.Other != 3 || p.None != 0 || p.PredictedTokens != 10*960 || p.PromptTokens != 10_000 || p.Busiest != 1 {
			t.Errorf("%+v", p)
		}
		if p.FirstToken.Max >= 20 || got.Recorded.FirstToken.Max < 200 {
			t.Errorf("%s: %+v, recorded %+v", p.Policy, p.FirstToken, got.Recorded.FirstToken)
		}
	}
}

// Lines are written when requests end, so a file has a long request behind requests that were decided later.
func TestAReplayAsksInTheOrderOfTheDecisions(t *testing.T) {
	var lines []*telemetry.Decided
	for n := range 6 {
		lines = append([]*telemetry.Decided{decided(n, 0, 0, n%2)}, lines...)
	}
	if got := replayOf(t, lines, "round_robin").Policies[0]; got.Other != 0 && got.Other != 6 {
		t.Errorf("%d of 6 differ: the turns are out of order", got.Other)
	}
}

func TestAReplayForgetsNoLimitOfTheRequest(t *testing.T) {
	tried, target := decided(1, 960, 0, 1), decided(2, 960, 0, 1)
	tried.Choice.Tried = []string{"http://a"}
	target.Choice.Target = "http://b"
	down := decided(3, 960, 0, 1)
	down.Choice.Candidates[0].Down = true
	none := decided(4, 960, 0, 1)
	none.Choice.Candidates[0].Down, none.Choice.Candidates[1].Down = true, true
	if got := replayOf(t, []*telemetry.Decided{tried, target, down, none}, "marginal").Policies[0]; got.Other != 0 || got.None != 1 {
		t.Errorf("%+v", got)
	}
}

func TestPoliciesThatCannotBeReplayedAreRefused(t *testing.T) {
	spec, err := ParsePolicy("estimated")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewReplay([]policy.Spec{spec}); err == nil || !strings.Contains(err.Error(), "warmpath sim --workload decisions:FILE") {
		t.Errorf("error %v", err)
	}
}

// All other policies can be asked, also those that read the prompt.
func TestEveryOtherPolicyCanBeReplayed(t *testing.T) {
	var lines []*telemetry.Decided
	for n := range 20 {
		lines = append(lines, decided(n, 960, 10*time.Millisecond, n%2))
	}
	for _, name := range Policies() {
		if name == "estimated" {
			continue
		}
		if got := replayOf(t, lines, name).Policies[0]; got.PromptTokens != 20_000 || got.None != 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestALineThatIsCutIsKnown(t *testing.T) {
	text, _ := json.Marshal(decided(1, 0, 0, 0))
	if _, err := ReadDecided(text[:len(text)/2]); !errors.Is(err, ErrCut) {
		t.Errorf("error %v", err)
	}
	if line, err := ReadDecided([]byte(`{"id":1}`)); err != nil || line.Choice != nil {
		t.Errorf("%v, %v", line, err)
	}
}

func FuzzReplay(f *testing.F) {
	text, _ := json.Marshal(decided(1, 960, time.Millisecond, 0))
	f.Add(text)
	f.Add(text[:len(text)-1])
	for from, to := range map[string]string{`"bar":0`: `"bar":200`, `"prompt":1000`: `"prompt":-1`, `"at":17`: `"at":-17`, `"chosen":0`: `"chosen":9`, `"backlog_ms":1`: `"backlog_ms":1e300`} {
		f.Add([]byte(strings.Replace(string(text), from, to, 1)))
	}
	f.Add([]byte(fmt.Sprintf(`{"choice":{"prompt":%d,"block_size":1,"keys":"AAAAAAAAAAA=","candidates":[{"worker":"w","bar":3,"down":true}]}}`, maxReplayPrompt)))
	f.Fuzz(func(t *testing.T, text []byte) {
		line, err := ReadDecided(text)
		if err != nil || line.Choice != nil && line.Choice.Prompt > 1<<16 {
			return
		}
		var specs []policy.Spec
		for _, name := range []string{"marginal", "kv_aware", "cache_aware", "round_robin"} {
			spec, _ := ParsePolicy(name)
			specs = append(specs, spec)
		}
		r, err := NewReplay(specs)
		if err != nil {
			t.Fatal(err)
		}
		r.Add(line)
		r.Result()
	})
}

// A divided request has two choices: of the worker that computes the prompt, and of the one that generates the answer.
func TestAReplayAsksAboutBothLegs(t *testing.T) {
	var lines []*telemetry.Decided
	for n := range 4 {
		line := decided(n, 960, 0, 0)
		c := line.Choice
		c.Prefill = &telemetry.LegChoice{Policy: "marginal", Chosen: n % 2, Candidates: c.Candidates}
		c.Candidates = nil
		for i, url := range []string{"http://c", "http://d"} {
			c.Candidates = append(c.Candidates, telemetry.Candidate{Worker: url, Holder: uint32(2 + i), Trust: "exact", BlockSize: 16, Fetched: 1000, Source: "http://a", TransferMS: 30})
		}
		c.Candidates[1].Unpaired = policy.ReasonRests
		lines = append(lines, line)
	}
	got := replayOf(t, lines, "marginal")
	if got.Decisions != 4 || got.Recorded.PredictedTokens != 2*960 {
		t.Errorf("%+v", got)
	}
	p := got.Policies[0]
	if p.Other != 2 || p.None != 0 || p.PromptTokens != 4000 || p.PredictedTokens != 4*960 || p.FirstToken.Mean < 30 {
		t.Errorf("%+v", p)
	}
	if lines[0].Choice.Candidates[0].Unpaired = policy.ReasonRests; replayOf(t, lines[:1], "marginal").Policies[0].None != 1 {
		t.Error("a decode worker is chosen that gets no blocks")
	}
	for _, change := range []func(*telemetry.Choice){
		func(c *telemetry.Choice) { c.Prefill.Chosen = 2 },
		func(c *telemetry.Choice) { c.Prefill.Candidates = nil },
		func(c *telemetry.Choice) { c.Candidates[0].Fetched = -1 },
		func(c *telemetry.Choice) { c.Candidates[0].TransferMS = -1 },
	} {
		line := decided(1, 960, 0, 0)
		line.Choice.Prefill = &telemetry.LegChoice{Candidates: slices.Clone(line.Choice.Candidates)}
		change(line.Choice)
		text, err := json.Marshal(line)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ReadDecided(text); err == nil {
			t.Errorf("%s is accepted", text)
		}
	}
}
