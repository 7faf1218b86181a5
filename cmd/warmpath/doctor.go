package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/doctor"
)

// doctorFlags say which workers to examine.
type doctorFlags struct {
	file                       string
	workers, modelPaths, seeds []string
	listen, prompt             time.Duration
	noFiles, json              bool
}

func newDoctor() *cobra.Command {
	var f doctorFlags
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Examine workers: say why cached prompts are not found, and how to fix it",
		Long: `Examine workers, and say what keeps their KV caches from being used, and how to fix it:

  warmpath doctor --worker http://gpu-1:8000 --worker http://gpu-2:8000
  warmpath doctor --config warmpath.yaml

The doctor asks each worker for its settings, listens to its KV events, and sends three short
prompts with max_tokens 1; the first two have a common beginning. It compares what the engine says,
publishes and caches with what the router needs, and the workers with each other. It changes
nothing at a worker. No router has to run.

The exit code is 0 if no problem was found, 1 if there are errors or warnings, and 2 for a mistake
in the command line. Notes are no problems. docs/troubleshooting.md explains each check.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return examine(c, &f) },
	}
	flags := c.Flags()
	flags.StringArrayVar(&f.workers, "worker", nil, "`URL` of an engine, with options as for serve; repeatable")
	flags.StringVar(&f.file, "config", "", "`FILE` of the router, whose workers are examined, with those of workers_file and workers_dns")
	flags.StringArrayVar(&f.modelPaths, "model-path", nil, "`[NAME=]DIR` with a model's tokenizer and chat template, to compare with the engine; repeatable")
	flags.BoolVar(&f.noFiles, "no-files", false, "do not look for models' files, and do not compare ids made from them")
	flags.StringArrayVar(&f.seeds, "seed", nil, "`TEXT` of PYTHONHASHSEED to try for the engine's block hashes, in addition to the usual ones; repeatable")
	flags.DurationVar(&f.listen, "listen-time", 10*time.Second, "longest time to wait for events")
	flags.DurationVar(&f.prompt, "prompt-time", 2*time.Minute, "longest time to wait for the answer to a prompt")
	flags.BoolVar(&f.json, "json", false, "print the report as JSON")
	return c
}

// options reads the flags and the file.
func (f *doctorFlags) options(ctx context.Context) (doctor.Options, error) {
	cfg := config.Default()
	if f.file != "" {
		read, err := config.Load(f.file, nil)
		if err != nil {
			return doctor.Options{}, err
		}
		cfg = *read
	}
	o := doctor.Options{Targets: slices.Concat(cfg.Workers, cfg.FileWorkers), Models: cfg.Models, Cache: config.Hub(cfg.Hub).Cache, FilesOff: f.noFiles, Seeds: f.seeds,
		Listen: f.listen, Prompt: f.prompt, BlockSize: cfg.Routing.BlockSize, BlockSizes: cfg.Routing.BlockSizes}
	if f.listen <= 0 || f.prompt <= 0 {
		return o, usageError{errors.New("--listen-time and --prompt-time must be longer than 0")}
	}
	if len(f.workers) > 0 {
		o.Targets = nil
	} else if found, err := cfg.WorkersDNS.Lookup(ctx, nil); err != nil {
		return o, fmt.Errorf("ask DNS for the names of workers_dns: %w; correct the names, or name the workers with --worker URL", err)
	} else {
		o.Targets = append(o.Targets, found...)
	}
	named, err := parseWorkers(f.workers)
	if err != nil {
		return o, err
	}
	o.Targets = append(o.Targets, named...)
	if len(o.Targets) == 0 && f.file != "" {
		return o, usageError{fmt.Errorf("there is no worker to examine, because %s has none: add workers to it, or name them with --worker URL", f.file)}
	}
	if len(o.Targets) == 0 {
		return o, usageError{errors.New("there is no worker to examine: name it with --worker URL, or give --config FILE with workers")}
	}
	if len(f.modelPaths) > 0 {
		o.Models, err = parseModelPaths(f.modelPaths, false)
	}
	return o, err
}

func examine(c *cobra.Command, f *doctorFlags) error {
	o, err := f.options(c.Context())
	if err != nil {
		return err
	}
	o.Progress = func(line string) { fmt.Fprintln(c.ErrOrStderr(), line) }
	report := doctor.Examine(c.Context(), o)
	if err := c.Context().Err(); err != nil {
		return fmt.Errorf("examine workers: %w", err)
	}
	if f.json {
		err = writeIndented(c.OutOrStdout(), report)
	} else {
		err = report.WriteText(c.OutOrStdout())
	}
	if err == nil && report.Problems() > 0 {
		err = errors.New("there are errors or warnings: the report says how to fix each of them")
	}
	return err
}
