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

// misspelled returns an error if the body of POST /register or POST /unregister has an unknown field whose name is
// close to that of a field of into: without it, a lease, a block size or the only rank to remove would silently not
// count. Fields of other names are ignored, because clients of other services send more than this service needs. A
// client may send to /unregister what it sent to /register.
func misspelled(body []byte, into any) error {
	var fields struct {
		all     map[string]json.RawMessage
		sources []map[string]json.RawMessage
	}
	if err := json.Unmarshal(body, &fields.all); err != nil {
		return err
	}
	_ = json.Unmarshal(fields.all["sources"], &fields.sources) // readRegistration has read them
	err := closeTo(unknown(fields.all, namesOf(registerBody{})), namesOf(into), isLike)
	known := namesOf(registeredFrom{})
	for _, one := range fields.sources {
		if err == nil {
			err = closeTo(unknown(one, known), known, isLike)
		}
	}
	return err
}

// namesOf returns the names of the JSON fields of a structure.
func namesOf(structure any) (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeOf(structure)) {
		if name := f.Tag.Get("json"); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// unknown returns the names of fields that are none of the known ones. encoding/json takes a field in any case.
func unknown(fields map[string]json.RawMessage, known []string) (names []string) {
	for _, field := range slices.Sorted(maps.Keys(fields)) {
		if !slices.ContainsFunc(known, func(name string) bool { return strings.EqualFold(name, field) }) {
			names = append(names, field)
		}
	}
	return names
}

// closeTo returns an error about the first unknown field that is close to a known name: like compares two plain names.
func closeTo(unknown, known []string, like func(field, name string) bool) error {
	for _, field := range unknown {
		for _, name := range known {
			if like(plainName(field), plainName(name)) {
				return fmt.Errorf("there is no field %s; did you mean %s?", api.Quoted(field), name)
			}
		}
	}
	return nil
}

// Names of fields of a question. ownFields are those that a chat or a completion has only here. A body with a chat or a
// completion may have any field of its API besides.
var (
	ownFields = []string{"token_ids", "prompt_token_ids", "model_name", "modelname", "lora_name", "tenant_id", "routing_group", "cache_salt", "extra_key",
		"algorithm", "block_size", "instance_id", "workers", "instances"}
	questionFields = append([]string{"tokens", "keys", "model", "lora", "group", "messages", "prompt"}, ownFields...)
)

const (
	// mostUnknown bounds the unknown fields of a question that are looked at, and longestName their length: to compare
	// millions of names would take seconds.
	mostUnknown = 200
	longestName = 32
)

// plainName returns a name in small letters and without the marks between its words.
func plainName(name string) string {
	return strings.NewReplacer("_", "", "-", "", ".", "").Replace(strings.ToLower(name))
}

// shortName is the length below which two names may differ by a letter and mean different things.
const shortName = 5

// isLike reports whether a field begins a name, or is close to it.
func isLike(field, name string) bool {
	return len(field) >= shortName && strings.HasPrefix(name, field) || isClose(field, name)
}

// isLikeBeside is isLike for a field beside a chat or a completion. Their APIs have fields that begin one of ours, such
// as LiteLLM's cache. None has the field tenant.
func isLikeBeside(field, name string) bool {
	return field == "tenant" && name == "tenantid" || isClose(field, name)
}

// isClose reports whether two names are equal, or one edit makes one from the other.
func isClose(a, b string) bool {
	return a == b || min(len(a), len(b)) >= shortName && spelling.Distance(a, b) == 1
}
