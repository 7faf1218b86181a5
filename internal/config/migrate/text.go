package migrate

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/internal/config"
)

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

// unlessSecret returns the value of a pair for a note, or nil if the value may be a key or a password.
func unlessSecret(p config.Pair) *config.Node {
	for _, word := range []string{"key", "token", "secret", "password", "auth"} {
		if strings.Contains(strings.ToLower(p.Key), word) {
			return nil
		}
	}
	return p.Value
}

// value returns a scalar for a note. Callers leave out values of keys that look like secrets: see unlessSecret.
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

// flow returns a value in YAML's flow style. Scalars that are numbers or truth values stay as they are.
func flow(n *config.Node) string {
	switch {
	case n.Pairs != nil:
		parts := make([]string, 0, len(n.Pairs))
		for _, p := range n.Pairs {
			parts = append(parts, quoted(p.Key)+": "+flow(p.Value))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case n.List != nil:
		parts := make([]string, 0, len(n.List))
		for _, v := range n.List {
			parts = append(parts, flow(v))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case n.Text == "true" || n.Text == "false" || plainNumber(n.Text):
		return n.Text
	}
	return quoted(n.Text)
}

// plainNumber reports whether a text is a decimal number.
func plainNumber(s string) bool {
	s = strings.TrimPrefix(s, "-")
	return s != "" && strings.Trim(s, "0123456789.") == "" && strings.Count(s, ".") <= 1 && s[0] != '.' && s[len(s)-1] != '.'
}
