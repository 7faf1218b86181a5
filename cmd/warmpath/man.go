package main

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath/internal/config"
)

func newMan() *cobra.Command {
	return &cobra.Command{
		Use:   "man",
		Short: "Print the manual page, for man",
		Long: `Print the manual page of all commands, in the form that man reads:

  warmpath man | man -l -
  warmpath man > /usr/local/share/man/man1/warmpath.1`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return writeManual(c.OutOrStdout(), c.Root()) },
	}
}

// writeManual writes the page in the macros of man(7). It has no date, so that each version of the program has one
// page.
func writeManual(out io.Writer, root *cobra.Command) error {
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, ".TH WARMPATH 1 \"\" \"warmpath %s\" \"User Commands\"\n.nh\n.ad l\n", roff(release()))
	fmt.Fprintf(w, ".SH NAME\nwarmpath \\- %s\n", roff(lowerFirst(root.Short)))
	fmt.Fprint(w, ".SH SYNOPSIS\n.B warmpath\n.I COMMAND\n[\\fIFLAG\\fR ...]\n.SH DESCRIPTION\n")
	writeRoffText(w, root.Long)
	fmt.Fprint(w, ".SH COMMANDS\n")
	eachCommand(root, func(c *cobra.Command) {
		if c == root {
			return
		}
		fmt.Fprintf(w, ".SS %s\n", roff(c.UseLine()))
		long := c.Long
		if long == "" {
			long = c.Short + "."
		}
		writeRoffText(w, long)
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && f.Name != "help" {
				writeRoffFlag(w, f)
			}
		})
	})
	fmt.Fprint(w, ".SH EXIT STATUS\n.TP\n0\nsuccess\n.TP\n1\nthe command failed\n.TP\n2\nthere is a mistake in the command line\n.SH ENVIRONMENT\n")
	for _, v := range [][2]string{
		{config.EnvAdminKey, "key of the admin listener"}, {config.EnvIndexKey, "key of the index service"}, {config.EnvSyncKey, "key of the group of routers that share their requests"},
		{config.EnvSyncPassword, "password at NATS, for sync.user"}, {config.EnvSyncToken, "token at NATS"},
		{config.EnvHubToken, "token for gated models on the hub"}, {config.EnvHubEndpoint, "address of the hub"},
	} {
		fmt.Fprintf(w, ".TP\n.B %s\n%s\n", roff(v[0]), roff(v[1]))
	}
	return w.Flush()
}

// eachCommand calls f with c and all commands below it that the help lists, except help itself.
func eachCommand(c *cobra.Command, f func(*cobra.Command)) {
	f(c)
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" {
			eachCommand(sub, f)
		}
	}
}

// writeRoffText writes paragraphs. Indented lines are examples, which are not filled.
func writeRoffText(w io.Writer, text string) {
	example, blank := false, false
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		switch indented := strings.HasPrefix(line, "  "); {
		case strings.TrimSpace(line) == "":
			blank = true
		case indented != example:
			fmt.Fprintln(w, map[bool]string{true: ".PP\n.RS 4\n.nf", false: ".fi\n.RE\n.PP"}[indented])
			example, blank = indented, false
			fmt.Fprintln(w, roff(strings.TrimPrefix(line, "  ")))
		default:
			if blank && !example {
				fmt.Fprintln(w, ".PP")
			}
			blank = false
			fmt.Fprintln(w, roff(strings.TrimPrefix(line, "  ")))
		}
	}
	if example {
		fmt.Fprintln(w, ".fi\n.RE")
	}
}

func writeRoffFlag(w io.Writer, f *pflag.Flag) {
	name, usage := pflag.UnquoteUsage(f)
	fmt.Fprint(w, ".TP\n")
	if f.Shorthand != "" {
		fmt.Fprintf(w, "\\fB\\-%s\\fR, ", roff(f.Shorthand))
	}
	fmt.Fprintf(w, "\\fB%s\\fR", roff("--"+f.Name))
	if name != "" {
		fmt.Fprintf(w, " \\fI%s\\fR", roff(name))
	}
	fmt.Fprintf(w, "\n%s", roff(usage))
	if d := f.DefValue; d != "" && d != "false" && d != "[]" && d != "0" && d != "0s" {
		fmt.Fprintf(w, " (default %s)", roff(d))
	}
	fmt.Fprintln(w)
}

// roff escapes a text: backslashes, minus signs, and a dot or an apostrophe at the beginning of a line, which would be
// a request. A line may be broken before each optional part of a long value, "[,": it has no spaces.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n", " ", "…", "...", "’", "'", "[,", `\:[,`).Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

func lowerFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}
