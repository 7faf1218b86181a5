package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/warmpath/warmpath/internal/config"
)

// policyAbout has a description of each policy that the demo plays, in lines.
var policyAbout = map[string][]string{
	"round_robin": {"each worker in turn"},
	demoPeer: {
		"the worker that was sent most of this prompt before: a guess;",
		"SMG's and SGLang's policy at its defaults, built into Warmpath",
	},
	"marginal": {
		"knows from KV events what each cache holds, takes the worker",
		"where the request costs least",
	},
}

// printDemoOpening describes the work and the fleets.
func printDemoOpening(out io.Writer, conversations int) {
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
`, demoWorkers, demoSpeed, groupedCount(demoBlocks*demoBlockSize), demoUsers, conversations, demoTurns, agentKinds)
	for _, p := range demoPolicies() {
		lines := policyAbout[p]
		if p == config.Default().Policy {
			lines = append([]string{"Warmpath's default:"}, lines...)
		}
		fmt.Fprintf(out, "    %-12s  %s\n", p, strings.Join(lines, "\n"+strings.Repeat(" ", 18)))
	}
	fmt.Fprintln(out)
}

// groupedCount writes a count with commas between its thousands.
func groupedCount(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// printDemoComparison prints the runs side by side.
func printDemoComparison(out io.Writer, results []*demoResult) {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	row := func(name string, value func(*demoResult, *demoTotals) string) {
		cells := []string{name}
		for _, r := range results {
			sums := r.totals()
			cells = append(cells, value(r, &sums))
		}
		fmt.Fprintln(t, strings.Join(cells, "\t")+"\t")
	}
	row("", func(r *demoResult, _ *demoTotals) string { return r.Policy })
	row("requests", func(_ *demoResult, t *demoTotals) string { return fmt.Sprint(t.answered) })
	row("most on one worker", func(_ *demoResult, t *demoTotals) string { return fmt.Sprint(t.busiest()) })
	row("prompt tokens", func(_ *demoResult, t *demoTotals) string { return groupedCount(t.prompt) })
	row("computed by engines", func(_ *demoResult, t *demoTotals) string { return groupedCount(t.computed()) })
	row("found in a cache", func(_ *demoResult, t *demoTotals) string { return fmt.Sprintf("%.1f %%", 100*t.hitRate()) })
	row("first token, mean", func(_ *demoResult, t *demoTotals) string { return inMS(t.meanFirstToken()) })
	row("half of them within", func(r *demoResult, _ *demoTotals) string { return inMS(r.firstTokens(.5)[0]) })
	row("9 of 10 within", func(r *demoResult, _ *demoTotals) string { return inMS(r.firstTokens(.9)[0]) })
	row("99 of 100 within", func(r *demoResult, _ *demoTotals) string { return inMS(r.firstTokens(.99)[0]) })
	row("all work done after", func(_ *demoResult, t *demoTotals) string { return inSeconds(t.took) })
	_ = t.Flush() // out is a stickyWriter: it keeps its first error
}

// printDemoCheck compares the predictions with the engines' reports.
func printDemoCheck(out io.Writer, r *demoResult) {
	t := r.totals()
	fmt.Fprintf(out, `
Did %s know? With each request it predicted how many tokens of the
prompt were cached (X-Warmpath-Match). The engine then reported how many were
(usage):
  predicted %s tokens in all, reported %s
  at least as many reported as predicted: %d of %d requests
A token is predicted when its block was announced before the decision. Tokens
that the engine caches later, before it computes the request, are only reported.
`, r.Policy, groupedCount(t.predicted), groupedCount(t.cached), t.answered-r.Over(), t.answered)
}

// printDemoNext suggests what to try next.
func printDemoNext(out io.Writer, s *demoFleet, stay bool) {
	if !stay {
		fmt.Fprintf(out, `
What to try next, after make build && export PATH=$PWD/bin:$PATH in the clone:
  warmpath demo --stay                        leave it running and look inside
  warmpath serve --worker http://HOST:8000 …  your own engines, with KV events on
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
`, s.url, demoModel, s.app.AdminAddr())
	for i, e := range s.engines {
		fmt.Fprintf(out, "  engine %d    %s\n", i+1, e.URL())
	}
	fmt.Fprintf(out, `
Try (a cache keeps whole blocks of %[5]d tokens: a prompt has to be longer to be matched):
  body='{"model":"%[2]s","messages":[{"role":"user","content":"'$(seq -s ' ' 300)'"}]}'
  curl -i %[1]s/v1/chat/completions -d "$body"     # twice: the second time X-Warmpath-Match is above 0
  curl http://%[3]s/admin/explain -d "$body"
  curl %[4]s/mock/fault -d '{"kind":"freeze"}'     # and see where requests go
`, s.url, demoModel, s.app.AdminAddr(), s.engines[0].URL(), demoBlockSize)
}
