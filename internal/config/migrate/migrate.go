package migrate

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/internal/config"
)

// Convert returns Warmpath's file for a file of another router. The error names problems of the old file, and values
// that Warmpath does not accept.
func Convert(name string, data []byte) ([]byte, error) {
	root, err := config.ParseDocument(name, data)
	if err != nil {
		return nil, err
	}
	c := &converter{Config: config.Default()}
	from := ""
	for _, f := range []struct {
		name string
		is   bool
		read func(*converter, *config.Node)
	}{
		{"llm-d's EndpointPickerConfig", text(root.Get("kind")) == "EndpointPickerConfig", (*converter).llmd},
		{"Dynamo's DynamoGraphDeployment", text(root.Get("kind")) == "DynamoGraphDeployment", (*converter).dynamo},
		{"the Helm values of vLLM's production stack", root.Get("routerSpec") != nil, (*converter).helm},
		{"the dynamic configuration of vLLM's production stack", root.Get("routing_logic") != nil || root.Get("static_backends") != nil, (*converter).stack},
		{"a gateway of the family of SMG and vllm-router", hasAny(root, "mode", "policy", "routing", "worker_urls"), (*converter).gateway},
	} {
		if f.is {
			from = f.name
			f.read(c, root)
			break
		}
	}
	if from == "" {
		return nil, fmt.Errorf("%s is no file that is known: it needs mode, policy or worker_urls (SMG, vllm-router), routerSpec or routing_logic (production stack), "+
			"or the kind EndpointPickerConfig (llm-d) or DynamoGraphDeployment (Dynamo)", name)
	}
	if err := c.flags(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	out := c.file(filepath.Base(name), from)
	if err := config.Check("the new file", out); err != nil {
		return nil, fmt.Errorf("%s has values that Warmpath does not accept: %w", name, err)
	}
	return out, nil
}

// converter collects the new configuration.
type converter struct {
	config.Config                    // the settings; those that differ from the defaults are written
	given         []config.GivenFlag // flags that have the same meaning as keys of the old file
	keys          map[string]string  // the key of the old file, by flag
	policy        []string           // the lines of a policy with parameters; nil: Config.Policy names it
	notes         []string           // keys without a counterpart, each with the advice
}

// note records a key without a counterpart.
func (c *converter) note(key string, n *config.Node, advice string) {
	if advice == "" {
		advice = "no counterpart"
	}
	c.notes = append(c.notes, line(key+value(n)+": "+advice))
}

// value returns a scalar for a note. Values of keys that look like secrets do not get here: see secret.
func value(n *config.Node) string {
	if n == nil || n.Pairs != nil || n.List != nil || n.Text == "" {
		return ""
	}
	return " (" + n.Text + ")"
}

// line makes a text safe for a comment: one line, bounded.
func line(text string) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r < ' ' || r == 0x85 || r == 0x2028 || r == 0x2029 || r == 0x7f }), " ")
	if len(text) > 400 {
		text = text[:400] + "…"
	}
	return config.Redact(strings.ToValidUTF8(text, "?"))
}

// flag records that a key has the meaning of a flag.
func (c *converter) flag(key, name string, values ...string) {
	if c.keys == nil {
		c.keys = map[string]string{}
	}
	c.keys[name] = key
	c.given = append(c.given, config.GivenFlag{Name: name, Values: values})
}

// flags applies the flags. A flag that cannot be honoured becomes a note.
func (c *converter) flags() error {
	var usable []config.GivenFlag
	table := config.ForeignFlags()
	for _, g := range c.given {
		i := slices.IndexFunc(table, func(f config.ForeignFlag) bool { return f.Name == g.Name })
		switch {
		case i < 0 && g.Name != "policy" && g.Name != "log-level":
			c.note(c.keys[g.Name], nil, "")
		case i >= 0 && table[i].Refused:
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
	return err
}

// hasAny reports whether a mapping has one of the keys.
func hasAny(n *config.Node, keys ...string) bool {
	return slices.ContainsFunc(n.Pairs, func(p config.Pair) bool { return slices.Contains(keys, p.Key) })
}

// text returns the text of a scalar; "" for nil and other values.
func text(n *config.Node) string {
	if n == nil || n.Pairs != nil || n.List != nil {
		return ""
	}
	return n.Text
}

// texts returns the scalars of a list, or the one scalar.
func texts(n *config.Node) (all []string) {
	if n == nil {
		return nil
	}
	for _, v := range n.List {
		if t := text(v); t != "" {
			all = append(all, t)
		}
	}
	if t := text(n); t != "" {
		all = append(all, t)
	}
	return all
}

// quoted returns a text as a YAML scalar.
func quoted(s string) string {
	out, err := json.Marshal(strings.ToValidUTF8(s, "?"))
	if err != nil {
		panic("bug: quote a text: " + err.Error())
	}
	return string(out)
}
