package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/internal/config"
	"github.com/warmpath/warmpath/internal/config/migrate"
	"github.com/warmpath/warmpath/internal/telemetry"
)

// noWorkers is the warning about a file without workers. It is no error, because workers can be added to a router that
// runs.
const noWorkers = `warning: %s has no workers, so a router with this file refuses every request.
Add them to the file:     workers: [{url: http://gpu-1:8000}]
or name them to serve:    warmpath serve --worker http://gpu-1:8000 --config FILE
A running router reads workers that were added to its file, within seconds or after SIGHUP or POST /admin/reload.
`

// noFolder is the warning about a log in a folder that is missing.
const noFolder = "warning: the folder of the log %s does not exist on this machine: make it before a router starts with this file.\n"

func newConfig() *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration file, print one to start from, or migrate one of another router",
		Args:  noArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "Check FILE and print everything that is wrong with it",
		Args:  oneFile("config check"),
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := config.Load(args[0], nil)
			if err != nil {
				return err
			}
			for _, log := range []telemetry.JournalConfig{cfg.Telemetry.AccessLog, cfg.Telemetry.DecisionLog} {
				if log.NoFolder() { // no mistake of the file: it may be for another machine
					fmt.Fprintf(c.ErrOrStderr(), noFolder, log.File)
				}
			}
			for _, w := range cfg.Warnings() {
				fmt.Fprintf(c.ErrOrStderr(), "warning: %s.\n", w)
			}
			listed := len(cfg.Workers) + len(cfg.FileWorkers)
			workers := fmt.Sprintf("%d workers", listed)
			switch names := len(cfg.WorkersDNS.Names); {
			case names > 0:
				workers = fmt.Sprintf("workers: %d listed, and those of %d DNS names", listed, names)
			case listed == 1:
				workers = "1 worker"
			case listed == 0:
				fmt.Fprintf(c.ErrOrStderr(), noWorkers, args[0])
				_, err = fmt.Fprintf(c.OutOrStdout(), "%s has no mistakes, but no workers: policy %s\n", args[0], cfg.Policy)
				return err
			}
			_, err = fmt.Fprintf(c.OutOrStdout(), "%s is fine: policy %s, %s\n", args[0], cfg.Policy, workers)
			return err
		},
	}, &cobra.Command{
		Use:   "sample",
		Short: "Print a file with every setting at its default, with the reason",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(c.OutOrStdout(), config.Sample())
			return err
		},
	}, newMigrate())
	return c
}

// oneFile accepts one argument, the name of a file.
func oneFile(command string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usageError{fmt.Errorf("%s takes one file, not %d", command, len(args))}
		}
		return nil
	}
}

func newMigrate() *cobra.Command {
	return &cobra.Command{
		Use:   "migrate FILE",
		Short: "Print FILE, a configuration of another router, as a configuration of this one",
		Long: `Print FILE, a configuration of another router, as a configuration of this one. Keys without a
counterpart become comments that say what to do instead. Known files: those of the family of SMG
and vllm-router (worker_urls, mode, policy), the Helm values and the dynamic configuration of
vLLM's production stack, llm-d's EndpointPickerConfig and Dynamo's DynamoGraphDeployment.

  warmpath config migrate gateway.yaml > warmpath.yaml
  warmpath config check warmpath.yaml`,
		Args: oneFile("config migrate"),
		RunE: func(c *cobra.Command, args []string) error {
			data, err := readOld(args[0])
			if err != nil {
				return fmt.Errorf("read the old file: %w", err)
			}
			out, err := migrate.Convert(args[0], data)
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(out)
			return err
		},
	}
}

// maxOld bounds the size of a file to migrate, in bytes. Helm values have some tens of kilobytes.
const maxOld = 8 << 20

// readOld reads a whole file of bounded size.
func readOld(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxOld+1))
	if err == nil && len(data) > maxOld {
		err = fmt.Errorf("%s is longer than %d bytes", path, maxOld)
	}
	return data, err
}
