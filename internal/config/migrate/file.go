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
		case key == "workers", key == "tenants" && len(c.Tenants) > 0:
			b.WriteString(list(key, now.FieldByIndex(f.Index)))
		case key == "tenants":
		default:
			b.WriteString(changed(key, was.FieldByIndex(f.Index), now.FieldByIndex(f.Index)))
		}
	}
	if len(c.notes) > 0 {
		b.WriteString("\n# Look at these keys of the old file:\n")
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

// list returns the lines of a list of structs, each without its zero fields.
func list(key string, all reflect.Value) string {
	if all.Len() == 0 { // only workers are written without entries
		return key + ": [] # name the engines: [{url: http://gpu-1:8000}]\n"
	}
	var b strings.Builder
	b.WriteString(key + ":\n")
	for i := range all.Len() {
		lead, v := "  - ", all.Index(i)
		for _, f := range reflect.VisibleFields(v.Type()) {
			inner, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
			if value := v.FieldByIndex(f.Index); inner != "" && inner != "-" && !value.IsZero() {
				fmt.Fprintf(&b, "%s%s: %s\n", lead, inner, scalar(value))
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
		if f.Anonymous || inner == "" || inner == "-" {
			continue
		}
		for line := range strings.Lines(changed(inner, was.FieldByIndex(f.Index), now.FieldByIndex(f.Index))) {
			lines += "  " + line
		}
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
