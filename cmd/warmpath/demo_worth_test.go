package main

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// playedResult returns a result with two answers in each conversation i. The first tokens of the answers come after
// first(i) and after three times first(i). computed(i) is how many of the 1,000 prompt tokens of each answer were not
// cached.
func playedResult(policy string, took time.Duration, first func(i int) time.Duration, computed func(i int) int) *demoResult {
	r := newDemoResult(policy, 40)
	r.took = took
	for i := range 20 {
		for turn := range 2 {
			worker := "a"
			if i%4 == 0 {
				worker = "b"
			}
			r.add(&demoAnswer{conversation: i, worker: worker, prompt: 1000, cached: 1000 - computed(i), firstToken: first(i) * time.Duration(1+2*turn)})
		}
	}
	return r
}

func constantDelay(n int) func(int) time.Duration {
	return func(int) time.Duration { return time.Duration(n) * time.Millisecond }
}

func constantTokens(n int) func(int) int { return func(int) int { return n } }

// demoVerdicts returns the lines of printDemoWorth about each of the other policies.
func demoVerdicts(t *testing.T, results []*demoResult, late time.Duration) []string {
	t.Helper()
	var out bytes.Buffer
	printDemoWorth(&out, results, late)
	var lines []string
	for line := range strings.Lines(out.String()) {
		if len(line) > 81 {
			t.Errorf("a terminal of 80 columns breaks this line: %s", line)
		}
		line = strings.TrimSpace(line)
		for _, name := range []string{"against", "waiting", "computing", "engine time", "("} {
			if strings.HasPrefix(line, name) {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

func TestTheEndingFollowsFromTheResults(t *testing.T) {
	for name, c := range map[string]struct {
		other, ours *demoResult
		late        time.Duration
		want        []string
	}{
		"better": {
			playedResult("a", 20*time.Second, constantDelay(150), constantTokens(800)), playedResult("b", 12*time.Second, constantDelay(60), constantTokens(200)), 0,
			[]string{
				"against a",
				"waiting      first tokens came 2.5 times sooner", "(120 ms in place of 300 ms, on average)",
				"computing    75 % fewer prompt tokens to compute", "(8,000 in place of 32,000)",
				"engine time  40 % less engine time for all the work", "(4 engines for 12.0 s in place of 20.0 s)",
			},
		},
		"worse": {
			playedResult("a", 10*time.Second, constantDelay(60), constantTokens(200)), playedResult("b", 12*time.Second, constantDelay(150), constantTokens(300)), 0,
			[]string{
				"against a",
				"waiting      first tokens came 2.5 times later", "(300 ms in place of 120 ms, on average)",
				"computing    50 % more prompt tokens to compute", "(12,000 in place of 8,000)",
				"engine time  20 % more engine time for all the work", "(4 engines for 12.0 s in place of 10.0 s)",
			},
		},
		"within 5 %": {
			playedResult("a", 10300*time.Millisecond, constantDelay(103), constantTokens(206)), playedResult("b", 10*time.Second, constantDelay(100), constantTokens(200)), 0,
			[]string{
				"against a",
				"waiting      no difference beyond chance", "(200 ms in place of 206 ms, on average)",
				"computing    no difference beyond chance", "(8,000 in place of 8,240)",
				"engine time  no difference beyond chance", "(4 engines for 10.0 s in place of 10.3 s)",
			},
		},
		"a fifth more on average, by one conversation": {
			playedResult("a", 12*time.Second, func(i int) time.Duration { return time.Duration(100+i/19*400) * time.Millisecond }, constantTokens(200)),
			playedResult("b", 10*time.Second, constantDelay(100), constantTokens(200)), 0,
			[]string{
				"against a",
				"waiting      no difference beyond chance", "(200 ms in place of 240 ms, on average)",
				"computing    no difference beyond chance", "(8,000 in place of 8,000)",
				"engine time  17 % less engine time for all the work", "(4 engines for 10.0 s in place of 12.0 s)",
			},
		},
		"on a machine that is too busy": {
			playedResult("a", 20*time.Second, constantDelay(150), constantTokens(800)), playedResult("b", 12*time.Second, constantDelay(60), constantTokens(200)), tooLateFor,
			[]string{
				"against a",
				"waiting      " + notJudged, "(120 ms in place of 300 ms, on average)",
				"computing    75 % fewer prompt tokens to compute", "(8,000 in place of 32,000)",
				"engine time  " + notJudged, "(4 engines for 12.0 s in place of 20.0 s)",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, demoVerdicts(t, []*demoResult{c.other, c.ours}, c.late)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestPairedErrorFollowsTheTextbook compares the error with a result that was computed by hand. With a = 4, 2 and b =
// 1, 2: R = 2, Σ(a−2b)² = 4+4 = 8, and the error is √(8·2/1)/3 = 4/3.
func TestPairedErrorFollowsTheTextbook(t *testing.T) {
	g := pairedGain(map[int]float64{1: 4, 2: 2}, map[int]float64{1: 1, 2: 2})
	near := func(a, b float64) bool { return math.Abs(a-b) < 1e-9 }
	if !near(g.ratio, 2) || !near(g.low, 2-8./3) || !near(g.high, 2+8./3) || !g.unproven {
		t.Errorf("%+v", g)
	}
}

func TestTheTableFollowsFromTheResults(t *testing.T) {
	var out bytes.Buffer
	printDemoComparison(&out, []*demoResult{
		playedResult("round_robin", 20*time.Second, constantDelay(150), constantTokens(800)), playedResult("other", 12*time.Second, constantDelay(60), constantTokens(200)),
	})
	var rows []string
	for line := range strings.Lines(out.String()) {
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"round_robin other",
		"requests 40 40",
		"most on one worker 30 30",
		"prompt tokens 40,000 40,000",
		"computed by engines 32,000 8,000",
		"found in a cache 20.0 % 80.0 %",
		"first token, mean 300 ms 120 ms",
		"half of them within 450 ms 180 ms",
		"9 of 10 within 450 ms 180 ms",
		"99 of 100 within 450 ms 180 ms",
		"all work done after 20.0 s 12.0 s",
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Error(diff)
	}
}

// TestProgressStaysInItsLines: after a redraw, the cursor must be where it was before, even if the terminal is narrow.
func TestProgressStaysInItsLines(t *testing.T) {
	results := []*demoResult{newDemoResult("round_robin", 408), newDemoResult("other", 408)}
	results[1].add(&demoAnswer{prompt: 100, cached: 50, firstToken: 1500 * time.Millisecond})
	results[0].began, results[1].took = time.Now(), 20*time.Second
	var first, second bytes.Buffer
	n := redrawDemo(&first, results, 0)
	redrawDemo(&second, results, n)
	if n != 2 || strings.Count(first.String(), "\n") != 2 || !strings.Contains(second.String(), "\x1b[2A") || strings.Contains(first.String(), "A\x1b") {
		t.Errorf("%d lines: %q, then %q", n, first.String(), second.String())
	}
	for _, text := range []string{first.String(), second.String()} {
		if !strings.HasPrefix(text, "\x1b[?7l") || !strings.HasSuffix(text, "\x1b[?7h") {
			t.Errorf("lines can wrap, or nothing wraps afterwards: %q", text)
		}
		for line := range strings.Lines(text) {
			if line = line[strings.LastIndex(line, "\x1b[2K")+4:]; len(line) > 80 {
				t.Errorf("%d columns: %q", len(line), line)
			}
		}
	}
}

func TestAFullDiskIsAnError(t *testing.T) {
	full := errors.New("no space left")
	r, w := io.Pipe()
	r.CloseWithError(full)
	s := &stickyWriter{out: w}
	for range 2 {
		if _, err := io.WriteString(s, "x"); !errors.Is(err, full) {
			t.Error(err)
		}
	}
	if s.err != full {
		t.Error(s.err)
	}
}
