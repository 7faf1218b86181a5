package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/warmpath/warmpath/bench/internal/machine"
)

func TestARoundsTextsAreTheSameForEveryRouterAndOthersInTheNextRound(t *testing.T) {
	for _, s := range sets {
		a := s.work.plan(newWriter(1, workName(s), 1), s.clients)
		b := s.work.plan(newWriter(1, workName(s), 1), s.clients)
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%s: two plans of one seed differ", s.name)
		}
		if c := s.work.plan(newWriter(1, workName(s), 2), s.clients); reflect.DeepEqual(a, c) {
			t.Errorf("%s: two rounds are alike", s.name)
		}
		if len(a) != s.clients {
			t.Errorf("%s: %d lanes for %d clients", s.name, len(a), s.clients)
		}
	}
}

func TestTheTableHas200RequestsAndItsMeanPrompt(t *testing.T) {
	p := conversations.plan(newWriter(1, "x", 1), 6)
	tokens, talks := 0.0, map[int]float64{}
	for _, lane := range p {
		for _, s := range lane {
			for _, m := range s.adds {
				talks[s.talk] += float64(len(strings.Fields(m.Content))) * wordTokens
			}
			tokens += talks[s.talk]
			talks[s.talk] += float64(s.output)
		}
	}
	if n := p.requests(); n != 200 {
		t.Errorf("%d requests, want 200", n)
	}
	if mean := tokens / 200; mean < 5900 || mean > 6200 {
		t.Errorf("mean prompt %.0f tokens, want about 6,060", mean)
	}
}

func TestSetFullCachesHasMorePrefixesThanBothCachesHold(t *testing.T) {
	s, err := setNamed("full-caches")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, lane := range s.work.plan(newWriter(1, workName(s), 1), s.clients) {
		for _, step := range lane {
			seen[step.adds[0].Content] = true
		}
	}
	if live := len(seen) * 3000; live < 2*65536 {
		t.Errorf("prefixes that are asked for have %d tokens, the caches hold %d", live, 2*65536)
	}
}

func TestReadStream(t *testing.T) {
	const role = `data: {"choices":[{"delta":{"role":"assistant","content":""}}]}` + "\n\n"
	const text = `data: {"choices":[{"delta":{"content":"ab"}}]}` + "\n\n"
	const end = `data: {"choices":[{"delta":{},"finish_reason":"length"}]}` + "\n\n"
	const usage = `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}` + "\n\n"
	const done = "data: [DONE]\n\n"
	for _, c := range []struct{ name, stream, err string }{
		{"whole", role + text + text + end + usage + done, ""},
		{"comments and CRLF", strings.ReplaceAll(": ping\n\n"+role+text+text+end+usage+done, "\n", "\r\n"), ""},
		{"cut", role + text, "cut after 2 bytes"},
		{"cut, then [DONE]", role + text + done, "0 of 2 tokens"},
		{"error event", text + `data: {"error":{"message":"worker gone"}}` + "\n\n" + done, "worker gone"},
		{"too short", role + text + end + strings.Replace(usage, `"completion_tokens":2`, `"completion_tokens":1`, 1) + done, "1 of 2 tokens"},
		{"not JSON", "data: {\n\n", "not JSON"},
	} {
		tick := time.Duration(0)
		a, err := readStream(strings.NewReader(c.stream), 2, func() time.Duration { tick += time.Second; return tick })
		if c.err == "" {
			if err != nil || a.text != "abab" || a.prompt != 9 || a.cached != 4 || a.first != time.Second {
				t.Errorf("%s: %+v, %v", c.name, a, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.err)
		}
	}
}

func TestParseMetrics(t *testing.T) {
	got, err := parseMetrics(strings.NewReader("# HELP x y\nvllm:prefix_cache_hits_total{engine=\"1\",model_name=\"a b\"} 12.0\nplain 3 1700000000\n"))
	if err != nil || len(got) != 2 || got[0].value != 12 || got[0].label("engine") != "1" || got[0].label("model_name") != "a b" ||
		got[0].label("name") != "" || got[1].name != "plain" || got[1].value != 3 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"x{a=\"b\" 1\n", "x{a=\"b\"} one\n"} {
		if _, err := parseMetrics(strings.NewReader(bad)); err == nil {
			t.Errorf("%q has no error", bad)
		}
	}
}

func TestParseStat(t *testing.T) {
	pid, group, ticks, ok := parseStat([]byte("42 (a (b) c) S 1 40 40 0 -1 4194560 1 2 3 4 70 30 5 6 20 0 1 0"))
	if !ok || pid != 42 || group != 40 || ticks != 100 {
		t.Errorf("%d %d %d %v", pid, group, ticks, ok)
	}
	if _, _, _, ok := parseStat([]byte("42 (x")); ok {
		t.Error("a cut line is read")
	}
}

// mockRouter answers each chat with "answer to " and the first word of the last message. fail gets the number of the
// request, counted from 1. If fail returns true, mockRouter answers 503.
type mockRouter struct {
	mu       sync.Mutex
	requests []chatRequest
	fail     func(n int) bool
}

func (m *mockRouter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q chatRequest
	b, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(b, &q); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	m.mu.Lock()
	m.requests = append(m.requests, q)
	n := len(m.requests)
	m.mu.Unlock()
	if m.fail != nil && m.fail(n) {
		http.Error(w, "no worker", http.StatusServiceUnavailable)
		return
	}
	last := q.Messages[len(q.Messages)-1].Content
	fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"answer to %s\"},\"finish_reason\":\"length\"}]}\n\n", strings.Fields(last)[0])
	fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":%d}}\n\ndata: [DONE]\n\n", q.MaxTokens)
}

func TestLaterTurnsRepeatTheEnginesAnswers(t *testing.T) {
	m := &mockRouter{}
	server := httptest.NewServer(m)
	defer server.Close()
	r := &run{plan: chats{talks: 3, turns: 3, systems: 1, system: 5, user: 5, output: 2}.plan(newWriter(1, "x", 1), 2), client: newClient(server.URL, "tiny")}
	if _, err := r.play(context.Background()); err != nil {
		t.Fatal(err)
	}
	if len(r.firsts) != 9 || r.prompt != 90 || r.failed != 0 {
		t.Errorf("%d answers, %d tokens, %d failed", len(r.firsts), r.prompt, r.failed)
	}
	longest := 0
	for _, q := range m.requests {
		longest = max(longest, len(q.Messages))
		for i, msg := range q.Messages {
			if msg.Role == "assistant" && msg.Content != "answer to "+strings.Fields(q.Messages[i-1].Content)[0] {
				t.Errorf("turn repeats %q after %q", msg.Content, q.Messages[i-1].Content)
			}
		}
	}
	if longest != 6 { // number of messages: the system prompt, three questions and two answers
		t.Errorf("the longest chat has %d messages, want 6", longest)
	}
}

func TestAFailedAttemptIsCountedAndRepeated(t *testing.T) {
	m := &mockRouter{fail: func(n int) bool { return n == 2 }}
	server := httptest.NewServer(m)
	defer server.Close()
	r := &run{plan: prefixes{requests: 3, count: 1, prefix: 5, question: 5, output: 2}.plan(newWriter(1, "x", 1), 1), client: newClient(server.URL, "tiny")}
	if _, err := r.play(context.Background()); err != nil {
		t.Fatal(err)
	}
	if r.failed != 1 || r.abandoned != 0 || len(r.firsts) != 3 || !strings.Contains(strings.Join(r.errors, ""), "no worker") {
		t.Errorf("failed %d, given up %d, answered %d, errors %q", r.failed, r.abandoned, len(r.firsts), r.errors)
	}
	if last := slices.Max(r.firsts); last < 200*time.Millisecond {
		t.Errorf("the repeated request's first token took %v: the wait before the second attempt is missing", last)
	}
}

func TestADrainedMarkFindsNoRequestUnderWay(t *testing.T) {
	m := &mockRouter{}
	server := httptest.NewServer(m)
	defer server.Close()
	r := &run{plan: prefixes{requests: 40, count: 1, prefix: 5, question: 5, output: 2}.plan(newWriter(1, "x", 1), 4), client: newClient(server.URL, "tiny")}
	seen := -1
	r.marks = []mark{{after: 20, drain: true, do: func(context.Context) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.open != 0 {
			t.Errorf("%d requests are under way", r.open)
		}
		seen = r.sent
		return nil
	}}}
	if _, err := r.play(context.Background()); err != nil {
		t.Fatal(err)
	}
	if seen != 20 || len(r.firsts) != 40 {
		t.Errorf("the mark came after %d requests, %d were answered", seen, len(r.firsts))
	}
	r = &run{plan: r.plan, client: r.client, marks: []mark{{after: 1, drain: true, do: func(context.Context) error { return errors.New("no engine") }}}}
	if _, err := r.play(context.Background()); err == nil || err.Error() != "no engine" {
		t.Errorf("a mark's error is lost: %v", err)
	}
}

func TestRunsInTheFileAreNotPlayedAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.jsonl")
	b := &bench{kind: vllm, scale: 1, seed: 1}
	all, err := b.todo("chats,ranks", "nginx,smg,warmpath", 2, path)
	if err != nil || len(all) != 12 {
		t.Fatalf("%d runs, %v", len(all), err)
	}
	if all[0].router.name != "nginx" || all[3].router.name != "smg" {
		t.Errorf("rounds begin with %s and %s: the order does not rotate", all[0].router.name, all[3].router.name)
	}
	if all[5].set.name != "chats" || all[6].set.name != "ranks" {
		t.Error("sets of other engines are mixed: engines would be started again and again")
	}
	s, err := setNamed("chats")
	if err != nil {
		t.Fatal(err)
	}
	done := result{Engine: "vllm", Set: "chats", Work: s.fingerprint(), Router: "smg", Round: 1, Scale: 1, Seed: 1}
	if err := appendResult(path, &done); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(f, `{"engine":"vll`) // a line that was not completed, because the process was killed
	f.Close()
	if rest, err := b.todo("chats,ranks", "nginx,smg,warmpath", 2, path); err != nil || len(rest) != 11 {
		t.Errorf("%d runs are left, want 11: %v", len(rest), err)
	}
	done.Router = "nginx"
	if err := appendResult(path, &done); err != nil {
		t.Fatal(err)
	}
	if rest, err := b.todo("chats,ranks", "nginx,smg,warmpath", 2, path); err != nil || len(rest) != 10 {
		t.Errorf("%d runs are left after a cut line and a new one, want 10: %v", len(rest), err)
	}
	done.Work, done.Router = "older", "warmpath"
	if err := appendResult(path, &done); err != nil {
		t.Fatal(err)
	}
	if rest, err := (&bench{kind: vllm, scale: 1, seed: 1}).todo("chats", "warmpath", 1, path); err != nil || len(rest) != 1 {
		t.Errorf("another version of a set is another run: %d, %v", len(rest), err)
	}
	if rest, err := (&bench{kind: vllm, scale: .5, seed: 1}).todo("chats", "smg", 1, path); err != nil || len(rest) != 1 {
		t.Errorf("another scale is another run: %d, %v", len(rest), err)
	}
}

func TestScaledWorkKeepsPrompts(t *testing.T) {
	s := scaled(conversations, .3).(chats)
	if s.talks != 12 || s.system != conversations.system || s.turns != conversations.turns {
		t.Errorf("%+v", s)
	}
}

// line returns a result with the given hits in percent, median time to the first token in ms, and share of the requests
// at the first engine in percent.
func line(set, router string, round int, hits, first, share float64) result {
	return result{Engine: "vllm", Set: set, Router: router, Round: round, Scale: 1, Seed: 1, Time: "2026-11-22T21:00:00Z", Commit: "abc", Requests: 100,
		Versions: map[string]string{"engine": "vllm-0.32", "smg": "smg-1.13.0"}, First: spread{Mean: first, P50: first, P90: first},
		Holders: []tally{{Requests: share, Queried: 500, Hit: 5 * hits}, {Requests: 100 - share, Queried: 500, Hit: 5 * hits}}}
}

func TestGoals(t *testing.T) {
	all := sections([]result{
		// The first token is only 9 % earlier, which misses the goal.
		line("full-caches", "smg", 1, 50, 100, 50), line("full-caches", "warmpath", 1, 60, 91, 39),
		line("chats", "nginx", 1, 70, 100, 50), line("chats", "smg", 1, 87, 120, 50), line("chats", "warmpath", 1, 86.5, 100, 40),
		line("chats", "smg", 2, 87, 120, 50), line("chats", "warmpath", 2, 86.4, 90, 60),
	})
	if len(all) != 2 || all[0].set.name != "chats" {
		t.Fatalf("%d sections", len(all))
	}
	for i, want := range []struct {
		hits, first, share string
		count              goalCounts
	}{
		{"met -0.5 (smg) · **missed** -0.6 (smg)", "met 0.95 of nginx, goal 1.0", "met 40 % · met 40 %",
			goalCounts{hits: score{1, 1}, first: score{1, 0}, share: score{2, 0}}},
		{"met +10.0 (smg)", "**missed** 0.91 of smg, goal 0.9", "**missed** 39 %",
			goalCounts{hits: score{1, 0}, first: score{0, 1}, share: score{0, 1}}},
	} {
		var count goalCounts
		hits, first, share := all[i].goals(&count)
		if hits != want.hits || first != want.first || share != want.share || count != want.count {
			t.Errorf("%s:\n got %q %q %q %+v\nwant %+v", all[i].set.name, hits, first, share, count, want)
		}
	}
}

func TestPageShowsSharesByIDs(t *testing.T) {
	r := line("chats", "warmpath", 1, 80, 100, 50)
	r.Warmpath, r.Requests, r.Routers, r.Engines = map[string]float64{}, 200, .5, 25
	samples, err := parseMetrics(strings.NewReader(`warmpath_token_requests_total{missing="",outcome="render"} 30
warmpath_token_requests_total{missing="timeout",outcome="text"} 10
warmpath_predictions_total{outcome="over",worker="http://a"} 1
warmpath_predictions_total{outcome="equal",worker="http://a"} 10
warmpath_predictions_total{outcome="equal",worker="http://b"} 9
warmpath_tokens_total{kind="at_risk",policy="marginal",worker="http://a"} 64
warmpath_token_wait_seconds_bucket{le="0.001"} 39
warmpath_token_wait_seconds_bucket{le="+Inf"} 40
warmpath_other_total 5
`))
	if err != nil {
		t.Fatal(err)
	}
	addCounts(r.Warmpath, samples)
	text, err := page([]result{r, line("chats", "smg", 1, 81, 100, 50)}, machine.Facts{}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| Warmpath, URLs alone | 80.0 | 100 | 100 | 100 | 0.0 | 2.5, 125 | 50+50 | 0 | 75.0 | 5.0; 64 |", "| vllm chats | Warmpath, URLs alone | **missed** 75.0 | **missed** 97.5 |  |", "| SMG cache_aware | 81.0 |", "**missed** -1.0 (smg)", "abc", "smg-1.13.0"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
}

func TestPageShowsRunsThatWereNotPlayedInTurn(t *testing.T) {
	late := line("chats", ours, 2, 80, 100, 50)
	late.Commit = "def"
	text, err := page([]result{line("chats", "smg", 1, 80, 100, 50), line("chats", ours, 1, 80, 100, 50), line("chats", "smg", 2, 80, 100, 50), late},
		machine.Facts{}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Warmpath abc (1 runs, rounds 1), def (1 runs, rounds 2);",
		`Measured at another time than the other routers of the round: round 2 of "Warmpath, URLs alone" (commit def; the other routers: abc).`} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
}

func TestPageShowsTheNoiseOfTheMachine(t *testing.T) {
	var all []result
	for round, first := range []float64{100, 130, 110} {
		all = append(all, line("chats", "nginx", round+1, 70, first, 50))
	}
	for _, c := range []struct {
		rounds []result
		want   bool
	}{{all, true}, {all[:1], false}} {
		text, err := page(c.rounds, machine.Facts{}, nil, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(text, "30 % above"); got != c.want {
			t.Errorf("%d rounds: the noise is on the page: %v\n%s", len(c.rounds), got, text)
		}
	}
}

func TestAWarmpathThatAsksIsNoPeerAndHasItsOwnGoals(t *testing.T) {
	own, asks := line("chats", ours, 1, 80, 100, 50), line("chats", asking, 1, 90, 110, 50)
	own.Warmpath = map[string]float64{"warmpath_token_requests_total outcome=local": 100, "warmpath_token_wait_seconds_bucket le=+Inf": 100, "warmpath_token_wait_seconds_bucket le=0.001": 99}
	asks.Requests = 100
	asks.Warmpath = map[string]float64{"warmpath_token_requests_total outcome=beginning": 80, "warmpath_token_requests_total outcome=render": 11,
		"warmpath_token_requests_total outcome=text missing=busy": 9, "warmpath_token_wait_seconds_bucket le=+Inf": 100, "warmpath_token_wait_seconds_bucket le=0.001": 50}
	text, err := page([]result{own, asks, line("chats", "smg", 1, 80, 100, 50)}, machine.Facts{}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"met +0.0 (smg)", "| Warmpath, URLs alone | met 100.0 | met 99.0 |  |",
		"| Warmpath that may not read the model's files | met 91.0 (80.0) | 50.0 | met +10 |", "Goals met: hits 1 of 1, median first token 1 of 1, shares 1 of 1, matched by ids 2 of 2, waited at most 1 ms for ids 1 of 1, added by asking 1 of 1."} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q:\n%s", want, text)
		}
	}
	if slices.ContainsFunc(usual(), func(r routerKind) bool { return r.name == asking }) {
		t.Error("it is played with all others")
	}
}

func TestEnginesHaveCoresOfTheirOwn(t *testing.T) {
	for _, c := range []struct {
		i, n, cores int
		want        string
	}{{0, 2, 2, "0-0"}, {1, 2, 2, "1-1"}, {1, 2, 5, "2-4"}, {0, 2, 1, ""}, {0, 1, 8, ""}} {
		if got := coresOf(c.i, c.n, c.cores); got != c.want {
			t.Errorf("engine %d of %d on %d cores: %q, want %q", c.i, c.n, c.cores, got, c.want)
		}
	}
}

func TestTheLaboratoryPlaysTheSameWork(t *testing.T) {
	profile, err := json.Marshal(map[string]any{"name": "x", "kv_tokens": cacheTokens, "block_size": blockSize, "max_batch_tokens": batchTokens,
		"max_sequences": 16, "linear": map[string]float64{"base_ms": 5, "token_ms": .02, "sequence_ms": .5}})
	if err != nil {
		t.Fatal(err)
	}
	fit := &fitted{Engine: "vllm", Profile: profile, Hop: 20}
	for _, s := range sets {
		got, ok, err := imitate(fit, s, "warmpath", 1, .3, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		if ok != (s.event == nothing) {
			t.Errorf("%s: played %v", s.name, ok)
		}
		if ok && (got.hits < 20 || got.hits > 99 || got.p50 < 15) {
			t.Errorf("%s: %+v", s.name, got)
		}
	}
	r := line("chats", "smg", 1, 80, 100, 50)
	s, _ := setNamed("chats")
	w := asWorkload(s.work.plan(newWriter(1, workName(s), 1), s.clients), 1.5)
	for i := range w.Requests {
		r.Prompt += w.Requests[i].Input
	}
	if f := answerFactor(&r, s); f < 1.45 || f > 1.55 {
		t.Errorf("answers have %.2f tokens for each generated one, want 1.5", f)
	}
	text, err := page([]result{r}, machine.Facts{}, fit, "Read this.\n")
	if err != nil || !strings.Contains(text, "smg (`cache_aware`)") || !strings.Contains(text, "## What to know first\n\nRead this.\n") {
		t.Errorf("%v\n%s", err, text)
	}
}
