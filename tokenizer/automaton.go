package tokenizer

import "unicode/utf8"

// automaton is a pattern compiled to a deterministic machine over classes of characters. It finds the same match as a
// backtracking engine: the leftmost match, with alternatives and quantifiers in their order of preference. The machine
// does not backtrack. An automaton is immutable, and goroutines may use it concurrently.
//
// A state is a list of threads in order of preference. A thread is one way in which the pattern may match. The list
// ends after the first thread that matches (Cox, "Regular Expression Matching in the Wild",
// https://swtch.com/~rsc/regexp/regexp3.html). A lookahead of one character is decided when the machine reads this
// character. So an edge says whether a match ended before the edge's character.
type automaton struct {
	ascii   [utf8.RuneSelf]uint8 // class of each ASCII character
	classes *runeTable
	end     int      // the class of the end of the text
	width   int      // number of classes including end, rounded up to a power of two
	shift   uint     // log2(width)
	edge    []uint32 // index: state<<shift | class; value: next state<<1 | whether a match ended before this character; state 0 never matches
	start   uint32
	starts  []bool // for each class: whether a match may begin with a character of the class
}

const (
	maxStates  = 4096
	maxClasses = 200
)

// find returns the first match in text at or after from. from must be the start of a character. If there is no match,
// the result start is negative.
func (a *automaton) find(text string, from int) (start, end int) {
	for at := from; at < len(text); {
		c, size := a.classAt(text, at)
		if !a.starts[c] {
			at += size
			continue
		}
		if end := a.match(text, at); end >= 0 {
			return at, end
		}
		at += size
	}
	return -1, -1
}

// match returns the end of the match that begins at position at, or -1 if no match begins there.
func (a *automaton) match(text string, at int) int {
	end := -1
	state := a.start
	edge, shift := a.edge, a.shift
	for at < len(text) {
		b := text[at]
		var e uint32
		size := 1
		if b < utf8.RuneSelf {
			e = edge[state<<shift|uint32(a.ascii[b])]
		} else {
			var r rune
			r, size = decodeRune(text, at)
			e = edge[state<<shift|uint32(a.classes.get(r))]
		}
		if e&1 != 0 {
			end = at
		}
		if state = e >> 1; state == 0 {
			return end
		}
		at += size
	}
	if edge[state<<shift|uint32(a.end)]&1 != 0 {
		end = at
	}
	return end
}

func (a *automaton) classAt(text string, at int) (class uint8, size int) {
	if b := text[at]; b < utf8.RuneSelf {
		return a.ascii[b], 1
	}
	r, size := decodeRune(text, at)
	return a.classes.get(r), size
}

// decodeRune returns the character at position at, and its length in bytes. The text must be valid UTF-8.
func decodeRune(text string, at int) (rune, int) {
	b := text[at]
	switch {
	case b < 0x80:
		return rune(b), 1
	case b < 0xe0:
		return rune(b&0x1f)<<6 | rune(text[at+1]&0x3f), 2
	case b < 0xf0:
		_ = text[at+2]
		return rune(b&0x0f)<<12 | rune(text[at+1]&0x3f)<<6 | rune(text[at+2]&0x3f), 3
	}
	_ = text[at+3]
	return rune(b&0x07)<<18 | rune(text[at+1]&0x3f)<<12 | rune(text[at+2]&0x3f)<<6 | rune(text[at+3]&0x3f), 4
}
