package config

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// unknownField says that a section ("" is the root) has an unknown key, and which key may be meant. inside are the
// section's own keys, known the paths of all settings.
func unknownField(key, section string, inside, known []string) string {
	if hint := dotted(key, section, known); hint != "" {
		return hint
	}
	problem, meant := fmt.Sprintf("unknown field %q", key), ""
	if section != "" {
		problem = "unknown field " + section + "." + key
		if limit := max(slips(key), 1); len(key) > 2 { // a section has few keys: one letter is a slip in a short word, too
			meant = nearest(key, inside, limit, whole)
		}
	}
	if meant != "" {
		return problem + "; did you mean " + section + "." + meant + "?"
	}
	return problem + didYouMean(nearest(key, known, slips(key), lastStep))
}

// dotted says how a key is written that also names its section, as messages and documents do. It is empty for other
// keys.
func dotted(key, section string, known []string) string {
	if !strings.Contains(key, ".") {
		return ""
	}
	inside := func(path string) string { return strings.TrimPrefix(strings.TrimPrefix(path, section), ".") }
	near := nearest(key, known, slips(strings.TrimPrefix(section+"."+key, ".")), inside)
	if near = inside(near); !strings.Contains(near, ".") {
		return ""
	}
	return fmt.Sprintf("unknown field %q: a section's keys stand below it; write %s: …%s", key,
		strings.ReplaceAll(near, ".", ": {"), strings.Repeat("}", strings.Count(near, ".")))
}

// Meant asks whether a known word was meant, where one is nearly the unknown one: it returns "; did you mean WORD?",
// to follow an error, or nothing.
func Meant(unknown string, known []string) string {
	return didYouMean(nearest(unknown, known, slips(unknown), whole))
}

func didYouMean(word string) string {
	if word == "" {
		return ""
	}
	return "; did you mean " + word + "?"
}

// nearest returns the first of the known names with the smallest edit distance from word, or "" if none is within
// limit. part is what of a name is compared.
func nearest(word string, known []string, limit int, part func(name string) string) string {
	best, least := "", limit+1
	for _, name := range known {
		if d := distance(word, part(name)); d < least {
			best, least = name, d
		}
	}
	return best
}

func whole(name string) string { return name }

func lastStep(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }

// slips is the largest edit distance at which an unknown word is taken for a known one: 0 up to four letters, 1 up to
// seven, else 2. For example, "mode" is one letter from "model", but it is another word.
func slips(word string) int {
	if len(word) < 5 {
		return 0
	}
	return min(len(word)/4, 2)
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

// fieldKey returns the key of a field in the file; "" if it has none.
func fieldKey(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	if key == "-" {
		return ""
	}
	return key
}

// fieldKeys lists the keys of t itself.
func fieldKeys(t reflect.Type) []string {
	var out []string
	for f := range t.Fields() {
		if key := fieldKey(f); key != "" {
			out = append(out, key)
		}
	}
	return out
}

// keys lists the paths of t's keys: a section comes before its own keys.
func keys(t reflect.Type, under string) []string {
	var out []string
	for f := range t.Fields() {
		key := fieldKey(f)
		if key == "" {
			continue
		}
		out = append(out, under+key)
		switch inner := f.Type; {
		case inner.Kind() == reflect.Struct:
			out = append(out, keys(inner, under+key+".")...)
		case (inner.Kind() == reflect.Slice || inner.Kind() == reflect.Pointer) && inner.Elem().Kind() == reflect.Struct:
			out = append(out, keys(inner.Elem(), under+key+".")...)
		}
	}
	return out
}

// kindName names the kind of value that the file must have for a Go type.
func kindName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return "a duration such as 2s"
	case reflect.TypeFor[int64]():
		return "a number of bytes such as 64MiB"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Uint64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	}
	return "a text"
}
