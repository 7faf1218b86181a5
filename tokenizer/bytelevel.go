package tokenizer

import "unicode/utf8"

// byteLevelChar has the printable character that stands for each byte in GPT-2's files (openai/gpt-2, src/encoder.py,
// bytes_to_unicode). byteLevelByte is the inverse map.
var byteLevelChar, byteLevelByte = byteLevelTables()

func byteLevelTables() (char [256]rune, inverse map[rune]byte) {
	inverse = map[rune]byte{}
	extra := rune(256)
	for b := range char {
		c := rune(b)
		if !(b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae) {
			c = extra
			extra++
		}
		char[b] = c
		inverse[c] = byte(b)
	}
	return char, inverse
}

// toByteLevel appends the characters that stand for text's bytes.
func toByteLevel(dst []byte, text string) []byte {
	for i := range len(text) {
		dst = utf8.AppendRune(dst, byteLevelChar[text[i]])
	}
	return dst
}

// fromByteLevel appends the bytes for which text's characters stand. If a character stands for no byte, fromByteLevel
// returns false.
func fromByteLevel(dst []byte, text string) ([]byte, bool) {
	before := len(dst)
	for _, c := range text {
		b, ok := byteLevelByte[c]
		if !ok {
			return dst[:before], false
		}
		dst = append(dst, b)
	}
	return dst, true
}
