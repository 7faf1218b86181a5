package connector

import (
	"bytes"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/internal/jsonscan"
)

// Foreign returns the path of a member of a client's body that only the router may set, because it tells an engine
// where to read or to write the memory of another engine. null is no value. body is one JSON object, as api.Read
// accepts it. Foreign reads the whole body, which takes about 2 µs for 33 KB.
func Foreign(body []byte) (path string, found bool) {
	for key, value := range jsonscan.Members(body) {
		for _, path := range owned.of(key) {
			said := value
			if _, inside, nested := strings.Cut(path, "."); nested {
				said = find(value, inside)
			}
			if said != nil && string(said) != "null" {
				return path, true
			}
		}
	}
	return "", false
}

// ownedPaths are the paths of the members that only the router sets, by their first names.
type ownedPaths map[string][]string

var owned = func() ownedPaths {
	all := ownedPaths{}
	for _, c := range connectors {
		for _, path := range c.file.Owns {
			name, _, _ := strings.Cut(path, ".")
			if !slices.Contains(all[name], path) {
				all[name] = append(all[name], path)
			}
		}
	}
	return all
}()

// of returns the paths that begin with a key as it is spelled in a body.
func (o ownedPaths) of(key []byte) []string {
	if bytes.IndexByte(key, '\\') < 0 {
		return o[string(key)]
	}
	for name, paths := range o {
		if sameKey(key, name) {
			return paths
		}
	}
	return nil
}

// overrides begins the names of the header fields from which SGLang takes members of a body
// (srt/entrypoints/request_headers.py).
const overrides = "x-override-"

// ForeignHeader reports whether a field of a request's header is one that only the router may set.
func ForeignHeader(name string) bool {
	if len(name) <= len(overrides) || !strings.EqualFold(name[:len(overrides)], overrides) {
		return false
	}
	_, found := owned[strings.ReplaceAll(strings.ToLower(name[len(overrides):]), "-", "_")]
	return found
}
