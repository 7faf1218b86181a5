package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/internal/engine"
	"github.com/warmpath/warmpath/internal/loadgen"
)

// calibrateFlags are the flags of the command calibrate.
type calibrateFlags struct {
	measured, splitwise string
	choice              string
	base, name          string
	output              string
	asJSON              bool
	ladder              loadgen.Ladder
	cfg                 loadgen.Config
	kvTokens, batch     int
}

func newCalibrate() *cobra.Command {
	f := calibrateFlags{cfg: loadgen.DefaultConfig(), ladder: loadgen.DefaultLadder()}
	c := &cobra.Command{
		Use:   "calibrate [URL]",
		Short: "Fit an engine's timing profile, from a live engine or from measurements",
		Long: `Fit the timing profile of an engine, and print how well it explains the measurements. Three ways:

  warmpath calibrate URL                 measure prompts and decode passes of growing size on an idle engine
  warmpath calibrate --measured FILE     JSONL of served requests: input_toks, output_toks, queued_ts,
                                         scheduled_ts, first_token_ts, last_token_ts (seconds)
  warmpath calibrate --splitwise FILE    perf_model.csv of splitwise-sim, with --select MODEL,HARDWARE,PARALLEL

Use the profile with "warmpath sim --profile FILE". Times do not show the size of the cache and some
other facts: these come from the base profile, or from --kv-tokens.`,
		Example: "  warmpath calibrate http://127.0.0.1:8000 --kv-tokens 412000 -o mine.json",
		Args: func(c *cobra.Command, args []string) error {
			ways := len(args)
			for _, given := range []string{f.measured, f.splitwise} {
				if given != "" {
					ways++
				}
			}
			if ways != 1 {
				return usageError{errors.New("give one of these: a URL, --measured FILE or --splitwise FILE")}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return f.run(c, args) },
	}
	flags := c.Flags()
	flags.StringVar(&f.measured, "measured", "", "`FILE` of measured requests")
	flags.StringVar(&f.splitwise, "splitwise", "", "`FILE` perf_model.csv of splitwise-sim")
	flags.StringVar(&f.choice, "select", "", "with --splitwise: use the rows of `MODEL,HARDWARE,PARALLEL`")
	flags.StringVar(&f.base, "base", engine.Profiles()[0].Name, "`NAME` or file of the base profile, which gives the facts that are not measured")
	flags.StringVar(&f.name, "name", "calibrated", "`NAME` of the new profile")
	flags.StringVarP(&f.output, "output", "o", "", "`FILE` for the profile (default: standard output)")
	flags.BoolVar(&f.asJSON, "json", false, "write the errors of the fit as JSON to standard error")
	flags.IntVar(&f.kvTokens, "kv-tokens", 0, "`TOKENS` that the engine's cache holds (0: as in the base profile)")
	flags.IntVar(&f.batch, "batch-tokens", 0, "`TOKENS` that the engine computes in a pass (0: found from the measurements with --measured, otherwise as in the base profile)")
	flags.StringVar(&f.cfg.Model, "model", "", "`NAME` of the model to ask for (default: the first that the address serves)")
	flags.IntSliceVar(&f.ladder.Prompts, "prompts", f.ladder.Prompts, "with a URL: measure prompts of these `TOKENS`")
	flags.IntSliceVar(&f.ladder.Sequences, "sequences", f.ladder.Sequences, "with a URL: measure decode passes of `N` requests each")
	flags.IntSliceVar(&f.ladder.Contexts, "contexts", f.ladder.Contexts, "with a URL: prompt `TOKENS` of each request in a decode pass")
	flags.IntVar(&f.ladder.Repeats, "repeats", f.ladder.Repeats, "with a URL: measure each size `N` times")
	flags.IntVar(&f.cfg.Vocabulary, "vocabulary", 0, "keep made-up token ids below `N` (0: below 17,384)")
	return c
}

func (f *calibrateFlags) run(c *cobra.Command, args []string) error {
	base, err := findProfile(f.base)
	if err != nil {
		return usageError{err}
	}
	if f.kvTokens > 0 {
		base.KVTokens = f.kvTokens
	}
	if f.batch > 0 {
		base.MaxBatchTokens = f.batch
	}
	p, q, err := f.fit(c, base, args)
	if err != nil {
		return err
	}
	p.Name = f.name
	if err := f.tell(c.ErrOrStderr(), &q); err != nil {
		return err
	}
	data, err := p.JSON()
	if err != nil {
		return err
	}
	if f.output == "" {
		_, err = c.OutOrStdout().Write(data)
		return err
	}
	return os.WriteFile(f.output, data, 0o644)
}

// findProfile finds a profile by its name, or reads it from a file.
func findProfile(name string) (engine.Profile, error) {
	p, err := engine.FindProfile(name)
	if err == nil {
		return p, nil
	}
	data, readErr := os.ReadFile(name)
	if readErr != nil {
		return engine.Profile{}, err
	}
	return engine.ReadProfile(data)
}

func (f *calibrateFlags) fit(c *cobra.Command, base engine.Profile, args []string) (engine.Profile, loadgen.Quality, error) {
	p := base
	today := time.Now().Format(time.DateOnly)
	if f.measured != "" {
		var rows []loadgen.Measured
		err := readFile(f.measured, func(r io.Reader) (err error) {
			rows, err = loadgen.ReadMeasured(r)
			return err
		})
		if err != nil {
			return p, loadgen.Quality{}, err
		}
		p, q, err := loadgen.FitMeasured(rows, base)
		p.About, p.Source = "", fmt.Sprintf("fitted to %d measured requests of %s on %s; the rest as in %s", len(rows), f.measured, today, base.Name)
		return p, q, err
	}
	var points []loadgen.Point
	var err error
	if f.splitwise != "" {
		points, err = f.readSplitwise()
		p.About, p.Source = f.choice, fmt.Sprintf("fitted to %d points of %s on %s; the rest as in %s", len(points), f.splitwise, today, base.Name)
		p.MaxBatchTokens = 1 << 20 // the measurements of Splitwise computed each prompt in one pass
	} else {
		points, err = f.climb(c, args[0])
		p.About, p.Source = "", fmt.Sprintf("fitted to a ladder of %d points on a live engine on %s; the rest as in %s", len(points), today, base.Name)
	}
	if err != nil {
		return p, loadgen.Quality{}, err
	}
	l, overhead, q, err := loadgen.FitPoints(points, p.MaxBatchTokens)
	if f.splitwise != "" {
		p.MaxBatchTokens = base.MaxBatchTokens
	}
	p.Timing = l
	p.About = strings.TrimSpace(fmt.Sprintf("%s (a request costs %.1f ms beside its passes, which is not part of the profile)", p.About, overhead))
	return p, q, err
}

func (f *calibrateFlags) climb(c *cobra.Command, address string) ([]loadgen.Point, error) {
	targets, err := loadgen.ParseTargets(address)
	if err != nil {
		return nil, usageError{err}
	}
	f.cfg.Targets = targets
	// The ladder needs new prompts, because the prompts of earlier calibrations may still be in the engine's cache.
	f.ladder.Nonce = uint64(time.Now().UnixNano())
	out := c.ErrOrStderr()
	f.ladder.Progress = func(done, total int, what string) {
		fmt.Fprintf(out, "%d/%d %s\n", done, total, what)
	}
	return f.ladder.Climb(c.Context(), f.cfg)
}

func (f *calibrateFlags) readSplitwise() ([]loadgen.Point, error) {
	parts := append(strings.Split(f.choice, ","), "", "", "")
	parallel := 0
	if parts[2] != "" {
		var err error
		if parallel, err = strconv.Atoi(parts[2]); err != nil {
			return nil, usageError{fmt.Errorf("--select %s: want MODEL,HARDWARE,PARALLEL", f.choice)}
		}
	}
	var points []loadgen.Point
	err := readFile(f.splitwise, func(r io.Reader) (err error) {
		points, err = loadgen.ReadSplitwise(r, parts[0], parts[1], parallel)
		return err
	})
	return points, err
}

// readFile opens path for read. Its errors name the file.
func readFile(path string, read func(io.Reader) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // the file was only read, so an error of Close does not matter
	if err := read(file); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// tell prints how well the profile fits the measurements.
func (f *calibrateFlags) tell(out io.Writer, q *loadgen.Quality) error {
	if f.asJSON {
		return writeIndented(out, q)
	}
	for _, e := range q.Errors {
		fmt.Fprintf(out, "%-22s %4d measured, mean %.1f ms; modelled %.1f ms (%+.1f %%); mean error %.1f %%, worst %.1f %%\n",
			e.What, e.Count, e.Measured, e.Modelled, 100*e.Bias, 100*e.Absolute, 100*e.Worst)
	}
	return nil
}
