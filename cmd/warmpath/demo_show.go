package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// showDemo prints the progress of the runs, side by side, until done is closed.
func showDemo(results []*demoResult, done <-chan struct{}, o *demoOptions) {
	every := 3 * time.Second
	if o.Live {
		every = 100 * time.Millisecond
	} else {
		printDemoProgressHead(o.Out, results)
	}
	printed := ""
	tick := time.NewTicker(every)
	defer tick.Stop()
	lines := 0
	for running := true; running; {
		select {
		case <-tick.C:
		case <-done:
			running = false
		}
		if o.Live {
			lines = redrawDemo(o.Out, results, lines)
			// The last tick may already have printed the final state. It is not printed twice.
		} else if so := demoProgress(results); running || so != printed {
			fmt.Fprintf(o.Out, "%4.0f s%s\n", time.Since(results[0].began).Seconds(), so)
			printed = so
		}
	}
	fmt.Fprintln(o.Out)
}

func printDemoProgressHead(out io.Writer, results []*demoResult) {
	fmt.Fprintf(out, "So far: requests answered, prompt tokens found in a cache, mean first token\n%6s", "")
	for _, r := range results {
		fmt.Fprintf(out, "  %20s", r.Policy)
	}
	fmt.Fprintln(out)
}

// demoProgress returns one line with the progress of the runs, without the time.
func demoProgress(results []*demoResult) string {
	var b strings.Builder
	for _, r := range results {
		t := r.totals()
		fmt.Fprintf(&b, "  %5d %4.0f %% %8s", t.answered, 100*t.hitRate(), inMS(t.meanFirstToken()))
	}
	return b.String()
}

// barWidth is the width of a full progress bar. With this width a status line has fewer than 80 columns.
const barWidth = 14

// redrawDemo replaces the lines that the last call printed, and returns the number of lines that it prints. The clock
// of a run stops when its work is done. During the redrawing the terminal cuts lines at its edge. Otherwise a long line
// would become two lines, and the next drawing would begin one line too low.
func redrawDemo(out io.Writer, results []*demoResult, lines int) int {
	var b strings.Builder
	b.WriteString("\x1b[?7l")
	if lines > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", lines)
	}
	for _, r := range results {
		t := r.totals()
		full := barWidth * t.answered / max(r.total, 1)
		elapsed := t.took
		if elapsed == 0 {
			elapsed = time.Since(r.began)
		}
		fmt.Fprintf(&b, "\x1b[2K%-12s %s%s %4d/%d  %2.0f %% cached  first token %s  %s\n", r.Policy,
			strings.Repeat("#", full), strings.Repeat(".", barWidth-full), t.answered, r.total, 100*t.hitRate(), inMS(t.meanFirstToken()), inSeconds(elapsed))
	}
	b.WriteString("\x1b[?7h")
	_, _ = io.WriteString(out, b.String())
	return len(results)
}

func inMS(d time.Duration) string { return fmt.Sprintf("%.0f ms", float64(d.Microseconds())/1000) }
