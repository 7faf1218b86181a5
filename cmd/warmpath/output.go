package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/sim"
)

// output says in which form a report is printed, and where its HTML page is written.
type output struct {
	json, markdown bool
	html           string
}

func (o *output) flags(f *pflag.FlagSet) {
	f.BoolVar(&o.json, "json", false, "print the report as JSON")
	f.BoolVar(&o.markdown, "markdown", false, "print the table as Markdown")
	f.StringVar(&o.html, "html", "", "write an HTML page with plots to `FILE`; the page loads no other files")
}

// errInterrupted makes the exit code say that the result is incomplete.
var errInterrupted = errors.New("interrupted: the printed result has only the runs that were complete")

func (o *output) write(c *cobra.Command, r *report.Report) error {
	out := c.OutOrStdout()
	var err error
	switch {
	case o.json:
		err = report.WriteJSON(out, r)
	case o.markdown:
		err = report.WriteMarkdown(out, r)
	default:
		err = report.WriteText(out, r)
	}
	if err == nil && o.html != "" {
		err = writeFile(o.html, func(f io.Writer) error { return report.WriteHTML(f, r) })
		if err == nil && !o.json && !o.markdown {
			fmt.Fprintf(out, "\nThe page with plots is in %s\n", o.html)
		}
	}
	if err == nil && r.Interrupted {
		err = errInterrupted
	}
	return err
}

// sweepLine shows the progress of the runs in one line of a terminal, which it redraws. It shows nothing if the output
// is not a terminal.
type sweepLine struct {
	out  io.Writer
	live bool
	last int
}

func newSweepLine(out io.Writer) *sweepLine {
	return &sweepLine{out: out, live: isTerminal(out)}
}

func (p *sweepLine) sweep(s sim.Progress) {
	left := "…"
	if s.Remaining > 0 && s.Elapsed > time.Second/2 {
		left = s.Remaining.Round(time.Second).String() + " left"
	}
	p.show(fmt.Sprintf("%3.0f %%  %d of %d runs, %s requests  %s", 100*float64(s.Ended)/float64(max(s.Requests, 1)), s.RunsDone, s.Runs, report.Count(s.Ended), left))
}

func (p *sweepLine) show(text string) {
	if !p.live {
		return
	}
	pad := max(p.last-len(text), 0)
	p.last = len(text)
	fmt.Fprintf(p.out, "\r%s%s", text, strings.Repeat(" ", pad))
}

func (p *sweepLine) clear() {
	if p.live && p.last > 0 {
		fmt.Fprintf(p.out, "\r%s\r", strings.Repeat(" ", p.last))
	}
}

// writeFile creates path and lets write fill it. If the file could not be written completely, or could not be closed,
// writeFile returns an error.
func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		_ = f.Close() // the first error is reported
		return fmt.Errorf("write %s: %w", path, err)
	}
	return f.Close()
}

// writeIndented writes v as JSON that people can read.
func writeIndented(out io.Writer, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = out.Write(append(data, '\n'))
	return err
}

// isTerminal reports whether out is a character device, on which a line can be drawn again.
func isTerminal(out any) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
