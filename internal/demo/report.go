package demo

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/warmpath/warmpath/internal/config"
)

// about describes each policy, line by line.
var about = map[string][]string{
	"round_robin": {"each worker in turn"},
	peer: {
		"the worker that was sent most of this prompt before: a guess;",
		"SMG's and SGLang's policy at its defaults, built into Warmpath",
	},
	"marginal": {
		"knows from KV events what each cache holds, takes the worker",
		"where the request costs least",
	},
}

// printOpening describes the work and the fleets.
func printOpening(out io.Writer, conversations int) {
	fmt.Fprintf(out, `Warmpath demo: three routing policies do the same work at the same time, each
on a fleet of its own. Nothing is downloaded.

  fleets    A router and %d mock engines each. HTTP, prefix caches and KV events
            are real. Computing is modelled: Qwen3-32B on two H100, %g times as
            fast. A cache holds %s tokens: less than what the conversations
            under way need. All caches of a fleet together hold more.
  work      %d users at once have %d conversations of %d turns with %d agents.
            Each turn sends the whole conversation again. One agent is popular
            and has half of the conversations. Conversations with the same agent
            share its system prompt and tools.
  policies
`, workers, speed, grouped(blocks*blockSize), users, conversations, turns, agentKinds)
	for _, p := range policies() {
		lines := about[p]
		if p == config.Default().Policy {
			lines = append([]string{"Warmpath's default:"}, lines...)
		}
		fmt.Fprintf(out, "    %-12s  %s\n", p, strings.Join(lines, "\n"+strings.Repeat(" ", 18)))
	}
	fmt.Fprintln(out)
}

// grouped writes a count with commas between its thousands.
func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// printComparison prints the runs side by side.
func printComparison(out io.Writer, results []*Result) {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	row := func(name string, value func(*Result, *totals) string) {
		cells := []string{name}
		for _, r := range results {
			sums := r.totals()
			cells = append(cells, value(r, &sums))
		}
		fmt.Fprintln(t, strings.Join(cells, "\t")+"\t")
	}
	row("", func(r *Result, _ *totals) string { return r.Policy })
	row("requests", func(_ *Result, t *totals) string { return fmt.Sprint(t.answered) })
	row("most on one worker", func(_ *Result, t *totals) string { return fmt.Sprint(t.busiest()) })
	row("prompt tokens", func(_ *Result, t *totals) string { return grouped(t.prompt) })
	row("computed by engines", func(_ *Result, t *totals) string { return grouped(t.computed()) })
	row("found in a cache", func(_ *Result, t *totals) string { return fmt.Sprintf("%.1f %%", 100*t.hitRate()) })
	row("first token, mean", func(_ *Result, t *totals) string { return inMS(t.meanFirstToken()) })
	row("half of them within", func(r *Result, _ *totals) string { return inMS(r.firstTokens(.5)[0]) })
	row("9 of 10 within", func(r *Result, _ *totals) string { return inMS(r.firstTokens(.9)[0]) })
	row("99 of 100 within", func(r *Result, _ *totals) string { return inMS(r.firstTokens(.99)[0]) })
	row("all work done after", func(_ *Result, t *totals) string { return inSeconds(t.took) })
	_ = t.Flush() // out keeps its first error
}

// printCheck compares the predictions with the engines' reports.
func printCheck(out io.Writer, r *Result) {
	t := r.totals()
	fmt.Fprintf(out, `
Did %s know? With each request it predicted how many tokens of the
prompt were cached (X-Warmpath-Match). The engine then reported how many were
(usage):
  predicted %s tokens in all, reported %s
  at least as many reported as predicted: %d of %d requests
A token is predicted when its block was announced before the decision. Tokens
that the engine caches later, before it computes the request, are only reported.
`, r.Policy, grouped(t.predicted), grouped(t.cached), t.answered-r.Over(), t.answered)
}

// printNext suggests what to try next.
func printNext(out io.Writer, s *setup, stay bool) {
	if !stay {
		fmt.Fprintf(out, `
What to try next:
  warmpath demo --stay                        leave it running and look inside
  warmpath serve --worker http://HOST:8000 …  your own vLLM or SGLang, with KV events on
  warmpath mock --listen 127.0.0.1:8000       an engine to test against, with faults
  warmpath sim --help                         policies on your own traffic, simulated
`)
		return
	}
	fmt.Fprintf(out, `
It stays up until Ctrl-C:
  model API   %s/v1/chat/completions   (model %q)
  metrics     http://%[3]s/metrics
  workers     http://%[3]s/admin/workers
  decisions   http://%[3]s/admin/decisions
`, s.url, model, s.app.AdminAddr())
	for i, e := range s.engines {
		fmt.Fprintf(out, "  engine %d    %s\n", i+1, e.URL())
	}
	fmt.Fprintf(out, `
Try (a cache keeps whole blocks of %[5]d tokens: a prompt has to be longer to be matched):
  body='{"model":"%[2]s","messages":[{"role":"user","content":"'$(seq -s ' ' 300)'"}]}'
  curl -i %[1]s/v1/chat/completions -d "$body"     # twice: the second time X-Warmpath-Match is above 0
  curl http://%[3]s/admin/explain -d "$body"
  curl %[4]s/mock/fault -d '{"kind":"freeze"}'     # and see where requests go
`, s.url, model, s.app.AdminAddr(), s.engines[0].URL(), blockSize)
}
