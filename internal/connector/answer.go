package connector

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/warmpath/warmpath/internal/jsonscan"
)

const (
	// maxCarried is the greatest size of an object that is carried, in bytes. The block ids of a prompt of one million
	// tokens in blocks of 16 take 0.5 MB.
	maxCarried = 4 << 20
	// maxDepth is how deep values in an answer may be nested. Block ids have depth 4; answers with log probabilities
	// and tool calls have less than 16.
	maxDepth = 64
)

// kinds are the kinds of values that a file can name. Each function reports whether a value is of the kind.
var kinds = map[string]func(value []byte) bool{
	"true": func(value []byte) bool { return string(value) == "true" },
	"text": func(value []byte) bool { return len(value) > 2 && value[0] == '"' },
	"number": func(value []byte) bool {
		n, err := strconv.ParseUint(string(value), 10, 64)
		return err == nil && n > 0
	},
	"port": func(value []byte) bool {
		n, err := strconv.ParseUint(string(value), 10, 16)
		return err == nil && n > 0
	},
	"many": func(value []byte) bool {
		n, err := strconv.ParseFloat(string(value), 64)
		return err == nil && n > 1
	},
	"lists": someLists,
	"any":   func(value []byte) bool { return string(value) != "null" },
}

// someLists reports whether a value is a list of lists of integers from 0 on, and one of these is not empty.
func someLists(value []byte) bool {
	some := false
	for _, list := range jsonscan.Items(value) {
		switch {
		case list[0] != '[':
			return false
		case item(list, 0) == nil:
		case !numbers(list):
			return false
		default:
			some = true
		}
	}
	return some
}

// find returns the value at a path such as choices.0.prompt_token_ids in an answer that was read. If an object has a
// key twice, the last value counts, as in Python.
func find(value []byte, path string) []byte {
	for path != "" && value != nil {
		var name string
		name, path, _ = strings.Cut(path, ".")
		if n, err := strconv.Atoi(name); err == nil {
			value = item(value, n)
		} else {
			value = lastMember(value, name)
		}
	}
	if string(value) == "null" {
		return nil
	}
	return value
}

func item(array []byte, n int) []byte {
	for _, value := range jsonscan.Items(array) {
		if n == 0 {
			return value
		}
		n--
	}
	return nil
}

func lastMember(object []byte, name string) (last []byte) {
	for key, value := range jsonscan.Members(object) {
		if sameKey(key, name) {
			last = value
		}
	}
	return last
}

// textOf returns the text of a JSON string.
func textOf(value []byte) (s string, ok bool) {
	if len(value) < 2 || value[0] != '"' {
		return "", false
	}
	text, ok := jsonscan.Unescape(nil, value[1:len(value)-1])
	return string(text), ok
}

// check reads an answer for the first time.
func check(answer []byte) error {
	s := jsonscan.New(answer, maxDepth)
	s.Skip()
	if s.Err() == nil && !s.End() {
		s.Fail("more than one value")
	}
	if s.Err() != nil {
		return fmt.Errorf("the engine's answer cannot be read: %w", s.Err())
	}
	return nil
}

// carry returns the object at a path in an answer that was read, after a look at the members that it must have. An
// engine that gets an incomplete object waits without end, or dies, so nothing incomplete is sent.
func carry(answer []byte, path string, has map[string]string) ([]byte, error) {
	object := find(answer, path)
	switch {
	case object == nil:
		return nil, fmt.Errorf("the engine's answer has no %s: it runs without this KV connector, or it kept no blocks", path)
	case object[0] != '{':
		return nil, fmt.Errorf("%s in the engine's answer is no object", path)
	case len(object) > maxCarried:
		return nil, fmt.Errorf("%s in the engine's answer has %d bytes, more than %d", path, len(object), maxCarried)
	}
	seen := 0
	for key, value := range jsonscan.Members(object) {
		for name, kind := range has {
			if !sameKey(key, name) {
				continue
			}
			if !kinds[kind](value) {
				return nil, fmt.Errorf("%s.%s in the engine's answer is not of the kind %q", path, name, kind)
			}
			seen++
		}
	}
	if seen == len(has) {
		return object, nil
	}
	for name := range has {
		if lastMember(object, name) == nil {
			return nil, fmt.Errorf("%s in the engine's answer has no %s", path, name)
		}
	}
	return nil, fmt.Errorf("%s in the engine's answer has a member twice", path)
}

// numbers reports whether a value is a list of at least one integer from 0 on.
func numbers(value []byte) bool {
	some := false
	for _, n := range jsonscan.Items(value) {
		if _, err := strconv.ParseUint(string(n), 10, 31); err != nil {
			return false
		}
		some = true
	}
	return some
}
