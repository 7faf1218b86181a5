package jinja

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// writer encodes JSON as Python's json.dumps does.
type writer struct {
	r         *run
	out       []byte
	ascii     bool
	sortKeys  bool
	indent    string // indentation of each level
	multiline bool
	comma     string
	colon     string
}

func (w *writer) value(v *Value, depth int) error {
	if depth > maxDepth {
		return tooDeep()
	}
	if err := w.r.step(1); err != nil {
		return err
	}
	if len(w.out) > w.r.memory {
		return &limitError{"the memory limit is reached"}
	}
	switch v.kind {
	case KindNone:
		w.out = append(w.out, "null"...)
	case KindBool:
		w.out = strconv.AppendBool(w.out, v.num != 0)
	case KindInt:
		w.out = strconv.AppendInt(w.out, v.num, 10)
	case KindBig:
		var err error
		w.out, err = appendBig(w.out, v.bigOf())
		return err
	case KindFloat:
		w.out = appendFloat(w.out, v.float(), "Infinity", "NaN")
	case KindString:
		w.text(v.str)
	case KindList, kindTuple:
		return w.array(v.items(), depth)
	case KindDict:
		return w.object(v.dict(), depth)
	default:
		return failf("Object of type %s is not JSON serializable", v.typeName())
	}
	return nil
}

func (w *writer) newline(depth int) {
	if !w.multiline {
		return
	}
	w.out = append(w.out, '\n')
	for range depth {
		w.out = append(w.out, w.indent...)
	}
}

func (w *writer) array(items []Value, depth int) error {
	if len(items) == 0 {
		w.out = append(w.out, "[]"...)
		return nil
	}
	w.out = append(w.out, '[')
	for i := range items {
		if i > 0 {
			w.out = append(w.out, w.comma...)
		}
		w.newline(depth + 1)
		if err := w.value(&items[i], depth+1); err != nil {
			return err
		}
	}
	w.newline(depth)
	w.out = append(w.out, ']')
	return nil
}

func (w *writer) object(d *Dict, depth int) error {
	if d.Len() == 0 {
		w.out = append(w.out, "{}"...)
		return nil
	}
	order, err := w.order(d)
	if err != nil {
		return err
	}
	w.out = append(w.out, '{')
	for i := range d.keys {
		k := i
		if order != nil {
			k = order[i]
		}
		if i > 0 {
			w.out = append(w.out, w.comma...)
		}
		w.newline(depth + 1)
		if err := w.key(&d.keys[k], depth); err != nil {
			return err
		}
		w.out = append(w.out, w.colon...)
		if err := w.value(&d.vals[k], depth+1); err != nil {
			return err
		}
	}
	w.newline(depth)
	w.out = append(w.out, '}')
	return nil
}

// order returns the positions of a dict's keys, sorted by key. If the keys are not to be sorted, it returns nil.
func (w *writer) order(d *Dict) ([]int, error) {
	if !w.sortKeys {
		return nil, nil
	}
	order := make([]int, d.Len())
	for i := range order {
		order[i] = i
	}
	err := w.r.sortBy(order, func(i int) *Value { return &d.keys[i] }, false)
	return order, err
}

// key writes a key as a JSON string. Keys may be numbers, booleans and None, because json.dumps accepts them.
func (w *writer) key(k *Value, depth int) error {
	switch k.kind {
	case KindString:
		w.text(k.str)
		return nil
	case KindNone, KindBool, KindInt, KindBig, KindFloat:
		w.out = append(w.out, '"')
		err := w.value(k, depth)
		w.out = append(w.out, '"')
		return err
	}
	return failf("keys must be str, int, float, bool or None, not %s", k.typeName())
}

func (w *writer) text(s string) {
	w.out = append(w.out, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && (c < utf8.RuneSelf && c != 0x7f || !w.ascii) {
			i++
			continue
		}
		if c == 0x7f { // the character is not escaped, even with ensure_ascii
			i++
			continue
		}
		w.out = append(w.out, s[from:i]...)
		switch {
		case c >= utf8.RuneSelf:
			r, n := utf8.DecodeRuneInString(s[i:])
			w.escape(r)
			i += n
			from = i
			continue
		case c == '"' || c == '\\':
			w.out = append(w.out, '\\', c)
		case strings.IndexByte("\b\f\n\r\t", c) >= 0:
			w.out = append(w.out, '\\', "bfnrt"[strings.IndexByte("\b\f\n\r\t", c)])
		default:
			w.escape(rune(c))
		}
		i++
		from = i
	}
	w.out = append(append(w.out, s[from:]...), '"')
}

func (w *writer) escape(r rune) {
	if r >= 0x10000 {
		r -= 0x10000
		w.escape(0xd800 + r>>10)
		w.escape(0xdc00 + r&0x3ff)
		return
	}
	w.out = append(w.out, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

// AppendJSON appends v as Python's json.dumps writes it by default: with a space after each comma and colon, and only
// ASCII. The error matches [ErrLimit] if v nests too deep. Any other error says that Python cannot write v.
func AppendJSON(dst []byte, v Value) ([]byte, error) {
	w := &writer{r: &run{steps: math.MaxInt, memory: math.MaxInt}, out: dst, ascii: true, comma: ", ", colon: ": "}
	if err := w.value(&v, 0); err != nil {
		return dst, err
	}
	return w.out, nil
}
