package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/warmpath/warmpath/internal/config"
)

func TestTheDemoPlaysTheDefaultPolicyAndPrintsTheComparison(t *testing.T) {
	var out bytes.Buffer
	results, err := runDemo(context.Background(), demoOptions{Out: &out, Small: true})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	standard := config.Default().Policy
	var played []string
	for _, r := range results {
		played = append(played, r.Policy)
		for _, a := range r.answers {
			if a.policy != r.Policy {
				t.Fatalf("%s: a request was decided by %q", r.Policy, a.policy)
			}
		}
		for _, want := range []string{results[0].Policy, r.Policy, "found in a cache", "first token, mean", "at least as many reported as predicted", "What to try next"} {
			if !strings.Contains(out.String(), want) {
				t.Errorf("the output lacks %q", want)
			}
		}
	}
	if !slices.Equal(played, []string{"round_robin", "cache_aware", standard}) {
		t.Errorf("played %q", played)
	}
	if want := "What " + standard + " was worth in this run"; !strings.Contains(out.String(), want) {
		t.Errorf("the output lacks %q", want)
	}
	if ours, theirs := results[2].totals(), results[0].totals(); ours.hitRate() <= theirs.hitRate() {
		t.Errorf("%s does not find more than round_robin", standard)
	}
	for _, r := range results[1:] {
		if diff := cmp.Diff(demoTranscripts(results[0]), demoTranscripts(r)); diff != "" {
			t.Errorf("%s was asked something else than %s: %s", r.Policy, results[0].Policy, diff)
		}
	}
	last := results[2].totals()
	if last.answered != demoConversations/5*demoTurns || last.predicted == 0 {
		t.Errorf("%d requests, %d tokens were predicted to be cached", last.answered, last.predicted)
	}
	if over := results[2].Over(); over > 0 {
		t.Errorf("%d requests were promised more than they found", over)
	}
	for line := range strings.Lines(out.String()) {
		if len([]rune(line)) > 81 && !strings.HasPrefix(line, "  warmpath ") {
			t.Errorf("a terminal of 80 columns breaks this line: %s", line)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}

// TestThePageShowsWhatTheDemoPrints checks that the demo prints each line that the page shows. Numbers and verdicts may
// differ.
func TestThePageShowsWhatTheDemoPrints(t *testing.T) {
	page, err := os.ReadFile("../../bench/results/demo.md")
	if err != nil {
		t.Fatal(err)
	}
	_, sample, _ := strings.Cut(string(page), "<!-- demo -->\n```\n")
	sample, _, found := strings.Cut(sample, "```\n<!-- end of demo -->")
	if !found {
		t.Fatal("bench/results/demo.md has no output of the demo")
	}
	var out bytes.Buffer
	var results []*demoResult
	for _, policy := range demoPolicies() {
		results = append(results, playedResult(policy, time.Second, constantDelay(100), constantTokens(100)))
	}
	printDemoComparison(&out, results)
	printDemoWorth(&out, results, 0)
	number, verdict := regexp.MustCompile(`[\d.,]*\d`), regexp.MustCompile(`^(waiting|computing|engine time) .*`)
	plain := func(line string) string {
		line = strings.Join(strings.Fields(number.ReplaceAllString(line, "0")), " ")
		return verdict.ReplaceAllString(line, "$1")
	}
	printed := map[string]bool{}
	for line := range strings.Lines(out.String()) {
		printed[plain(line)] = true
	}
	for line := range strings.Lines(sample) {
		if !printed[plain(line)] {
			t.Errorf("the demo prints no such line as bench/results/demo.md has: %s", line)
		}
	}
}

// demoTranscripts returns, for each conversation, the number of tokens of each prompt, and each answer.
func demoTranscripts(r *demoResult) map[int][]string {
	said := map[int][]string{}
	for _, a := range r.answers {
		said[a.conversation] = append(said[a.conversation], fmt.Sprintf("%d tokens: %s", a.prompt, a.text))
	}
	return said
}

// TestTheCommandsThatTheDemoSuggestsWork sends the requests of the curl commands that the demo suggests at its end.
func TestTheCommandsThatTheDemoSuggestsWork(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		_, err := runDemo(ctx, demoOptions{Out: in, Small: true, Stay: true})
		_ = in.CloseWithError(io.EOF)
		ended <- err
	}()
	assigned, line := regexp.MustCompile(`^ +body='(.*)'$`), regexp.MustCompile(`curl (?:-i )?(http://\S+) -d ('.*'|"\$body")`)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	post := func(line []string, body string) http.Header {
		if line[2] != `"$body"` {
			body = strings.Trim(line[2], "'")
		}
		// The content type is the one that curl -d sends.
		resp, err := client.Post(line[1], "application/x-www-form-urlencoded", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %s", line[0], resp.StatusCode, text)
		}
		return resp.Header
	}
	tried, body := 0, ""
	for lines := bufio.NewScanner(out); tried < 3 && lines.Scan(); {
		if m := assigned.FindStringSubmatch(lines.Text()); m != nil {
			var numbers []string
			for i := range 300 {
				numbers = append(numbers, strconv.Itoa(i+1))
			}
			body = strings.Replace(m[1], "'$(seq -s ' ' 300)'", strings.Join(numbers, " "), 1)
		}
		m := line.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		tried++
		got := post(m, body)
		if tried > 1 {
			continue
		}
		if p := got.Get("X-Warmpath-Policy"); p != config.Default().Policy {
			t.Errorf("policy %q stayed", p)
		}
		// A person types the second request after the events of the first request have arrived. The test may be faster than
		// the events, so it repeats the second request.
		for began := time.Now(); post(m, body).Get("X-Warmpath-Match") == "0"; {
			if time.Since(began) > 20*time.Second {
				t.Fatalf("%s: asked twice, and nothing of the prompt is matched", lines.Text())
			}
		}
	}
	if tried != 3 {
		t.Errorf("%d lines to try", tried)
	}
	cancel()
	go io.Copy(io.Discard, out)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestDemoThatIsInterruptedComparesNothing(t *testing.T) {
	for name, when := range map[string]string{"at the start": "Warmpath demo", "in the middle": "So far"} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := &demoCutter{at: when, cut: cancel}
			// Small is not set, so that the demo has seconds of work left when the test interrupts it.
			_, err := runDemo(ctx, demoOptions{Out: out})
			if !errors.Is(err, errDemoInterrupted) {
				t.Errorf("the error is %v", err)
			}
			if strings.Contains(out.text.String(), "worth") {
				t.Errorf("it compares what did not end:\n%s", out.text.String())
			}
		})
	}
}

// demoCutter calls cut as soon as the text that was written contains at.
type demoCutter struct {
	at   string
	cut  func()
	text strings.Builder
}

func (c *demoCutter) Write(p []byte) (int, error) {
	c.text.Write(p)
	if strings.Contains(c.text.String(), c.at) {
		c.cut()
	}
	return len(p), nil
}

func TestWorkloadIsTheSameEachTime(t *testing.T) {
	a, b := demoWorkload(1), demoWorkload(1)
	kinds := map[string]int{}
	for i := range a {
		if a[i].system != b[i].system || !slices.Equal(a[i].asks, b[i].asks) || string(a[i].tools) != string(b[i].tools) {
			t.Fatalf("conversation %d differs", i)
		}
		kinds[a[i].system]++
	}
	if len(kinds) != agentKinds || kinds[a[0].system] != demoConversations/2 {
		t.Errorf("%d kinds of agents, %d conversations with the popular one", len(kinds), kinds[a[0].system])
	}
}
