package jinja

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	memory "unsafe" // renamed, because a function of this package is called unsafe

	"github.com/warmpath/warmpath/internal/jsonscan"
)

// maxJSONDepth bounds the nesting of arrays and objects. Python's limit is near 1,000.
const maxJSONDepth = 500

// maxValues bounds the number of values in all documents of a Decoder. A value takes up to 200 bytes of memory, but may
// take as few as two bytes of a document. A chat of 40,000 messages with five fields each is within the bound.
const maxValues = 1 << 18

// Dialect is the JSON library of Python whose rules a Decoder follows.
type Dialect uint8

const (
	// Python is Python's module json. NaN and the infinities are numbers, and integers may have any length.
	Python Dialect = iota
	// Orjson is the library orjson. It refuses NaN and the infinities. It reads an integer that does not fit into 64 bits
	// as a float.
	Orjson
)

// Decoder reads JSON documents into values. Integers and floats are different values. If an object has a key twice, the
// key keeps its first position and gets the last value. The zero value is ready for use. All documents that one Decoder
// reads may have 262,144 values together, and may nest 500 levels deep. A document beyond these bounds fails with an
// error that matches ErrLimit.
type Decoder struct{ values int }

// Decode reads one document as Python's json module does. src must not change while the value is in use, because the
// value's texts share src's memory.
func (d *Decoder) Decode(src []byte) (Value, error) { return d.decode(src, Python) }

// DecodeText reads one document from a string, by the rules of dialect.
func (d *Decoder) DecodeText(src string, dialect Dialect) (Value, error) {
	return d.decode(memory.Slice(memory.StringData(src), len(src)), dialect)
}

func (d *Decoder) decode(src []byte, dialect Dialect) (Value, error) {
	r := &reader{Scanner: jsonscan.New(src, maxJSONDepth+1), values: d.values, orjson: dialect == Orjson}
	v := r.value()
	d.values = r.values
	if !r.End() {
		r.Fail("more follows the value")
	}
	if err := r.Err(); err != nil {
		return None, fmt.Errorf("read json: %w", err)
	}
	return v, nil
}

// shared returns the bytes as a string that uses the same memory.
func shared(b []byte) string { return memory.String(memory.SliceData(b), len(b)) }

// reader builds the values of one document.
type reader struct {
	jsonscan.Scanner
	depth  int
	values int // number of values that the Decoder has read so far
	orjson bool
}

// beyond stops reading a document that exceeds a limit of this package. An engine may accept the document.
func (r *reader) beyond(what string) {
	r.Stop(fmt.Errorf("%w: %s at byte %d", ErrLimit, what, r.Pos()))
}

// value reads one value. After an error the result of value has no meaning.
func (r *reader) value() Value {
	if r.values++; r.values > maxValues {
		r.beyond(fmt.Sprintf("more than %d values", maxValues))
	}
	switch r.Peek() {
	case '{':
		return r.object()
	case '[':
		return r.array()
	case '"':
		return Text(r.string(r.Text()))
	case 't':
		if r.Word("true") {
			return trueValue
		}
	case 'f':
		if r.Word("false") {
			return falseValue
		}
	case 'n':
		if r.Word("null") {
			return None
		}
	}
	if !r.orjson {
		for _, special := range specialNumbers {
			if r.Word(special.text) {
				return special.v
			}
		}
	}
	if !jsonscan.IsNumber(r.Peek()) {
		r.Fail("expected a value")
		return None
	}
	return r.number(r.Number())
}

var specialNumbers = [...]struct {
	text string
	v    Value
}{{"NaN", Float(math.NaN())}, {"Infinity", Float(math.Inf(1))}, {"-Infinity", Float(math.Inf(-1))}}

// deeper counts an array or object that begins. The caller decrements depth when the array or object ends.
func (r *reader) deeper() {
	if r.depth++; r.depth > maxJSONDepth {
		r.beyond("nested too deep")
	}
}

func (r *reader) object() Value {
	r.deeper()
	d := &Dict{}
	for more := r.Open('{'); more; more = r.Next('}') {
		key := r.string(r.Key())
		d.Set(key, r.value())
	}
	r.depth--
	return FromDict(d)
}

func (r *reader) array() Value {
	r.deeper()
	l := &list{}
	for more := r.Open('['); more; more = r.Next(']') {
		l.items = append(l.items, r.value())
	}
	r.depth--
	return Value{kind: KindList, ref: l}
}

// string returns the text of a string or key that the scanner has read. It refuses half a surrogate pair, because no
// engine can tokenize half a surrogate pair.
func (r *reader) string(raw []byte, escaped bool) string {
	if !escaped {
		return shared(raw)
	}
	text, ok := jsonscan.Unescape(make([]byte, 0, len(raw)), raw)
	if !ok {
		r.Fail("half a surrogate pair")
	}
	return shared(text)
}

func (r *reader) number(raw []byte) Value {
	text := shared(raw)
	if bytes.ContainsAny(raw, ".eE") {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) {
			r.Fail("expected a number")
		}
		return Float(f)
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return integer(n)
	}
	if len(text) > maxDigits {
		r.Fail("an integer has too many digits")
		return None
	}
	n, ok := new(big.Int).SetString(text, 10)
	if !ok {
		r.Fail("expected a number")
		return None
	}
	if r.orjson && !n.IsUint64() {
		f, _ := new(big.Float).SetInt(n).Float64()
		return Float(f)
	}
	return bigInteger(n)
}
