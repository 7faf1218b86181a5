package tokens

import (
	"bytes"
	"errors"

	"github.com/warmpath/warmpath/internal/api"
)

// errShape is returned for bytes that are not a JSON object where one is needed. Bodies have been read strictly by
// internal/api before they come here, so for them it is a broken promise; for engines' answers it is their fault.
var errShape = errors.New("not a JSON object")

// eachField calls yield with the undecoded name (without quotes) and the raw value of each member of the JSON object
// data, in order, until yield returns false. It finds the ends of values and checks no more than that needs: whoever
// uses a value still decodes it. It never reads past data and its stack does not grow with depth.
func eachField(data []byte, yield func(name, value []byte) bool) error {
	i := skipSpace(data, 0)
	if i >= len(data) || data[i] != '{' {
		return errShape
	}
	i = skipSpace(data, i+1)
	if i < len(data) && data[i] == '}' {
		return nil
	}
	for {
		if i >= len(data) || data[i] != '"' {
			return errShape
		}
		end := skipString(data, i)
		if end < 0 {
			return errShape
		}
		name := data[i+1 : end-1]
		if i = skipSpace(data, end); i >= len(data) || data[i] != ':' {
			return errShape
		}
		i = skipSpace(data, i+1)
		if end = skipValue(data, i); end < 0 {
			return errShape
		}
		if !yield(name, data[i:end]) {
			return nil
		}
		i = skipSpace(data, end)
		switch {
		case i < len(data) && data[i] == ',':
			i = skipSpace(data, i+1)
		case i < len(data) && data[i] == '}':
			return nil
		default:
			return errShape
		}
	}
}

// eachMember is eachField for a request's body, which is read again only when it has more members than the first
// reading remembers.
func eachMember(r *api.Request, yield func(name, value []byte) bool) error {
	n, all := r.Members()
	if !all {
		return eachField(r.Body(), yield)
	}
	for i := range n {
		if !yield(r.Member(i)) {
			return nil
		}
	}
	return nil
}

func skipSpace(data []byte, i int) int {
	for i < len(data) && (data[i] == ' ' || data[i] == '\n' || data[i] == '\t' || data[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the index after the string that begins at data[i] = '"', or -1 when it does not end.
func skipString(data []byte, i int) int {
	for i++; ; {
		n := bytes.IndexByte(data[i:], '"')
		if n < 0 {
			return -1
		}
		i += n
		escapes := 0
		for data[i-1-escapes] == '\\' { // the opening quote ends this walk at the latest
			escapes++
		}
		i++
		if escapes%2 == 0 {
			return i
		}
	}
}

// skipValue returns the index after the value that begins at data[i], or -1 when it does not end.
func skipValue(data []byte, i int) int {
	if i >= len(data) {
		return -1
	}
	switch data[i] {
	case '"':
		return skipString(data, i)
	case '{', '[':
		return skipNested(data, i)
	}
	start := i
	for i < len(data) && data[i] != ',' && data[i] != '}' && data[i] != ']' && data[i] > ' ' {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

func skipNested(data []byte, i int) int {
	depth := 0
	for i < len(data) {
		switch data[i] {
		case '"':
			if i = skipString(data, i); i < 0 {
				return -1
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
	return -1
}
