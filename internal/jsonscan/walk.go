package jsonscan

import (
	"bytes"
	"encoding/binary"
	"iter"
	"math/bits"
)

// The functions of this file are for text that a Scanner has read without an error. They check nothing, so they read
// long strings several times as fast as a Scanner. For other text they return arbitrary parts of the text, but they
// never read beyond its end. Their stack does not grow with the depth of nesting.

// Members returns the keys and values of an object, in the order of the text. A key has the form that Scanner.Key
// returns. If the text is not an object, Members returns nothing.
func Members(object []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		i := spaceEnd(object, 0)
		if i >= len(object) || object[i] != '{' {
			return
		}
		for i = spaceEnd(object, i+1); i < len(object) && object[i] == '"'; {
			end := stringEnd(object, i)
			if end < 0 {
				return
			}
			key := object[i+1 : end-1]
			if i = spaceEnd(object, end); i >= len(object) || object[i] != ':' {
				return
			}
			i = spaceEnd(object, i+1)
			if end = valueEnd(object, i); end < 0 || !yield(key, object[i:end]) {
				return
			}
			i = afterComma(object, end)
		}
	}
}

// Items returns the values of an array, each with its offset in the array's text, in the order of the text. If the text
// is not an array, Items returns nothing.
func Items(array []byte) iter.Seq2[int, []byte] {
	return func(yield func(offset int, value []byte) bool) {
		i := spaceEnd(array, 0)
		if i >= len(array) || array[i] != '[' {
			return
		}
		for i = spaceEnd(array, i+1); i < len(array) && array[i] != ']'; {
			end := valueEnd(array, i)
			if end < 0 || !yield(i, array[i:end]) {
				return
			}
			i = afterComma(array, end)
		}
	}
}

// AppendCompact appends value to dst, without the white space outside of strings.
func AppendCompact(dst, value []byte) []byte {
	for i := 0; i < len(value); {
		switch c := value[i]; {
		case c == '"':
			end := stringEnd(value, i)
			if end < 0 {
				return dst
			}
			dst = append(dst, value[i:end]...)
			i = end
			continue
		case c > ' ':
			dst = append(dst, c)
		}
		i++
	}
	return dst
}

// spaceEnd returns the index of the first byte from i on that is not white space.
func spaceEnd(text []byte, i int) int {
	for i < len(text) && (text[i] == ' ' || text[i] == '\n' || text[i] == '\t' || text[i] == '\r') {
		i++
	}
	return i
}

// afterComma skips the comma and the white space after a value that ends at i. It returns the index of the next key or
// value, or of the closing bracket.
func afterComma(text []byte, i int) int {
	if i = spaceEnd(text, i); i < len(text) && text[i] == ',' {
		i = spaceEnd(text, i+1)
	}
	return i
}

// stringEnd returns the index after the string that begins with the quote text[i], or -1 if the string does not end.
func stringEnd(text []byte, i int) int {
	i++
	// For a short string, eight bytes at a time are faster than IndexByte.
	for short := i + 32; i < short && i+8 <= len(text); i += 8 {
		if m := special(binary.LittleEndian.Uint64(text[i:])); m != 0 {
			if i += bits.TrailingZeros64(m) >> 3; text[i] == '"' {
				return i + 1
			}
			break
		}
	}
	for {
		n := bytes.IndexByte(text[i:], '"')
		if n < 0 {
			return -1
		}
		i += n
		escapes := 0
		for text[i-1-escapes] == '\\' { // the loop ends at the latest at the opening quote
			escapes++
		}
		i++
		if escapes%2 == 0 {
			return i
		}
	}
}

// valueEnd returns the index after the value that begins at text[i], or -1 if the value does not end.
func valueEnd(text []byte, i int) int {
	if i >= len(text) {
		return -1
	}
	switch text[i] {
	case '"':
		return stringEnd(text, i)
	case '{', '[':
		return nestedEnd(text, i)
	}
	start := i
	for i < len(text) && text[i] != ',' && text[i] != '}' && text[i] != ']' && text[i] > ' ' {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

// nestedEnd returns the index after the object or array that begins at text[i], or -1 if it does not end.
func nestedEnd(text []byte, i int) int {
	depth := 0
	for i < len(text) {
		switch text[i] {
		case '"':
			if i = stringEnd(text, i); i < 0 {
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
