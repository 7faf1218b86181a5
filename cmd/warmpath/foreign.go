package main

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/warmpath/warmpath/internal/config"
)

// addForeign adds the flags of other routers, hidden from the help: docs/migrate.md lists them. A flag that serve has
// itself stays.
func addForeign(flags *pflag.FlagSet) {
	for _, row := range config.ForeignFlags() {
		switch {
		case flags.Lookup(row.Name) != nil:
			continue
		case row.Form == config.NoValue:
			flags.Bool(row.Name, false, "a flag of "+row.Of)
		default:
			flags.StringArray(row.Name, nil, "a `VALUE` of a flag of "+row.Of)
		}
		_ = flags.MarkHidden(row.Name) // the flag exists
	}
}

// givenForeign returns the flags of the command line that other routers have, too.
func givenForeign(flags *pflag.FlagSet) (given []config.GivenFlag) {
	rows := slices.Concat(config.SharedFlags(), config.ForeignFlags())
	flags.Visit(func(f *pflag.Flag) {
		i := slices.IndexFunc(rows, func(row config.ForeignFlag) bool { return row.Name == f.Name })
		if i < 0 {
			return
		}
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		if rows[i].Form == config.OneValue && len(values) > 1 {
			values = values[len(values)-1:] // as in argparse, the last one counts
		}
		if rows[i].Form == config.NoValue && values[0] != "true" {
			return
		}
		given = append(given, config.GivenFlag{Name: f.Name, Values: values})
	})
	return given
}

// checkForeign returns what the flags of other routers become, or an error with every flag that cannot be honoured.
func (f *serveFlags) checkForeign(c *cobra.Command) ([]config.MappedFlag, error) {
	scratch := config.Default()
	if f.file != "" {
		if cfg, err := config.Load(f.file, nil); err == nil { // serve reports the errors of the file
			scratch = *cfg
		}
	}
	if len(f.targets) > 0 {
		scratch.Workers = f.targets
	}
	mapped, err := config.ApplyForeign(&scratch, givenForeign(c.Flags()))
	if err != nil {
		return nil, usageError{err}
	}
	return mapped, nil
}

// blameForeign adds to an error about settings which of them a flag of another router has set: the user knows the flag
// only.
func blameForeign(err error, mapped []config.MappedFlag) error {
	for _, m := range mapped {
		setting, _, _ := strings.Cut(m.Setting, ":")
		setting, _, _ = strings.Cut(setting, " (") // a remark follows
		text := "\n" + err.Error()                 // a line begins with the setting, or with its place in the file
		if setting != "" && (strings.Contains(text, "\n"+setting+": ") || strings.Contains(text, " "+setting+": ")) {
			err = fmt.Errorf("%w\n%s sets %s", err, m.Flag, setting)
		}
	}
	return err
}

// logForeign says what became of each flag of another router.
func logForeign(log *slog.Logger, mapped []config.MappedFlag) {
	for _, m := range mapped {
		switch {
		case m.Setting == "":
			log.Warn("a flag of another router has no effect", "flag", m.Flag, "of", m.Of, "what_to_do", m.Advice)
		case m.Advice != "":
			log.Warn("a flag of another router was mapped to a setting", "flag", m.Flag, "of", m.Of, "setting", m.Setting, "what_to_do", m.Advice)
		default:
			log.Info("a flag of another router was mapped to a setting", "flag", m.Flag, "of", m.Of, "setting", m.Setting)
		}
	}
}

// joinValues rewrites `--worker-urls A B` to `--worker-urls=A --worker-urls=B`: other routers take all arguments up to
// the next flag as values.
func joinValues(args []string) []string {
	if len(args) == 0 || args[0] != "serve" {
		return args
	}
	many := map[string]bool{}
	for _, row := range config.ForeignFlags() {
		many["--"+row.Name] = row.Form == config.ManyValues
	}
	var out []string
	flag := ""
	for i, arg := range args {
		switch {
		case strings.HasPrefix(arg, "-") || i == 0:
			flag = ""
			if many[arg] && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
				flag = arg
				continue
			}
			out = append(out, arg)
		case flag != "":
			out = append(out, flag+"="+arg)
		default:
			out = append(out, arg)
		}
	}
	return out
}
