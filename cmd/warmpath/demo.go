package main

import (
	"github.com/spf13/cobra"
)

func newDemo() *cobra.Command {
	var stay bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "See it work: three policies on mock engines, side by side, in half a minute",
		Long: `Run the same agent-like conversations with three policies at the same time: round_robin,
cache_aware (SMG's and SGLang's policy, built into Warmpath) and Warmpath's default. Each policy
has its own gateway and four mock engines, in one process on loopback. The output compares the
policies, and checks the default's predictions against the engines' own reports.

HTTP, prefix caches and KV events are real. Computing times are modelled; the output names the
modelled hardware. Except for the policy all settings are the defaults. Nothing is downloaded.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := runDemo(c.Context(), demoOptions{Out: c.OutOrStdout(), Live: isTerminal(c.OutOrStdout()), Stay: stay})
			return err
		},
	}
	c.Flags().BoolVar(&stay, "stay", false, "leave the default policy's gateway and engines running and print their URLs")
	return c
}
