package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/warmpath/warmpath/internal/spelling"
)

// entryKeys are keys that look like a setting of an entry, and the way to write that setting.
var entryKeys = map[string]string{"model": "models: [{path: …}]", "model_path": "models: [{path: …}]", "worker_url": "workers: [{url: …}]"}

// unknownField returns the error for an unknown key in a section; section "" is the root. The error suggests a known
// key if one is similar, and otherwise lists the section's own keys, inside. known are the paths of the settings that
// may be suggested.
func unknownField(key, section string, inside, known []string) string {
	if hint := dotted(key, section, known); hint != "" {
		return hint
	}
	problem, meant := fmt.Sprintf("unknown field %q", key), ""
	if section != "" {
		problem = "unknown field " + section + "." + key
		if len(key) > 2 {
			meant = similarKey(key, inside)
		}
	}
	if key == "mode" && section == "" { // of the gateways of SMG's family
		return problem + "; a file of another router? `warmpath config migrate` reads it. The division of requests is disaggregation.mode"
	}
	if entry := entryKeys[strings.ReplaceAll(key, "-", "_")]; entry != "" && section == "" {
		return problem + "; write " + entry
	}
	for _, path := range known { // a flag's name as a key, such as admin_listen, means a setting such as admin.listen
		if meant == "" && section == "" && strings.Contains(path, ".") && strings.ReplaceAll(path, ".", "_") == strings.ReplaceAll(key, "-", "_") {
			return problem + "; write " + strings.ReplaceAll(path, ".", ": {") + ": …" + strings.Repeat("}", strings.Count(path, "."))
		}
	}
	if meant != "" {
		return problem + "; did you mean " + section + "." + meant + "?"
	}
	if meant = nearest(key, known, slips(key), lastStep); meant == "" {
		return problem + " (known: " + strings.Join(inside, ", ") + ")"
	}
	return problem + didYouMean(meant)
}

// similarKey returns the key of a section that is most similar to an unknown key; "" if none is similar. A section has
// few keys, so one wrong letter is accepted in a short word, too.
func similarKey(key string, inside []string) string {
	return nearest(key, inside, max(slips(key), 1), whole)
}

// dotted returns the error for a key that also names its section, such as admin.listen: messages and documents write
// keys in this form, but a file cannot. For other keys dotted returns "".
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

// Meant returns "; did you mean WORD?", to follow an error, if a known word is similar to the unknown word, is its
// singular or plural, or if only one known word continues it: --model means --model-path. Otherwise it returns "".
func Meant(unknown string, known []string) string {
	word := nearest(unknown, known, slips(unknown), whole)
	if i := slices.IndexFunc(known, func(name string) bool { return singular(name) == singular(unknown) }); i >= 0 {
		word = known[i]
	}
	if word == "" {
		word = extended(singular(unknown), known)
	}
	return didYouMean(word)
}

// singular returns the word without the ending of a plural.
func singular(word string) string {
	if stem, ok := strings.CutSuffix(word, "ies"); ok {
		return stem + "y"
	}
	return strings.TrimSuffix(word, "s")
}

// extended returns the only known name that has further words after the given word; "" if there is none or several.
func extended(word string, known []string) string {
	found := ""
	for _, name := range known {
		if rest, ok := strings.CutPrefix(name, word); ok && len(word) > 2 && rest != "" && (rest[0] == '-' || rest[0] == '_') {
			if found != "" {
				return ""
			}
			found = name
		}
	}
	return found
}

func didYouMean(word string) string {
	if word == "" {
		return ""
	}
	return "; did you mean " + word + "?"
}

// nearest returns the first of the known names with the smallest edit distance from word, or "" if no distance is
// within limit. part returns the part of a name that is compared.
func nearest(word string, known []string, limit int, part func(name string) string) string {
	best, least := "", limit+1
	for _, name := range known {
		if d := spelling.Distance(word, part(name)); d < least {
			best, least = name, d
		}
	}
	return best
}

func whole(name string) string { return name }

func lastStep(path string) string { return path[strings.LastIndexByte(path, '.')+1:] }

// slips is the largest edit distance at which an unknown word is taken for a known word: 0 up to four letters, 1 up to
// seven letters, else 2. Short words need an exact match: "mode" is one letter from "model", but it is another word.
func slips(word string) int {
	if len(word) < 5 {
		return 0
	}
	return min(len(word)/4, 2)
}

// fieldKey returns the key of a field in the file; "" if the field has no key.
func fieldKey(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	if key == "-" {
		return ""
	}
	return key
}

// fieldKeys returns the keys of the struct type t itself and of embedded structs, without the keys of inner structs.
func fieldKeys(t reflect.Type) []string {
	var out []string
	for _, f := range reflect.VisibleFields(t) {
		if key := fieldKey(f); key != "" {
			out = append(out, key)
		}
	}
	return out
}

// keys returns the paths of all keys of t. A section comes before its own keys.
func keys(t reflect.Type, under string) []string {
	var out []string
	for _, f := range reflect.VisibleFields(t) {
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

// kindName returns a name for the kind of value that the file must have for a Go type.
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
