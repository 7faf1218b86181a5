package demo

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// printComparison prints the runs side by side.
func printComparison(out io.Writer, results []*Result) {
	t := tabwriter.NewWriter(out, 0, 0, 3, ' ', tabwriter.AlignRight)
	row := func(name string, value func(*Result) string) {
		cells := []string{name}
		for _, r := range results {
			cells = append(cells, value(r))
		}
		fmt.Fprintln(t, strings.Join(cells, "\t")+"\t")
	}
	row("", func(r *Result) string { return r.Policy })
	row("requests", func(r *Result) string { return fmt.Sprint(len(r.firstToken)) })
	row("prompt tokens", func(r *Result) string { return fmt.Sprint(r.prompt) })
	row("found in a cache", func(r *Result) string { return fmt.Sprintf("%.1f %%", 100*r.hitRate()) })
	row("computed by engines", func(r *Result) string { return fmt.Sprint(r.prompt - r.cached) })
	for _, q := range []float64{.5, .9, .99} {
		row(fmt.Sprintf("first token p%.0f", 100*q), func(r *Result) string { return inMS(r.quantiles(q)[0]) })
	}
	row("whole workload", func(r *Result) string { return fmt.Sprintf("%.1f s", r.took.Seconds()) })
	for i := range workers {
		row(fmt.Sprintf("requests on worker %d", i+1), func(r *Result) string { return fmt.Sprint(r.perWorker[r.workers[i]]) })
	}
	_ = t.Flush() // out's own errors show where they matter
	if a, b := results[0], results[len(results)-1]; b.prompt > b.cached {
		fmt.Fprintf(out, "\nThe engines computed %.1f times fewer prompt tokens with kv_aware.\n",
			float64(a.prompt-a.cached)/float64(b.prompt-b.cached))
	}
}

// printCheck prints how far the predictions agree with the engines' reports.
func printCheck(out io.Writer, r *Result) {
	answered, equal := r.Requests()
	fmt.Fprintf(out, "\nPredicted cached tokens (X-Warmpath-Match) against the engines' reports (usage.prompt_tokens_details):\n")
	fmt.Fprintf(out, "  equal for %d of %d requests\n", equal, answered)
	differences := make([]int, 0, len(r.difference))
	for d := range r.difference {
		if d != 0 {
			differences = append(differences, d)
		}
	}
	slices.Sort(differences)
	for _, d := range differences {
		fmt.Fprintf(out, "  %+d tokens: %d\n", d, r.difference[d])
	}
	switch {
	case len(differences) == 0:
		fmt.Fprintf(out, "  no differences\n")
	case r.Over() == 0:
		fmt.Fprintf(out, "  A negative difference is a prefix that another request was computing at that moment; never more was promised than held.\n")
	default:
		fmt.Fprintf(out, "  A positive difference is a prefix evicted between decision and execution, a negative one a prefix being computed at that moment.\n")
	}
}

// printNext says what to do now.
func printNext(out io.Writer, s *setup, stay bool) {
	if !stay {
		fmt.Fprintf(out, `
What to try next:
  warmpath demo --stay                              leave it running and look inside
  warmpath serve --worker http://HOST:8000 …        your own vLLM or SGLang; start it with KV events on
  warmpath mock --listen 127.0.0.1:8000             an engine to test against, with faults on demand
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
Try:
  curl -i %[1]s/v1/chat/completions -d '{"model":"%[2]s","messages":[{"role":"user","content":"hello"}]}'
  curl http://%[3]s/admin/explain -d '{"model":"%[2]s","messages":[{"role":"user","content":"hello"}]}'
  curl %[4]s/mock/fault -d '{"kind":"freeze"}'     # and see where requests go
`, s.url, model, s.app.AdminAddr(), s.engines[0].URL())
}
