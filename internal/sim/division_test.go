package sim

import (
	"testing"
	"time"

	"github.com/warmpath/warmpath"
	"github.com/warmpath/warmpath/fleet"
	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/workload"
	"github.com/warmpath/warmpath/policy"
)

// divided returns a change of config: two prefill workers and two decode workers.
func divided(mode policy.Mode, change func(*Disaggregation)) func(*Config) {
	return func(c *Config) {
		decode := c.Groups[0]
		c.Groups[0].Role, c.Groups[0].Count = fleet.RolePrefill, 2
		decode.Role, decode.Count = fleet.RoleDecode, 2
		c.Groups = append(c.Groups, decode)
		c.Disaggregation = &Disaggregation{Legs: warmpath.Legs{Mode: mode}}
		if change != nil {
			change(c.Disaggregation)
		}
	}
}

// singles returns requests without a common prefix, which arrive at the given times.
func singles(tokens, output int, arrivals ...time.Duration) *workload.Workload {
	w := &workload.Workload{Name: "singles", Block: 64}
	for i, at := range arrivals {
		w.Requests = append(w.Requests, workload.Request{
			Arrival: at, Input: tokens, Output: output, Session: -1, After: -1,
			Segments: []workload.Segment{{ID: uint64(i + 1), Tokens: tokens}},
		})
	}
	return w
}

func TestTheModeSaysWhichRequestsAreDivided(t *testing.T) {
	w := singles(2048, 20, 0, time.Second, 2*time.Second, 3*time.Second)
	for mode, want := range map[policy.Mode]int{policy.ModeAlways: 4, policy.ModeNever: 0} {
		r := run(t, config(w, "marginal", divided(mode, nil)))
		if r.Transfers.Divided != want || r.Transfers.Bypassed["never"] != 4-want || r.Requests.Answered != 4 {
			t.Errorf("%v: %+v, %+v", mode, r.Transfers, r.Requests)
		}
	}
	short := singles(200, 20, 0, time.Second)
	r := run(t, config(short, "marginal", divided(policy.ModeAuto, nil)))
	if r.Transfers.Bypassed["short"] != 2 {
		t.Errorf("prompts of 200 tokens in the mode auto: %+v", r.Transfers)
	}
	r = run(t, config(short, "marginal", divided(policy.ModeAuto, func(d *Disaggregation) { d.UncachedTokenThreshold = -1 })))
	if r.Transfers.Bypassed["short"] != 0 {
		t.Errorf("the same without a threshold: %+v", r.Transfers)
	}
}

func TestTransfersShareTheLinksOfTheirWorkers(t *testing.T) {
	// One prompt at each prefill worker at the same time, and one decode worker: both transfers go over its link.
	both := func(c *Config) {
		divided(policy.ModeAlways, func(d *Disaggregation) { d.LinkGBs = 0.1 })(c)
		c.Groups[1].Count = 1
	}
	one := run(t, config(singles(2048, 20, 0), "least_load", both)).Transfers.HandoverMS
	two := run(t, config(singles(2048, 20, 0, 0), "least_load", both)).Transfers.HandoverMS
	alone := 2048 * engine.Profiles()[0].KVBytes / 0.1e9 * 1e3
	if one.Mean < 0.99*alone || one.Mean > 1.01*alone {
		t.Errorf("one transfer took %.0f ms, want %.0f", one.Mean, alone)
	}
	if two.Max < 1.9*alone || two.Max > 2.1*alone {
		t.Errorf("of two transfers over one link, the longer one took %.0f ms, want %.0f", two.Max, 2*alone)
	}
}

func TestPrefillWorkersKeepTheirBlocksUntilTheTransferHasEnded(t *testing.T) {
	// A transfer of a prompt takes about six seconds, and the cache of the prefill worker holds one prompt. So the
	// second prompt waits for the end of the first transfer.
	c := config(singles(4096, 20, 0, 100*time.Millisecond), "least_load", func(c *Config) {
		divided(policy.ModeAlways, func(d *Disaggregation) { d.LinkGBs = 0.2 })(c)
		c.Groups[0].Count, c.Groups[0].KVTokens = 1, 5120
	})
	r := run(t, c)
	took := r.Transfers.HandoverMS.Mean
	if took < 5000 {
		t.Fatalf("a transfer took %.0f ms", took)
	}
	if r.TTFT.Max < 2*took {
		t.Errorf("the second prompt had its first token after %.0f ms, but two transfers take %.0f", r.TTFT.Max, 2*took)
	}
}

func TestADecodeWorkerCachesAndAnnouncesReceivedBlocks(t *testing.T) {
	// The second request has the first one's prompt. A rule that asks for uncached tokens does not divide it, because
	// the router knows by the events that a decode worker has the blocks.
	w := singles(4096, 20, 0, 5*time.Second)
	w.Requests[1].Segments = w.Requests[0].Segments
	r := run(t, config(w, "marginal", divided(policy.ModeAlways, nil)))
	if tokens := r.Transfers.HandoverTokens; tokens > 4096+64 {
		t.Errorf("%d tokens were sent for a prompt of 4096 tokens and for the same prompt again", tokens)
	}
	r = run(t, config(w, "marginal", divided(policy.ModeAuto, func(d *Disaggregation) { d.Rule = Rule{Name: "x", Tokens: 256} })))
	if r.Transfers.Divided != 1 || r.CachedTokens < 4000 {
		t.Errorf("%d requests were divided, %d tokens were cached", r.Transfers.Divided, r.CachedTokens)
	}
}

func TestAWorkerFetchesAPrefixFromAnotherWorker(t *testing.T) {
	// The policy sends the same prompt to one worker after the other.
	w := singles(8192, 4, 0, 5*time.Second, 10*time.Second, 15*time.Second, 20*time.Second, 25*time.Second)
	for i := range w.Requests {
		w.Requests[i].Segments = w.Requests[0].Segments
	}
	play := func(fetch bool) (int64, int64) {
		r := run(t, config(w, "round_robin", func(c *Config) {
			c.Disaggregation = &Disaggregation{Legs: warmpath.Legs{Mode: policy.ModeNever}, Fetch: fetch}
		}))
		return r.CachedTokens, r.Transfers.HandoverTokens
	}
	cached, sent := play(false)
	with, fetched := play(true)
	if sent != 0 || fetched < 3*8000 || with < cached+3*8000 {
		t.Errorf("without a fetch %d tokens were cached and %d sent; with it %d and %d", cached, sent, with, fetched)
	}
}

func TestRulesOfOtherProjects(t *testing.T) {
	for _, c := range []struct {
		rule             string
		prompt, uncached int
		divides          bool
	}{
		{"llm-d:512", 600, 511, false},
		{"llm-d:512", 600, 512, true},
		{"dynamo", 8192, 2048, false},
		{"dynamo", 8192, 2049, true},
		{"dynamo", 1000, 700, false},
		{"dynamo", 1000, 701, true},
	} {
		r, ok, err := ParseRule(c.rule)
		if !ok || err != nil {
			t.Fatal(c.rule, ok, err)
		}
		if got := r.divides(c.prompt, c.uncached); got != c.divides {
			t.Errorf("%s divides a prompt of %d tokens, %d of them uncached: %v", c.rule, c.prompt, c.uncached, got)
		}
	}
	for _, wrong := range []string{"llm-d", "llm-d:0", "llm-d:x", "dynamo:7"} {
		if _, ok, err := ParseRule(wrong); !ok || err == nil {
			t.Errorf("rule %q: %v, %v", wrong, ok, err)
		}
	}
	if _, ok, _ := ParseRule("auto"); ok {
		t.Error("auto is a rule")
	}
}

func TestTheExperimentSetsRolesAndModes(t *testing.T) {
	w := singles(2048, 20, 0)
	x := DefaultExperiment()
	x.Policies, x.Workers, x.Decode, x.Disaggregation = []string{"marginal"}, []int{2}, 3, []string{"auto", "never", "llm-d:512"}
	x.LinkGBs = 5
	configs, err := x.Configs(w, nil)
	if err != nil || len(configs) != 3 {
		t.Fatal(len(configs), err)
	}
	c := configs[1]
	if c.Label != "never" || c.Disaggregation.Mode != policy.ModeNever || c.Disaggregation.LinkGBs != 5 || configs[2].Disaggregation.Rule.Tokens != 512 {
		t.Errorf("%+v", c.Disaggregation)
	}
	if g := c.Groups; len(g) != 2 || g[0].Role != fleet.RolePrefill || g[0].Count != 2 || g[1].Role != fleet.RoleDecode || g[1].Count != 3 {
		t.Errorf("%+v", g)
	}
	for name, change := range map[string]func(*Experiment){
		"an unknown mode":              func(x *Experiment) { x.Disaggregation = []string{"sometimes"} },
		"only prefill workers":         func(x *Experiment) { x.Decode, x.Fleet = 0, []Member{{Count: 2, Role: "prefill"}} },
		"roles and decode workers":     func(x *Experiment) { x.Fleet = []Member{{Count: 2, Role: "prefill"}} },
		"an unknown role":              func(x *Experiment) { x.Decode, x.Fleet = 0, []Member{{Count: 2, Role: "cook"}} },
		"a link without an exchange":   func(x *Experiment) { x.Decode, x.Disaggregation = 0, nil },
		"a negative speed":             func(x *Experiment) { x.LinkGBs = -1 },
		"faults of exchanging workers": func(x *Experiment) { x.Faults = []string{"60s:1"} },
	} {
		wrong := x
		change(&wrong)
		if _, err := wrong.Configs(w, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestWorkersThatWaitForEachOthersMemoryGoOn: each of two workers keeps the prompt of one request, and has too little
// memory left for the prompt of the other.
func TestWorkersThatWaitForEachOthersMemoryGoOn(t *testing.T) {
	w := singles(6000, 20, 0, time.Millisecond)
	r := run(t, config(w, "marginal", func(c *Config) {
		c.Groups[0].Count, c.Groups[0].KVTokens = 2, 8192
		c.Disaggregation = &Disaggregation{Legs: warmpath.Legs{Mode: policy.ModeAlways}}
	}))
	if r.Requests.Answered != 2 || r.Requests.Retried == 0 {
		t.Errorf("%+v", r.Requests)
	}
	if first := time.Duration(r.TTFT.Max * 1e6); first < lease || first > lease+10*time.Second {
		t.Errorf("the last first token came after %v", first)
	}
}
