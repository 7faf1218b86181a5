package connector

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/warmpath/warmpath/internal/jsonscan"
)

// template is a JSON value in which "{name}" stands for a value of the request; see values. A string that is just one
// name becomes the value with its own type; in a longer string the value becomes text. A member without a value is left
// out, and so is an object whose members all have no value. The member "..." stands for all members of another object,
// except those that the template's object names itself.
type template struct {
	members []member // of an object
	object  bool
	rest    string // the value in "..."; "" is none
	parts   []part // of another value
}

type member struct {
	name  string
	value template
}

// part is a piece of a value: text as it is, or a value of the request.
type part struct {
	text  []byte
	value string
	whole bool // the value is not inside a string
}

// maxMembers is the greatest number of members of an object in a template.
const maxMembers = 64

// spread is the key of the member that stands for all members of another object.
const spread = "..."

// UnmarshalJSON reads a template. The order of members is kept.
func (t *template) UnmarshalJSON(text []byte) error {
	if len(text) == 0 || text[0] != '{' {
		return t.leaf(text)
	}
	*t = template{object: true}
	for key, value := range jsonscan.Members(text) {
		if bytes.IndexByte(key, '\\') >= 0 {
			return fmt.Errorf("the key %s has an escape", key)
		}
		var m template
		if err := m.UnmarshalJSON(value); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		if string(key) == spread {
			if len(m.parts) != 1 || !m.parts[0].whole {
				return fmt.Errorf(`%q must be one value such as "{carried}"`, spread)
			}
			t.rest = m.parts[0].value
			continue
		}
		t.members = append(t.members, member{string(key), m})
	}
	if len(t.members) > maxMembers {
		return fmt.Errorf("an object has more than %d members", maxMembers)
	}
	return nil
}

// leaf reads a value that is no object.
func (t *template) leaf(text []byte) error {
	if text[0] == '[' && bytes.IndexByte(text, '{') >= 0 {
		return fmt.Errorf("a list cannot have values of a request or objects: %s", text)
	}
	*t = template{}
	if text[0] != '"' {
		t.parts = []part{{text: bytes.Clone(text)}}
		return nil
	}
	rest := string(text)
	for {
		before, name, found := strings.Cut(rest, "{")
		if !found {
			break
		}
		name, after, closed := strings.Cut(name, "}")
		if _, known := values[name]; !closed || !known {
			return fmt.Errorf("%s names no value of a request: {%s", text, name)
		}
		if before == `"` && after == `"` && len(t.parts) == 0 {
			t.parts = []part{{value: name, whole: true}}
			return nil
		}
		t.parts = append(t.parts, part{text: []byte(before)}, part{value: name})
		rest = after
	}
	t.parts = append(t.parts, part{text: []byte(rest)})
	return nil
}

// append appends the value for a request. ok is false if it has no value. over is the value that the body has so far:
// members of an object that t does not name stay.
func (t *template) append(dst []byte, r *request, over []byte) (out []byte, ok bool) {
	if !t.object {
		return t.appendLeaf(dst, r)
	}
	dst = append(dst, '{')
	start := len(dst)
	var written uint64 // bit i: t.members[i] has a value; there are at most maxMembers
	for i := range t.members {
		m := &t.members[i]
		before := len(dst)
		dst = appendKey(dst, start, m.name)
		if dst, ok = m.value.append(dst, r, nil); !ok {
			dst = dst[:before]
			continue
		}
		written |= 1 << i
	}
	var rest value
	if t.rest != "" {
		rest, _ = r.value(t.rest)
		dst = t.appendRest(dst, start, rest.raw, written, nil)
	}
	dst = t.appendRest(dst, start, over, written, rest.raw)
	return append(dst, '}'), len(dst) > start
}

func (t *template) appendLeaf(dst []byte, r *request) (out []byte, ok bool) {
	before := len(dst)
	for _, p := range t.parts {
		if p.value == "" {
			dst = append(dst, p.text...)
			continue
		}
		v, ok := r.value(p.value)
		if !ok {
			return dst[:before], false
		}
		if p.whole {
			dst = v.append(dst)
		} else {
			dst = v.appendText(dst)
		}
	}
	return dst, true
}

// appendRest appends the members of object, except the members of t that were written, and the members that other has
// too. start is where the members of the object that is written begin in dst.
func (t *template) appendRest(dst []byte, start int, object []byte, written uint64, other []byte) []byte {
	for key, value := range jsonscan.Members(object) {
		if t.has(key, written) || hasMember(other, key) {
			continue
		}
		if len(dst) > start {
			dst = append(dst, ',')
		}
		dst = append(append(dst, '"'), key...)
		dst = append(append(dst, `":`...), value...)
	}
	return dst
}

func (t *template) has(key []byte, written uint64) bool {
	for i := range t.members {
		if written>>i&1 != 0 && sameKey(key, t.members[i].name) {
			return true
		}
	}
	return false
}

func hasMember(object, name []byte) bool {
	for key := range jsonscan.Members(object) {
		if bytes.Equal(key, name) {
			return true
		}
	}
	return false
}

// sameKey reports whether a key as it is written in a text is the name.
func sameKey(key []byte, name string) bool {
	if bytes.IndexByte(key, '\\') < 0 {
		return string(key) == name
	}
	if len(key) > 6*len(name) { // the longest escape of a character has six bytes
		return false
	}
	text, _ := jsonscan.Unescape(nil, key)
	return string(text) == name
}

// appendKey appends a key, after a comma if it is not the first.
func appendKey(dst []byte, start int, name string) []byte {
	if len(dst) > start {
		dst = append(dst, ',')
	}
	return append(appendString(dst, name), ':')
}

// appendString appends s as a JSON string.
func appendString(dst []byte, s string) []byte {
	text, err := json.Marshal(s)
	if err != nil {
		panic("bug: a string has no JSON: " + err.Error())
	}
	return append(dst, text...)
}
