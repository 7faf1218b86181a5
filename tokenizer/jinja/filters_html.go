package jinja

import (
	"html"
	"strings"
	"unicode"
)

// stripTags does the same as markupsafe's striptags. It removes tags and comments, replaces each run of white space by
// one space, and decodes entities.
func stripTags(r *run, v *Value, a *callArgs) (Value, error) {
	if err := a.positional("striptags", 0, 0); err != nil {
		return None, err
	}
	s, err := r.str(v)
	if err != nil {
		return None, err
	}
	if err := r.grow(2 * len(s)); err != nil {
		return None, err
	}
	var b strings.Builder
	for {
		start := strings.IndexByte(s, '<')
		if start < 0 {
			break
		}
		end := -1
		if strings.HasPrefix(s[start:], "<!--") {
			if end = strings.Index(s[start+4:], "-->"); end >= 0 {
				end += start + 7
			}
		} else if end = strings.IndexByte(s[start:], '>'); end >= 0 {
			end += start + 1
		}
		if end < 0 {
			break
		}
		b.WriteString(s[:start])
		s = s[end:]
	}
	b.WriteString(s)
	return Text(html.UnescapeString(strings.Join(strings.FieldsFunc(b.String(), IsSpace), " "))), nil
}

func urlEncode(r *run, v *Value, a *callArgs) (Value, error) {
	if err := a.positional("urlencode", 0, 0); err != nil {
		return None, err
	}
	if v.kind == KindString || !isIterable(v) {
		s, err := r.quoteURL(v, false)
		return Text(s), err
	}
	source := *v
	if v.kind == KindDict {
		source = Value{kind: kindView, ref: &view{v.dict(), viewItems}}
	}
	pairs, err := r.listOf(&source)
	if err != nil {
		return None, err
	}
	parts := make([]string, len(pairs))
	for i := range pairs {
		pair, err := r.unpack(&pairs[i], 2)
		if err != nil {
			return None, err
		}
		key, err := r.quoteURL(&pair[0], true)
		if err != nil {
			return None, err
		}
		val, err := r.quoteURL(&pair[1], true)
		if err != nil {
			return None, err
		}
		parts[i] = key + "=" + val
	}
	return Text(strings.Join(parts, "&")), nil
}

func (r *run) quoteURL(v *Value, query bool) (string, error) {
	s, err := r.str(v)
	if err != nil {
		return "", err
	}
	if err := r.grow(3 * len(s)); err != nil {
		return "", err
	}
	const upperHex = "0123456789ABCDEF"
	b := make([]byte, 0, len(s))
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', isDecimal(c), strings.IndexByte("_.-~", c) >= 0,
			c == '/' && !query:
			b = append(b, c)
		case c == ' ' && query:
			b = append(b, '+')
		default:
			b = append(b, '%', upperHex[c>>4], upperHex[c&15])
		}
	}
	return string(b), nil
}

func wordCount(r *run, v *Value, a *callArgs) (Value, error) {
	if err := a.positional("wordcount", 0, 0); err != nil {
		return None, err
	}
	s, err := r.str(v)
	if err != nil {
		return None, err
	}
	n, inside := int64(0), false
	for _, c := range s {
		word := c == '_' || unicode.IsLetter(c) || unicode.IsNumber(c)
		if word && !inside {
			n++
		}
		inside = word
	}
	return integer(n), r.scan(len(s))
}

func xmlAttr(r *run, v *Value, a *callArgs) (Value, error) {
	autospace := trueValue
	if err := bound(a, "xmlattr", []string{"autospace"}, 0, &autospace); err != nil {
		return None, err
	}
	if v.kind != KindDict {
		return None, failf("'%s' object has no attribute 'items'", v.typeName())
	}
	var parts []string
	d := v.dict()
	for i := range d.keys {
		if k := d.vals[i].kind; k == KindNone || k == KindUndefined {
			continue
		}
		if d.keys[i].kind != KindString || strings.ContainsAny(d.keys[i].str, " \t\n\r\f\v/>=") {
			return None, failf("invalid character in attribute name")
		}
		key, err := r.escape(&d.keys[i])
		if err != nil {
			return None, err
		}
		val, err := r.escape(&d.vals[i])
		if err != nil {
			return None, err
		}
		parts = append(parts, key+`="`+val+`"`)
	}
	s := strings.Join(parts, " ")
	if s != "" && autospace.truthy() {
		s = " " + s
	}
	return Text(s), nil
}
