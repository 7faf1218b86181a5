package config

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// message says what an error of the YAML library means to whoever wrote the file, where the library speaks of Go.
func message(err yaml.Error) string {
	var unknown *yaml.UnknownFieldError
	var mismatch *yaml.TypeError
	var unexpected *yaml.UnexpectedNodeTypeError
	switch {
	case errors.As(err, &unknown):
		return unknownField(unknown.Token.Value, "")
	case errors.As(err, &mismatch):
		return fmt.Sprintf("%q is not %s", err.GetToken().Value, kindName(mismatch.DstType))
	case errors.As(err, &unexpected) && unexpected.Expected == ast.MappingType:
		value := err.GetToken().Value
		if strings.HasPrefix(value, "http://") || strings.HasPrefix(value, "https://") {
			address, _, _ := strings.Cut(value, " ") // what follows is of another line
			return fmt.Sprintf("a worker is written as url: %s", address)
		}
		return found(value) + " where keys with values are expected"
	case errors.As(err, &unexpected) && unexpected.Expected == ast.SequenceType:
		return found(err.GetToken().Value) + " where a list is expected: a line with - for each"
	case strings.HasPrefix(err.GetMessage(), "found character '\t'"):
		return "a tab: YAML is indented with spaces"
	case strings.HasSuffix(err.GetMessage(), "value is not allowed in this context"): // also of a mapping
		return "a value is not allowed here: check the indentation of this line and the next"
	}
	return err.GetMessage()
}

// unknownField says that the file has an unknown key in a section ("" is the root, or not known), and which key it
// may be meant for.
func unknownField(key, section string) string {
	if hint := dotted(key, section); hint != "" {
		return hint
	}
	if section == "" {
		if near := suggest(key); near != "" {
			return fmt.Sprintf("unknown field %q; did you mean %s?", key, near)
		}
		return fmt.Sprintf("unknown field %q", key)
	}
	told := "unknown field " + section + "." + key
	near := suggest(key)
	for _, path := range keys(reflect.TypeFor[Config](), "") {
		name, inside := strings.CutPrefix(path, section+".")
		if inside && !strings.Contains(name, ".") && len(key) > 2 && distance(key, name) <= max(slips(key), 1) {
			near = path // in a section there are few keys: one letter is a slip in short words, too
			break
		}
	}
	if near == "" {
		return told
	}
	return told + "; did you mean " + near + "?"
}

// dotted says how a key is written that names its section, too, as messages and docs do. It is empty for other keys.
func dotted(key, section string) string {
	if !strings.Contains(key, ".") {
		return ""
	}
	path := strings.TrimPrefix(section+"."+key, ".")
	near, least := "", slips(path)+1
	for _, known := range keys(reflect.TypeFor[Config](), "") {
		if d := distance(path, known); d < least && strings.HasPrefix(known, section) {
			near, least = strings.TrimPrefix(strings.TrimPrefix(known, section), "."), d
		}
	}
	if !strings.Contains(near, ".") {
		return ""
	}
	return fmt.Sprintf("unknown field %q: a section's keys stand below it; write %s: …%s", key, strings.ReplaceAll(near, ".", ": {"),
		strings.Repeat("}", strings.Count(near, ".")))
}

// sectionOf returns the path of the section whose key stands at a line and column, "" at the root.
func sectionOf(node ast.Node, under string, line, column int) (section string, ok bool) {
	switch n := node.(type) {
	case *ast.MappingNode:
		for _, v := range n.Values {
			if section, ok := sectionOf(v, under, line, column); ok {
				return section, true
			}
		}
	case *ast.MappingValueNode:
		if at := n.Key.GetToken().Position; at.Line == line && at.Column == column {
			return under, true
		}
		return sectionOf(n.Value, strings.TrimPrefix(under+"."+keyOf(n), "."), line, column)
	case *ast.SequenceNode:
		for _, v := range n.Values {
			if section, ok := sectionOf(v, under, line, column); ok {
				return section, true
			}
		}
	}
	return "", false
}

// found describes the token that the decoder did not expect.
func found(token string) string {
	switch token {
	case ":", "{":
		return "keys with values stand"
	case "[", "-":
		return "a list stands"
	}
	return fmt.Sprintf("%q stands", token)
}

// kindName is what the file must hold for a Go type.
func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "a group of keys with values"
	}
	return "a text"
}

// suggest returns the key nearest to the unknown one, with its section, or "" when none is near. A key that is right in
// another section is nearest.
func suggest(unknown string) string {
	best, least := "", slips(unknown)+1
	for _, path := range keys(reflect.TypeFor[Config](), "") {
		key := path[strings.LastIndexByte(path, '.')+1:]
		if d := distance(unknown, key); d < least {
			best, least = path, d
		}
	}
	return best
}

// slips is the largest edit distance at which an unknown word is taken for a known one: 0 up to four letters, 1 up to
// seven, else 2. "mode" is one letter from "model", and is another word.
func slips(word string) int {
	if len(word) < 5 {
		return 0
	}
	return min(len(word)/4, 2)
}

// keys lists the paths of t's keys, sections before what is in them.
func keys(t reflect.Type, under string) []string {
	var out []string
	for f := range t.Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if key == "-" || key == "" {
			continue
		}
		out = append(out, under+key)
		switch inner := f.Type; {
		case inner.Kind() == reflect.Struct:
			out = append(out, keys(inner, under+key+".")...)
		case inner.Kind() == reflect.Slice && inner.Elem().Kind() == reflect.Struct:
			out = append(out, keys(inner.Elem(), under+key+".")...)
		}
	}
	return out
}

// distance is the number of letters to insert, delete or replace that make a into b (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next := min(diagonal+cost, row[j]+1, row[j+1]+1)
			diagonal, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}

// findScalar returns where the first scalar with that text stands.
func findScalar(file *ast.File, text string) (line, column int, ok bool) {
	scalars := []ast.NodeType{ast.StringType, ast.IntegerType, ast.FloatType, ast.BoolType, ast.NullType, ast.LiteralType}
	for _, doc := range file.Docs {
		var found []ast.Node
		for _, kind := range scalars {
			found = append(found, ast.Filter(kind, doc)...)
		}
		slices.SortFunc(found, func(a, b ast.Node) int { return a.GetToken().Position.Offset - b.GetToken().Position.Offset })
		for _, node := range found {
			if t := node.GetToken(); plain([]byte(t.Value)) == text {
				return t.Position.Line, t.Position.Column, true
			}
		}
	}
	return 0, 0, false
}
