package jinja

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

func (r *run) stringMethod(self *Value, name string, a *callArgs) (Value, error) {
	s := self.str
	if err := r.scan(len(s)); err != nil {
		return None, err
	}
	v, err := r.stringCall(self, name, a)
	if err == nil && v.kind == KindString && len(v.str) > 0 {
		v.safe = self.safe
		err = r.step(len(v.str) / bytesPerStep)
	}
	return v, err
}

func (r *run) stringCall(self *Value, name string, a *callArgs) (Value, error) {
	s := self.str
	switch name {
	case "strip":
		return r.stripMethod(s, a, 0)
	case "lstrip":
		return r.stripMethod(s, a, -1)
	case "rstrip":
		return r.stripMethod(s, a, 1)
	case "split", "rsplit":
		return r.split(s, name == "rsplit", a)
	case "splitlines":
		keep := falseValue
		if err := firstError(bound(a, name, []string{"keepends"}, 0, &keep),
			r.grow(valueBytes*(1+lineEnds(s)))); err != nil {
			return None, err
		}
		return r.texts(splitLines(s, keep.truthy())), nil
	case "startswith", "endswith":
		return r.affix(s, name == "startswith", a)
	case "removeprefix", "removesuffix":
		arg, err := a.oneText(name)
		if name == "removeprefix" {
			return Text(strings.TrimPrefix(s, arg)), err
		}
		return Text(strings.TrimSuffix(s, arg)), err
	case "replace":
		return r.replaceMethod(s, a)
	case "find", "rfind", "index", "rindex", "count":
		return r.find(s, name, a)
	case "partition", "rpartition":
		return partition(s, name == "rpartition", a)
	case "join":
		return r.joinMethod(s, a)
	case "format":
		out, err := r.format(s, a.pos, a.kwDict())
		return Text(out), err
	case "format_map":
		if err := a.positional(name, 1, 1); err != nil {
			return None, err
		}
		if a.pos[0].kind != KindDict {
			return None, failf("format_map() takes a mapping")
		}
		out, err := r.format(s, nil, a.pos[0].dict())
		return Text(out), err
	case "center", "ljust", "rjust", "zfill":
		return r.pad(name, s, a)
	case "expandtabs":
		return r.expandTabs(s, a)
	}
	if err := a.positional(name, 0, 0); err != nil {
		return None, err
	}
	if change := stringChanges[name]; change != nil {
		out := change(s)
		return Text(out), r.grow(len(out))
	}
	if holds := stringTests[name]; holds != nil {
		return Bool(holds(s)), nil
	}
	return None, failf("method str.%s is not supported", name)
}

// oneText returns the only argument of a method. The argument must be a text.
func (a *callArgs) oneText(fn string) (string, error) {
	if err := a.positional(fn, 1, 1); err != nil {
		return "", err
	}
	if a.pos[0].kind != KindString {
		return "", failf("%s() argument must be str, not %s", fn, a.pos[0].typeName())
	}
	return a.pos[0].str, nil
}

func (r *run) stripMethod(s string, a *callArgs, side int) (Value, error) {
	if err := a.positional("strip", 0, 1); err != nil {
		return None, err
	}
	chars := None
	if len(a.pos) == 1 {
		chars = a.pos[0]
	}
	out, err := r.strip(s, &chars, side)
	return Text(out), err
}

// strip removes white space, or the characters of chars. If side ≤ 0, it works on the left end of s. If side ≥ 0, it
// works on the right end.
func (r *run) strip(s string, chars *Value, side int) (string, error) {
	drop := IsSpace
	switch chars.kind {
	case KindNone:
	case KindString:
		if err := r.scan(len(s) + len(chars.str)); err != nil {
			return "", err
		}
		set := chars.str
		drop = func(c rune) bool { return strings.ContainsRune(set, c) }
	case KindUndefined:
		return "", failf("strip arg must be None or str")
	default:
		return "", failf("strip arg must be None or str")
	}
	if side <= 0 {
		s = strings.TrimLeftFunc(s, drop)
	}
	if side >= 0 {
		s = strings.TrimRightFunc(s, drop)
	}
	return s, nil
}

func (r *run) texts(parts []string) Value {
	items := make([]Value, len(parts))
	for i, p := range parts {
		items[i] = Text(p)
	}
	return List(items)
}

// window returns s[start:end]. args has start and end, which count characters and may be missing. chars is start as a
// number of characters. If start is beyond the end of s, ok is false.
func window(s string, args []Value) (part string, chars int, ok bool, err error) {
	if len(args) == 0 {
		return s, 0, true, nil
	}
	n := utf8.RuneCountInString(s)
	if args[0].kind == KindInt && args[0].num > int64(n) {
		return "", 0, false, nil
	}
	from, to, err := bounds(args, n)
	if err != nil {
		return "", 0, false, err
	}
	skip := func(s string, n int) int {
		at := 0
		for range n {
			_, size := utf8.DecodeRuneInString(s[at:])
			at += size
		}
		return at
	}
	start := skip(s, from)
	return s[start : start+skip(s[start:], to-from)], from, true, nil
}

func (r *run) affix(s string, prefix bool, a *callArgs) (Value, error) {
	if err := a.positional("startswith", 1, 3); err != nil {
		return None, err
	}
	s, _, ok, err := window(s, a.pos[1:])
	if err != nil {
		return None, err
	}
	candidates := []Value{a.pos[0]}
	if a.pos[0].kind == kindTuple {
		candidates = a.pos[0].items()
	}
	for i := range candidates {
		if candidates[i].kind != KindString {
			return None, failf("startswith first arg must be str or a tuple of str, not %s", candidates[i].typeName())
		}
		if ok && (prefix && strings.HasPrefix(s, candidates[i].str) ||
			!prefix && strings.HasSuffix(s, candidates[i].str)) {
			return trueValue, nil
		}
	}
	return falseValue, r.step(len(candidates))
}

func (r *run) replaceMethod(s string, a *callArgs) (Value, error) {
	if err := a.positional("replace", 2, 3); err != nil {
		return None, err
	}
	if a.pos[0].kind != KindString || a.pos[1].kind != KindString {
		return None, failf("replace() arguments must be str")
	}
	n := int64(-1)
	if len(a.pos) == 3 {
		if !a.pos[2].isSmallInt() {
			return None, failf("'%s' object cannot be interpreted as an integer", a.pos[2].typeName())
		}
		n = a.pos[2].num
	}
	return r.replace(s, a.pos[0].str, a.pos[1].str, n)
}

func (r *run) find(s, name string, a *callArgs) (Value, error) {
	if err := a.positional(name, 1, 3); err != nil {
		return None, err
	}
	if a.pos[0].kind != KindString {
		return None, failf("must be str, not %s", a.pos[0].typeName())
	}
	part, offset, ok, err := window(s, a.pos[1:])
	if err != nil {
		return None, err
	}
	at := -1
	switch {
	case !ok:
		if name == "count" {
			return integer(0), nil
		}
	case name == "count":
		return integer(int64(strings.Count(part, a.pos[0].str))), nil
	case name == "find" || name == "index":
		at = strings.Index(part, a.pos[0].str)
	default:
		at = strings.LastIndex(part, a.pos[0].str)
	}
	if at >= 0 {
		return integer(int64(offset + utf8.RuneCountInString(part[:at]))), nil
	}
	if strings.HasSuffix(name, "index") {
		return None, failf("substring not found")
	}
	return integer(-1), nil
}

func partition(s string, right bool, a *callArgs) (Value, error) {
	sep, err := a.oneText("partition")
	if err != nil {
		return None, err
	}
	if sep == "" {
		return None, failf("empty separator")
	}
	i := strings.Index(s, sep)
	if right {
		i = strings.LastIndex(s, sep)
	}
	switch {
	case i >= 0:
		return newTuple(Text(s[:i]), Text(sep), Text(s[i+len(sep):])), nil
	case right:
		return newTuple(emptyText, emptyText, Text(s)), nil
	}
	return newTuple(Text(s), emptyText, emptyText), nil
}

func (r *run) joinMethod(glue string, a *callArgs) (Value, error) {
	if err := a.positional("join", 1, 1); err != nil {
		return None, err
	}
	items, err := r.listOf(&a.pos[0])
	if err != nil {
		return None, err
	}
	parts := make([]string, len(items))
	size := 0
	for i := range items {
		if items[i].kind != KindString {
			return None, failf("sequence item %d: expected str instance, %s found", i, items[i].typeName())
		}
		parts[i] = items[i].str
		if size += len(parts[i]) + len(glue); size > r.memory {
			return None, r.grow(size)
		}
	}
	return Text(strings.Join(parts, glue)), r.grow(size)
}

// pad does the work of the methods center, ljust, rjust and zfill.
func (r *run) pad(name, s string, a *callArgs) (Value, error) {
	if err := a.positional(name, 1, 2); err != nil {
		return None, err
	}
	fill := " "
	if name == "zfill" {
		fill = "0"
	}
	if len(a.pos) == 2 {
		if fill = a.pos[1].str; a.pos[1].kind != KindString || utf8.RuneCountInString(fill) != 1 || name == "zfill" {
			return None, failf("the fill character must be exactly one character long")
		}
	}
	if !a.pos[0].isSmallInt() {
		return None, failf("'%s' object cannot be interpreted as an integer", a.pos[0].typeName())
	}
	missing := a.pos[0].num - int64(utf8.RuneCountInString(s))
	if missing <= 0 {
		return Text(s), nil
	}
	if err := r.growTimes(len(fill), int(min(missing, 1<<30))); err != nil {
		return None, err
	}
	if err := r.grow(len(s)); err != nil {
		return None, err
	}
	n := int(missing)
	switch name {
	case "ljust":
		return Text(s + strings.Repeat(fill, n)), nil
	case "center":
		left := n/2 + n&int(a.pos[0].num)&1
		return Text(strings.Repeat(fill, left) + s + strings.Repeat(fill, n-left)), nil
	case "zfill":
		if s != "" && (s[0] == '-' || s[0] == '+') {
			return Text(s[:1] + strings.Repeat(fill, n) + s[1:]), nil
		}
	}
	return Text(strings.Repeat(fill, n) + s), nil
}

func (r *run) expandTabs(s string, a *callArgs) (Value, error) {
	size := integer(8)
	if err := bound(a, "expandtabs", []string{"tabsize"}, 0, &size); err != nil {
		return None, err
	}
	if !size.isSmallInt() {
		return None, failf("'%s' object cannot be interpreted as an integer", size.typeName())
	}
	width := max(size.num, 0)
	if err := r.growTimes(int(min(width, 1<<30)), strings.Count(s, "\t")); err != nil {
		return None, err
	}
	var b strings.Builder
	column := int64(0)
	for _, c := range s {
		switch c {
		case '\t':
			if width > 0 {
				n := width - column%width
				b.WriteString(strings.Repeat(" ", int(n)))
				column += n
			}
			continue
		case '\n', '\r':
			column = -1
		}
		b.WriteRune(c)
		column++
	}
	return Text(b.String()), r.grow(b.Len())
}

// asciiDigits replaces the decimal digits of all scripts by ASCII digits. It is needed because Python's int() and
// float() accept the digits of all scripts.
func asciiDigits(s string) string {
	if isASCII(s) {
		return s
	}
	return strings.Map(func(c rune) rune {
		if c < utf8.RuneSelf || !unicode.IsDigit(c) {
			return c
		}
		zero := c
		for n := 0; n < 9 && unicode.IsDigit(zero-1) && (zero-1)>>4 == zero>>4; n++ {
			zero--
		}
		return '0' + (c-zero)%10
	}, s)
}
