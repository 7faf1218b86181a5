package doctor

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// WriteText writes the report for people: each worker with its findings, then the findings about several workers.
func (r *Report) WriteText(out io.Writer) error {
	w := bufio.NewWriter(out)
	for i := range r.Workers {
		if i > 0 {
			fmt.Fprintln(w)
		}
		r.Workers[i].write(w)
		r.writeFindings(w, r.Workers[i].URL)
	}
	if len(r.Workers) > 1 {
		fmt.Fprintf(w, "\nall %d workers\n", len(r.Workers))
		if !r.writeFindings(w, "") {
			fmt.Fprintln(w, "  "+r.agreement())
		}
	} else {
		r.writeFindings(w, "")
	}
	fmt.Fprintln(w)
	switch n := r.Problems(); n {
	case 0:
		fmt.Fprintln(w, "No problem found.")
	case 1:
		fmt.Fprintln(w, "1 problem found.")
	default:
		fmt.Fprintf(w, "%d problems found.\n", n)
	}
	return w.Flush()
}

// agreement says of which workers it is known that they agree. A worker that did not answer is not among them.
func (r *Report) agreement() string {
	answered := 0
	for i := range r.Workers {
		if len(r.Workers[i].Models) > 0 {
			answered++
		}
	}
	switch answered {
	case len(r.Workers):
		return "agree with each other"
	case 0, 1:
		return "are not compared: fewer than two answered"
	}
	return fmt.Sprintf("%d of them answered, and agree with each other", answered)
}

// write writes the facts of the worker.
func (x *Worker) write(w io.Writer) {
	fmt.Fprintln(w, x.URL)
	if x.Engine != "" {
		fmt.Fprintf(w, "  %s %s, models %s, blocks of %s tokens, longest request %s tokens, ranks: %d\n", x.Engine, orUnknown(x.Version),
			strings.Join(x.Models, ", "), orUnknown(positive(x.BlockSize)), orUnknown(positive(x.MaxModelLen)), x.Ranks)
	}
	for _, s := range x.Events {
		fmt.Fprintf(w, "  rank %d: events %s, %d messages, %d of them replayed\n", s.Rank, s.Endpoint, s.Messages, s.Replayed)
	}
	for i, a := range x.Prompts {
		cached := "not reported"
		if a.CachedTokens >= 0 {
			cached = fmt.Sprint(a.CachedTokens)
		}
		which := []string{"first", "same beginning", "different"}[i]
		fmt.Fprintf(w, "  prompt %d (%s): %d tokens, cached: %s\n", i+1, which, a.PromptTokens, cached)
	}
	if x.HashChain != "" {
		fmt.Fprintf(w, "  block hashes: %s\n", x.HashChain)
	}
}

func orUnknown(text string) string {
	if text == "" {
		return "unknown"
	}
	return text
}

// writeFindings writes the findings of one worker, and reports whether there are any.
func (r *Report) writeFindings(w io.Writer, worker string) (any bool) {
	for _, f := range r.Findings {
		if f.Worker != worker {
			continue
		}
		any = true
		fmt.Fprintf(w, "  %-8s %s\n    seen:     %s\n    expected: %s\n    fix:      %s\n", strings.ToUpper(string(f.Severity)), f.Check, f.Seen, f.Expected, f.Fix)
	}
	return any
}
