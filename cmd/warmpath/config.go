package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/internal/config"
)

// noWorkers is the warning about a file without workers. It is no error, because workers can be added to a router that
// runs.
const noWorkers = `warning: %s has no workers, so a router with this file refuses every request.
Add them to the file:     workers: [{url: http://gpu-1:8000}]
or name them to serve:    warmpath serve --worker http://gpu-1:8000 --config FILE
A running router reads workers that were added to its file, within seconds or after SIGHUP or POST /admin/reload.
`

func newConfig() *cobra.Command {
	c := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration file, or print one to start from",
		Args:  noArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(&cobra.Command{
		Use:   "check FILE",
		Short: "Check FILE and print everything that is wrong with it",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{fmt.Errorf("config check takes one file, not %d", len(args))}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			cfg, err := config.Load(args[0], nil)
			if err != nil {
				return err
			}
			workers := fmt.Sprintf("%d workers", len(cfg.Workers))
			switch len(cfg.Workers) {
			case 1:
				workers = "1 worker"
			case 0:
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
	})
	return c
}
