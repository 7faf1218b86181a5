package jsonscan

// Token is the kind of a token that Pieces reads.
type Token uint8

const (
	// None: the piece has no further token.
	None Token = iota
	// OpenObject is '{'.
	OpenObject
	// OpenArray is '['.
	OpenArray
	// Close is the closing bracket of an object or an array. It need not fit the opening bracket.
	Close
	// Unopened is a closing bracket without an opening bracket.
	Unopened
	// Comma is a comma outside of strings.
	Comma
	// String is a whole string or key with its quotes. It has no escapes and no control characters. IsKey says whether
	// it is a key. All other strings and keys have the tokens Quote, then any number of Text, Escape and Control, and
	// Unquote.
	String
	// Quote is an opening quote.
	Quote
	// Text is a part of a string, without escapes and control characters.
	Text
	// Escape is one byte of an escape: the backslash, or the byte after it.
	Escape
	// Control is a control character in a string, which is not valid JSON.
	Control
	// Unquote is a closing quote.
	Unquote
	// Scalar is a part of a number or of a literal, or bytes that are not JSON.
	Scalar
)

// Pieces splits a JSON text into tokens. The text arrives in pieces, which may be split at any byte. A Scanner needs
// the whole text, but a Pieces keeps nothing of it: it is for a text that is forwarded while it is read. A Pieces is
// lenient: no text is an error, and a token may stand where JSON does not allow it. The zero value is ready for the
// beginning of a text. A Pieces is not safe for concurrent use.
type Pieces struct {
	state   pieceState
	isKey   bool   // the present or last string is a key
	wantKey bool   // a string that comes next is a key
	depth   uint   // number of open objects and arrays
	objects uint64 // bit d is set if the container at depth d is an object; from depth 64 on each counts as an array
}

// pieceState says whether a piece begins outside of strings, in a string, or in a string after a backslash.
type pieceState uint8

const (
	outside  pieceState = iota // not in a string
	inString                   // in a string
	inEscape                   // in a string, after a backslash
)

// Depth returns the number of open objects and arrays, as it is after the last token.
func (p *Pieces) Depth() int { return int(p.depth) }

// IsKey reports whether the last token is a key or a part of one. It is for the tokens of strings only.
func (p *Pieces) IsKey() bool { return p.isKey }

// Next takes the first token of piece, which is piece[from:to]. Only white space and colons come before it. The next
// call takes the token after it: give it piece[to:], or the next piece.
func (p *Pieces) Next(piece []byte) (t Token, from, to int) {
	if p.state != outside && len(piece) > 0 {
		t, to = p.inString(piece)
		return t, 0, to
	}
	for i, c := range piece {
		switch c {
		case ' ', '\t', '\n', '\r', ':':
			continue
		case '"':
			p.isKey, p.wantKey = p.wantKey, false
			if end := i + 1 + UnescapedLen(piece[i+1:]); end < len(piece) && piece[end] == '"' {
				return String, i, end + 1
			}
			p.state = inString
			return Quote, i, i + 1
		case '{':
			p.open(1)
			return OpenObject, i, i + 1
		case '[':
			p.open(0)
			return OpenArray, i, i + 1
		case '}', ']':
			p.wantKey = false
			if p.depth == 0 {
				return Unopened, i, i + 1
			}
			p.depth--
			return Close, i, i + 1
		case ',':
			p.wantKey = p.objects>>p.depth&1 != 0
			return Comma, i, i + 1
		}
		return Scalar, i, i + scalarLen(piece[i:])
	}
	return None, len(piece), len(piece)
}

// inString takes a token inside a string. piece is not empty.
func (p *Pieces) inString(piece []byte) (t Token, length int) {
	if p.state == inEscape {
		p.state = inString
		return Escape, 1
	}
	if n := UnescapedLen(piece); n > 0 {
		return Text, n
	}
	switch piece[0] {
	case '"':
		p.state = outside
		return Unquote, 1
	case '\\':
		p.state = inEscape
		return Escape, 1
	}
	return Control, 1
}

// open enters an object (1) or an array (0).
func (p *Pieces) open(object uint64) {
	p.depth++
	if p.depth < 64 {
		p.objects = p.objects&^(1<<p.depth) | object<<p.depth
	}
	p.wantKey = object != 0
}

// scalarLen returns the number of bytes before the first byte that ends a number or a literal.
func scalarLen(b []byte) int {
	for i, c := range b {
		switch c {
		case ' ', '\t', '\n', '\r', '"', '{', '[', '}', ']', ',', ':':
			return i
		}
	}
	return len(b)
}
