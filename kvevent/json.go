package kvevent

import "math"

// jsonCursor walks over JSON without building anything, so that a hostile text costs no more memory than its length.
// Like cursor it breaks for good at what is no JSON, and leaves a value of another kind where it is.
type jsonCursor struct {
	p      []byte
	i      int
	broken string
}

// maxDepth bounds how deep a skipped value may nest: the events we read are six deep.
const maxDepth = 64

const (
	problemJSON  = "no JSON value"
	problemDepth = "values nest too deep"
	problemComma = "a comma or an end is missing"
	problemKey   = "a key or its colon is missing"
)

func (c *jsonCursor) fail(problem string) {
	if c.broken == "" {
		c.broken = problem
	}
}

// peek returns the first byte of the next value or sign, 0 at the end.
func (c *jsonCursor) peek() byte {
	for ; c.i < len(c.p); c.i++ {
		if b := c.p[c.i]; b != ' ' && b != '\n' && b != '\t' && b != '\r' {
			return b
		}
	}
	return 0
}

// sign takes b, if it is next.
func (c *jsonCursor) sign(b byte) bool {
	if c.peek() != b {
		return false
	}
	c.i++
	return true
}

// next steps to element n of an array or object that ends with end, whose opening sign is taken.
func (c *jsonCursor) next(n int, end byte) bool {
	if c.broken != "" || c.sign(end) {
		return false
	}
	if n > 0 && !c.sign(',') {
		c.fail(problemComma)
		return false
	}
	return true
}

// key takes a key and its colon. Escapes stay as they are: no key that we know has any.
func (c *jsonCursor) key() []byte {
	k, ok := c.text()
	if !ok || !c.sign(':') {
		c.fail(problemKey)
	}
	return k
}

// text takes a string, escapes and all.
func (c *jsonCursor) text() ([]byte, bool) {
	if c.peek() != '"' {
		return nil, false
	}
	start := c.i + 1
	for i := start; i < len(c.p); i++ {
		switch b := c.p[i]; {
		case b == '"':
			c.i = i + 1
			return c.p[start:i], true
		case b == '\\':
			i++
		case b < ' ':
			c.i = i
			c.fail(problemJSON)
			return nil, false
		}
	}
	c.i = len(c.p)
	c.fail(problemEnd)
	return nil, false
}

// word takes a literal such as null.
func (c *jsonCursor) word(w string) bool {
	if c.peek() != w[0] || len(c.p)-c.i < len(w) || string(c.p[c.i:c.i+len(w)]) != w {
		return false
	}
	c.i += len(w)
	return true
}

// integer takes an integer of -2^63..2^64-1 modulo 2^64.
func (c *jsonCursor) integer() (v uint64, negative, ok bool) {
	c.peek()
	i := c.i
	if i < len(c.p) && c.p[i] == '-' {
		negative = true
		i++
	}
	digits := i
	for ; i < len(c.p) && c.p[i] >= '0' && c.p[i] <= '9'; i++ {
		digit := uint64(c.p[i] - '0')
		if v > (math.MaxUint64-digit)/10 {
			return 0, false, false
		}
		v = v*10 + digit
	}
	if i == digits || negative && v > 1<<63 {
		return 0, false, false
	}
	if i < len(c.p) && (c.p[i] == '.' || c.p[i] == 'e' || c.p[i] == 'E') {
		return 0, false, false
	}
	c.i = i
	if negative {
		v = -v
	}
	return v, negative, true
}

// size takes an integer of 0..limit.
func (c *jsonCursor) size(limit uint64) (uint64, bool) {
	start := c.i
	v, negative, ok := c.integer()
	if !ok || negative || v > limit {
		c.i = start
		return 0, false
	}
	return v, true
}

// skip takes one value of any kind.
func (c *jsonCursor) skip() bool {
	var open [maxDepth]byte
	depth := 0
	for c.broken == "" {
		switch b := c.peek(); b {
		case '[', '{':
			if depth == maxDepth {
				c.fail(problemDepth)
				return false
			}
			c.i++
			open[depth] = b + 2 // the sign that closes it, in ASCII
			depth++
			if c.step(&open, &depth, true) {
				return true
			}
			continue
		case '"':
			c.text()
		default:
			if !c.scalar(b) {
				c.fail(problemJSON)
			}
		}
		if c.broken == "" && c.step(&open, &depth, false) {
			return true
		}
	}
	return false
}

// step goes on after a value, or after an opening sign when first: it takes closing signs and what leads to the next
// value. It reports whether the outermost value is complete.
func (c *jsonCursor) step(open *[maxDepth]byte, depth *int, first bool) bool {
	for *depth > 0 {
		end := open[*depth-1]
		if c.sign(end) {
			*depth--
			first = false
			continue
		}
		if !first && !c.sign(',') {
			c.fail(problemComma)
			return false
		}
		if end == '}' {
			c.key()
		}
		return false
	}
	return true
}

// scalar takes a number or a literal that begins with b.
func (c *jsonCursor) scalar(b byte) bool {
	if b != '-' && (b < '0' || b > '9') {
		return c.word("null") || c.word("true") || c.word("false")
	}
	for c.i++; c.i < len(c.p); c.i++ {
		switch b := c.p[c.i]; {
		case b >= '0' && b <= '9', b == '.', b == 'e', b == 'E', b == '+', b == '-':
		default:
			return true
		}
	}
	return true
}
