package connector

import (
	"slices"
	"strings"

	"github.com/warmpath/warmpath/internal/jsonscan"
)

// Foreign returns the path of a member of a client's body that only the router may set, because it tells an engine
// where to read or to write the memory of another engine. null is no value. body is one JSON object, as api.Read
// accepts it.
func Foreign(body []byte) (path string, found bool) { return foreign(body, owned) }

// foreign looks for members of an object. paths are sorted.
func foreign(object []byte, paths []string) (path string, found bool) {
	for key, value := range jsonscan.Members(object) {
		if string(value) == "null" {
			continue
		}
		for _, path := range paths {
			name, rest, nested := strings.Cut(path, ".")
			if !sameKey(key, name) {
				continue
			}
			if !nested {
				return path, true
			}
			if _, found = foreign(value, []string{rest}); found {
				return path, true
			}
		}
	}
	return "", false
}

// owned are the paths of the members that only the router sets.
var owned = func() (all []string) {
	for _, c := range connectors {
		all = append(all, c.file.Owns...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}()

// ForeignHeader reports whether a header field of a client's request is one that only the router may set: SGLang takes
// the members of a body from such fields, too (srt/entrypoints/request_headers.py).
func ForeignHeader(name string) bool {
	member, ok := strings.CutPrefix(strings.ToLower(name), "x-override-")
	return ok && slices.Contains(owned, strings.ReplaceAll(member, "-", "_"))
}
