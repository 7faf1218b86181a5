package jinja

import (
	"errors"
	"strings"
)

// Tools in Harmony are a namespace of TypeScript types, made of their JSON schemas by openai-harmony (src/encoding.rs,
// json_schema_to_typescript): its quirks are kept, because tokens are.

// errHarmonyTools says that a schema is one whose TypeScript cannot be told here.
var errHarmonyTools = errors.New("a tool's schema is very long, or has numbers that are spelled by the engine only")

// maxTypes bounds the TypeScript in bytes: a million tokens. Lines are indented by their depth, so that a schema's can be a
// hundred times as long as itself.
const maxTypes = 4 << 20

// harmonyTools is the section on tools.
func harmonyTools(tools []value) (string, error) {
	lines := []string{"## functions\n", "namespace functions {\n"}
	written := 0
	for i := range tools {
		fn, _ := tools[i].dict().get("function")
		name, _ := textOf(fn.dict(), "name")
		description, _ := textOf(fn.dict(), "description")
		for _, line := range rustLines(description) {
			lines = append(lines, "// "+line)
		}
		parameters, _ := fn.dict().get("parameters")
		if parameters.kind == kindNone || parameters.kind == kindUndefined {
			lines = append(lines, "type "+name+" = () => any;\n")
			continue
		}
		w := &schemaWriter{}
		w.schema(&parameters, "")
		if written += w.Len(); w.failed || written > maxTypes {
			return "", errHarmonyTools
		}
		lines = append(lines, "type "+name+" = (_: "+w.String()+") => any;\n")
	}
	lines = append(lines, "} // namespace functions")
	return "# Tools\n\n" + strings.Join(lines, "\n"), nil
}

// rustLines splits as Rust's str::lines: at line feeds, without a carriage return before them, and without an empty line at
// the end.
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

// schemaWriter writes TypeScript.
type schemaWriter struct {
	strings.Builder
	failed bool
}

// member is a member of a schema, when the schema is an object that has it.
func member(schema *value, name string) (value, bool) {
	if schema.kind != kindDict {
		return none, false
	}
	return schema.dict().get(name)
}

func textMember(schema *value, name string) (string, bool) {
	v, ok := member(schema, name)
	return v.str, ok && v.kind == kindString
}

func listMember(schema *value, name string) ([]value, bool) {
	v, ok := member(schema, name)
	if !ok || v.kind != kindList {
		return nil, false
	}
	return v.items(), true
}

func (w *schemaWriter) put(parts ...string) {
	for _, s := range parts {
		if w.failed = w.failed || len(s) > maxTypes-w.Len(); w.failed {
			return
		}
		w.WriteString(s)
	}
}

// schema writes a schema's type. indent is of its own lines.
func (w *schemaWriter) schema(s *value, indent string) {
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
				w.schema(&variants[i], indent)
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
		if items, ok := member(s, "items"); ok {
			w.schema(&items, indent)
			w.put("[]")
		} else {
			w.put("Array<any>")
		}
	default:
		w.put("any")
	}
}

// union writes a list of type names.
func (w *schemaWriter) union(types []value) {
	var names []string
	for i := range types {
		if types[i].kind != kindString {
			continue
		}
		name := types[i].str
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

func (w *schemaWriter) text(s *value) {
	values, _ := listMember(s, "enum")
	var words []string
	for i := range values {
		if values[i].kind == kindString {
			words = append(words, `"`+values[i].str+`"`)
		}
	}
	if len(words) == 0 {
		words = []string{"string"}
	}
	w.put(strings.Join(words, " | "))
}

func (w *schemaWriter) object(s *value, indent string) {
	if description, ok := textMember(s, "description"); ok {
		w.put(indent, "// ", description, "\n")
	}
	w.put("{\n")
	required := map[string]bool{}
	names, _ := listMember(s, "required")
	for i := range names {
		if names[i].kind == kindString {
			required[names[i].str] = true
		}
	}
	if properties, ok := member(s, "properties"); ok && properties.kind == kindDict {
		d := properties.dict()
		for i := range d.keys {
			key := d.keys[i].str
			if !required[key] {
				key += "?"
			}
			w.property(key, &d.vals[i], indent)
		}
	}
	w.put(indent, "}")
}

// property writes one property with its comments. key has its question mark.
func (w *schemaWriter) property(key string, s *value, indent string) {
	if title, ok := textMember(s, "title"); ok {
		w.put(indent, "// ", title, "\n", indent, "//\n")
	}
	_, either := member(s, "oneOf")
	if description, ok := textMember(s, "description"); ok && !either {
		w.put(indent, "// ", description, "\n")
	}
	if examples, ok := listMember(s, "examples"); ok && len(examples) > 0 {
		w.put(indent, "// Examples:\n")
		for i := range examples {
			if examples[i].kind == kindString {
				w.put(indent, `// - "`, examples[i].str, "\"\n")
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

// nullable is the type of s, with null when s says that it may be.
func (w *schemaWriter) nullable(s *value, indent string) string {
	inner := &schemaWriter{}
	inner.schema(s, indent)
	w.failed = w.failed || inner.failed
	out := inner.String()
	if may, _ := member(s, "nullable"); may.kind == kindBool && may.truthy() && !strings.Contains(out, "null") {
		out += " | null"
	}
	return out
}

// variants writes a property that is one of several types, each on a line.
func (w *schemaWriter) variants(key string, s *value, variants []value, indent string) {
	description, described := textMember(s, "description")
	above := described
	if described && len(variants) > 0 {
		if first, ok := textMember(&variants[0], "description"); ok && first == description {
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
		v := &variants[i]
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

// defaultOf spells a schema's default: a text in quotes unless the schema lists its values.
func (w *schemaWriter) defaultOf(s *value) (string, bool) {
	d, ok := member(s, "default")
	if !ok {
		return "", false
	}
	if d.kind == kindString {
		if values, listed := listMember(s, "enum"); listed && len(values) > 0 {
			return d.str, true
		}
		return `"` + d.str + `"`, true
	}
	var b strings.Builder
	w.compact(&b, &d)
	return b.String(), true
}

// compact writes JSON as serde_json does.
func (w *schemaWriter) compact(b *strings.Builder, v *value) {
	switch v.kind {
	case kindNone:
		b.WriteString("null")
	case kindBool:
		if v.truthy() {
			b.WriteString("true")
		} else {
			b.WriteString("false")
		}
	case kindString:
		serdeString(b, v.str)
	case kindList:
		b.WriteByte('[')
		for i := range v.items() {
			if i > 0 {
				b.WriteByte(',')
			}
			w.compact(b, &v.items()[i])
		}
		b.WriteByte(']')
	case kindDict:
		b.WriteByte('{')
		for i, d := 0, v.dict(); i < len(d.keys); i++ {
			if i > 0 {
				b.WriteByte(',')
			}
			serdeString(b, d.keys[i].str)
			b.WriteByte(':')
			w.compact(b, &d.vals[i])
		}
		b.WriteByte('}')
	default:
		s, ok := harmonyNumber(v)
		w.failed = w.failed || !ok
		b.WriteString(s)
	}
}

// serdeString writes a text with the escapes that JSON needs and no others.
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
