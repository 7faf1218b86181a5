package inprocess

import (
	"errors"
	"math"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/tokenizer/jinja"
)

// In Harmony, tools are written as a namespace of TypeScript types. openai-harmony derives the types from JSON schemas
// (src/encoding.rs, json_schema_to_typescript). This file copies every special case of openai-harmony, because the
// prompt must have the same tokens.

// errSchema says that this package cannot write the TypeScript of a schema.
var errSchema = errors.New("a tool's schema is very long, or has numbers that only the engine can spell")

// maxTypes bounds the TypeScript of all tools, in bytes. 4 MiB are a million tokens. The TypeScript of a schema can be
// a hundred times as long as the schema, because lines are indented by their depth.
const maxTypes = 4 << 20

// harmonyTool is a function that the model may call.
type harmonyTool struct {
	Name        string
	Description string
	Parameters  jinja.Value // a JSON schema; None or the zero value if the function takes no parameters
}

// toolSection returns the section about tools in the developer message.
func toolSection(tools []harmonyTool) (string, error) {
	lines := []string{"## functions\n", "namespace functions {\n"}
	written := 0
	for i := range tools {
		t := &tools[i]
		for _, line := range rustLines(t.Description) {
			lines = append(lines, "// "+line)
		}
		if k := t.Parameters.Kind(); k == jinja.KindNone || k == jinja.KindUndefined {
			lines = append(lines, "type "+t.Name+" = () => any;\n")
			continue
		}
		w := &schemaWriter{}
		w.schema(t.Parameters, "")
		if written += w.Len(); w.failed || written > maxTypes {
			return "", errSchema
		}
		lines = append(lines, "type "+t.Name+" = (_: "+w.String()+") => any;\n")
	}
	lines = append(lines, "} // namespace functions")
	return "# Tools\n\n" + strings.Join(lines, "\n"), nil
}

// rustLines splits s as Rust's str::lines does: at line feeds. It drops a carriage return before a line feed, and an
// empty line at the end.
func rustLines(s string) []string {
	if s == "" {
		return nil
	}
	lines := strings.Split(strings.TrimSuffix(s, "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimSuffix(lines[i], "\r")
	}
	return lines
}

// schemaWriter writes the TypeScript type of one JSON schema. failed is true if the type is too long, or has a number
// that only the engine can spell.
type schemaWriter struct {
	strings.Builder
	failed bool
}

// schemaMember returns a member of a schema. ok is false if the schema is no object, or has no such member.
func schemaMember(schema jinja.Value, name string) (jinja.Value, bool) {
	if schema.Kind() != jinja.KindDict {
		return jinja.None, false
	}
	return schema.Dict().Get(name)
}

func textMember(schema jinja.Value, name string) (string, bool) {
	v, ok := schemaMember(schema, name)
	return v.Text(), ok && v.Kind() == jinja.KindString
}

func listMember(schema jinja.Value, name string) ([]jinja.Value, bool) {
	v, ok := schemaMember(schema, name)
	if !ok || v.Kind() != jinja.KindList {
		return nil, false
	}
	return v.Items(), true
}

func (w *schemaWriter) put(parts ...string) {
	for _, s := range parts {
		if w.failed = w.failed || len(s) > maxTypes-w.Len(); w.failed {
			return
		}
		w.WriteString(s)
	}
}

// schema writes the TypeScript type of the JSON schema s. indent is the indentation of the type's lines.
func (w *schemaWriter) schema(s jinja.Value, indent string) {
	if types, ok := listMember(s, "type"); ok {
		w.union(types)
		return
	}
	kind, ok := textMember(s, "type")
	if !ok {
		if variants, ok := listMember(s, "oneOf"); ok {
			for i := range variants {
				if i > 0 {
					w.put("\n | ")
				}
				w.schema(variants[i], indent)
			}
			return
		}
		w.put("any")
		return
	}
	switch kind {
	case "object":
		w.object(s, indent)
	case "string":
		w.text(s)
	case "number", "integer":
		w.put("number")
	case "boolean":
		w.put("boolean")
	case "array":
		if items, ok := schemaMember(s, "items"); ok {
			w.schema(items, indent)
			w.put("[]")
		} else {
			w.put("Array<any>")
		}
	default:
		w.put("any")
	}
}

// union writes a list of type names as a TypeScript union, such as string | null.
func (w *schemaWriter) union(types []jinja.Value) {
	var names []string
	for i := range types {
		if types[i].Kind() != jinja.KindString {
			continue
		}
		name := types[i].Text()
		if name == "integer" {
			name = "number"
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		names = []string{"any"}
	}
	w.put(strings.Join(names, " | "))
}

func (w *schemaWriter) text(s jinja.Value) {
	values, _ := listMember(s, "enum")
	var words []string
	for i := range values {
		if values[i].Kind() == jinja.KindString {
			words = append(words, `"`+values[i].Text()+`"`)
		}
	}
	if len(words) == 0 {
		words = []string{"string"}
	}
	w.put(strings.Join(words, " | "))
}

func (w *schemaWriter) object(s jinja.Value, indent string) {
	if description, ok := textMember(s, "description"); ok {
		w.put(indent, "// ", description, "\n")
	}
	w.put("{\n")
	required := map[string]bool{}
	names, _ := listMember(s, "required")
	for i := range names {
		if names[i].Kind() == jinja.KindString {
			required[names[i].Text()] = true
		}
	}
	if properties, ok := schemaMember(s, "properties"); ok && properties.Kind() == jinja.KindDict {
		for key, property := range properties.Dict().All() {
			if !required[key] {
				key += "?"
			}
			w.property(key, property, indent)
		}
	}
	w.put(indent, "}")
}

// property writes one property with its comments. The key of an optional property ends in a question mark.
func (w *schemaWriter) property(key string, s jinja.Value, indent string) {
	if title, ok := textMember(s, "title"); ok {
		w.put(indent, "// ", title, "\n", indent, "//\n")
	}
	_, either := schemaMember(s, "oneOf")
	if description, ok := textMember(s, "description"); ok && !either {
		w.put(indent, "// ", description, "\n")
	}
	if examples, ok := listMember(s, "examples"); ok && len(examples) > 0 {
		w.put(indent, "// Examples:\n")
		for i := range examples {
			if examples[i].Kind() == jinja.KindString {
				w.put(indent, `// - "`, examples[i].Text(), "\"\n")
			}
		}
	}
	if variants, ok := listMember(s, "oneOf"); ok {
		w.variants(key, s, variants, indent)
		return
	}
	w.put(indent, key, ": ", w.nullable(s, indent+"    "), ",")
	if d, ok := w.defaultOf(s); ok && !either {
		w.put(" // default: ", d)
	}
	w.put("\n")
}

// nullable returns the type of s. If s is nullable, the type includes null.
func (w *schemaWriter) nullable(s jinja.Value, indent string) string {
	inner := &schemaWriter{}
	inner.schema(s, indent)
	w.failed = w.failed || inner.failed
	out := inner.String()
	if may, _ := schemaMember(s, "nullable"); may.Kind() == jinja.KindBool && may.Truthy() && !strings.Contains(out, "null") {
		out += " | null"
	}
	return out
}

// variants writes a property that has oneOf: each type of oneOf on a separate line.
func (w *schemaWriter) variants(key string, s jinja.Value, variants []jinja.Value, indent string) {
	description, described := textMember(s, "description")
	above := described
	if described && len(variants) > 0 {
		if first, ok := textMember(variants[0], "description"); ok && first == description {
			above = false
		}
	}
	if above {
		w.put(indent, "// ", description, "\n")
	}
	if d, ok := w.defaultOf(s); ok {
		w.put(indent, "// default: ", d, "\n")
	}
	w.put(indent, key, ":\n")
	for i := range variants {
		v := variants[i]
		w.put(indent, " | ", w.nullable(v, indent+"   "))
		var comments []string
		if own, ok := textMember(v, "description"); ok && !(i == 0 && above) && !(described && own == description) {
			comments = append(comments, own)
		}
		if d, ok := w.defaultOf(v); ok {
			comments = append(comments, "default: "+d)
		}
		if len(comments) > 0 {
			w.put(" // ", strings.Join(comments, " "))
		}
		w.put("\n")
	}
	w.put(indent, ",\n")
}

// defaultOf returns a schema's default as text. A string is put in quotes unless the schema has an enum.
func (w *schemaWriter) defaultOf(s jinja.Value) (string, bool) {
	d, ok := schemaMember(s, "default")
	if !ok {
		return "", false
	}
	if d.Kind() == jinja.KindString {
		if values, listed := listMember(s, "enum"); listed && len(values) > 0 {
			return d.Text(), true
		}
		return `"` + d.Text() + `"`, true
	}
	var b strings.Builder
	w.compact(&b, d)
	return b.String(), true
}

// compact writes v as JSON, without spaces, as Rust's serde_json does.
func (w *schemaWriter) compact(b *strings.Builder, v jinja.Value) {
	switch v.Kind() {
	case jinja.KindNone:
		b.WriteString("null")
	case jinja.KindBool:
		if v.Truthy() {
			b.WriteString("true")
		} else {
			b.WriteString("false")
		}
	case jinja.KindString:
		serdeString(b, v.Text())
	case jinja.KindList:
		b.WriteByte('[')
		for i := range v.Items() {
			if i > 0 {
				b.WriteByte(',')
			}
			w.compact(b, v.Items()[i])
		}
		b.WriteByte(']')
	case jinja.KindDict:
		b.WriteByte('{')
		first := true
		for key, member := range v.Dict().All() {
			if !first {
				b.WriteByte(',')
			}
			first = false
			serdeString(b, key)
			b.WriteByte(':')
			w.compact(b, member)
		}
		b.WriteByte('}')
	default:
		s, ok := serdeNumber(v)
		w.failed = w.failed || !ok
		b.WriteString(s)
	}
}

// serdeString writes a text with the escapes that JSON demands, and with no other escapes.
func serdeString(b *strings.Builder, s string) {
	const hex = "0123456789abcdef"
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c >= ' ':
			b.WriteByte(c)
		default:
			if at := strings.IndexByte("\b\f\n\r\t", c); at >= 0 {
				b.WriteByte('\\')
				b.WriteByte("bfnrt"[at])
			} else {
				b.WriteString(`\u00` + string(hex[c>>4]) + string(hex[c&15]))
			}
		}
	}
	b.WriteByte('"')
}

// serdeNumber returns a number as serde_json writes it. ok is false if Go may write the number differently.
func serdeNumber(v jinja.Value) (string, bool) {
	if v.Kind() != jinja.KindFloat {
		return strconv.FormatInt(v.Int(), 10), v.Kind() == jinja.KindInt
	}
	f := v.Float()
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e15) {
		return "", false
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s, true
}
