package migrate

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/config"
)

// file returns the new file: the settings that differ from the defaults, and the notes as comments.
func (c *converter) file(name, from string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# Made by warmpath config migrate from %s, %s.\n# Settings that are not here have their defaults: warmpath config sample.\n", line(name), from)
	fresh := config.Default()
	was, now := reflect.ValueOf(fresh), reflect.ValueOf(c.Config)
	for _, f := range reflect.VisibleFields(now.Type()) {
		key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		switch {
		case len(f.Index) > 1 || key == "" || key == "-":
		case key == "policy":
			b.WriteString(c.policyLines(fresh.Policy))
		case key == "workers":
			b.WriteString(c.workerLines())
		default:
			b.WriteString(changed(key, was.FieldByIndex(f.Index), now.FieldByIndex(f.Index)))
		}
	}
	if len(c.notes) > 0 {
		b.WriteString("\n# These keys of the old file have no setting here:\n")
		for _, n := range slices.Compact(c.notes) {
			fmt.Fprintf(&b, "#   %s\n", n)
		}
	}
	return []byte(b.String())
}

func (c *converter) policyLines(standard string) string {
	switch {
	case c.policy != nil:
		return strings.Join(c.policy, "\n") + "\n"
	case c.Policy != standard:
		return "policy: " + quoted(c.Policy) + "\n"
	}
	return ""
}

func (c *converter) workerLines() string {
	if len(c.Workers) == 0 {
		return "workers: []\n"
	}
	var b strings.Builder
	b.WriteString("workers:\n")
	for i := range c.Workers {
		lead := "  - "
		v := reflect.ValueOf(c.Workers[i])
		for _, f := range reflect.VisibleFields(v.Type()) {
			key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			if value := v.FieldByIndex(f.Index); key != "" && key != "-" && !value.IsZero() {
				fmt.Fprintf(&b, "%s%s: %s\n", lead, key, scalar(value))
				lead = "    "
			}
		}
	}
	return b.String()
}

// changed returns the lines of a setting or a section that differs from its default.
func changed(key string, was, now reflect.Value) string {
	if reflect.DeepEqual(was.Interface(), now.Interface()) {
		return ""
	}
	if now.Kind() != reflect.Struct {
		return key + ": " + scalar(now) + "\n"
	}
	lines := key + ":\n"
	for _, f := range reflect.VisibleFields(now.Type()) {
		inner, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if f.Anonymous || inner == "" || inner == "-" || reflect.DeepEqual(was.FieldByIndex(f.Index).Interface(), now.FieldByIndex(f.Index).Interface()) {
			continue
		}
		lines += "  " + inner + ": " + scalar(now.FieldByIndex(f.Index)) + "\n"
	}
	return lines
}

// scalar returns a value in YAML's flow style.
func scalar(v reflect.Value) string {
	if d, ok := v.Interface().(time.Duration); ok {
		return d.String()
	}
	out, err := json.Marshal(v.Interface())
	if err != nil {
		panic("bug: write a setting: " + err.Error())
	}
	return string(out)
}
