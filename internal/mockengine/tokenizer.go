package mockengine

import (
	"slices"

	"github.com/warmpath/warmpath/block"
)

// The built-in tokenizer needs no vocabulary file and loses no byte. Cutting or joining texts changes few tokens:
//
//   - a run of lower-case letters, with one space before it if there is one, is cut into pieces of five symbols (a
//     space that no letter follows is a piece of its own);
//   - all other bytes are pieces of up to two bytes;
//   - each piece has one id, and each id one piece.
//
// Text is cut from left to right, and a cut depends only on the bytes at its position. So the text of the first n
// tokens has exactly these tokens, and text that begins with a space can be appended to any text without changing the
// tokens before it. English has about four bytes a token. Ids are below 2^24, some hundred times a real vocabulary.
const (
	byteBase   = 64 // single bytes; special tokens are below
	pairBase   = byteBase + 256
	letterBase = pairBase + 1<<16

	alphabet    = 27 // space and a to z
	maxLetters  = 5
	vocabulary  = letterBase + (alphabet*alphabet*alphabet*alphabet*alphabet*alphabet-alphabet)/(alphabet-1)
	noSymbol    = 0xff
	spaceSymbol = 0
)

// Special tokens. Text never contains them: their spelling in a prompt is plain text.
const (
	tokenBegin block.Token = iota
	tokenEnd               // of a message; a finished answer ends with it
	tokenSystem
	tokenUser
	tokenAssistant
	tokenTool
	tokenTools // definitions
	tokenCall  // a tool call of the assistant
	tokenImage
	tokenOptions // template arguments, documents
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

// letterOffset returns the first id of pieces with n symbols, relative to letterBase.
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

// appendText appends the text of tokens to dst. A special token is written as <|name|>, an id outside the vocabulary
// not at all.
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
