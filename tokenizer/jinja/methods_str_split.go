package jinja

import (
	"strings"
	"unicode/utf8"
)

func (r *run) split(s string, right bool, a *callArgs) (Value, error) {
	sep, most := None, integer(-1)
	if err := bound(a, "split", []string{"sep", "maxsplit"}, 0, &sep, &most); err != nil {
		return None, err
	}
	if !most.isSmallInt() {
		return None, failf("'%s' object cannot be interpreted as an integer", most.typeName())
	}
	limit := most.num
	if limit < 0 {
		limit = int64(len(s)) + 1
	}
	if sep.kind == KindNone || sep.kind == KindString && sep.str != "" { // memory is charged for the number of parts before the parts are built
		if err := r.grow((min(countParts(s, &sep), int(min(limit, int64(len(s)))+1)) + 1) * valueBytes); err != nil {
			return None, err
		}
	}
	var parts []string
	switch {
	case sep.kind == KindNone && right:
		parts = rightFields(s, limit)
	case sep.kind == KindNone:
		parts = leftFields(s, limit)
	case sep.kind != KindString:
		return None, failf("must be str or None, not %s", sep.typeName())
	case sep.str == "":
		return None, failf("empty separator")
	case right:
		for ; limit > 0; limit-- {
			i := strings.LastIndex(s, sep.str)
			if i < 0 {
				break
			}
			parts = append(parts, s[i+len(sep.str):])
			s = s[:i]
		}
		parts = append(parts, s)
		turn(parts)
	default:
		parts = strings.SplitN(s, sep.str, int(min(limit, int64(len(s))))+1)
	}
	return r.texts(parts), nil
}

// countParts returns the number of parts of s between the separators sep. If sep is None, white space separates the
// parts.
func countParts(s string, sep *Value) (n int) {
	if sep.kind == KindString {
		return strings.Count(s, sep.str) + 1
	}
	inside := false
	for _, c := range s {
		if IsSpace(c) {
			inside = false
		} else if !inside {
			inside = true
			n++
		}
	}
	return n
}

func turn(parts []string) {
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
}

func leftFields(s string, limit int64) []string {
	var parts []string
	for {
		s = strings.TrimLeftFunc(s, IsSpace)
		if s == "" {
			return parts
		}
		i := strings.IndexFunc(s, IsSpace)
		if limit == 0 {
			return append(parts, strings.TrimRightFunc(s, IsSpace))
		}
		if i < 0 {
			return append(parts, s)
		}
		parts = append(parts, s[:i])
		s = s[i:]
		limit--
	}
}

func rightFields(s string, limit int64) []string {
	var parts []string
	for {
		s = strings.TrimRightFunc(s, IsSpace)
		if s == "" {
			break
		}
		if limit == 0 {
			parts = append(parts, strings.TrimLeftFunc(s, IsSpace))
			break
		}
		i := strings.LastIndexFunc(s, IsSpace)
		if i < 0 {
			parts = append(parts, s)
			break
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		parts = append(parts, s[i+n:])
		s = s[:i]
		limit--
	}
	turn(parts)
	return parts
}

// lineEnds returns the number of characters in s that end a line.
func lineEnds(s string) (n int) {
	for _, c := range s {
		if lineEnd(c) {
			n++
		}
	}
	return n
}

// splitLines does the same as str.splitlines. As in Python, some characters other than "\n" end a line, too.
func splitLines(s string, keep bool) []string {
	var lines []string
	from := 0
	for i := 0; i < len(s); {
		c, n := utf8.DecodeRuneInString(s[i:])
		if !lineEnd(c) {
			i += n
			continue
		}
		end := i
		i += n
		if c == '\r' && i < len(s) && s[i] == '\n' {
			i++
		}
		if keep {
			end = i
		}
		lines = append(lines, s[from:end])
		from = i
	}
	if from < len(s) {
		lines = append(lines, s[from:])
	}
	return lines
}

func lineEnd(c rune) bool {
	switch c {
	case '\n', '\v', '\f', '\r', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
		return true
	}
	return false
}
