package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/internal/report"
	"github.com/warmpath/warmpath/internal/sim"
	"github.com/warmpath/warmpath/policy"
)

func newReplay() *cobra.Command {
	var policies []string
	var asJSON bool
	c := &cobra.Command{
		Use:   "replay FILE…",
		Short: "Ask other policies about the decisions of a decision log",
		Long: `Ask policies about the recorded decisions of a decision log, without a router and without engines:

  warmpath serve --decision-log decisions.jsonl …
  warmpath replay decisions.jsonl.1 decisions.jsonl --policy kv_aware,least_load

The table says how often a policy would have chosen another worker, which share of the prompts' tokens
it would have expected in the cache, and the time to the first token that it would have expected. The
row "as recorded" has the same predictions for the recorded choices; below the table is what the
engines then reported.

Each decision is asked about alone: caches and load are those that the recorded policy made. To see
how the fleet would develop under another policy, play the log in the simulator:

  warmpath sim --workload decisions:decisions.jsonl --policies marginal,kv_aware --workers 8

Give the oldest file first; - is standard input.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{errors.New("name a decision log: warmpath replay FILE --policy NAME (`warmpath serve --decision-log FILE` writes one)")}
			}
			return nil
		},
		RunE: func(c *cobra.Command, files []string) error {
			var specs []policy.Spec
			for _, name := range sim.SplitPolicies(policies) {
				spec, err := sim.ParsePolicy(name)
				if err != nil {
					return usageError{err}
				}
				specs = append(specs, spec)
			}
			r, err := sim.NewReplay(specs)
			if err != nil {
				return usageError{fmt.Errorf("--policy: %w", err)}
			}
			cut, err := readDecisions(c, r, files)
			if err != nil {
				return err
			}
			result := r.Result()
			switch {
			case result.Decisions == 0:
				return fmt.Errorf("%s: there is no decision in it; `warmpath serve --decision-log FILE` writes such a file", strings.Join(files, ", "))
			case asJSON:
				return writeIndented(c.OutOrStdout(), result)
			}
			return writeReplay(c.OutOrStdout(), result, cut)
		},
	}
	c.Flags().StringSliceVar(&policies, "policy", []string{"marginal"}, "`NAMES` of policies to ask, or KIND:KEY=VALUE,… with parameters")
	c.Flags().BoolVar(&asJSON, "json", false, "print the result as JSON")
	return c
}

// maxDecision bounds a line of a decision log in bytes: a prompt of a million tokens and 4,096 candidates have less.
const maxDecision = 16 << 20

// readDecisions gives the lines of all files to r. cut is a remark about lines that are not complete: the last line of
// a file that a router still writes, or the last one before a crash.
func readDecisions(c *cobra.Command, r *sim.Replay, files []string) (cut string, err error) {
	progress := newSweepLine(c.ErrOrStderr())
	defer progress.clear()
	cuts, first := 0, ""
	for i, name := range files {
		in, size, err := openDecisions(c, name)
		if err != nil {
			return "", err
		}
		done, shown := int64(0), time.Now()
		lines := bufio.NewReaderSize(in, 1<<20)
		for n := 1; err == nil; n++ {
			if c.Context().Err() != nil {
				_ = in.Close()
				return "", errors.New("interrupted: nothing is printed, because the result is not complete")
			}
			var text []byte
			text, err = readLine(lines)
			done += int64(len(text))
			if err != nil && !errors.Is(err, io.EOF) {
				err = fmt.Errorf("%s:%d: %w", name, n, err)
				break
			}
			if now := time.Now(); now.Sub(shown) > time.Second/4 {
				shown = now
				progress.show(fmt.Sprintf("%3.0f %%  file %d of %d, line %d", 100*float64(done)/float64(max(size, done, 1)), i+1, len(files), n))
			}
			if len(bytes.TrimSpace(text)) == 0 {
				continue
			}
			line, wrong := sim.ReadDecided(text)
			switch {
			case errors.Is(wrong, sim.ErrCut):
				if cuts++; cuts == 1 {
					first = fmt.Sprintf("%s:%d", name, n)
				}
			case wrong != nil:
				err = fmt.Errorf("%s:%d: %w", name, n, wrong)
			default:
				r.Add(line)
			}
		}
		_ = in.Close()
		if !errors.Is(err, io.EOF) {
			return "", err
		}
	}
	if cuts > 0 {
		cut = fmt.Sprintf("%s: the line is cut short, and was left out (%d such lines)", first, cuts)
	}
	return cut, nil
}

// openDecisions opens a file; - is standard input, whose size is not known.
func openDecisions(c *cobra.Command, name string) (io.ReadCloser, int64, error) {
	if name == "-" {
		return io.NopCloser(c.InOrStdin()), 0, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, fmt.Errorf("read the decision log: %w", err)
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a folder: name its files, the oldest first", name)
	}
	if err != nil {
		_ = f.Close()
		return nil, 0, fmt.Errorf("read the decision log: %w", err)
	}
	return f, info.Size(), nil
}

// readLine reads one line. Its error is io.EOF for the last line, which may be empty.
func readLine(r *bufio.Reader) (line []byte, err error) {
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxDecision {
			return nil, fmt.Errorf("the line has more than %d MiB: this is no decision log", maxDecision>>20)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

func writeReplay(out io.Writer, r *sim.ReplayResult, cut string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s decisions of %s, from %s to %s\n\n", report.Count(r.Decisions), r.Recorded.Policy,
		r.From.UTC().Format("2006-01-02 15:04:05"), r.To.UTC().Format("2006-01-02 15:04:05 MST"))
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "policy\tother worker %\tno worker\tpredicted hit rate %\tpredicted TTFT mean\tp50\tp90\tp99\tbusiest %\t")
	row := func(name, other, none, busiest string, p *sim.ReplayedPolicy) {
		fmt.Fprintf(t, "%s\t%s\t%s\t%.1f\t%s\t%s\t%s\t%s\t%s\t\n", name, other, none, share(p.PredictedTokens, p.PromptTokens),
			report.Milliseconds(p.FirstToken.Mean), report.Milliseconds(p.FirstToken.P50), report.Milliseconds(p.FirstToken.P90), report.Milliseconds(p.FirstToken.P99), busiest)
	}
	row("as recorded", "-", "-", "-", &r.Recorded)
	for i := range r.Policies {
		p := &r.Policies[i]
		row(p.Policy, fmt.Sprintf("%.1f", share(p.Other, r.Decisions)), fmt.Sprint(p.None), fmt.Sprintf("%.1f", 100*p.Busiest), p)
	}
	_ = t.Flush() // a strings.Builder never returns an error
	b.WriteByte('\n')
	if m := &r.Measured; m.Reports > 0 {
		fmt.Fprintf(&b, "Measured: hit rate %.1f %% (%s answers with a report)", share(m.ReportedTokens, m.PromptTokens), report.Count(m.Reports))
		if m.FirstToken.Count > 0 {
			fmt.Fprintf(&b, ", TTFT mean %s, p90 %s (%s streams)", report.Milliseconds(m.FirstToken.Mean), report.Milliseconds(m.FirstToken.P90), report.Count(m.FirstToken.Count))
		}
		b.WriteByte('\n')
	}
	if r.LeftOut > 0 {
		fmt.Fprintf(&b, "%s lines have no facts of a decision, and were left out\n", report.Count(r.LeftOut))
	}
	if cut != "" {
		fmt.Fprintln(&b, cut)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// share returns n of all in percent.
func share(n, all int64) float64 { return 100 * float64(n) / float64(max(all, 1)) }
