package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/internal/report"
)

func newReportCommand() *cobra.Command {
	var out output
	c := &cobra.Command{
		Use:   "report FILE…",
		Short: "Show reports side by side: simulated and measured, before and after",
		Long: `Read JSON reports of sim, plan and load, and show them together: as a table, and with --html as a
page with plots. So predictions stand beside measurements.

  warmpath sim --workload mooncake:trace.jsonl --policies marginal --json > simulated.json
  warmpath load http://127.0.0.1:8080 --workload mooncake:trace.jsonl -o measured.json
  warmpath report simulated.json measured.json --html both.html`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{fmt.Errorf("name a report: a file that `warmpath sim --json` or `warmpath load -o` wrote")}
			}
			names, reports := make([]string, len(args)), make([]*report.Report, len(args))
			for i, path := range args {
				names[i] = strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
				r, err := readReport(path)
				if err != nil {
					return fmt.Errorf("%s: %w", path, err)
				}
				reports[i] = r
			}
			if len(reports) == 1 {
				return out.write(c, reports[0])
			}
			all, err := report.Beside(names, reports)
			if err != nil {
				return err
			}
			all.Command = c.CommandPath() + " " + strings.Join(args, " ")
			return out.write(c, all)
		},
	}
	out.flags(c.Flags())
	return c
}

func readReport(path string) (*report.Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, errors.Unwrap(err) // the error without the path, because the caller adds the path
	}
	defer func() { _ = f.Close() }() // the file was only read, so an error of Close does not matter
	return report.Read(f)
}
