package inprocess

import (
	"slices"
	"strings"

	"github.com/warmpath/warmpath/tokenizer/jinja"
)

// Before SGLang renders the tools, it changes their schemas: it replaces other type names, such as varchar or dict, by
// type names of JSON Schema (srt/function_call/utils.py, normalize_json_schema_types).

var schemaTypes = []string{"null", "boolean", "object", "array", "number", "string", "integer"}

var schemaAliases = map[string]string{
	"str": "string", "text": "string", "varchar": "string", "char": "string", "enum": "string", "uuid": "string",
	"date": "string", "datetime": "string", "time": "string", "timestamp": "string", "binary": "string",
	"blob": "string", "bytea": "string", "bytes": "string", "varbinary": "string", "bool": "boolean", "bigint": "integer",
	"smallint": "integer", "tinyint": "integer", "double": "number", "decimal": "number", "real": "number",
	"numeric": "number", "arr": "array", "tuple": "array", "set": "array", "map": "object",
}

var schemaPrefixes = []struct{ prefix, name string }{
	{"int", "integer"}, {"uint", "integer"}, {"long", "integer"}, {"short", "integer"}, {"unsigned", "integer"},
	{"num", "number"}, {"float", "number"}, {"list", "array"}, {"dict", "object"},
}

func schemaType(s string) string {
	if slices.Contains(schemaTypes, s) {
		return s
	}
	base, _, _ := strings.Cut(s, "(")
	base = jinja.Lower(strings.TrimFunc(base, jinja.IsSpace))
	if slices.Contains(schemaTypes, base) {
		return base
	}
	if name, ok := schemaAliases[base]; ok {
		return name
	}
	for _, p := range schemaPrefixes {
		if rest, ok := strings.CutPrefix(base, p.prefix); ok &&
			(rest == "" || strings.IndexByte("0123456789[<( \t", rest[0]) >= 0) {
			return p.name
		}
	}
	return s
}

// normalizeSchemas replaces the type names in the parameters of the tools, in place.
func normalizeSchemas(tools jinja.Value) {
	for _, t := range tools.Items() {
		fn, _ := t.Dict().Get("function")
		if p, ok := fn.Dict().Get("parameters"); ok {
			normalizeSchema(p)
		}
	}
}

func normalizeSchema(v jinja.Value) {
	for _, item := range v.Items() {
		normalizeSchema(item)
	}
	if v.Kind() != jinja.KindDict {
		return
	}
	d := v.Dict()
	if t, ok := d.Get("type"); ok {
		d.Set("type", normalType(t))
	}
	for name, nested := range d.All() {
		switch name {
		case "properties", "patternProperties", "$defs", "definitions", "dependentSchemas":
			for _, schema := range nested.Dict().All() {
				normalizeSchema(schema)
			}
		case "anyOf", "oneOf", "allOf", "prefixItems":
			if nested.Kind() == jinja.KindList {
				normalizeSchema(nested)
			}
		case "items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames",
			"unevaluatedItems", "unevaluatedProperties":
			normalizeSchema(nested)
		}
	}
}

func normalType(t jinja.Value) jinja.Value {
	switch t.Kind() {
	case jinja.KindString:
		return jinja.Text(schemaType(t.Text()))
	case jinja.KindList:
		var out []jinja.Value
		for _, item := range t.Items() {
			if item.Kind() == jinja.KindString {
				item = jinja.Text(schemaType(item.Text()))
			}
			if !slices.ContainsFunc(out, item.Same) {
				out = append(out, item)
			}
		}
		return jinja.List(out)
	}
	return t
}
