package indexer

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/warmpath/warmpath/internal/api"
	"github.com/warmpath/warmpath/internal/spelling"
)

// misspelled returns an error if the body of POST /register has an unknown field whose name is close to that of a known
// one: without it, a lease or a block size would silently not count. Fields of other names are ignored, because clients
// of other services send more than this service needs.
func misspelled(body []byte) error {
	var fields struct {
		all     map[string]json.RawMessage
		sources []map[string]json.RawMessage
	}
	if err := json.Unmarshal(body, &fields.all); err != nil {
		return err
	}
	_ = json.Unmarshal(fields.all["sources"], &fields.sources) // readRegistration has read them
	err := closeTo(fields.all, namesOf(registerBody{}))
	for _, one := range fields.sources {
		if err == nil {
			err = closeTo(one, namesOf(registeredFrom{}))
		}
	}
	return err
}

// namesOf returns the names of the JSON fields of a structure.
func namesOf(structure any) (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeOf(structure)) {
		names = append(names, f.Tag.Get("json"))
	}
	return names
}

// closeTo returns an error about the first field that is unknown and close to a known name.
func closeTo(fields map[string]json.RawMessage, known []string) error {
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if slices.ContainsFunc(known, func(name string) bool { return strings.EqualFold(name, field) }) {
			continue
		}
		for _, name := range known {
			plain, wanted := plainName(field), plainName(name)
			if begins := len(plain) >= shortName && strings.HasPrefix(wanted, plain); begins || isClose(plain, wanted) {
				return fmt.Errorf("there is no field %s; did you mean %s?", api.Quoted(field), name)
			}
		}
	}
	return nil
}

// plainName returns a name in small letters and without the marks between its words.
func plainName(name string) string {
	return strings.NewReplacer("_", "", "-", "", ".", "").Replace(strings.ToLower(name))
}

// shortName is the length below which two names may differ by a letter and mean different things.
const shortName = 5

// isClose reports whether two names are equal, or one edit makes one from the other.
func isClose(a, b string) bool {
	return a == b || min(len(a), len(b)) >= shortName && spelling.Distance(a, b) == 1
}
