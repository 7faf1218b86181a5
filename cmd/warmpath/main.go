// Command warmpath routes LLM requests by what the workers' KV caches hold, and by the workers' load.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath/internal/config"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// These are the exit codes. They distinguish a mistake in the command line from a command that failed.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError is a mistake in the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// run executes the command line and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	// The first signal ends the command in an orderly way; a second signal ends the process immediately.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer close(signals)
	defer signal.Stop(signals)
	go onSecond(signals, func(s os.Signal) { endAtOnce(stderr, s) }) // ends with signals

	root := newRoot()
	root.SetArgs(joinValues(args))
	root.SetOut(stdout)
	root.SetErr(stderr)
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	text, code := fmt.Sprintf("warmpath: %s\n", config.Redact(err.Error())), exitFailed
	var usage usageError
	if errors.As(err, &usage) {
		text += fmt.Sprintf("Try `%s --help`.\n", command.CommandPath())
		code = exitUsage
	}
	written := make(chan struct{})
	go func() { // ends with the write, or with the process
		defer close(written)
		_, _ = io.WriteString(stderr, text)
	}()
	var limit <-chan time.Time
	if command.Name() == "serve" || command.Name() == "index" { // a router ends also if somebody holds its standard error and does not read
		limit = time.After(time.Second)
	}
	select {
	case <-written:
	case <-limit:
	}
	return code
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "warmpath",
		Short: "Send each LLM request to the worker whose KV cache is warm for it",
		Long: `Warmpath sends each LLM request to the worker where it costs least: little of its prompt is
missing in the worker's KV cache, and few other requests are delayed. Warmpath knows the caches
from the engines' own cache events (vLLM, SGLang, TensorRT-LLM).
A header of each answer says how much of the prompt was cached (gateway.headers turns it off).

Start with "warmpath demo": three policies on mock engines, side by side on this machine.
Then "warmpath serve --worker URL" with your engines.`,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return c.Help()
		},
	}
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return usageError{flagError(c, err)} })
	root.AddCommand(newServe(), newIndex(), newExplain(), newMock(), newDemo(), newConfig(), newVersion(), newMan(), newCompletion())
	root.AddCommand(newDoctor(), newTokenize(), newTemplate())
	root.AddCommand(newSim(), newPlan(), newReplay())
	root.AddCommand(newWorkload(), newLoad(), newCalibrate(), newReportCommand())
	root.CompletionOptions.DisableDefaultCmd = true
	addCompletions(root)
	return root
}

// flagError returns err, an error about a flag of c, in words for the user. For an unknown flag it suggests a similar
// flag, and one of another router only if no other is similar.
func flagError(c *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		return valueError(invalid)
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	var known, hidden []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			hidden = append(hidden, "--"+f.Name)
		} else {
			known = append(known, "--"+f.Name)
		}
	})
	name := unknown.GetSpecifiedName()
	hint := config.Meant("--"+name, known)
	// sglang_router.launch_server takes the router's flags with this prefix.
	if short, cut := strings.CutPrefix(name, "router-"); hint == "" && cut && c.Flags().Lookup(short) != nil {
		hint = "; did you mean --" + short + "?"
	}
	if hint == "" {
		hint = config.Meant("--"+name, hidden) // flags of other routers
	}
	return fmt.Errorf("%w%s", err, hint)
}

// flagTypes says in words what the values of a flag are, by the name that pflag gives to the flag's type.
var flagTypes = map[string]string{
	"bool":     "true or false",
	"duration": "a time with its unit, such as 500ms, 10s or 5m",
	"float64":  "a number",
	"int":      "a whole number",
	"intSlice": "a list of whole numbers, such as 1,2,4",
	"uint64":   "a whole number of 0 or more",
}

// valueError says what is wrong with the value of a flag. The errors of pflag quote the errors of Go's parsers, which a
// user need not know.
func valueError(err *pflag.InvalidValueError) error {
	want, known := flagTypes[err.GetFlag().Value.Type()]
	switch {
	case !known: // the flag has a type of this program, which says by itself what is wrong
		return fmt.Errorf("--%s: %w", err.GetFlag().Name, errors.Unwrap(err))
	case errors.Is(err, strconv.ErrRange) && strings.HasPrefix(err.GetValue(), "-"):
		return fmt.Errorf("--%s: %q is too small", err.GetFlag().Name, err.GetValue())
	case errors.Is(err, strconv.ErrRange):
		return fmt.Errorf("--%s: %q is too large", err.GetFlag().Name, err.GetValue())
	}
	return fmt.Errorf("--%s: %q is not %s", err.GetFlag().Name, err.GetValue(), want)
}

// typed returns the command line without passwords and keys, for reports that are stored or shown.
func typed() string { return config.Redact("warmpath " + strings.Join(os.Args[1:], " ")) }

// noArgs refuses arguments. For a command with subcommands, an argument is a misspelt command.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !c.HasSubCommands() {
		if c.Flags().Lookup("worker") != nil && strings.Contains(args[0], "://") {
			return usageError{fmt.Errorf("%q is not understood: write --worker %s", args[0], args[0])}
		}
		return usageError{fmt.Errorf("%q is not understood: %s takes flags only", args[0], c.CommandPath())}
	}
	c.SuggestionsMinimumDistance = 2 // cobra's own default, which cobra would set only after this call
	err := fmt.Errorf("there is no command %q", args[0])
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("there is no command %q; did you mean %q?", args[0], near[0])
	}
	return usageError{err}
}
