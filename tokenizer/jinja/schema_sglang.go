package jinja

import (
	"slices"
	"strings"
)

// SGLang rewrites the types of tool schemas that databases and ORMs call otherwise, and renders what it has rewritten
// (srt/function_call/utils.py, normalize_json_schema_types).

var schemaTypes = []string{"null", "boolean", "object", "array", "number", "string", "integer"}

var schemaAliases = map[string]string{
	"str": "string", "text": "string", "varchar": "string", "char": "string", "enum": "string", "uuid": "string",
	"date": "string", "datetime": "string", "time": "string", "timestamp": "string", "binary": "string", "blob": "string",
	"bytea": "string", "bytes": "string", "varbinary": "string", "bool": "boolean", "bigint": "integer",
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
	base = lower(strings.TrimFunc(base, isSpace))
	if slices.Contains(schemaTypes, base) {
		return base
	}
	if name, ok := schemaAliases[base]; ok {
		return name
	}
	for _, p := range schemaPrefixes {
		if rest, ok := strings.CutPrefix(base, p.prefix); ok && (rest == "" || strings.IndexByte("0123456789[<( \t", rest[0]) >= 0) {
			return p.name
		}
	}
	return s
}

// normalizeSchemas rewrites the parameters of dumped tools in place.
func normalizeSchemas(tools *value) {
	for _, t := range tools.items() {
		fn, _ := t.dict().get("function")
		if p, ok := fn.dict().get("parameters"); ok {
			normalizeSchema(&p)
		}
	}
}

func normalizeSchema(v *value) {
	if v.kind == kindList {
		for i := range v.items() {
			normalizeSchema(&v.items()[i])
		}
		return
	}
	if v.kind != kindDict {
		return
	}
	d := v.dict()
	if t, ok := d.get("type"); ok {
		d.set("type", normalType(t))
	}
	for i := range d.keys {
		nested := &d.vals[i]
		switch d.keys[i].str {
		case "properties", "patternProperties", "$defs", "definitions", "dependentSchemas":
			if nested.kind == kindDict {
				for k := range nested.dict().vals {
					normalizeSchema(&nested.dict().vals[k])
				}
			}
		case "anyOf", "oneOf", "allOf", "prefixItems":
			if nested.kind == kindList {
				normalizeSchema(nested)
			}
		case "items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedItems",
			"unevaluatedProperties":
			normalizeSchema(nested)
		}
	}
}

func normalType(t value) value {
	switch t.kind {
	case kindString:
		return text(schemaType(t.str))
	case kindList:
		var out []value
		for _, item := range t.items() {
			if item.kind == kindString {
				item = text(schemaType(item.str))
			}
			if !slices.ContainsFunc(out, func(v value) bool { return identical(&v, &item) }) {
				out = append(out, item)
			}
		}
		return newList(out)
	}
	return t
}
