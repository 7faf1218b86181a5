package migrate

import (
	"errors"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/internal/config"
)

// flag records that a key has the meaning of a flag.
func (c *converter) flag(key, name string, values ...string) {
	if c.keys == nil {
		c.keys = map[string]string{}
	}
	c.keys[name] = key
	c.given = append(c.given, config.GivenFlag{Name: name, Values: values})
}

// knownFlags are all flags of other routers that serve takes.
func knownFlags() []config.ForeignFlag {
	return slices.Concat(config.SharedFlags(), config.ForeignFlags())
}

// flags applies the flags. A flag that cannot be honoured becomes a note.
func (c *converter) flags() error {
	var usable []config.GivenFlag
	table := knownFlags()
	for _, g := range c.given {
		i := slices.IndexFunc(table, func(f config.ForeignFlag) bool { return f.Name == g.Name })
		switch {
		case i < 0:
			c.note(c.keys[g.Name], nil, "")
		case table[i].Refused:
			c.note(c.keys[g.Name], nil, table[i].Advice)
		default:
			usable = append(usable, g)
		}
	}
	mapped, err := config.ApplyForeign(&c.Config, usable)
	for _, m := range mapped {
		if name, _, _ := strings.Cut(strings.TrimPrefix(m.Flag, "--"), " "); m.Advice != "" {
			c.note(c.keys[name], nil, m.Advice)
		}
	}
	return c.namesKeys(err)
}

// namesKeys returns an error about flags with the keys of the old file in place of the flags' names.
func (c *converter) namesKeys(err error) error {
	if err == nil {
		return nil
	}
	var lines []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		name, problem, _ := strings.Cut(strings.TrimPrefix(line, "--"), ": ")
		if key := c.keys[name]; key != "" {
			line = key + ": " + problem
		}
		lines = append(lines, line)
	}
	return errors.New(strings.Join(lines, "\n"))
}

// arguments reads the command line of a router. Flags that are not known become notes.
func (c *converter) arguments(key string, args []string) {
	forms := map[string]config.FlagForm{}
	for _, f := range knownFlags() {
		forms[f.Name] = f.Form
	}
	for i := 0; i < len(args); i++ {
		name, value, joined := strings.Cut(strings.TrimPrefix(args[i], "--"), "=")
		form, known := forms[name]
		if !strings.HasPrefix(args[i], "--") || !known {
			if strings.HasPrefix(args[i], "--") {
				c.note(key+" --"+name, nil, "")
			}
			continue
		}
		var values []string
		switch {
		case joined:
			values = []string{value}
		case form == config.NoValue:
			values = []string{"true"}
		default:
			for i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") && (form == config.ManyValues || len(values) == 0) {
				i++
				values = append(values, args[i])
			}
		}
		if len(values) > 0 {
			c.flag(key+" --"+name, name, values...)
		}
	}
}

// variables reads environment variables: DYN_ROUTER_X has the meaning of --router-x, and DYN_X of --x.
func (c *converter) variables(key string, envs *config.Node) {
	known := map[string]config.FlagForm{}
	for _, f := range config.ForeignFlags() {
		known[f.Name] = f.Form
	}
	for _, e := range envs.Entries() {
		variable, value := text(e.Get("name")), text(e.Get("value"))
		rest, ok := strings.CutPrefix(variable, "DYN_")
		if !ok || value == "" {
			continue
		}
		name := strings.ToLower(strings.ReplaceAll(rest, "_", "-"))
		if name == "router-use-kv-events" {
			name = "router-kv-events"
		}
		form, is := known[name]
		if off := "no-" + name; is && form == config.NoValue && (value == "false" || value == "0") {
			if _, has := known[off]; !has {
				continue
			}
			name = off
		}
		if !is {
			c.note(key+" "+variable, unlessSecret(config.Pair{Key: variable, Value: e.Get("value")}), "")
			continue
		}
		c.flag(key+" "+variable, name, value)
	}
}
