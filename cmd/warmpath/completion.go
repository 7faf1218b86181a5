package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath"
)

func newCompletion() *cobra.Command {
	scripts := map[string]func(*cobra.Command, io.Writer) error{
		"bash":       func(root *cobra.Command, out io.Writer) error { return root.GenBashCompletionV2(out, true) },
		"zsh":        (*cobra.Command).GenZshCompletion,
		"fish":       func(root *cobra.Command, out io.Writer) error { return root.GenFishCompletion(out, true) },
		"powershell": (*cobra.Command).GenPowerShellCompletionWithDesc,
	}
	shells := slices.Sorted(maps.Keys(scripts))
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print a script that completes commands in your shell: bash, zsh, fish or powershell",
		Long: `Print a script with which the shell completes commands, flags and their values:

  source <(warmpath completion bash)         # in ~/.bashrc; needs the package bash-completion
  source <(warmpath completion zsh)          # in ~/.zshrc, after compinit
  warmpath completion fish | source          # in ~/.config/fish/config.fish`,
		ValidArgs: shells,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || scripts[args[0]] == nil {
				return usageError{fmt.Errorf("completion takes the name of a shell: %s", strings.Join(shells, ", "))}
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error { return scripts[args[0]](c.Root(), c.OutOrStdout()) },
	}
}

// listOf completes the last name of a list, as in kv_aware,marginal. Most flags for policies take a list. Parameters of
// a policy, which a colon begins, are not completed.
func listOf(names []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		var all []cobra.Completion
		if before := typed[:strings.LastIndexByte(typed, ',')+1]; !strings.Contains(typed, ":") {
			for _, name := range names {
				all = append(all, before+name)
			}
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	}
}

// addCompletions tells the shells which values flags take, and which commands take no file names.
func addCompletions(root *cobra.Command) {
	var policies []string
	for _, k := range warmpath.PolicyKinds() {
		policies = append(policies, k.Name)
	}
	values := map[string]cobra.CompletionFunc{
		"policy":    listOf(policies),
		"policies":  listOf(policies),
		"log-level": cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp),
		"kind":      cobra.FixedCompletions([]string{"vllm", "sglang"}, cobra.ShellCompDirectiveNoFileComp),
		"worker":    cobra.FixedCompletions([]string{"http://"}, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace),
		"admin":     cobra.FixedCompletions([]string{"http://"}, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace),
		"listen":    cobra.NoFileCompletions, "admin-listen": cobra.NoFileCompletions,
		"config": cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt),
	}
	eachCommand(root, func(c *cobra.Command) {
		if c.ValidArgsFunction == nil && !strings.Contains(c.Use, " ") { // it takes no arguments
			c.ValidArgsFunction = cobra.NoFileCompletions
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if complete := values[f.Name]; complete != nil {
				_ = c.RegisterFlagCompletionFunc(f.Name, complete) // fails only if the flag does not exist
			}
		})
	})
}
