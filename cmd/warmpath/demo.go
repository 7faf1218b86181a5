package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/warmpath/warmpath/internal/demo"
)

func newDemo() *cobra.Command {
	var stay bool
	c := &cobra.Command{
		Use:   "demo",
		Short: "See it work: four mock engines, the gateway and a workload, in half a minute",
		Long: `Start four mock engines, the gateway and a workload of agent-like conversations in one
process on loopback, first round-robin, then kv_aware on fresh engines; print the comparison
and check every prediction against the engines' own reports. Nothing is downloaded.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, err := demo.Run(c.Context(), demo.Options{Out: c.OutOrStdout(), Live: isTerminal(c.OutOrStdout()), Stay: stay})
			return err
		},
	}
	c.Flags().BoolVar(&stay, "stay", false, "leave the engines and the gateway running and print their URLs")
	return c
}

// isTerminal reports whether out is a character device, where lines can be drawn again.
func isTerminal(out any) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
