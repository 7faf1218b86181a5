package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/internal/loadgen"
	"github.com/warmpath/warmpath/internal/report"
)

// loadFlags are the flags of the command load.
type loadFlags struct {
	workload           workloadFlags
	specs              []string
	compare            string
	prompt             string
	out                output
	jsonPath, rowsPath string
	apiKeyFile         string
	cfg                loadgen.Config
}

func newLoad() *cobra.Command {
	f := loadFlags{cfg: loadgen.DefaultConfig()}
	c := &cobra.Command{
		Use:   "load URL --workload FORMAT:FILE",
		Short: "Play a workload against a live address and measure it",
		Long: `Play a workload against a router or an engine, and measure what clients see. Requests are sent
by the workload's clock. A latency counts from the time at which the request should have been sent,
so a slow server cannot hide its delays. Sessions are closed loops: the next turn comes after the
answer to the last turn, and contains this answer.

With --compare every request goes to each address in turn, and the report shows the difference,
such as what a router adds. Ctrl-C prints the result so far.`,
		Example: `  warmpath load http://127.0.0.1:8080 --workload gen:shared-prefix --rate 0.5
  warmpath load --compare direct=http://127.0.0.1:8000,through=http://127.0.0.1:8080 --workload gen:independent`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 1 || (len(args) == 1) == (f.compare != "") {
				return usageError{errors.New("name one URL to ask, or several with --compare NAME=URL,NAME=URL")}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return f.run(c, args) },
	}
	flags := c.Flags()
	flags.StringArrayVarP(&f.specs, "workload", "w", nil, "`FORMAT:FILE` or gen:NAME,PARAMETER=VALUE (see warmpath workload list); several are merged")
	f.workload.add(flags)
	flags.StringVar(&f.compare, "compare", "", "`NAME=URL,NAME=URL` of the addresses to compare; each address is compared with the first")
	flags.StringVar(&f.cfg.Model, "model", "", "`NAME` of the model to ask for (default: the first that the address serves)")
	flags.StringVar(&f.prompt, "prompt", "auto", "`FORM` of prompts: chat, text, tokens (exact), or auto (as in the trace)")
	flags.IntVar(&f.cfg.Concurrency, "concurrency", 0, "keep `N` requests open and ignore the workload's clock (0: by the clock)")
	flags.IntVar(&f.cfg.MaxOpen, "max-open", f.cfg.MaxOpen, "keep at most `N` requests open; further requests are not sent, but counted")
	flags.DurationVar(&f.cfg.Timeout, "timeout", f.cfg.Timeout, "timeout of one request")
	flags.BoolVar(&f.cfg.HTTP2, "http2", false, "use HTTP/2 (clear text with prior knowledge)")
	flags.BoolVar(&f.cfg.Whole, "no-stream", false, "ask for answers in one piece")
	flags.BoolVar(&f.cfg.OpenAIOnly, "openai-only", false, "send only fields of OpenAI's own API; answers may then end early")
	flags.IntVar(&f.cfg.Vocabulary, "vocabulary", 0, "keep made-up token ids below `N` (0: below 17,384)")
	flags.StringVar(&f.apiKeyFile, "api-key-file", "", "`FILE` that holds the API key")
	f.out.flags(flags)
	flags.StringVarP(&f.jsonPath, "output", "o", "", "write the report as JSON to `FILE` too")
	flags.StringVar(&f.rowsPath, "rows", "", "write each answered request to `FILE`, as warmpath calibrate --measured reads them")
	return c
}

func (f *loadFlags) run(c *cobra.Command, args []string) error {
	if len(f.specs) == 0 {
		return usageError{fmt.Errorf("name a workload: --workload FORMAT:FILE or gen:NAME (see `warmpath workload list`)")}
	}
	address := f.compare
	if len(args) == 1 {
		address = args[0]
	}
	var err error
	if f.cfg.Targets, err = loadgen.ParseTargets(address); err != nil {
		return usageError{err}
	}
	if f.prompt != "auto" {
		f.cfg.Prompt = loadgen.Prompt(f.prompt)
	}
	if err := f.cfg.Validate(); err != nil {
		return usageError{err}
	}
	if f.apiKeyFile != "" {
		key, err := os.ReadFile(f.apiKeyFile)
		if err != nil {
			return err
		}
		f.cfg.APIKey = strings.TrimSpace(string(key))
	}
	w, err := f.workload.load(f.specs, false)
	if err != nil {
		return err
	}
	f.cfg.Setup = report.Setup{Rate: f.workload.shape.Rate, Seed: f.workload.seed}
	if last := w.Requests[len(w.Requests)-1].Arrival; last > 0 {
		f.cfg.Setup.PerSecond = float64(len(w.Requests)) / last.Seconds()
	}
	if f.rowsPath != "" {
		rows, err := os.Create(f.rowsPath)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }() // loadgen.Run returns the error if a row cannot be written
		f.cfg.Rows = rows
	}
	progress := newProgressLine(c.ErrOrStderr())
	f.cfg.Progress = progress.show
	outcome, err := loadgen.Run(c.Context(), w, f.cfg)
	progress.clear()
	if err != nil {
		return err
	}
	outcome.Command, outcome.Version = typed(), version()
	return f.write(c, outcome)
}

func (f *loadFlags) write(c *cobra.Command, o *loadgen.Outcome) error {
	if f.jsonPath != "" {
		if err := writeFile(f.jsonPath, func(file io.Writer) error { return writeIndented(file, o) }); err != nil {
			return err
		}
	}
	if f.out.json && len(o.Comparison) > 0 {
		return writeIndented(c.OutOrStdout(), o) // prints the whole outcome, because the report has no field for the comparison
	}
	if err := f.out.write(c, o.Report); err != nil {
		return err
	}
	out := c.OutOrStdout()
	for _, c := range o.Comparison {
		fmt.Fprintf(out, "\n%s against %s, %d pairs:\n", c.Of, c.Against, c.Pairs)
		for _, line := range []struct {
			what string
			a    loadgen.Added
		}{{"first token", c.TTFT}, {"end", c.E2E}} {
			fmt.Fprintf(out, "  %-12s median %+.3f ms (95 %%: %+.3f to %+.3f), p90 %+.3f ms, p99 %+.3f ms\n",
				line.what, line.a.Median, line.a.Low, line.a.High, line.a.P90, line.a.P99)
		}
	}
	return nil
}

// progressLine is one line of a terminal that is redrawn. It shows nothing if the output is not a terminal.
type progressLine struct {
	out   io.Writer
	live  bool
	began time.Time
}

func newProgressLine(out io.Writer) *progressLine {
	return &progressLine{out: out, live: isTerminal(out), began: time.Now()}
}

func (p *progressLine) show(g loadgen.Progress) {
	if !p.live {
		return
	}
	fmt.Fprintf(p.out, "\r\x1b[K%s  %d of %d answered, %d open, %d failed, %.1f %% cached",
		g.Elapsed.Round(time.Second), g.Answered, g.Total, g.Open, g.Failed, 100*g.HitRate)
}

func (p *progressLine) clear() {
	if p.live {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
