package connector

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

//go:embed connectors/*.json
var files embed.FS

// file is the form of connectors/NAME.json. docs/connectors.md describes each field.
type file struct {
	Name   string   `json:"name"`
	About  string   `json:"about"`
	Source string   `json:"source"`
	Engine string   `json:"engine"` // the engine whose usual connector this is, "" for none
	Order  string   `json:"order"`  // orderFirst or orderTogether
	Needs  []string `json:"needs"`  // values without which no request is divided

	// Undivided are members of a client's body with which a request is not divided, with their kinds.
	Undivided map[string]string `json:"undivided"`

	Prefill leg             `json:"prefill"`
	Decode  leg             `json:"decode"`
	Fetch   *leg            `json:"fetch"`
	Release *leg            `json:"release"`
	Answer  answer          `json:"answer"`
	Kept    *kept           `json:"kept"`
	Lists   []string        `json:"lists"`
	Abort   map[string]call `json:"abort"`
	Owns    []string        `json:"owns"`
}

// The orders of the two calls.
const (
	orderFirst    = "prefill first"
	orderTogether = "together"
)

// leg is what is written into the body of one leg.
type leg struct {
	Set     template `json:"set"`     // members that the body has afterwards
	Replace template `json:"replace"` // the same, but only in place of members that the client sent
}

// answer is what the decode leg takes from the answer of the prefill leg.
type answer struct {
	Carried   string            `json:"carried"` // path of an object; "" if nothing is carried
	Has       map[string]string `json:"has"`     // members that the carried object must have, with their kinds
	Is        map[string]string `json:"is"`      // members that, if they are there, have these texts
	Finish    []string          `json:"finish"`  // finish reasons after which there is something to decode; nil is all
	PromptIDs map[string]string `json:"prompt_ids"`
}

// kept is what the next turn's prefill leg takes from the answer of the decode leg.
type kept struct {
	Carried string            `json:"carried"`
	Has     map[string]string `json:"has"`
	Tokens  string            `json:"tokens"`  // the member of the carried object with the number of tokens that have blocks
	Blocks  string            `json:"blocks"`  // the member with the lists of blocks
	IDs     string            `json:"ids"`     // path of the ids of the answer's tokens
	Seconds int               `json:"seconds"` // for how long it may be used
}

// call is a request that aborts a leg.
type call struct {
	Method string   `json:"method"`
	Path   string   `json:"path"`
	Body   template `json:"body"`
}

// read reads the files of all connectors.
func read(files fs.FS) (map[string]*Connector, error) {
	names, err := fs.Glob(files, "connectors/*.json")
	if err != nil {
		return nil, err
	}
	all := make(map[string]*Connector, len(names))
	for _, path := range names {
		text, err := fs.ReadFile(files, path)
		if err != nil {
			return nil, err
		}
		c, err := parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if path != "connectors/"+c.file.Name+".json" {
			return nil, fmt.Errorf("%s describes a connector with another name, %q", path, c.file.Name)
		}
		all[c.file.Name] = c
	}
	return all, nil
}

// parse reads the file of one connector.
func parse(text []byte) (*Connector, error) {
	var f file
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, err
	}
	return &Connector{file: f}, f.check()
}

func (f *file) check() error {
	if f.Name == "" || f.About == "" || f.Source == "" {
		return fmt.Errorf("name, about and source must be given")
	}
	if f.Order != orderFirst && f.Order != orderTogether {
		return fmt.Errorf("order is %q, not %q or %q", f.Order, orderFirst, orderTogether)
	}
	for _, name := range f.Needs {
		if _, known := needs[name]; !known {
			return fmt.Errorf("needs names %q, which is no value of a worker", name)
		}
	}
	for leg := range f.Abort {
		if leg != "prefill" && leg != "decode" {
			return fmt.Errorf("abort names the leg %q, not prefill or decode", leg)
		}
	}
	if f.Order == orderTogether && (f.Answer.Carried != "" || len(f.Answer.PromptIDs) > 0) {
		return fmt.Errorf("nothing is carried from an answer if both legs are sent together")
	}
	for _, has := range []map[string]string{f.Answer.Has, f.keptHas(), f.Undivided} {
		for name, kind := range has {
			if kinds[kind] == nil {
				return fmt.Errorf("%s is %q, not one of %s", name, kind, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
			}
		}
	}
	return nil
}

func (f *file) keptHas() map[string]string {
	if f.Kept == nil {
		return nil
	}
	return f.Kept.Has
}
