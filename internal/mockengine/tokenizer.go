package mockengine

import (
	"slices"

	"github.com/warmpath/warmpath/block"
)

// The built-in tokenizer needs no vocabulary file and loses no byte. It cuts a text into pieces:
//
//   - a run of lower-case letters, together with a space directly before the run, is cut into pieces of five symbols,
//     and the last piece has the rest (a space without a letter after it is a piece of its own);
//   - all other bytes are pieces of up to two bytes;
//   - each piece has an id, and different pieces have different ids.
//
// The tokenizer works from left to right. The end of a piece depends only on the bytes of the piece and on the byte
// after it. So the text of the first n tokens of a text has exactly these n tokens. If a text that begins with a space
// is appended to another text, the tokens of the other text do not change. English has about four bytes a token. Ids
// are below 2^24, about a hundred times the size of a real vocabulary.
const (
	byteBase   = 64 // first id of single bytes; special tokens have lower ids
	pairBase   = byteBase + 256
	letterBase = pairBase + 1<<16

	alphabet    = 27 // symbols of the alphabet: space and a to z
	maxLetters  = 5
	vocabulary  = letterBase + (alphabet*alphabet*alphabet*alphabet*alphabet*alphabet-alphabet)/(alphabet-1)
	noSymbol    = 0xff
	spaceSymbol = 0
)

// Special tokens. The tokens of a text never include a special token: if a prompt contains the name of a special token,
// the name is ordinary text.
const (
	tokenBegin block.Token = iota
	tokenEnd               // ends a message, and an answer that max_tokens does not cut
	tokenSystem
	tokenUser
	tokenAssistant
	tokenTool
	tokenTools // begins the tool definitions
	tokenCall  // begins a tool call of the assistant
	tokenImage
	tokenOptions // begins template arguments and documents
	numSpecial
)

var specialNames = [numSpecial]string{
	"<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|tools|>", "<|call|>", "<|image|>",
	"<|options|>",
}

// symbols maps a byte to its index in the alphabet, or noSymbol.
var symbols = func() (t [256]uint8) {
	for i := range t {
		t[i] = noSymbol
	}
	t[' '] = spaceSymbol
	for c := 'a'; c <= 'z'; c++ {
		t[c] = uint8(c-'a') + 1
	}
	return t
}()

// letterOffset has, for each n, the first id of pieces with n symbols, relative to letterBase.
var letterOffset = func() (t [maxLetters + 2]uint32) {
	power := uint32(alphabet)
	for n := 1; n <= maxLetters; n++ {
		t[n+1] = t[n] + power
		power *= alphabet
	}
	return t
}()

// appendTokens appends the tokens of text to dst.
func appendTokens[T string | []byte](dst []block.Token, text T) []block.Token {
	dst = slices.Grow(dst, len(text)/4+1)
	for i := 0; i < len(text); {
		s := symbols[text[i]]
		if s == noSymbol {
			if i+1 < len(text) && symbols[text[i+1]] == noSymbol {
				dst = append(dst, pairBase+block.Token(text[i])<<8+block.Token(text[i+1]))
				i += 2
				continue
			}
			dst = append(dst, byteBase+block.Token(text[i]))
			i++
			continue
		}
		value, n := uint32(s), 1
		for n < maxLetters && i+n < len(text) {
			s := symbols[text[i+n]]
			if s == noSymbol || s == spaceSymbol {
				break
			}
			value = value*alphabet + uint32(s)
			n++
		}
		dst = append(dst, letterBase+letterOffset[n]+value)
		i += n
	}
	return dst
}

// appendText appends the text of tokens to dst. It writes a special token as <|name|>. It leaves out an id that is not
// in the vocabulary.
func appendText(dst []byte, tokens []block.Token) []byte {
	for _, t := range tokens {
		dst = appendPiece(dst, t)
	}
	return dst
}

func appendPiece(dst []byte, t block.Token) []byte {
	switch {
	case t < numSpecial:
		return append(dst, specialNames[t]...)
	case t < byteBase || t >= vocabulary:
		return dst
	case t < pairBase:
		return append(dst, byte(t-byteBase))
	case t < letterBase:
		return append(dst, byte((t-pairBase)>>8), byte(t-pairBase))
	}
	t -= letterBase
	n := 1
	for t >= letterOffset[n+1] {
		n++
	}
	t -= letterOffset[n]
	var piece [maxLetters]byte
	for i := n - 1; i >= 0; i-- {
		piece[i] = " abcdefghijklmnopqrstuvwxyz"[t%alphabet]
		t /= alphabet
	}
	return append(dst, piece[:n]...)
}
